"""The `_metadata` file: read back as it was written, or refused with the reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel._proto import checkpoints_pb2 as pb
from firesteel.common.checkpoints.descriptions import StateDescription, StateKind
from firesteel.common.checkpoints.metadata import (
    VERSION,
    CheckpointedOperator,
    CheckpointMetadata,
    decode,
    decode_snapshots,
    encode,
    encode_snapshots,
)
from firesteel.common.checkpoints.state import (
    InFlight,
    InlineHandle,
    KeyedHandle,
    KeyGroupSlice,
    OperatorSnapshot,
    StateFile,
    TableSlice,
)
from firesteel.common.checkpoints.storage import StorageError
from firesteel.common.ids import JobId, OperatorId, ResultId
from firesteel.common.job_graph import Partitioner
from firesteel.common.key_groups import KeyGroupRange

ids = st.from_regex("[0-9a-f]{32}", fullmatch=True)
sizes = st.integers(0, 2**62)
files = st.builds(StateFile, path=st.text(), size_bytes=sizes, checksum=ids)
slices = st.builds(KeyGroupSlice, st.integers(0, 32767), sizes, sizes, ids)
key_groups = st.builds(KeyGroupRange, st.integers(0, 2**15), st.integers(0, 2**15))
tables = st.builds(TableSlice, st.text(), key_groups, sizes, sizes, ids)
handles = st.builds(
    KeyedHandle,
    file=files,
    slices=st.lists(slices, max_size=3).map(tuple),
    tables=st.lists(tables, max_size=3).map(tuple),
)
inline = st.builds(
    InlineHandle,
    key_groups=key_groups,
    content=st.binary(),
)
in_flight = st.builds(
    InFlight,
    result_id=ids.map(ResultId),
    partitioner=st.sampled_from(Partitioner),
    file=files,
    batches=st.dictionaries(st.integers(0, 2**15), st.integers(1, 99), max_size=2).map(
        lambda counts: tuple(sorted(counts.items()))
    ),
)
items = st.dictionaries(st.text(), st.lists(st.binary(), max_size=3).map(tuple), max_size=2)
snapshots = st.builds(
    OperatorSnapshot,
    operator_id=ids.map(OperatorId),
    keyed=st.lists(handles, max_size=2).map(tuple),
    inline=st.lists(inline, max_size=2).map(tuple),
    in_flight=st.lists(in_flight, max_size=2).map(tuple),
    lists=items,
    union_lists=items,
    broadcasts=st.dictionaries(st.text(), st.binary(), max_size=2),
    watermark_us=st.none() | st.integers(-(2**63), 2**63 - 1),
)
texts = st.dictionaries(st.text(), st.text(), max_size=2)
descriptions = st.builds(
    StateDescription,
    kind=st.sampled_from(StateKind),
    keys=texts,
    values=st.none() | texts,
    map_keys=st.none() | texts,
    ttl_ms=st.none() | sizes,
    meaning=texts,
    columns=texts,
    replaces=st.booleans(),
)
json = st.none() | st.dictionaries(st.text(), st.integers(-(2**53), 2**53) | st.text(), min_size=1)
operators = st.builds(
    CheckpointedOperator,
    operator_id=ids.map(OperatorId),
    uid=st.text(),
    name=st.text(),
    parallelism=st.integers(1, 2**15),
    max_parallelism=st.integers(1, 2**15),
    finished=st.booleans(),
    coordinator=json,
    states=st.dictionaries(st.text(), descriptions, max_size=2),
    subtasks=st.dictionaries(st.integers(0, 2**15), snapshots, max_size=2),
)
checkpoints = st.builds(
    CheckpointMetadata,
    checkpoint_id=st.integers(1, 2**62),
    job_id=ids.map(JobId),
    job_name=st.text(),
    timestamp_ms=st.integers(0, 2**50),
    savepoint=st.booleans(),
    operators=st.lists(operators, max_size=2).map(tuple),
)


@given(checkpoints)
def test_metadata_is_read_as_it_was_written(metadata: CheckpointMetadata) -> None:
    assert decode(encode(metadata), "_metadata") == metadata


@given(st.lists(snapshots, max_size=3).map(tuple))
def test_a_task_restores_operators_without_state_too(
    found: tuple[OperatorSnapshot, ...],
) -> None:
    assert decode_snapshots(encode_snapshots(found)) == found


SMALL = CheckpointMetadata(
    checkpoint_id=1,
    job_id=JobId("0" * 32),
    job_name="job",
    timestamp_ms=0,
    savepoint=False,
    operators=(),
)


def test_every_cut_and_every_changed_byte_is_noticed() -> None:
    content = encode(SMALL)
    for n in range(len(content)):
        with pytest.raises(StorageError, match=r"chk-1/_metadata is (not|cut short or damaged)"):
            decode(content[:n], "chk-1/_metadata")
        changed = content[:n] + bytes([content[n] ^ 1]) + content[n + 1 :]
        with pytest.raises(StorageError, match=r"chk-1/_metadata is (not|cut short or damaged)"):
            decode(changed, "chk-1/_metadata")


def test_a_newer_format_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firesteel.common.checkpoints.metadata.VERSION", VERSION + 1)
    newer = encode(SMALL)
    monkeypatch.undo()
    assert pb.CheckpointMetadata.FromString(newer[24:]).version == VERSION + 1
    with pytest.raises(StorageError, match=f"has format {VERSION + 1}; this version .* {VERSION}:"):
        decode(newer, "_metadata")
