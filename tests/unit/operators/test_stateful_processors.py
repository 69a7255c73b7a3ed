"""PySpark's documented processors run unchanged and do what TwsTester, PySpark's own test double,
says they do.
"""

from __future__ import annotations

import datetime
import doctest
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.tws_tester import TwsTester

from firesteel.operators import TransformWithStateSpec
from firesteel.testing import OperatorHarness, restored_from
from taskexecutor.executor.columnar.schemas import to_arrow
from taskexecutor.executor.operators.transform_with_state import TransformWithState
from taskexecutor.executor.state import RestoredOperatorState
from tests.unit.operators import stateful_processors as examples

Rows = list[dict[str, Any]]


def opened(
    processor: StatefulProcessor,
    inputs: list[pa.Schema],
    output: pa.Schema,
    now_ms: Any = lambda: 1_000,
    restored: RestoredOperatorState | None = None,
    **options: Any,
) -> OperatorHarness:
    initial = {"initial_key_columns": ("key",)} if len(inputs) == 2 else {}
    spec = TransformWithStateSpec(
        processor=processor,
        key_columns=(inputs[0].names[0],),
        output_schema=output,
        **initial,
        **options,
    )
    return OperatorHarness(
        TransformWithState(spec, now_ms),
        inputs,
        output_schema=output,
        name="stateful",
        restored=restored,
    ).open()


def cut(schema: pa.Schema, rows: Rows, sizes: list[int]) -> list[pa.RecordBatch]:
    """The rows in batches of these sizes, over and over."""
    batches, at, turn = [], 0, 0
    while at < len(rows):
        size = sizes[turn % len(sizes)]
        batches.append(pa.RecordBatch.from_pylist(rows[at : at + size], schema=schema))
        at, turn = at + size, turn + 1
    return batches


def groups(rows: Rows, key: str = "key") -> dict[Any, Rows]:
    found: dict[Any, Rows] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def as_tester(tester: TwsTester, batches: list[pa.RecordBatch]) -> Rows:
    """Returns TwsTester's rows for the same batches."""
    seen: Rows = []
    for batch in batches:
        for key, rows in groups(batch.to_pylist()).items():
            seen += [row.asDict(True) for row in tester.test(key, [Row(**row) for row in rows])]
    return seen


SENSORS = pa.schema([("id", pa.string()), ("temperature", pa.int64())])
READINGS = [("0", 123), ("0", 23), ("1", 33), ("1", 188), ("1", 88)]


def documented(method: Any) -> dict[str, Any]:
    """Returns the names that the example in the method's docstring defines, unchanged, so that the
    test contains no copy of it.
    """
    names: dict[str, Any] = {"pd": pd}
    for example in doctest.DocTestParser().get_examples(method.__doc__):
        if doctest.SKIP not in example.options and not example.source.startswith("spark."):
            exec(example.source, names)
    return names


@pytest.mark.parametrize("pandas", [False, True])
def test_the_example_of_the_documentation(pandas: bool) -> None:
    grouped = PandasGroupedOpsMixin
    example = documented(
        grouped.transformWithStateInPandas if pandas else grouped.transformWithState
    )
    harness = opened(
        example["SimpleStatefulProcessor"](),
        [SENSORS],
        to_arrow(example["output_schema"]),
        pandas=pandas,
    )
    batch = pa.RecordBatch.from_pylist(
        [{"id": k, "temperature": t} for k, t in READINGS], schema=SENSORS
    )
    harness.process(batch)
    assert harness.rows() == [{"id": "0", "count": 2}, {"id": "1", "count": 3}]
    assert [(e.key, e.value) for e in harness.state.keyed.entries("user.numViolations")] == [
        (("0",), (1,)),
        (("1",), (1,)),
    ]
    harness.end()


@pytest.mark.parametrize("pandas", [False, True])
def test_a_downtime_detector(pandas: bool) -> None:
    clock = [0]
    processor = examples.DowntimeDetectorInPandas() if pandas else examples.DowntimeDetector()
    schema = pa.schema([("id", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    output = pa.schema([("id", pa.string()), ("downtime_ms", pa.int64())])
    harness = opened(
        processor, [schema], output, lambda: clock[0], pandas=pandas, time_mode="processing_time"
    )

    def seen(*keys: str) -> None:
        at = datetime.datetime.fromtimestamp(clock[0] / 1000, datetime.UTC)
        harness.process(
            pa.RecordBatch.from_pylist([{"id": key, "at": at} for key in keys], schema=schema)
        )

    def at(now_ms: int) -> list[tuple[str, int]]:
        before, clock[0] = len(harness.rows()), now_ms
        harness.processing_time(now_ms)
        harness.flush()
        return [(row["id"], row["downtime_ms"]) for row in harness.rows()[before:]]

    clock[0] = 1_000
    seen("a", "b", "a")
    assert at(4_000) == []
    seen("a")
    assert at(6_000) == [("b", 5_000)]
    assert at(9_000) == [("a", 5_000)]
    seen("a")
    assert at(16_000) == [("a", 7_000), ("b", 15_000)]
    harness.end()


EVENTS = pa.schema([("key", pa.string()), ("value", pa.string())])
COUNTS = pa.schema([("key", pa.string()), ("count", pa.int64())])
keys = st.sampled_from(["a", "b", "c", None])
sizes = st.lists(st.integers(1, 7), min_size=1, max_size=4)


@given(st.lists(st.tuples(keys, st.text(max_size=2)), max_size=40), sizes)
def test_running_count(rows: list[tuple[str, str]], sizes: list[int]) -> None:
    batches = cut(EVENTS, [{"key": k, "value": v} for k, v in rows], sizes)
    harness = opened(examples.RunningCount(), [EVENTS], COUNTS)
    for batch in batches:
        harness.process(batch)
    harness.end()
    assert harness.rows() == as_tester(TwsTester(examples.RunningCount()), batches)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.text(max_size=2)), max_size=20), sizes)
def test_running_count_in_pandas(rows: list[tuple[str, str]], sizes: list[int]) -> None:
    batches = cut(EVENTS, [{"key": k, "value": v} for k, v in rows], sizes)
    harness = opened(examples.RunningCountInPandas(), [EVENTS], COUNTS, pandas=True)
    tester = TwsTester(examples.RunningCountInPandas())
    expected: Rows = []
    for batch in batches:
        harness.process(batch)
        for key, part in groups(batch.to_pylist()).items():
            expected += tester.testInPandas(key, pd.DataFrame(part)).to_dict("records")
    harness.end()
    assert harness.rows() == expected


@given(st.lists(st.tuples(keys, st.floats(-1e6, 1e6)), max_size=40), sizes, st.integers(1, 4))
def test_top_n(rows: list[tuple[str, float]], sizes: list[int], n: int) -> None:
    schema = pa.schema([("key", pa.string()), ("score", pa.float64())])
    batches = cut(schema, [{"key": k, "score": v} for k, v in rows], sizes)
    harness = opened(examples.TopN(n), [schema], schema)
    for batch in batches:
        harness.process(batch)
    harness.end()
    assert harness.rows() == as_tester(TwsTester(examples.TopN(n)), batches)


@given(st.lists(st.tuples(keys, st.sampled_from(["x", "y", "z"])), max_size=40), sizes)
def test_word_frequency(rows: list[tuple[str, str]], sizes: list[int]) -> None:
    schema = pa.schema([("key", pa.string()), ("word", pa.string())])
    output = pa.schema([("key", pa.string()), ("word", pa.string()), ("count", pa.int32())])
    batches = cut(schema, [{"key": k, "word": v} for k, v in rows], sizes)
    harness = opened(examples.WordFrequency(), [schema], output)
    for batch in batches:
        harness.process(batch)
    harness.end()
    assert harness.rows() == as_tester(TwsTester(examples.WordFrequency()), batches)


@pytest.mark.parametrize("ttl", [None, 60_000])
@given(
    st.lists(
        st.tuples(keys, st.sampled_from(examples.COMMANDS), st.integers(0, 9), st.booleans()),
        max_size=60,
    ),
    sizes,
)
def test_every_method_of_every_state_also_while_snapshots_are_written(
    ttl: int | None, rows: list[tuple[str, str, int, bool]], sizes: list[int]
) -> None:
    """Also with a TTL that nothing reaches: the same program, other variables of ours."""
    schema = pa.schema([("key", pa.string()), ("command", pa.string()), ("n", pa.int32())])
    output = pa.schema([("key", pa.string()), ("command", pa.string()), ("seen", pa.string())])
    batches = cut(schema, [{"key": k, "command": c, "n": n} for k, c, n, _ in rows], sizes)
    snapshots = [snapshot for *_, snapshot in rows]
    processor = examples.AllMethods()
    if ttl is not None:
        processor.init = lambda handle: _init_with_ttl(processor, handle, ttl)  # type: ignore[method-assign]
    harness = opened(processor, [schema], output, time_mode="processing_time")
    taken: list[Any] = []
    for number, batch in enumerate(batches):
        harness.process(batch)
        if snapshots[number]:
            snapshot = harness.state.snapshot()
            taken.append((snapshot, _frozen(snapshot)))
        if len(taken) > 2:
            taken.pop(0)[0].keyed.release()
        assert all(_frozen(snapshot) == contents for snapshot, contents in taken), (
            "a snapshot does not change"
        )
    harness.end()
    assert harness.rows() == as_tester(TwsTester(examples.AllMethods()), batches)


def _init_with_ttl(processor: Any, handle: Any, ttl: int) -> None:
    processor._value = handle.getValueState("value", "v int", ttl)
    processor._list = handle.getListState("list", "v int", ttl)
    processor._map = handle.getMapState("map", "k string", "v int", ttl)


def _frozen(snapshot: Any) -> str:
    return repr(
        [(g, sorted(entries, key=repr)) for g, entries in snapshot.keyed.entries_by_key_group()]
    )


TIMED = pa.schema([("key", pa.string()), ("n", pa.int64()), ("at_ms", pa.int64())])
EXPIRED = pa.schema([("key", pa.string()), ("total", pa.int64()), ("expired_ms", pa.int64())])


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 40_000)),
            st.integers(1, 15_000),  # event time advances by this much
        ),
        max_size=40,
    )
)
def test_event_time_timers(story: list[Any]) -> None:
    harness = opened(examples.Session(), [TIMED], EXPIRED, time_mode="event_time")
    tester = TwsTester(
        examples.Session(), timeMode="EventTime", eventTimeExtractor=lambda row: row.at_ms
    )
    now_ms, expected = 0, []
    for step in story:
        if isinstance(step, int):
            now_ms += step
            harness.watermark(now_ms * 1000)
            expected += [row.asDict() for row in tester.setWatermark(now_ms)]
        elif step[2] > now_ms:  # TwsTester drops what is late
            row = dict(zip(TIMED.names, step, strict=True))
            harness.process(pa.RecordBatch.from_pylist([row], schema=TIMED))
            expected += [row.asDict() for row in tester.test(step[0], [Row(**row)])]
    order = lambda rows: sorted(rows, key=repr)  # noqa: E731
    assert order(harness.rows()) == order(expected)
    pending = set(tester.handle._timers.getAllKeysWithTimers())
    harness.end()
    assert {row["key"] for row in harness.rows()[len(expected) :]} == pending, (
        "the rest fires at the end of event time"
    )


def test_timers_fire_in_order_of_time_before_the_watermark_advances() -> None:
    harness = opened(examples.Session(), [TIMED], EXPIRED, time_mode="event_time")
    for key, at_ms in (("late", 9_000), ("early", 1_000), ("mid", 5_000)):
        harness.process(
            pa.RecordBatch.from_pylist([{"key": key, "n": 1, "at_ms": at_ms}], schema=TIMED)
        )
    harness.watermark(10_999_999)
    assert harness.rows() == []
    harness.watermark(19_000_000)
    assert [row["key"] for row in harness.rows()] == ["early", "mid", "late"]
    assert isinstance(harness.elements[-2], pa.RecordBatch), (
        "one batch for all, and then the watermark"
    )
    assert harness.watermarks_us == [10_999_999, 19_000_000]


@pytest.mark.parametrize("window", [False, True])
def test_rows_that_the_watermark_has_reached_are_left_out(window: bool) -> None:
    time = pa.timestamp("us", "UTC")
    kind = pa.struct([("start", time), ("end", time)]) if window else time
    schema = pa.schema([("key", pa.string()), ("t", kind)])
    counted = pa.schema([("key", pa.string()), ("count", pa.int64())])

    def batch(**times_us: int | None) -> pa.RecordBatch:
        values = pa.array(list(times_us.values()), time)
        if window:
            starts = pa.array([None] * len(values), time)
            values = pa.StructArray.from_arrays([starts, values], ["start", "end"])
        return pa.RecordBatch.from_arrays([pa.array(list(times_us)), values], schema=schema)

    options: dict[str, Any] = {"time_mode": "event_time", "late_column": "t"}
    first = opened(examples.RunningCount(), [schema], counted, **options)
    first.process(batch(before_1970=0, a=1, unknown=None))
    first.watermark(50)
    first.process(batch(a=50, b=51))
    assert [(row["key"], row["count"]) for row in first.rows()] == [
        ("a", 1),
        ("unknown", 1),
        ("b", 1),
    ]
    second = opened(
        examples.RunningCount(), [schema], counted, restored=first.checkpoint(1), **options
    )
    second.process(batch(a=50, b=51))
    assert second.rows() == [{"key": "b", "count": 2}]


def test_processing_time_timers() -> None:
    clock = [0]
    harness = opened(
        examples.Session(), [TIMED], EXPIRED, lambda: clock[0], time_mode="processing_time"
    )
    tester = TwsTester(examples.Session(), timeMode="ProcessingTime")
    expected = []
    for key, at_ms in (("a", 100), ("b", 200), ("a", 7_000)):
        row = {"key": key, "n": 1, "at_ms": at_ms}
        clock[0] = at_ms
        harness.process(pa.RecordBatch.from_pylist([row], schema=TIMED))
        tester.test(key, [Row(**row)])
    for now_ms in (10_150, 10_200, 17_000):
        clock[0] = now_ms
        harness.processing_time(now_ms)
        harness.flush()
        expected += [row.asDict() for row in tester.setProcessingTime(now_ms)]
    assert harness.rows() == expected
    harness.end()


@pytest.mark.parametrize("pandas", [False, True])
def test_initial_state_comes_before_the_first_row(pandas: bool) -> None:
    initial = pa.schema([("key", pa.string()), ("initial_count", pa.int64())])
    processor = examples.RunningCountInPandas() if pandas else examples.RunningCount()
    harness = opened(processor, [EVENTS, initial], COUNTS, pandas=pandas)
    harness.process(
        pa.RecordBatch.from_pylist([{"key": "a", "initial_count": 10}], schema=initial), 1
    )
    harness.end_input(1)
    harness.process(
        pa.RecordBatch.from_pylist([{"key": k, "value": ""} for k in "aba"], schema=EVENTS), 0
    )
    harness.end()
    assert harness.rows() == [{"key": "a", "count": 12}, {"key": "b", "count": 1}]


def test_initial_state_outlives_a_restart() -> None:
    """It is read before any checkpoint; its input then ends a second time, without a row."""
    initial = pa.schema([("key", pa.string()), ("initial_count", pa.int64())])
    row = pa.RecordBatch.from_pylist([{"key": "a", "value": ""}], schema=EVENTS)
    restored = None
    for _ in range(2):
        harness = opened(examples.RunningCount(), [EVENTS, initial], COUNTS, restored=restored)
        if restored is None:
            rows = [{"key": "a", "initial_count": 10}]
            harness.process(pa.RecordBatch.from_pylist(rows, schema=initial), 1)
        harness.end_input(1)
        harness.process(row, 0)
        restored = restored_from(harness.snapshot())
    assert harness.rows() == [{"key": "a", "count": 12}]


def test_state_and_timers_outlive_a_restart() -> None:
    first = opened(examples.Session(), [TIMED], EXPIRED, time_mode="event_time")
    first.process(pa.RecordBatch.from_pylist([{"key": "a", "n": 5, "at_ms": 1_000}], schema=TIMED))
    snapshot = first.state.snapshot()
    first.close()
    spec = TransformWithStateSpec(
        processor=examples.Session(),
        key_columns=("key",),
        output_schema=EXPIRED,
        time_mode="event_time",
    )
    second = OperatorHarness(
        TransformWithState(spec), [TIMED], output_schema=EXPIRED, restored=restored_from(snapshot)
    ).open()
    second.watermark(11_000_000)
    assert second.rows() == [{"key": "a", "total": 5, "expired_ms": 11_000}]
    second.end()
