"""Partial rows of panes as partial rows of windows, compared with windows of single rows."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from firesteel.operators import SlidingSpec, TumblingSpec
from taskexecutor.executor.columnar.grouping.whole_windows import whole_windows

TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("window_start", TIME),
        ("window_end", TIME),
        ("total", pa.int64()),
        ("_rows", pa.int64()),
    ]
)


def panes(
    rows: list[tuple[str | None, int | None]], window: TumblingSpec | SlidingSpec
) -> pa.RecordBatch:
    """Returns one partial row per row."""
    size_us, offset_us = window.pane_us, window.offset_us
    starts = [None if time is None else time - (time - offset_us) % size_us for _, time in rows]
    ends = [None if start is None else start + size_us for start in starts]
    columns = [
        pa.array([key for key, _ in rows], pa.string()),
        pa.array(starts, TIME),
        pa.array(ends, TIME),
        pa.array([0 if time is None else time for _, time in rows], pa.int64()),
        pa.array([1] * len(rows), pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(-50, 50)), max_size=20
    ),
    size=st.integers(1, 12),
    slide=st.integers(1, 12),
    offset=st.integers(-7, 7),
)
@example(rows=[("a", -1), ("a", 0), (None, None)], size=10, slide=3, offset=1)
def test_windows_have_the_rows_of_their_panes(
    rows: list[tuple[str | None, int | None]], size: int, slide: int, offset: int
) -> None:
    slide = min(slide, size)
    window: TumblingSpec | SlidingSpec = SlidingSpec(size_us=size, slide_us=slide, offset_us=offset)
    if size == slide:
        window = TumblingSpec(size_us=size, offset_us=offset)
    whole = whole_windows(
        panes(rows, window),
        window,
        start="window_start",
        end="window_end",
        keys=["key"],
        merges={"total": "sum", "_rows": "sum"},
    )
    assert whole.schema == SCHEMA
    got: Counter[tuple[str | None, int, int]] = Counter()
    totals: Counter[tuple[str | None, int, int]] = Counter()
    for key, start, end, total, count in zip(
        whole.column("key").to_pylist(),
        whole.column("window_start").cast(pa.int64()).to_pylist(),
        whole.column("window_end").cast(pa.int64()).to_pylist(),
        whole.column("total").to_pylist(),
        whole.column("_rows").to_pylist(),
        strict=True,
    ):
        got[key, start, end] += count
        totals[key, start, end] += total
    expected: Counter[tuple[str | None, int, int]] = Counter()
    sums: Counter[tuple[str | None, int, int]] = Counter()
    for key, time in rows:
        for start in range(-80, 80) if time is not None else ():
            if (start - offset) % slide == 0 and start <= time < start + size:  # type: ignore[operator]
                expected[key, start, start + size] += 1
                sums[key, start, start + size] += time or 0
    assert got == expected
    assert {each: totals[each] for each in got} == {each: sums[each] for each in expected}
    if isinstance(window, SlidingSpec):
        assert whole.num_rows == len(got), "a key and window is one row"
