"""Restored windows, aggregates and drop_duplicates, with the same or another parallelism, continue
as if never interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.elements import MIN_TIMESTAMP_US
from firesteel.errors import FiresteelError
from firesteel.operator import StreamOperator
from firesteel.operators import (
    DropDuplicatesSpec,
    RowsBetweenSpec,
    RunningAggregateSpec,
    SessionSpec,
    SlidingSpec,
    TopNSpec,
    TumblingSpec,
    WindowAggregateSpec,
    WindowSpec,
    WindowTopNSpec,
)
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness, restored_from
from taskexecutor.executor.operators.drop_duplicates import DropDuplicates
from taskexecutor.executor.operators.rows_between import RowsBetween
from taskexecutor.executor.operators.running_aggregate import RunningAggregate
from taskexecutor.executor.operators.top_n import TopN
from taskexecutor.executor.operators.windows import window_operator
from taskexecutor.executor.state.files import encoded
from tests.backends import BACKENDS, creator, databases
from tests.long import fewer
from tests.unit.task.checkpoints.vertices import Vertex

TIME = pa.timestamp("us", "UTC")
STRUCT = pa.struct([("by", pa.int64()), ("what", pa.string())])
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["", "a", "ö", None]),
    "integer": (pa.int32(), [-7, 0, 10**9, None]),
    "dense": (pa.int64(), [0, 1, 2, 3]),
    "decimal": (pa.decimal128(20, 2), [Decimal("1.50"), Decimal("-0.01"), Decimal(0), None]),
    "double": (pa.float64(), [0.0, math.nan, -1.5, None]),
    "time": (TIME, [0, 1_000_000, 10**15, None]),
    # Keys of one subtask only.
    "struct": (STRUCT, [{"by": 1, "what": None}, {"by": 1, "what": "a"}, None]),
    "list": (pa.list_(pa.string()), [[], ["a"], ["a", None], None]),
}
ONE_SUBTASK = ("struct", "list")
EXAMPLES = fewer(40)
WINDOWS: list[WindowSpec] = [
    TumblingSpec(size_us=10),
    SlidingSpec(size_us=12, slide_us=4),
    SlidingSpec(size_us=4, slide_us=10),
    SessionSpec(gap_us=4),
]
ITEMS = parse_aggregates(["count(*) AS n", "collect_list(x) AS xs", "max_by(x, y) AS top"])

Row = tuple[int, int]  # key, time: its number in the stream is its value
Element = list[Row] | int | tuple[int]  # rows, a watermark, or the next parallelism
FLOWS = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=6)
    | st.integers(0, 50)
    | st.tuples(st.integers(1, 4)),
    max_size=12,
)
KEYS = st.sampled_from(list(KINDS))


def runs(
    tmp: pytest.TempPathFactory,
    make: Callable[[], StreamOperator],
    schema: pa.Schema,
    output: pa.Schema | None,
    flow: list[Element],
    row_of: Callable[[Row, int], dict[str, Any]],
    one_subtask: bool = False,
) -> list[tuple[list[str], int]]:
    """Results and how many rows were late: without failures, and with one after each checkpoint."""
    found = []
    for fails in (False, True):
        vertex = Vertex(make, schema, output, ("key",), tmp.mktemp("state"))
        number = 0
        for element in flow:
            match element:
                case int():
                    vertex.watermark(element)
                case [int() as parallelism] if isinstance(element, tuple):
                    checkpoint = vertex.checkpoint()
                    if fails:
                        vertex.restore(checkpoint, 1 if one_subtask else parallelism)
                case rows:
                    vertex.process([row_of(row, number + i) for i, row in enumerate(rows)])
                    number += len(rows)
                    vertex.flush()
        vertex.watermark(10_000)
        vertex.end()
        found.append((sorted(map(repr, vertex.rows())), vertex.late))
    return found


def partial_schema(kind: pa.DataType) -> pa.Schema:
    merges = [name for item in ITEMS for name in item.merge]
    assert len(merges) == 4, merges
    return pa.schema(
        [
            ("key", kind),
            ("window_start", TIME),
            ("window_end", TIME),
            (merges[0], pa.int64()),
            (merges[1], pa.list_(pa.int64())),
            (merges[2], STRUCT),
            (merges[3], pa.int64()),
            ("_rows", pa.int64()),
        ]
    )


@settings(max_examples=EXAMPLES, deadline=None)
@given(kind=KEYS, flow=FLOWS, window=st.sampled_from(WINDOWS), lateness=st.sampled_from([0, 7]))
def test_windows_of_aggregates_continue(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    flow: list[Element],
    window: WindowSpec,
    lateness: int,
) -> None:
    arrow, keys = KINDS[kind]
    schema = partial_schema(arrow)
    spec = WindowAggregateSpec(
        key_columns=("key",), window=window, aggregates=ITEMS, allowed_lateness_us=lateness
    )
    output = pa.schema(
        [
            ("key", arrow),
            ("window_start", TIME),
            ("window_end", TIME),
            ("n", pa.int64()),
            ("xs", pa.list_(pa.int64())),
            ("top", pa.int64()),
            *([("row_kind", pa.string())] if spec.retracts else []),
        ]
    )

    def row_of(row: Row, number: int) -> dict[str, Any]:
        key, time = row
        start, end = time, time + getattr(window, "gap_us", 0)
        if not isinstance(window, SessionSpec):
            start = time - time % window.pane_us
            end = start + window.pane_us
        by = {"by": time % 3, "what": None}
        values = keys[key % len(keys)], start, end, 1, [number], by, number, 1
        return dict(zip(schema.names, values, strict=True))

    without, with_failures = runs(
        tmp_path_factory,
        lambda: window_operator(spec),
        schema,
        output,
        flow,
        row_of,
        kind in ONE_SUBTASK,
    )
    assert with_failures == without


PLAIN_ROWS = [("at", TIME), ("n", pa.int64())]


@settings(max_examples=EXAMPLES, deadline=None)
@given(kind=KEYS, flow=FLOWS, window=st.sampled_from(WINDOWS), lateness=st.sampled_from([0, 7]))
def test_the_first_rows_of_windows_continue(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    flow: list[Element],
    window: WindowSpec,
    lateness: int,
) -> None:
    arrow, keys = KINDS[kind]
    schema = pa.schema([("key", arrow), *PLAIN_ROWS])
    spec = WindowTopNSpec(
        key_columns=("KEY",),
        window=window,
        n=2,
        by=("at",),
        ascending=(False,),
        time_column="at",
        allowed_lateness_us=lateness,
    )
    without, with_failures = runs(
        tmp_path_factory,
        lambda: window_operator(spec),
        schema,
        None,
        flow,
        lambda row, n: {"key": keys[row[0] % len(keys)], "at": row[1], "n": n},
        kind in ONE_SUBTASK,
    )
    assert with_failures == without


@settings(max_examples=EXAMPLES, deadline=None)
@given(kind=KEYS, flow=FLOWS, within=st.sampled_from([0, 7, 40]))
def test_rows_without_duplicates_continue(
    tmp_path_factory: pytest.TempPathFactory, kind: str, flow: list[Element], within: int
) -> None:
    arrow, keys = KINDS[kind]
    schema = pa.schema([("key", arrow), *PLAIN_ROWS])
    spec = DropDuplicatesSpec(
        key_columns=("Key",), time_column="at" if within else "", within_us=within
    )
    without, with_failures = runs(
        tmp_path_factory,
        lambda: DropDuplicates(spec),
        schema,
        None,
        flow,
        lambda row, n: {"key": keys[row[0] % len(keys)], "at": row[1], "n": n},
        kind in ONE_SUBTASK,
    )
    assert with_failures == without


@settings(max_examples=EXAMPLES, deadline=None)
@given(kind=KEYS, flow=FLOWS, latest_first=st.booleans(), of_changes=st.booleans())
def test_the_first_rows_of_keys_continue(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    flow: list[Element],
    latest_first: bool,
    of_changes: bool,
) -> None:
    arrow, keys = KINDS[kind]
    change = [("row_kind", pa.string())] if of_changes else []
    schema = pa.schema([("key", arrow), *PLAIN_ROWS, *change])
    spec = TopNSpec(
        key_columns=("Key",), n=2, by=("at",), ascending=(False,), latest_first=latest_first
    )
    without, with_failures = runs(
        tmp_path_factory,
        lambda: TopN(spec),
        schema,
        None,
        flow,
        lambda row, n: (
            {"key": keys[row[0] % len(keys)], "at": row[1], "n": n}
            | ({"row_kind": "insert"} if of_changes else {})
        ),
        kind in ONE_SUBTASK,
    )
    assert with_failures == without


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(kind=KEYS, flow=FLOWS)
def test_rows_with_those_around_them_continue(
    tmp_path_factory: pytest.TempPathFactory, kind: str, flow: list[Element]
) -> None:
    arrow, keys = KINDS[kind]
    (item,) = parse_aggregates(["max(n) AS m"])
    (given_by_row,) = item.merge
    schema = pa.schema([("key", arrow), *PLAIN_ROWS, (given_by_row, pa.int64())])
    spec = RowsBetweenSpec(
        key_columns=("Key",), by=("at",), ascending=(True,), start=-1, end=1, aggregates=(item,)
    )
    without, with_failures = runs(
        tmp_path_factory,
        lambda: RowsBetween(spec),
        schema,
        None,
        flow,
        lambda row, n: {"key": keys[row[0] % len(keys)], "at": row[1], "n": n, given_by_row: n},
        kind in ONE_SUBTASK,
    )
    assert with_failures == without


RUNNING = {
    "numbers": ["count(*) AS n", "sum(x) AS s"],  # in arrays
    "any": ["count(DISTINCT x) AS d", "count(DISTINCT t) AS e", "max_by(x, y) AS m"],
}


@settings(max_examples=EXAMPLES, deadline=None)
@given(kind=KEYS, aggregates=st.sampled_from(list(RUNNING)), flow=FLOWS)
def test_running_aggregates_continue(
    tmp_path_factory: pytest.TempPathFactory, kind: str, aggregates: str, flow: list[Element]
) -> None:
    arrow, keys = KINDS[kind]
    items = parse_aggregates(RUNNING[aggregates])
    values: dict[str, Callable[[int, int], tuple[pa.DataType, Any]]] = {
        "sum": lambda time, n: (pa.int64(), n),
        "distinct": lambda time, n: (pa.list_(pa.int64()), [time % 5, 2**40 * (time % 2)]),
        "texts": lambda time, n: (pa.list_(pa.string()), [str(time % 3)]),
        "last": lambda time, n: (pa.int64(), n),
        "max": lambda time, n: (STRUCT, {"by": time % 4, "what": str(time)}),
    }
    columns = {
        name: values["texts" if item.name == "e" else how.split(":")[0]]
        for item in items
        for name, how in item.merge.items()
    }
    schema = pa.schema(
        [
            ("key", arrow),
            *((name, of(0, 0)[0]) for name, of in columns.items()),
            ("_rows", pa.int64()),
        ]
    )
    spec = RunningAggregateSpec(key_columns=("key",), aggregates=items)
    without, with_failures = runs(
        tmp_path_factory,
        lambda: RunningAggregate(spec),
        schema,
        None,
        flow,
        lambda row, n: (
            {"key": keys[row[0] % len(keys)], "_rows": 1}
            | {name: of(row[1], n)[1] for name, of in columns.items()}
        ),
        kind in ONE_SUBTASK,
    )
    assert with_failures == without


TAKEN_BACK = ["count(*) AS n", "sum(x) AS s", "max(x) AS m", "count(DISTINCT x) AS d"]


@settings(max_examples=EXAMPLES, deadline=None)
@given(kind=KEYS, flow=FLOWS)
def test_aggregates_of_changes_continue(
    tmp_path_factory: pytest.TempPathFactory, kind: str, flow: list[Element]
) -> None:
    """Every second row takes the one before it back, if that had the same key."""
    arrow, keys = KINDS[kind]
    items = parse_aggregates(TAKEN_BACK)
    names = [name for item in items for name in item.merge]
    schema = pa.schema(
        [("key", arrow), *((name, pa.int64()) for name in names), ("row_kind", pa.string())]
    )
    spec = RunningAggregateSpec(key_columns=("key",), aggregates=items)
    there: list[tuple[int, int]] = []

    def row_of(row: Row, number: int) -> dict[str, Any]:
        if not number:
            there.clear()
        one, change = (row[0], row[1] % 5), "insert"
        if row[1] % 2 and one in there:
            there.remove(one)
            change = "delete"
        else:
            there.append(one)
        given = dict.fromkeys(names, one[1]) | {names[0]: 1}
        return {"key": keys[row[0] % len(keys)], **given, "row_kind": change}

    without, with_failures = runs(
        tmp_path_factory,
        lambda: RunningAggregate(spec),
        schema,
        None,
        flow,
        row_of,
        kind in ONE_SUBTASK,
    )
    assert with_failures == without


def rows_of(*rows: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"key": key, "at": at, "n": at} for key, at in rows]


PLAIN = pa.schema([("key", pa.string()), *PLAIN_ROWS])


def top(window: WindowSpec, now: list[int] | None = None) -> Callable[[], StreamOperator]:
    spec = WindowTopNSpec(
        key_columns=("key",), window=window, n=1, by=("n",), ascending=(False,), time_column="at"
    )
    return lambda: window_operator(spec, **({"clock_us": lambda: now[0]} if now else {}))


@pytest.mark.parametrize(
    "window",
    [
        TumblingSpec(size_us=10_000, processing_time=True),
        SessionSpec(gap_us=10_000, processing_time=True),
    ],
)
def test_windows_that_were_over_while_nothing_ran_fire(tmp_path: Path, window: WindowSpec) -> None:
    now = [1_000]
    vertex = Vertex(top(window, now), PLAIN, None, ("key",), tmp_path)
    vertex.process(rows_of(("a", 1), ("b", 2), ("a", 3)))
    checkpoint = vertex.checkpoint()
    now[0] = 60_000
    vertex.restore(checkpoint, 2)
    vertex.process(rows_of(("a", 7)))
    assert vertex.rows() == [], "the task fires timers, between two batches"
    for now_ms in (60, 70):
        for subtask in vertex.subtasks:
            subtask.processing_time(now_ms)
    assert sorted((row["key"], row["n"]) for row in vertex.rows()) == [("a", 3), ("a", 7), ("b", 2)]


def test_rows_that_were_late_are_late_again(tmp_path: Path) -> None:
    vertex = Vertex(top(TumblingSpec(size_us=10)), PLAIN, None, ("key",), tmp_path)
    vertex.process(rows_of(("a", 1), ("a", 12)))
    vertex.watermark(9)
    vertex.restore(vertex.checkpoint(), 3)
    for restored in (True, False):
        vertex.process(rows_of(("a", 5), ("b", 5)))
        vertex.watermark(3 if restored else 11)  # event time continues where it was
        assert [row["n"] for row in vertex.rows()] == [1]
    assert vertex.late == 4
    vertex.end()
    assert [row["n"] for row in vertex.rows()] == [1, 12]


def test_each_subtask_resumes_at_its_own_event_time(tmp_path: Path) -> None:
    vertex = Vertex(top(TumblingSpec(size_us=10)), PLAIN, None, ("key",), tmp_path)
    vertex.restore(vertex.checkpoint(), 3)
    vertex.subtasks[0].watermark(5)
    vertex.subtasks[1].watermark(15)
    vertex.restore(vertex.checkpoint(), 3)
    reached = [subtask.timers.current_watermark_us for subtask in vertex.subtasks]
    assert reached == [5, 15, MIN_TIMESTAMP_US]


def test_rows_of_an_operator_of_another_kind_are_refused(tmp_path: Path) -> None:
    harness = OperatorHarness(top(TumblingSpec(size_us=10))(), [PLAIN]).open()
    harness.process(pa.RecordBatch.from_pylist(rows_of(("a", 1)), schema=PLAIN))
    restored = restored_from(harness.snapshot())
    other = OperatorHarness(top(SessionSpec(gap_us=10))(), [PLAIN], restored=restored)
    with pytest.raises(FiresteelError, match="does not know the state 'panes', which an operator"):
        other.open()


def sums(*expressions: str, window: WindowSpec | None = None) -> RunningAggregate:
    return RunningAggregate(
        RunningAggregateSpec(
            key_columns=("key",), aggregates=parse_aggregates(expressions), window=window
        )
    )


SUMS = pa.schema([("key", pa.string()), ("_p0_sum", pa.int64()), ("_rows", pa.int64())])


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            top(TumblingSpec(size_us=9)),
            top(TumblingSpec(size_us=8)),
            "panes do not fit the program: its window was Tum",
        ),
        (
            top(SessionSpec(gap_us=9)),
            top(SessionSpec(gap_us=8)),
            "sessions do not fit the program: its window was Sess",
        ),
        (
            lambda: sums("sum(x) AS s"),
            lambda: sums("sum(y) AS s"),
            r"totals .* the program: it has no sum\(y\) int64, only sum\(x\) int64: a new agg",
        ),
        (
            lambda: sums("sum(x) AS s", window=TumblingSpec(size_us=9)),
            lambda: sums("sum(x) AS s", window=TumblingSpec(size_us=8)),
            "totals do not fit the program: its window was Tum",
        ),
    ],
)
def test_rows_of_another_meaning_are_refused(
    before: Callable[[], StreamOperator], after: Callable[[], StreamOperator], says: str
) -> None:
    """The columns match, but the results would be wrong."""
    operator = before()
    schema = SUMS if isinstance(operator, RunningAggregate) else PLAIN
    harness = OperatorHarness(operator, [schema]).open()
    values = {name: ["a"] if name == "key" else [1] for name in schema.names}
    harness.process(pa.RecordBatch.from_pydict(values, schema=schema))
    restored = restored_from(harness.snapshot())
    with pytest.raises(FiresteelError, match=says):
        OperatorHarness(after(), [schema], restored=restored).open()


def test_results_may_be_given_another_name() -> None:
    harness = OperatorHarness(sums("sum(x) AS s"), [SUMS]).open()
    row = pa.RecordBatch.from_pylist([{"key": "a", "_p0_sum": 3, "_rows": 1}], schema=SUMS)
    harness.process(row)
    restored = restored_from(harness.snapshot())
    again = OperatorHarness(sums("sum(x) AS total"), [SUMS], restored=restored).open()
    again.process(row)
    again.flush()
    assert again.rows() == [{"key": "a", "total": 6}]


def test_aggregates_may_go_and_change_places() -> None:
    """Each finds its own total, whatever its column is called now."""

    def partials(*columns: tuple[str, int]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {"key": ["a"], **{name: [value] for name, value in columns}, "_rows": [1]}
        )

    before = partials(("_p0_sum", 1), ("_p1_max", 20), ("_p2_min", 300))
    harness = OperatorHarness(
        sums("sum(x) AS s", "max(y) AS most", "min(z) AS least"), [before.schema]
    ).open()
    harness.process(before)
    restored = restored_from(harness.snapshot())
    after = partials(("_p0_min", 299), ("_p1_sum", 5))
    again = OperatorHarness(
        sums("min(z) AS least", "sum(x) AS s"), [after.schema], restored=restored
    ).open()
    again.process(after)
    again.flush()
    assert again.rows() == [{"key": "a", "least": 299, "s": 6}]


@pytest.mark.parametrize("within_us", [0, 10**6])
@pytest.mark.parametrize("kind", BACKENDS)
def test_columns_in_memory_that_outgrow_it_are_warned_of_once(kind: str, within_us: int) -> None:
    """With a backend that is to have state on the disk, and those that are not in files there."""

    def batch(first: int) -> pa.RecordBatch:
        times = pa.array([0] * 60_000, TIME)
        return pa.RecordBatch.from_pydict({"id": list(range(first, first + 60_000)), "t": times})

    with databases() as folder:
        create = creator(kind, folder)  # with 8 MiB, of which columns may have 6
        spec = DropDuplicatesSpec(key_columns=("id",), time_column="t", within_us=within_us)
        harness = OperatorHarness(
            DropDuplicates(spec), [batch(0).schema], create_keyed_state=create
        ).open()
        warned = []
        for n in range(12):
            harness.process(batch(n * 60_000))
            with structlog.testing.capture_logs() as logs:
                list(encoded(harness.snapshot()))
            warned += [log["size_bytes"] for log in logs if log["log_level"] == "warning"]
        harness.close()
    assert len(warned) == (1 if kind == "rocksdb" and within_us else 0)
    assert all(6 << 20 < size_bytes < 8 << 20 for size_bytes in warned)
