"""Tests a processor that resumes from a checkpoint with states that it declares differently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import DoubleType, IntegerType, StructField, StructType

from firesteel.common.checkpoints.descriptions import StateDescription
from firesteel.common.checkpoints.evolution import changed_states, kept_states
from firesteel.errors import FiresteelError
from firesteel.operators import TransformWithStateSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.transform_with_state import TransformWithState
from taskexecutor.executor.operators.transform_with_state.analysis import check_processor
from taskexecutor.executor.state import CreateKeyedState, HashMapKeyedStateBackend
from tests.backends import BACKENDS, creator, databases

IN = pa.schema([("key", pa.int64()), ("n", pa.int64())])
OUT = pa.schema([("seen", pa.string())])
ROW = pa.RecordBatch.from_pylist([{"key": 1, "n": 0}], schema=IN)
BEGAN_MS = 1_000_000

Declare = Callable[[Any], Any]


class Program(StatefulProcessor):
    """Returns, in one row, what `seen` computes from the declared state."""

    def __init__(self, declare: Declare, seen: Callable[[Any], Any]) -> None:
        self.declare, self.seen = declare, seen

    def init(self, handle: Any) -> None:
        self.state = self.declare(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(seen=repr(self.seen(self.state)))


class Version:
    """A program, from its analysis to a checkpoint."""

    def __init__(
        self,
        declare: Declare,
        seen: Callable[[Any], Any],
        before: Version | None = None,
        now_ms: int = BEGAN_MS,
        keep: CreateKeyedState = HashMapKeyedStateBackend,
    ) -> None:
        self.now_ms = now_ms
        spec = TransformWithStateSpec(
            processor=Program(declare, seen),
            key_columns=("key",),
            output_schema=OUT,
            time_mode="processing_time",
        )
        now = check_processor(spec, "program")
        was = before.states if before is not None else {}
        self.problem = changed_states(was, now)
        self.states = kept_states(was, now)
        restored = None
        if before is not None:
            restored = replace(before.harness.checkpoint(1), states=was)
        self.harness = OperatorHarness(
            TransformWithState(spec, lambda: self.now_ms),
            [IN],
            output_schema=OUT,
            name="program",
            restored=restored,
            create_keyed_state=keep,
        )

    def says(self) -> Any:
        self.harness.open()
        self.harness.process(ROW)
        self.harness.flush()
        return eval(self.harness.rows()[-1]["seen"], {"Row": Row})


def value(schema: Any, ttl_ms: int | None = None) -> Declare:
    return lambda handle: handle.getValueState("s", schema, ttl_ms)


def list_of(schema: Any, ttl_ms: int | None = None) -> Declare:
    return lambda handle: handle.getListState("s", schema, ttl_ms)


def map_of(schema: Any, keys: str = "k INT", ttl_ms: int | None = None) -> Declare:
    return lambda handle: handle.getMapState("s", keys, schema, ttl_ms)


def column(name: str, kind: Any, default: Any, nullable: bool = False) -> StructField:
    return StructField(name, kind, nullable, {"default": default})


@pytest.mark.parametrize(
    ("before", "kept", "after", "restored"),
    [
        ("a INT", (1,), "a INT, b STRING", (1, None)),
        (
            "a INT",
            (1,),
            StructType().add("a", "integer").add(column("b", IntegerType(), 7)),
            (1, 7),
        ),
        ("a INT", (1,), StructType([column("b", DoubleType(), 2)]).add("a", "integer"), (2.0, 1)),
        ("a INT, b STRING", (1, "x"), "a INT", (1,)),
        ("a INT, b STRING", (1, "x"), "b STRING, a INT", ("x", 1)),
        ("a INT, b FLOAT", (1, 1.5), "a BIGINT, b DOUBLE", (1, 1.5)),
        ("a INT", (3,), "a DOUBLE", (3.0,)),
        ("a INT", (None,), "a DOUBLE", (None,)),
        ("a ARRAY<INT>", ([1, None],), "a ARRAY<DOUBLE>", ([1.0, None],)),
        (
            "a STRUCT<x: INT>, m MAP<STRING, STRUCT<x: INT>>",
            ((1,), {"k": (2,)}),
            "a STRUCT<y: STRING, x: INT>, m MAP<STRING, STRUCT<x: DOUBLE>>",
            (Row(y=None, x=1), {"k": Row(x=2.0)}),
        ),
    ],
)
@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_values_get_the_columns_that_are_declared_now(
    kind: str, before: str, kept: Any, after: Any, restored: Any
) -> None:
    puts: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
        "value": (value, lambda state: state.update(kept), lambda state: state.get()),
        "list": (list_of, lambda state: state.put([kept]), lambda state: next(state.get())),
        "map": (
            map_of,
            lambda state: state.updateValue((1,), kept),
            lambda state: state.getValue((1,)),
        ),
    }
    declare, put, get = puts[kind]
    first = Version(declare(before), put)
    first.says()
    second = Version(declare(after), get, first)
    assert second.problem == ""
    found = second.says()
    assert found == restored
    assert [type(one) for one in found] == [type(one) for one in restored]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            value("a BIGINT"),
            value("a STRING"),
            "its state 's' cannot be restored: its column 'a' was BIGINT in the checkpoint, and is STRING now",
        ),
        (value("a BIGINT"), value("a INT"), "its column 'a' was BIGINT .* and is INT now"),
        (value("a BIGINT"), value("a DOUBLE"), "its column 'a' was BIGINT .* and is DOUBLE now"),
        (
            value("p STRUCT<a: ARRAY<STRING>>"),
            value("p STRUCT<a: ARRAY<INT>>"),
            "its column 'p.a' was STRING .* and is INT now",
        ),
        (
            value("count INT"),
            value("n BIGINT"),
            r"its column 'count' \(INT\) is gone and 'n' \(BIGINT\) is new, which looks like another name",
        ),
        (
            value("a INT"),
            value("a INT, b INT NOT NULL"),
            r"its column 'b' \(INT\) is new, not nullable and has no default",
        ),
        (
            value("a INT"),
            list_of("a INT"),
            "it is a value in the checkpoint but a list in the program",
        ),
        (
            map_of("v INT", "k INT"),
            map_of("v INT", "k STRING"),
            r"the keys of the map were \(k INT\) in the checkpoint, and are \(k STRING\) now",
        ),
    ],
)
def test_what_cannot_be_the_same_is_refused(before: Declare, after: Declare, says: str) -> None:
    first = Version(before, repr)
    first.says()
    second = Version(after, repr, first)
    with pytest.raises(AssertionError, match=says):  # by the JobMaster, before data flows
        raise AssertionError(second.problem)
    with pytest.raises(FiresteelError, match=says.removeprefix("its state 's' ")):
        second.harness.open()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_values_of_all_keys_change(backend: str) -> None:
    keys = pa.RecordBatch.from_pydict({"key": range(200), "n": range(200)}, schema=IN)
    with databases() as folder:
        keep = creator(backend, folder)
        first = Version(value("a INT"), lambda state: state.update((1,)), keep=keep)
        first.harness.open()
        first.harness.process(keys)
        second = Version(value("b INT, a DOUBLE"), lambda state: state.get(), first, keep=keep)
        second.harness.open()
        second.harness.process(keys)
        second.harness.flush()
        assert [row["seen"] for row in second.harness.rows()] == ["(None, 1.0)"] * 200
        for version in (first, second):
            version.harness.close()


def test_a_state_that_is_deleted_first_may_become_another() -> None:
    first = Version(value("a INT"), lambda state: state.update((1,)))
    first.says()

    def declare(handle: Any) -> Any:
        handle.deleteIfExists("s")
        return handle.getListState("s", "b STRING")

    second = Version(declare, lambda state: list(state.get()), first)
    assert second.problem == ""
    assert second.says() == []
    deleted = Version(lambda handle: handle.deleteIfExists("s"), repr, first)
    assert deleted.states == {}


def test_a_state_that_is_not_declared_for_a_time_comes_back() -> None:
    first = Version(value("a INT"), lambda state: state.update((1,)))
    first.says()
    second = Version(lambda handle: handle.getValueState("other", "o INT"), repr, first)
    second.says()
    third = Version(value("a INT, b STRING"), lambda state: state.get(), second)
    assert third.says() == (1, None)


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "passes_ms", "seen"),
    [
        (None, 100, 99, [(1,), (2,)]),
        (None, 100, 100, []),
        (100, None, 10_000, [(1,), (2,)]),
        (1000, 100, 100, []),  # nothing outlives a shorter one
        (100, 1000, 99, [(1,), (2,)]),
        (100, 1000, 100, []),
    ],
)
def test_times_to_live_may_change(
    before_ms: int | None, after_ms: int | None, passes_ms: int, seen: list[Any]
) -> None:
    first = Version(list_of("a INT", before_ms), lambda state: state.put([(1,), (2,)]))
    first.says()
    second = Version(list_of("a INT", after_ms), lambda state: list(state.get()), first)
    second.harness.open()
    second.now_ms += passes_ms
    second.harness.process(ROW)
    second.harness.flush()
    assert eval(second.harness.rows()[-1]["seen"]) == seen


def test_what_has_expired_does_not_come_back_without_a_time_to_live() -> None:
    first = Version(map_of("v INT", ttl_ms=100), lambda state: state.updateValue((1,), (1,)))
    first.says()
    second = Version(
        map_of("v INT"), lambda state: list(state.iterator()), first, now_ms=BEGAN_MS + 100
    )
    assert second.says() == []


@pytest.mark.parametrize(
    ("kind", "default", "says"),
    [
        (IntegerType(), "x", "the default of 'b' is int and cannot hold str 'x'"),
        (StructType(), {}, "only numbers, strings and booleans can have a default"),
    ],
)
def test_a_default_fits_its_column(kind: Any, default: Any, says: str) -> None:
    schema = StructType([column("b", kind, default)])
    with pytest.raises(FiresteelError, match=says):
        Version(value(schema), repr)


def test_descriptions_are_read_as_they_were_written() -> None:
    (found,) = Version(map_of("v INT", ttl_ms=5), repr).states.values()
    assert StateDescription.from_json(found.to_json()) == found
