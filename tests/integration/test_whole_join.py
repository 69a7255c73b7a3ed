"""Joins of whole streams on Spark have the rows that joins of streams have at their end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from firesteel.errors import FiresteelError
from firesteel.operator import StreamOperator
from firesteel.operators import (
    EventTimes,
    IntervalSpec,
    JoinSpec,
    SameWindowSpec,
    TumblingSpec,
)
from firesteel.row_kind import DELETE, INSERT, ROW_KIND
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.harness import OperatorHarness
from taskexecutor.executor.operators.joins.joined_columns import JoinedColumns
from taskexecutor.executor.operators.joins.stream_join import StreamJoin
from taskexecutor.executor.operators.joins.whole_join import WholeJoin, joins_whole

TIME = pa.timestamp("us", "UTC")
LEFT = pa.schema(
    [("k", pa.float64()), ("text", pa.string()), ("at", TIME), ("tags", pa.list_(pa.int32()))]
)
RIGHT = pa.schema(
    [
        ("word", pa.string()),
        ("K", pa.float64()),
        ("seen", TIME),
        ("by", pa.map_(pa.string(), pa.int32())),
    ]
)
CHANGES = pa.field(ROW_KIND, pa.string())
TIMES = EventTimes(columns=("at", "seen"), shifts_us=(0, -1))
WITHIN = {
    "any time": None,
    "interval": IntervalSpec(times=TIMES, lower_us=-3, upper_us=5),
    "window": SameWindowSpec(times=TIMES, window=TumblingSpec(size_us=10, offset_us=3)),
}


def spec(how: Any = "inner", within: Any = None) -> JoinSpec:
    return JoinSpec(
        left_keys=("k", "text"), right_keys=("K", "word"), how=how, within=within, whole=True
    )


def rows(side: int, count: int, seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    key, text, at, more = RIGHT.names[1], "word", "seen", "by"
    if side == 0:
        key, text, at, more = LEFT.names
    return [
        {
            key: chance.choice([None, 0.0, 1.5, 2.5, float("nan")]),
            text: chance.choice(["a", "b", "ü", None]),
            at: chance.randrange(60),
            more: chance.choice([None, [], [("x", n)]] if side else [None, [], [n]]),
        }
        for n in range(count)
    ]


def result(
    operator: Callable[[JoinSpec, pa.Schema], StreamOperator],
    engine: SparkEngine,
    join: JoinSpec,
    inputs: list[tuple[pa.Schema, list[dict[str, Any]]]],
) -> Counter[str]:
    """The rows that have come and not gone."""
    schemas = [schema for schema, _ in inputs]
    schema = JoinedColumns(join, *schemas).schema
    harness = OperatorHarness(operator(join, schema), schemas, spark=engine.session).open()
    found: Counter[str] = Counter()
    try:
        for side, (kind, given) in enumerate(inputs):
            for start in range(0, len(given), 30):
                harness.process(pa.RecordBatch.from_pylist(given[start : start + 30], kind), side)
        harness.finish()
        for batch in harness.batches:
            assert batch.schema == schema
            for row in batch.to_pylist():
                found[repr(row | {ROW_KIND: ""})] += -1 if row.get(ROW_KIND) == DELETE else 1
    finally:
        harness.close()
    assert min(found.values(), default=1) >= 0
    return +found


def both(
    engine: SparkEngine, join: JoinSpec, inputs: list[tuple[pa.Schema, list[dict[str, Any]]]]
) -> tuple[Counter[str], Counter[str]]:
    assert joins_whole(join, JoinedColumns(join, *(schema for schema, _ in inputs)).schema)
    stream = result(lambda spec, _: StreamJoin(spec), engine, join, inputs)
    return result(WholeJoin, engine, join, inputs), stream


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_the_rows_of_a_stream(engine: SparkEngine, how: str) -> None:
    found, wanted = both(engine, spec(how), [(LEFT, rows(0, 200, 1)), (RIGHT, rows(1, 90, 2))])
    assert found == wanted
    assert len(found) > 100


@pytest.mark.parametrize(
    ("within", "how"),
    [("interval", "inner"), ("window", "inner"), ("interval", "left"), ("window", "full")],
)
def test_rows_near_in_time(engine: SparkEngine, within: str, how: str) -> None:
    inputs = [(LEFT, rows(0, 300, 3)), (RIGHT, rows(1, 200, 4))]
    found, wanted = both(engine, spec(how, WITHIN[within]), inputs)
    assert found == wanted
    assert len(found) > 100


def changes(side: int, seed: int) -> list[dict[str, Any]]:
    """Some rows come twice, and some go."""
    chance = random.Random(seed)
    given = rows(side, 60, seed)
    given += chance.sample(given, 20)
    gone = chance.sample(given, 30)
    return [row | {ROW_KIND: INSERT} for row in given] + [row | {ROW_KIND: DELETE} for row in gone]


@pytest.mark.parametrize("how", ["inner", "full"])
def test_rows_that_are_gone_are_not_joined(engine: SparkEngine, how: str) -> None:
    inputs = [(LEFT.append(CHANGES), changes(0, 5)), (RIGHT, rows(1, 40, 6))]
    found, wanted = both(engine, spec(how), inputs)
    assert found == wanted
    inputs = [(LEFT, rows(0, 40, 6)), (RIGHT.append(CHANGES), changes(1, 7))]
    found, wanted = both(engine, spec(how), inputs)
    assert found == wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            [{"k": 1.0, "text": "gone", ROW_KIND: DELETE}],
            "a row of the left stream that does not exist: {1.0, gone,",
        ),
        ([{"k": 1.0, ROW_KIND: "update"}], "a row of the left stream has a 'row_kind' that is nei"),
        ([{"k": 1.0, ROW_KIND: None}], "that is neither 'insert' nor 'delete'"),
    ],
)
def test_what_is_no_change_is_refused(
    engine: SparkEngine, given: list[dict[str, Any]], message: str
) -> None:
    inputs = [(LEFT.append(CHANGES), given), (RIGHT, rows(1, 5, 1))]
    with pytest.raises(Exception, match=message):
        result(WholeJoin, engine, spec("full"), inputs)


def test_a_row_without_time_is_refused(engine: SparkEngine) -> None:
    inputs = [(LEFT, [{"k": 1.0, "text": "a", "at": None, "tags": None}]), (RIGHT, [])]
    with pytest.raises(FiresteelError, match="at"):
        result(WholeJoin, engine, spec(within=WITHIN["interval"]), inputs)


def test_types_that_spark_does_not_have_are_joined_as_in_streams() -> None:
    fitting = pa.schema([("k", pa.int64())])
    assert joins_whole(spec(), fitting)
    for kind in (pa.uint64(), pa.null(), pa.duration("us"), pa.struct([("n", pa.uint8())])):
        assert not joins_whole(spec(), fitting.append(pa.field("x", kind)))
    marked = pa.struct([pa.field("metadata", pa.binary(), metadata={"variant": "true"})])
    assert not joins_whole(spec(), fitting.append(pa.field("x", pa.list_(marked))))
