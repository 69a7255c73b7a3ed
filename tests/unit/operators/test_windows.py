"""Sliding and session windows, processing time: which windows fire, when, with what; late rows.
Against row-by-row oracles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.operators import (
    SessionSpec,
    SlidingSpec,
    TumblingSpec,
    WindowAggregateSpec,
    WindowSpec,
)
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.grouping import grouping
from taskexecutor.executor.operators.windows import partial_contents, sessions, window_operator
from taskexecutor.executor.operators.windows.partial_contents import PartialContents
from taskexecutor.executor.operators.windows.sessions import SessionWindows

TIME = pa.timestamp("us", "UTC")
ITEMS = parse_aggregates(["count(*) AS n", "collect_list(x) AS xs"])
PARTIALS = [
    ("_p0_count", pa.int64()),
    ("_p1_collect_list", pa.list_(pa.int64())),
    ("_rows", pa.int64()),
]
INPUT = pa.schema([("key", pa.string()), ("window_start", TIME), ("window_end", TIME), *PARTIALS])
OUTPUT = pa.schema(
    [
        ("key", pa.string()),
        ("window_start", TIME),
        ("window_end", TIME),
        ("n", pa.int64()),
        ("xs", pa.list_(pa.int64())),
    ]
)

Row = tuple[str, int]  # key, time; its number in the stream is its value


class Stream:
    """Feeds rows to a window operator as the upstream half would, and returns the output since the
    last look.
    """

    def __init__(self, window: WindowSpec, allowed_lateness_us: int = 0) -> None:
        self.window = window
        self.now_us = 0
        spec = WindowAggregateSpec(
            key_columns=("key",),
            window=window,
            aggregates=ITEMS,
            allowed_lateness_us=allowed_lateness_us,
        )
        operator = window_operator(spec, clock_us=lambda: self.now_us)
        schema = (
            INPUT
            if not window.processing_time
            else pa.schema([INPUT.field(0), *(pa.field(*p) for p in PARTIALS)])
        )
        output = OUTPUT.append(pa.field("row_kind", pa.string())) if spec.retracts else OUTPUT
        self.harness = OperatorHarness(operator, [schema], output_schema=output).open()
        self.schema = schema
        # The results that are valid: those that no later one has deleted.
        self.valid: set[tuple[str, int, int, tuple[int, ...]]] = set()
        self.count = 0
        self._seen = 0

    def rows(self, *rows: Row) -> set[tuple[str, int, int, tuple[int, ...]]]:
        """Every row by itself: a bundle's sessions are joined by the operator."""
        columns: dict[str, list[Any]] = {name: [] for name in INPUT.names}
        for key, time in rows:
            match self.window:
                case SessionSpec():
                    start, end = time, time + self.window.gap_us
                case _:
                    start = time - (time - self.window.offset_us) % self.window.pane_us
                    end = start + self.window.pane_us
            for name, value in zip(INPUT.names, (key, start, end, 1, [self.count], 1), strict=True):
                columns[name].append(value)
            self.count += 1
        arrays = [
            pa.array(columns[f.name], pa.int64() if f.type == TIME else f.type).cast(f.type)
            for f in self.schema
        ]
        self.harness.process(pa.record_batch(arrays, schema=self.schema))
        return self.fired()

    def watermark(self, time_us: int) -> set[tuple[str, int, int, tuple[int, ...]]]:
        self.harness.watermark(time_us)
        return self.fired()

    def fired(self) -> set[tuple[str, int, int, tuple[int, ...]]]:
        rows = [row for batch in self.harness.batches[self._seen :] for row in batch.to_pylist()]
        self._seen = len(self.harness.batches)
        assert all(row["n"] == len(row["xs"]) for row in rows)
        found = []
        for row in rows:
            start, end = _us(row["window_start"]), _us(row["window_end"])
            result = (row["key"], start, end, tuple(sorted(row["xs"])))
            if row.get("row_kind", "insert") == "insert":
                assert result not in self.valid
                self.valid.add(result)
                found.append(result)
            else:
                self.valid.remove(result)
        assert len(set(found)) == len(found)
        return set(found)

    @property
    def late(self) -> int:
        return next(
            (
                c.value
                for n, c in self.harness.metrics.counters.items()
                if n == "numLateRecordsDropped"
            ),
            0,
        )


def _us(time: Any) -> int:
    return round(time.timestamp() * 1e6)


def test_sliding_windows_share_their_rows() -> None:
    stream = Stream(SlidingSpec(size_us=10, slide_us=5))
    stream.rows(("a", 3), ("a", 7), ("a", 12))
    assert stream.watermark(3) == set()
    assert stream.watermark(4) == {("a", -5, 5, (0,))}
    assert stream.watermark(9) == {("a", 0, 10, (0, 1))}
    assert stream.watermark(100) == {("a", 5, 15, (1, 2)), ("a", 10, 20, (2,))}


def test_a_row_that_is_late_for_one_sliding_window_is_in_the_next() -> None:
    stream = Stream(SlidingSpec(size_us=10, slide_us=5))
    stream.watermark(9)
    assert stream.rows(("a", 7)) == set()
    assert stream.watermark(14) == {("a", 5, 15, (0,))}
    stream.rows(("a", 7))
    assert stream.late == 1


def test_a_window_that_late_rows_fire_again_has_combined_its_other_rows() -> None:
    stream = Stream(TumblingSpec(size_us=10), allowed_lateness_us=100)
    stream.rows(*[("a", 1)] * 50, ("b", 2))
    stream.watermark(9)
    for late in range(3):
        (found,) = stream.rows(("a", 3))
        assert found == ("a", 0, 10, (*range(50), *range(51, 52 + late)))
        panes = stream.harness.operator._panes  # type: ignore[attr-defined]
        assert [pane.rows for pane in panes.values()] == [2], "one per key"
    assert stream.watermark(200) == set()


def test_windows_with_gaps_between_them_leave_rows_out() -> None:
    stream = Stream(SlidingSpec(size_us=2, slide_us=10))
    stream.rows(("a", 1), ("a", 5), ("a", 11))
    assert stream.watermark(100) == {("a", 0, 2, (0,)), ("a", 10, 12, (2,))}
    assert stream.late == 0


def test_sessions_join_when_a_row_bridges_them() -> None:
    stream = Stream(SessionSpec(gap_us=10))
    stream.rows(("a", 0), ("a", 20), ("b", 0))
    assert stream.watermark(9) == {("a", 0, 10, (0,)), ("b", 0, 10, (2,))}
    stream.rows(("a", 12))
    assert stream.watermark(28) == set()
    assert stream.watermark(29) == {("a", 12, 30, (1, 3))}


def test_rows_exactly_a_gap_apart_are_of_one_session() -> None:
    stream = Stream(SessionSpec(gap_us=10))
    stream.rows(("a", 0), ("a", 10), ("a", 21))
    assert stream.watermark(100) == {("a", 0, 20, (0, 1)), ("a", 21, 31, (2,))}


def test_a_late_row_joins_a_session_that_is_still_open() -> None:
    stream = Stream(SessionSpec(gap_us=10))
    stream.rows(("a", 25))
    stream.watermark(24)
    assert stream.rows(("a", 15)) == set()
    assert stream.rows(("b", 14)) == set()
    assert stream.late == 1
    assert stream.watermark(100) == {("a", 15, 35, (0, 1))}


def test_allowed_late_rows_fire_a_session_again() -> None:
    stream = Stream(SessionSpec(gap_us=10), allowed_lateness_us=20)
    stream.rows(("a", 0))
    assert stream.watermark(9) == {("a", 0, 10, (0,))}
    assert stream.rows(("a", 3)) == set(), "its end has moved to the future"
    assert stream.watermark(12) == {("a", 0, 13, (0, 1))}
    assert stream.watermark(20) == set()
    assert stream.rows(("a", 1)) == {("a", 0, 13, (0, 1, 2))}
    stream.watermark(32)
    assert stream.rows(("a", 1)) == set()
    assert stream.late == 1
    assert stream.harness.operator._settled.num_rows == 0  # type: ignore[attr-defined]


def test_results_of_sessions_that_join_are_retracted() -> None:
    stream = Stream(SessionSpec(gap_us=10), allowed_lateness_us=100)
    stream.rows(("a", 0), ("a", 15), ("b", 0))
    stream.watermark(50)
    assert stream.rows(("a", 8)) == {("a", 0, 25, (0, 1, 3))}
    assert stream.valid == {("a", 0, 25, (0, 1, 3)), ("b", 0, 10, (2,))}
    assert stream.rows(("a", 45)) == set()
    assert stream.rows(("a", 35), ("b", 40)) == {("b", 40, 50, (6,))}
    assert stream.watermark(54) == {("a", 35, 55, (4, 5))}
    assert stream.rows(("a", 25)) == {("a", 0, 55, (0, 1, 3, 4, 5, 7))}
    kinds = [row["row_kind"] for row in stream.harness.rows()]
    assert kinds[-3:] == ["delete", "delete", "insert"]
    stream.watermark(1_000)
    assert stream.valid == {
        ("a", 0, 55, (0, 1, 3, 4, 5, 7)),
        ("b", 0, 10, (2,)),
        ("b", 40, 50, (6,)),
    }
    assert stream.harness.operator._emitted.num_rows == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("window", [TumblingSpec(size_us=10_000, processing_time=True)])
def test_processing_time_windows_fire_by_the_clock(window: WindowSpec) -> None:
    stream = Stream(window)
    stream.now_us = 1_003_000
    stream.rows(("a", 0), ("b", 0))
    stream.now_us = 1_011_000
    stream.rows(("a", 0))
    stream.harness.processing_time(1_010)
    assert stream.fired() == {("a", 1_000_000, 1_010_000, (0,)), ("b", 1_000_000, 1_010_000, (1,))}
    assert stream.watermark(2**60) == set()
    stream.harness.end()
    assert stream.fired() == {("a", 1_010_000, 1_020_000, (2,))}, (
        "what is left fires when the input ends"
    )


def test_processing_time_sessions_fire_by_the_clock() -> None:
    stream = Stream(SessionSpec(gap_us=10_000, processing_time=True))
    for now_us in (1_000_000, 1_006_000, 1_030_000):
        stream.now_us = now_us
        stream.harness.processing_time(now_us // 1_000)
        stream.rows(("a", 0))
    assert stream.fired() == set()
    stream.harness.processing_time(1_040)
    assert stream.fired() == {("a", 1_030_000, 1_040_000, (2,))}


_PROCESSING_TIME = [
    TumblingSpec(size_us=10_000, offset_us=3_000, processing_time=True),
    SlidingSpec(size_us=12_000, slide_us=4_000, processing_time=True),
    SlidingSpec(size_us=4_000, slide_us=10_000, processing_time=True),
    SessionSpec(gap_us=5_000, processing_time=True),
]


@pytest.mark.parametrize(
    "window", _PROCESSING_TIME, ids=lambda w: f"{type(w).__name__} {getattr(w, 'slide_us', '')}"
)
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.lists(st.sampled_from("abc"), max_size=4)), max_size=15
    )
)
def test_processing_time_windows_hold_what_arrives_in_them(
    window: WindowSpec, story: list[tuple[int, list[str]]]
) -> None:
    """Rows arrive some milliseconds after those before; a window fires when the clock has reached
    its end.
    """
    stream = Stream(window)
    held: dict[tuple[str, int, int], list[int]] = {}
    number = 0
    for pause_ms, keys in [*story, (1_000, [])]:
        stream.now_us += pause_ms * 1_000
        stream.harness.processing_time(stream.now_us // 1_000)
        due = {group for group in held if group[2] <= stream.now_us}
        assert stream.fired() == {(*group, tuple(held.pop(group))) for group in due}
        for key in keys:
            for start, end in _windows_at(
                window, stream.now_us, [group[1:] for group in held if group[0] == key]
            ):
                joined = [group for group in held if group[0] == key and group[1] == start]
                held[key, start, end] = [n for group in joined for n in held.pop(group)] + [number]
            number += 1
        if keys:
            assert stream.rows(*[(key, 0) for key in keys]) == set()
    stream.harness.end()
    assert not stream.fired()


def _windows_at(
    window: WindowSpec, now_us: int, open_sessions: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    if isinstance(window, SessionSpec):
        return [(open_sessions[0][0] if open_sessions else now_us, now_us + window.gap_us)]
    last = now_us - (now_us - window.offset_us) % window.slide_us
    return [
        (start, start + window.size_us)
        for start in range(last, now_us - window.size_us, -window.slide_us)
    ]


_ELEMENTS = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60)), min_size=1, max_size=6)
    | st.integers(0, 80),
    max_size=12,
)


@given(
    _ELEMENTS,
    st.sampled_from([(10, 5), (10, 4), (6, 6), (3, 7), (9, 2)]),
    st.integers(0, 6),
    st.sampled_from([0, 7]),
)
def test_sliding_windows_equal_the_oracle(
    elements: list[list[Row] | int], shape: tuple[int, int], offset: int, lateness: int
) -> None:
    size, slide = shape
    stream = Stream(SlidingSpec(size_us=size, slide_us=slide, offset_us=offset % slide), lateness)
    held: dict[tuple[str, int], list[int]] = {}
    watermark, count, dropped = -(2**63), 0, 0
    for element in [*elements, 1_000]:
        if isinstance(element, int):
            before, watermark = watermark, max(watermark, element)
            expected = {
                (key, start, start + size, tuple(xs))
                for (key, start), xs in held.items()
                if before < start + size - 1 <= watermark
            }
            assert stream.watermark(watermark) == expected
            continue
        touched = set()
        for key, time in element:
            starts = [s for s in range(time - size + 1, time + 1) if (s - offset) % slide == 0]
            taken = [s for s in starts if s + size - 1 + lateness > watermark]
            dropped += bool(starts) and not taken
            for start in taken:
                held.setdefault((key, start), []).append(count)
                if start + size - 1 <= watermark:
                    touched.add((key, start))
            count += 1
        updates = {(key, start, start + size, tuple(held[key, start])) for key, start in touched}
        assert stream.rows(*element) == updates
    assert stream.late == dropped
    assert not stream.harness.operator._panes  # type: ignore[attr-defined]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=20),
    st.booleans(),
)
def test_windows_are_combined_alike_one_by_one_and_together(
    rows: list[tuple[int, int]], sparse: bool
) -> None:
    spec = WindowAggregateSpec(
        key_columns=("key",),
        window=TumblingSpec(size_us=10),
        aggregates=parse_aggregates(["sum(x) AS s"]),
    )
    rows.sort(key=lambda row: row[0])
    keys = pa.array([key * (10**12 if sparse else 1) for _, key in rows])
    table = pa.table({"key": keys, "_p0_sum": range(len(rows)), "_rows": [1] * len(rows)})
    found = []
    for limit in (0, 10**6):
        before, partial_contents.LARGE_ROWS = partial_contents.LARGE_ROWS, limit
        try:
            combined, windows = PartialContents(spec).combined(
                table, np.array([window for window, _ in rows])
            )
        finally:
            partial_contents.LARGE_ROWS = before
        assert (windows[1:] >= windows[:-1]).all()
        found.append(
            sorted(zip(windows.tolist(), *(c.to_pylist() for c in combined.columns), strict=True))
        )
    assert found[0] == found[1]
    assert sum(count for *_, count in found[0]) == len(rows)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 9)), max_size=25),
    st.sampled_from([1, 2**57]),
)
def test_intervals_that_touch_are_joined(rows: list[tuple[int, int, int]], far: int) -> None:
    codes = np.array([code for code, *_ in rows], np.int64)
    starts = np.array([start * far - 5 for _, start, _ in rows], np.int64)
    ends = np.array([(start + length) * far - 5 for _, start, length in rows], np.int64)
    found = grouping.sessions(codes, starts, ends)
    points = [
        {(code, point) for point in range(start, start + length + 1)}
        for code, start, length in rows
    ]
    alike = [{row} for row in range(len(rows))]
    for one, mine in enumerate(points):
        for other, theirs in enumerate(points):
            if mine & theirs and alike[one] is not alike[other]:
                alike[one] |= alike[other]
                for row in alike[other]:
                    alike[row] = alike[one]
    for row, number in enumerate(found.numbers):
        members = np.array(sorted(alike[row]))
        assert set(np.flatnonzero(found.numbers == number)) == alike[row]
        assert found.starts[number] == starts[members].min()
        assert found.ends[number] == ends[members].max()


@given(_ELEMENTS, st.sampled_from([1, 5, 12]), st.sampled_from([0, 7]))
def test_sessions_equal_the_oracle(
    elements: list[list[Row] | int], gap: int, lateness: int
) -> None:
    stream = Stream(SessionSpec(gap_us=gap), lateness)
    held: list[
        tuple[str, int, int, tuple[int, ...], bool]
    ] = []  # ..., whether it has rows that are in no result
    watermark, count, dropped = -(2**63), 0, 0

    def fire() -> set[tuple[str, int, int, tuple[int, ...]]]:
        nonlocal held
        due = {session[:4] for session in held if session[4] and session[2] - 1 <= watermark}
        held = [
            (*s[:4], s[4] and s[:4] not in due) for s in held if s[2] - 1 + lateness > watermark
        ]
        return due

    for element in [*elements, 1_000]:
        if isinstance(element, int):
            watermark = max(watermark, element)
            assert stream.watermark(watermark) == fire()
            continue
        for key, time in element:
            held.append((key, time, time + gap, (count,), True))
            count += 1
        held = _joined(held)
        dropped += sum(
            len(session[3]) for session in held if session[2] - 1 + lateness <= watermark
        )
        held = [session for session in held if session[2] - 1 + lateness > watermark]
        assert stream.rows(*element) == fire()
    assert stream.late == dropped
    in_results = sorted(number for *_, numbers in stream.valid for number in numbers)
    assert len(set(in_results)) == len(in_results) == count - dropped


def _joined(
    sessions: list[tuple[str, int, int, tuple[int, ...], bool]],
) -> list[tuple[str, int, int, tuple[int, ...], bool]]:
    joined: list[tuple[str, int, int, tuple[int, ...], bool]] = []
    for key, start, end, rows, fresh in sorted(sessions):
        if joined and joined[-1][0] == key and start <= joined[-1][2]:
            last = joined.pop()
            end, rows, fresh = max(end, last[2]), tuple(sorted(last[3] + rows)), fresh or last[4]
            start = last[1]
        joined.append((key, start, end, rows, fresh))
    return joined


@given(_ELEMENTS)
def test_settling_early_changes_nothing(elements: list[list[Row] | int]) -> None:
    results = []
    for limit in (0, 10**6):
        stream = Stream(SessionSpec(gap_us=5))
        before, sessions.SETTLE_ROWS = sessions.SETTLE_ROWS, limit
        try:
            fired = [
                stream.watermark(e) if isinstance(e, int) else stream.rows(*e)
                for e in _rising(elements)
            ]
        finally:
            sessions.SETTLE_ROWS = before
        assert isinstance(stream.harness.operator, SessionWindows)
        results.append((fired, stream.late))
    assert results[0] == results[1]


def _rising(elements: list[list[Row] | int]) -> list[list[Row] | int]:
    latest = 0
    found: list[list[Row] | int] = []
    for element in [*elements, 1_000]:
        latest = max(latest, element) if isinstance(element, int) else latest
        found.append(latest if isinstance(element, int) else element)
    return found
