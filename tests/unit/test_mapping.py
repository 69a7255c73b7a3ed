"""Mapped types: each is mapped completely, and is received as it was sent."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel._proto import common_pb2, job_master_pb2, tasks_pb2
from firesteel.common.checkpoints.descriptions import StateDescription, StateKind
from firesteel.common.rpc import mapping
from firesteel.common.rpc.convert import BLOB, OPERATOR_EVENT
from firesteel.common.rpc.errors import RemoteProtocolError
from firesteel.common.rpc.mapping import ENVELOPES, VIEWS, Envelope, Wire, compile_all
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
for package in ("firesteel", "dispatcher", "resourcemanager", "jobmaster", "taskexecutor"):
    for path in (ROOT / package).rglob("*.py"):
        if "common.rpc.mapping import" in path.read_text():
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
compile_all()
WIRES = [view for view in VIEWS.values() if isinstance(view, Wire)]

_NO_NUL = st.characters(exclude_characters="\0", exclude_categories=("Cs",))  # some are escaped
_jsons = st.none() | st.dictionaries(st.text(), st.text() | st.integers(-9, 9), min_size=1)
_SPECIAL: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(_NO_NUL, max_size=8),
    bytes: st.binary(max_size=8),
    bool: st.booleans(),
    int: st.integers(0, 2**31 - 1),
    float: st.floats(allow_nan=False),
    NoneType: st.none(),
    Any: _jsons,
    StateDescription: st.builds(StateDescription, kind=st.sampled_from(StateKind), keys=_jsons),
    pa.Schema: st.just(pa.schema([("a", pa.int64())])),
    tuple[Any, ...]: st.lists(
        st.builds(tasks_pb2.HeldSplits, operator_id=st.text(), places=st.lists(st.integers(0, 9))),
        max_size=2,
    ).map(tuple),  # relayed
}
# Strategies of fields whose codec does not take every value.
_FIELDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "SlotRevoked": {"cause": st.text(_NO_NUL, min_size=1)},
    "TaskMetrics": {"watermark_us": st.integers(1, 9)},
    "JobStatusReported": {
        "final_details": st.none()
        | st.builds(job_master_pb2.JobDetails, name=st.text()).map(lambda d: d.SerializeToString())
    },
    "CheckpointDeclined": {"cause": st.text(_NO_NUL, min_size=1)},
}
_DECODED_ONLY = {"SlotRequested"}


def values(hint: Any) -> st.SearchStrategy[Any]:
    hint = getattr(hint, "__supertype__", hint)
    if hint in _SPECIAL:
        return _SPECIAL[hint]
    origin, of = get_origin(hint), [values(arg) for arg in get_args(hint) if arg is not Ellipsis]
    if origin in (Union, UnionType):
        return st.one_of(of)
    if origin in (dict, Mapping):
        return st.dictionaries(*of, max_size=2)
    inner = get_args(hint)[0] if origin is tuple and len(of) == 1 else None
    if get_origin(inner) is tuple and len(pair := get_args(inner)) == 2 and Ellipsis not in pair:
        pairs = st.dictionaries(*map(values, pair), max_size=2)  # as they are in a map
        return pairs.map(lambda found: tuple(sorted(found.items())))
    if origin is tuple and len(of) > 1:
        return st.tuples(*of)
    if origin in (list, frozenset, tuple, Sequence):
        return st.lists(of[0], max_size=2).map(tuple if origin is Sequence else origin)
    return st.sampled_from(hint) if issubclass(hint, Enum) else instances(hint)


@cache
def instances(kind: type) -> st.SearchStrategy[Any]:
    fields = {name: values(hint) for name, hint in get_type_hints(kind).items()}
    return st.builds(kind, **(fields | _FIELDS.get(kind.__name__, {})))


def sent(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


def fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in get_type_hints(type(value))}


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: f"{wire.kind.domain.__qualname__}")
@given(st.data())
@settings(max_examples=25)
def test_what_is_encoded_is_decoded_to_the_same(wire: Wire[Any, Any], data: st.DataObject) -> None:
    value = data.draw(instances(wire.kind.domain))
    context = {name: getattr(value, name) for name in wire.context}
    assert fields(wire.decode(sent(wire.encode(value)), **context)) == fields(value)


@pytest.mark.parametrize(
    ("envelope", "name"),
    [
        pytest.param(envelope, name, id=f"{envelope.message.DESCRIPTOR.name}.{name}")
        for envelope in ENVELOPES
        for name, kind in envelope.kinds.items()
        if kind.domain.__name__ not in _DECODED_ONLY
    ],
)
@given(st.data())
@settings(max_examples=25)
def test_every_kind_of_an_envelope_is_decoded_to_the_same(
    envelope: Envelope[Any, Any], name: str, data: st.DataObject
) -> None:
    value = data.draw(instances(envelope.kinds[name].domain))
    context = {field: getattr(value, field, None) for field in envelope.context}
    assert fields(envelope.decode(sent(envelope.encode(value)), **context)) == fields(value)


class Partition(NamedTuple):
    result_id: str
    producer: int
    attempt: int


class Short(NamedTuple):
    result_id: str
    producer: int


class Long(NamedTuple):
    result_id: str
    producer: int
    attempt: int
    rows: int


@dataclass
class Nullable:
    result_id: str | None
    producer: int
    attempt: int


@dataclass
class Misfit:
    result_id: bytes
    producer: int
    attempt: int


@pytest.mark.parametrize(
    ("domain", "fault"),
    [
        (Short, "Short has no field for PartitionId.attempt"),
        (Long, "PartitionId has no field for Long.rows"),
        (Nullable, "PartitionId.result_id must be `optional`, because it may be None"),
        (Misfit, "PartitionId.result_id does not hold <class 'bytes'>"),
    ],
)
def test_a_field_that_one_side_lacks_is_refused(domain: type, fault: str) -> None:
    wire = Wire(domain, tasks_pb2.PartitionId)
    with pytest.raises(TypeError, match=fault):
        _ = wire.encode


def test_a_pair_is_mapped_once() -> None:
    Wire(Partition, tasks_pb2.PartitionId)
    with pytest.raises(TypeError, match="Partition is already mapped to PartitionId"):
        Wire(Partition, tasks_pb2.PartitionId)


def test_an_unknown_enum_value_is_named() -> None:
    message = common_pb2.BlobRef.FromString(b"\x18\x2a")  # field 3: 42
    with pytest.raises(RemoteProtocolError, match="^BlobRef.kind: 42 is not a value of BlobKind$"):
        BLOB.decode(message)


def test_a_message_without_its_kind_is_named() -> None:
    with pytest.raises(
        RemoteProtocolError,
        match="^OperatorEvent without a message, or with one of an unknown kind$",
    ):
        OPERATOR_EVENT.decode(tasks_pb2.OperatorEvent(job_id="j"))


def test_declarations_are_compiled_before_their_first_use(monkeypatch) -> None:
    class Other(NamedTuple):
        result_id: str
        producer: int
        attempt: int

    monkeypatch.setattr(mapping, "VIEWS", {})
    wire = Wire(Other, tasks_pb2.PartitionId)
    assert vars(wire).keys().isdisjoint({"encode", "decode"})
    compile_all()
    assert {"encode", "decode"} <= vars(wire).keys()
    assert all({"encoders", "decoders"} <= vars(each).keys() for each in ENVELOPES)


def test_threads_build_converters_that_need_each_other() -> None:
    """The decoder of a whole needs the encoder of its parts, which another thread builds."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            numbers = ("partition", "current_offset", "committed_offset", "end_offset")
            optional = {"committed_offset", "end_offset"}
            part = make_dataclass(
                "Part",
                [
                    ("topic", str),
                    *((name, int | None if name in optional else int) for name in numbers),
                    ("paused", bool),
                ],
            )
            counts = ("assigned_partitions", "paused_partitions", "pending_records", "largest_lag")
            whole = make_dataclass(
                "Whole",
                [
                    *((name, int) for name in (*counts, "failed_commits")),
                    ("throttle_ms", float),
                    ("partitions", tuple[part, ...]),  # type: ignore[valid-type]
                ],
            )
            parts = Wire(part, common_pb2.PartitionProgress)
            wholes = Wire(whole, common_pb2.TopicProgress)
            start = threading.Barrier(2)
            threads = [
                threading.Thread(target=build, args=(start, wire, name), daemon=True)
                for wire, name in ((wholes, "decode"), (parts, "encode"))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
                assert not thread.is_alive(), "the threads wait for each other"
            for wire in (parts, wholes):
                del VIEWS[wire.kind.domain, wire.message.DESCRIPTOR.full_name]
    finally:
        sys.setswitchinterval(interval_s)


def build(start: threading.Barrier, wire: Wire[Any, Any], name: str) -> None:
    start.wait()
    getattr(wire, name)
