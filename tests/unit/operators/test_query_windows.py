"""Sliding windows of queries that emit each once, by panes, against Spark's rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.common.process import temporary
from firesteel.elements import MAX_TIMESTAMP_US, Watermark
from firesteel.operator import ColumnMemory
from firesteel.operators import RunningAggregateSpec, SlidingSpec
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness
from taskexecutor.executor import column_memory
from taskexecutor.executor.column_memory import IN_MEMORY, SlotColumnMemory
from taskexecutor.executor.operators import query_windows
from taskexecutor.executor.operators.running_aggregate import running_aggregate
from taskexecutor.executor.operators.windows import panes
from taskexecutor.executor.state import HashMapKeyedStateBackend, RestoredOperatorState
from tests.long import fewer

TIME = pa.timestamp("us", "UTC")
PARTIALS = pa.schema(
    [
        ("k", pa.string()),
        ("window_start", TIME),
        ("window_end", TIME),
        ("_p0_sum", pa.int64()),
        ("_rows", pa.int64()),
    ]
)
OUTPUT = pa.schema([("k", pa.string()), ("window_end", TIME), ("s", pa.int64())])
WINDOWS = [
    SlidingSpec(size_us=10, slide_us=10, offset_us=3),
    SlidingSpec(size_us=10, slide_us=5),
    SlidingSpec(size_us=10, slide_us=4, offset_us=1),
    SlidingSpec(size_us=12, slide_us=1),
]
Row = tuple[int, str, int]  # time, k, x
Result = tuple[str, int, int]  # k, end, s


def spec(window: SlidingSpec, *, at_barriers: bool = False) -> RunningAggregateSpec:
    return RunningAggregateSpec(
        key_columns=("k", "window_end"),
        aggregates=parse_aggregates(["sum(x) AS s"]),
        window=window,
        mode="append",
        expires="window_end",
        at_barriers=at_barriers,
    )


def partials(window: SlidingSpec, rows: Sequence[Row]) -> pa.RecordBatch:
    """Returns each row as the partial of its pane."""
    times, keys, values = zip(*rows, strict=True)
    starts = [time - (time - window.offset_us) % window.pane_us for time in times]
    columns: list[pa.Array] = [
        pa.array(keys, pa.string()),
        pa.array(starts, TIME),
        pa.array([start + window.pane_us for start in starts], TIME),
        pa.array(values, pa.int64()),
        pa.array([1] * len(rows), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PARTIALS)


def opened(
    of: RunningAggregateSpec,
    restored: RestoredOperatorState | None = None,
    subtask: int = 0,
    parallelism: int = 1,
    memory: ColumnMemory = IN_MEMORY,
) -> OperatorHarness:
    return OperatorHarness(
        running_aggregate(of),
        [PARTIALS],
        output_schema=OUTPUT,
        restored=restored,
        subtask=subtask,
        parallelism=parallelism,
        create_keyed_state=partial(HashMapKeyedStateBackend, columns=memory),
    ).open()


def emitted(harness: OperatorHarness) -> list[Result]:
    """Returns the rows that were emitted since the last call."""
    rows: list[Result] = []
    for batch in harness.batches:
        assert batch.schema == OUTPUT
        columns = [batch.column(0), batch.column(1).cast(pa.int64()), batch.column(2)]
        rows += zip(*(column.to_pylist() for column in columns), strict=True)
    harness.elements.clear()
    return rows


def late(harness: OperatorHarness) -> int:
    return harness.operator.context.counter("numLateRecordsDropped").value


class Model:
    """Spark's rules: a row is a row of each of its windows, and late in those that are over."""

    def __init__(self, window: SlidingSpec) -> None:
        self.window = window
        self.watermark_us = 0
        self.sums: Counter[tuple[str, int]] = Counter()
        self.late = 0

    def rows(self, rows: Sequence[Row]) -> None:
        window = self.window
        for time, key, x in rows:
            start = time - (time - window.offset_us) % window.slide_us
            while start + window.size_us > time:
                end = start + window.size_us
                if end <= self.watermark_us:
                    self.late += 1
                else:
                    self.sums[key, end] += x
                start -= window.slide_us

    def watermark(self, us: int) -> list[Result]:
        self.watermark_us = max(us, self.watermark_us)
        due = [(key, end) for key, end in self.sums if end <= self.watermark_us]
        return [(*each, self.sums.pop(each)) for each in due]


STEPS = st.lists(
    st.tuples(
        st.just("rows"),
        st.lists(
            st.tuples(st.integers(-15, 60), st.sampled_from("abc"), st.integers(-9, 9)),
            min_size=1,
            max_size=8,
        ),
    )
    | st.tuples(st.just("watermark"), st.integers(-5, 70))
    | st.tuples(st.sampled_from(["barrier", "restore"]), st.none()),
    max_size=25,
)


@pytest.mark.parametrize("at_barriers", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@settings(max_examples=fewer(100), deadline=None)
@given(steps=STEPS, few=st.booleans(), expands=st.booleans(), paged=st.booleans())
def test_the_rows_are_those_of_sparks_rules(
    window: SlidingSpec,
    at_barriers: bool,
    steps: list[tuple[str, Any]],
    few: bool,
    expands: bool,
    paged: bool,
) -> None:
    of = spec(window, at_barriers=at_barriers)
    with pytest.MonkeyPatch.context() as patched:
        if few:
            patched.setattr(panes, "COMPACT_ROWS", 1)
            patched.setattr(query_windows, "PART_ROWS", 2)
        if expands:
            patched.setattr(panes, "MANY_PANES", 0)
            patched.setattr(panes, "_EXPANDED_ROWS", 20)
        if paged:
            patched.setattr(column_memory, "_SMALL_BYTES", 1)
            patched.setattr(column_memory, "_TINY_BYTES", 1)
            patched.setattr(column_memory, "_PIECE_BYTES", (512, 512))
        memory = SlotColumnMemory(0, temporary.SHARED_MEMORY) if paged else IN_MEMORY
        model, harness, checkpoint = Model(window), opened(of, memory=memory), 0
        held: list[Result] = []
        dropped = 0
        for step, argument in steps:
            if step == "rows":
                harness.process(partials(window, argument))
                model.rows(argument)
            elif step == "watermark":
                harness.watermark(argument)
                held += model.watermark(argument)
            else:
                checkpoint += 1
                restored = harness.checkpoint(checkpoint)
            expected: list[Result] = []
            if step in ("barrier", "restore") or not at_barriers:
                expected, held = held, []
            assert Counter(emitted(harness)) == Counter(expected)
            assert dropped + late(harness) == model.late
            if step == "restore":
                dropped += late(harness)
                harness = opened(of, restored, memory=memory)


def merged(states: Sequence[RestoredOperatorState]) -> RestoredOperatorState:
    """Returns the state of all subtasks, for another number of them."""
    return RestoredOperatorState(
        keyed=[entry for state in states for entry in state.keyed],
        union_lists={
            "watermarks": [item for state in states for item in state.union_lists["watermarks"]]
        },
    )


def test_windows_that_another_subtask_has_emitted_are_emitted_for_the_other_rows() -> None:
    """A subtask whose watermark is later has emitted windows that the other one has not."""
    window = SlidingSpec(size_us=20, slide_us=10)
    of = spec(window)
    parts = [opened(of, subtask=subtask, parallelism=2) for subtask in range(2)]
    for part, key in zip(parts, "ab", strict=True):
        part.process(partials(window, [(5, key, 1), (15, key, 2), (25, key, 4)]))
    parts[0].watermark(20)
    assert emitted(parts[0]) == [("a", 10, 1), ("a", 20, 3)]
    states = [part.checkpoint(1) for part in parts]
    whole = opened(of, merged(states))
    whole.process(partials(window, [(5, "b", 8), (15, "b", 16)]))
    assert late(whole) == 3, "two windows are over for one row, and one for the other"
    whole.watermark(15)
    assert isinstance(whole.elements[0], pa.RecordBatch), "before the watermark that it had reached"
    assert emitted(whole) == [("b", 10, 1), ("b", 20, 3)]
    whole.watermark(40)
    assert sorted(emitted(whole)) == [("a", 30, 6), ("a", 40, 4), ("b", 30, 22), ("b", 40, 4)]
    same = opened(of, replace(states[1], union_lists=merged(states).union_lists), 1, 2)
    assert same.watermark(20) is None
    assert emitted(same) == [("b", 10, 1), ("b", 20, 3)], "as many subtasks: each at its own"


def test_rows_come_before_their_watermark_and_the_end_completes_nothing() -> None:
    window = SlidingSpec(size_us=10, slide_us=10)
    harness = opened(spec(window))
    harness.process(partials(window, [(5, "a", 1), (15, "a", 2)]))
    harness.watermark(10)
    rows, watermark = harness.elements
    assert isinstance(rows, pa.RecordBatch)
    assert watermark == Watermark(10)
    assert emitted(harness) == [("a", 10, 1)]
    harness.watermark(MAX_TIMESTAMP_US)
    harness.finish()
    assert emitted(harness) == []
