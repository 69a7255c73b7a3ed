"""Session windows by Spark's rules, against lists of intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.common.process import temporary
from firesteel.elements import MAX_TIMESTAMP_US, Watermark
from firesteel.operator import ColumnMemory
from firesteel.operators import SessionAggregateSpec
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness
from taskexecutor.executor import column_memory
from taskexecutor.executor.column_memory import IN_MEMORY, SlotColumnMemory
from taskexecutor.executor.columnar.grouping import session_rows
from taskexecutor.executor.operators import session_aggregate
from taskexecutor.executor.operators.session_aggregate import SessionAggregate
from taskexecutor.executor.state import HashMapKeyedStateBackend, RestoredOperatorState
from tests.long import fewer

TIME = pa.timestamp("us", "UTC")
KEYS = [("start", TIME), ("end", TIME), ("k", pa.string())]
PARTIALS = pa.schema([*KEYS, ("_p0_sum", pa.int64()), ("_rows", pa.int64())])
OUTPUT = pa.schema([*KEYS, ("s", pa.int64())])
Mode = Literal["append", "complete"]
Row = tuple[int, int, str | None, int]  # start, end, k, x


def spec(mode: Mode = "append", *, at_barriers: bool = False) -> SessionAggregateSpec:
    return SessionAggregateSpec(
        key_columns=("start", "end", "k"),
        start="start",
        end="end",
        aggregates=parse_aggregates(["sum(x) AS s"]),
        mode=mode,
        at_barriers=at_barriers,
    )


def opened(
    of: SessionAggregateSpec,
    restored: RestoredOperatorState | None = None,
    memory: ColumnMemory = IN_MEMORY,
) -> OperatorHarness:
    return OperatorHarness(
        SessionAggregate(of),
        [PARTIALS],
        output_schema=OUTPUT,
        restored=restored,
        create_keyed_state=partial(HashMapKeyedStateBackend, columns=memory),
    ).open()


def process(harness: OperatorHarness, *rows: Row) -> None:
    starts, ends, keys, values = zip(*rows, strict=True)
    columns: list[pa.Array] = [
        pa.array(starts, TIME),
        pa.array(ends, TIME),
        pa.array(keys, pa.string()),
        pa.array(values, pa.int64()),
        pa.array([1] * len(rows), pa.int64()),
    ]
    harness.process(pa.RecordBatch.from_arrays(columns, schema=PARTIALS))
    harness.flush()


def emitted(harness: OperatorHarness) -> list[Row]:
    rows: list[Row] = []
    for batch in harness.batches:
        bounds = (batch.column(n).cast(pa.int64()).to_pylist() for n in ("start", "end"))
        rows += zip(*bounds, *(batch.column(n).to_pylist() for n in ("k", "s")), strict=True)
    harness.elements.clear()
    return rows


def test_sessions_that_touch_are_one_and_are_emitted_when_they_are_over() -> None:
    harness = opened(spec())
    process(harness, (10, 15, "a", 1), (30, 35, "a", 4), (12, 17, "b", 8))
    process(harness, (15, 20, "a", 2))
    harness.watermark(19)
    assert emitted(harness) == [(12, 17, "b", 8)]
    harness.watermark(20)
    assert isinstance(harness.elements[0], pa.RecordBatch), "rows come before their watermark"
    assert emitted(harness) == [(10, 20, "a", 3)]
    harness.watermark(MAX_TIMESTAMP_US)
    harness.finish()
    assert emitted(harness) == [], "the end of the input completes no session"


def test_a_row_is_late_by_the_end_of_its_own_session() -> None:
    """As in Spark, even if it would be part of an open session."""
    harness = opened(spec())
    process(harness, (14, 19, "a", 1), (17, 22, "a", 2))
    harness.watermark(18)
    process(harness, (12, 17, "a", 100), (13, 18, "a", 1_000), (14, 19, "a", 10_000))
    harness.watermark(50)
    assert emitted(harness) == [(14, 22, "a", 10_003)]
    assert harness.metrics.counters["numLateRecordsDropped"].value == 2


def test_complete_forgets_nothing() -> None:
    harness = opened(spec("complete"))
    process(harness, (1, 6, "a", 1))
    harness.watermark(50)
    harness.snapshot(1)
    assert emitted(harness) == [(1, 6, "a", 1)]
    harness.snapshot(2)
    assert emitted(harness) == []
    process(harness, (5, 10, "a", 2), (20, 25, "b", 1))
    harness.snapshot(3)
    assert sorted(emitted(harness)) == [(1, 10, "a", 3), (20, 25, "b", 1)]


def test_at_barriers_the_watermark_follows_the_sessions() -> None:
    harness = opened(spec(at_barriers=True))
    process(harness, (1, 6, "a", 1))
    harness.watermark(6)
    assert harness.elements == []
    harness.snapshot(1)
    assert harness.elements[-1] == Watermark(6)
    assert emitted(harness) == [(1, 6, "a", 1)]


class Model:
    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.watermark_us = 0
        self.sessions: list[Row] = []
        self.changed = False

    def rows(self, rows: Sequence[Row]) -> None:
        for start, end, key, x in rows:
            if self.mode == "append" and end <= self.watermark_us:
                continue
            self.changed = True
            mine = [s for s in self.sessions if s[2] == key and s[0] <= end and start <= s[1]]
            self.sessions = [each for each in self.sessions if each not in mine]
            mine.append((start, end, key, x))
            starts, ends, _, values = zip(*mine, strict=True)
            self.sessions.append((min(starts), max(ends), key, sum(values)))

    def watermark(self, us: int) -> list[Row]:
        self.watermark_us = max(us, self.watermark_us)
        if self.mode == "complete":
            return []
        over = [each for each in self.sessions if each[1] <= self.watermark_us]
        self.sessions = [each for each in self.sessions if each not in over]
        return over

    def barrier(self) -> list[Row]:
        if self.mode == "append" or not self.changed:
            return []
        self.changed = False
        return self.sessions


ROWS = st.lists(
    st.tuples(
        st.integers(-2, 60),
        st.integers(1, 9),
        st.none() | st.sampled_from("abc"),
        st.integers(-9, 9),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("mode", ["append", "complete"])
@settings(max_examples=fewer(150), deadline=None)
@given(
    steps=st.lists(
        ROWS | st.integers(0, 70) | st.sampled_from(["barrier", "restore"]), max_size=25
    ),
    few=st.booleans(),
    paged=st.booleans(),
)
def test_the_sessions_are_those_of_sparks_rules(
    mode: Mode, steps: list[Any], few: bool, paged: bool
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        if few:
            patched.setattr(session_rows, "OUTDATED_ROWS", 0)
            patched.setattr(session_aggregate, "WAITING_ROWS", 3)
        if paged:
            patched.setattr(column_memory, "_SMALL_BYTES", 1)
            patched.setattr(column_memory, "_TINY_BYTES", 1)
            patched.setattr(column_memory, "_PIECE_BYTES", (512, 512))
        memory = SlotColumnMemory(0, temporary.SHARED_MEMORY) if paged else IN_MEMORY
        model, harness = Model(mode), opened(spec(mode), memory=memory)
        for checkpoint, step in enumerate(steps, 1):
            expected: list[Row] = []
            if isinstance(step, list):
                rows = [(start, start + gap, key, x) for start, gap, key, x in step]
                process(harness, *rows)
                model.rows(rows)
            elif isinstance(step, int):
                harness.watermark(step)
                expected = model.watermark(step)
            else:
                restored = harness.checkpoint(checkpoint)
                expected = model.barrier()
            assert Counter(emitted(harness)) == Counter(expected)
            if step == "restore":
                harness = opened(spec(mode), restored, memory)


def test_sessions_that_are_over_leave_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_rows, "OUTDATED_ROWS", 100)
    operator = SessionAggregate(spec())
    harness = OperatorHarness(operator, [PARTIALS], output_schema=OUTPUT).open()
    for start in range(1, 10_000, 100):
        process(harness, *((start + n, start + n + 5, f"{start + n}", 1) for n in range(100)))
        harness.watermark(start + 99)
        rows = operator._sessions
        assert rows.rows == 5
        assert rows._log_rows <= 300
        assert rows._index.count <= 300
