"""top_n: the first rows of each key and window, also of late ones, against sorting everything."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.plan.specs import (
    SessionSpec,
    SlidingSpec,
    TumblingSpec,
    WindowSpec,
    WindowTopNSpec,
)
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.windows import panes
from taskexecutor.executor.operators.windows.window_operator import window_operator

TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([("key", pa.string()), ("at", TIME), ("x", pa.float64()), ("n", pa.int64())])
RESULTS = [*ROWS, pa.field("window_start", TIME), pa.field("window_end", TIME)]
RESULTS.append(pa.field("rank", pa.int32()))

Row = dict[str, Any]
FLOWS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(0, 30),
            st.none() | st.sampled_from([1.0, 2.0, math.nan, -math.inf]),
        ),
        min_size=1,
        max_size=8,
    )
    | st.integers(0, 40),
    max_size=8,
)


def order(row: Row, ascending: bool) -> tuple[int, float, int]:
    """As Spark: null, values, NaN; then, in ascending order, the number."""
    x = row["x"]
    place = (0, 0.0) if x is None else (2, 0.0) if math.isnan(x) else (1, x)
    return (*(place if ascending else (-place[0], -place[1])), row["n"])


def windows_of(rows: list[Row], window: WindowSpec) -> dict[tuple[str, int, int], list[Row]]:
    found: dict[tuple[str, int, int], list[Row]] = {}
    if isinstance(window, SessionSpec):
        for key in {row["key"] for row in rows}:
            session: list[Row] = []
            for row in sorted((r for r in rows if r["key"] == key), key=lambda r: r["at"]):
                if session and row["at"] > session[-1]["at"] + window.gap_us:
                    found[key, session[0]["at"], session[-1]["at"] + window.gap_us] = session
                    session = []
                session.append(row)
            found[key, session[0]["at"], session[-1]["at"] + window.gap_us] = session
        return found
    for row in rows:
        for start in range(-window.size_us, 60):
            inside = start <= row["at"] < start + window.size_us
            if inside and start % window.slide_us == 0:
                found.setdefault((row["key"], start, start + window.size_us), []).append(row)
    return found


@settings(max_examples=150)
@given(
    flow=FLOWS,
    window=st.sampled_from(
        [TumblingSpec(size_us=10), SlidingSpec(size_us=12, slide_us=4), SessionSpec(gap_us=4)]
    ),
    n=st.integers(1, 3),
    ascending=st.booleans(),
    keyed=st.booleans(),
    compact=st.booleans(),
)
def test_the_first_rows_are_those_of_all_rows_sorted(
    flow: list[list[tuple[str, int, float | None]] | int],
    window: WindowSpec,
    n: int,
    ascending: bool,
    keyed: bool,
    compact: bool,
) -> None:
    """With a lateness that allows everything, what is valid at the end is right for all rows."""
    spec = WindowTopNSpec(
        key_columns=("Key",) if keyed else (),
        window=window,
        n=n,
        by=("X", "n"),
        ascending=(ascending, True),
        time_column="at",
        allowed_lateness_us=1_000,
    )
    schema = pa.schema([*RESULTS, pa.field("row_kind", pa.string())])
    harness = OperatorHarness(window_operator(spec), [ROWS], output_schema=schema).open()
    before, panes.COMPACT_ROWS = panes.COMPACT_ROWS, 2 if compact else 65_536
    rows: list[Row] = []
    try:
        for element in [*flow, 500]:
            if isinstance(element, int):
                harness.watermark(element)
                continue
            batch = [
                {"key": key, "at": at, "x": x, "n": len(rows) + index}
                for index, (key, at, x) in enumerate(element)
            ]
            rows += batch
            harness.process(pa.RecordBatch.from_pylist(batch, schema=ROWS))
    finally:
        panes.COMPACT_ROWS = before
    assert all(one.schema == schema for one in harness.batches)
    valid: set[tuple[Any, ...]] = set()
    for row in harness.rows():
        bounds = [round(row[c].timestamp() * 1e6) for c in ("window_start", "window_end")]
        result = (row["key"], row["n"], *bounds, row["rank"])
        if row["row_kind"] == "insert":
            assert result not in valid
            valid.add(result)
        else:
            valid.remove(result)
    grouped = rows if keyed else [row | {"key": ""} for row in rows]
    expected = {
        (rows[row["n"]]["key"], row["n"], start, end, rank)
        for (_, start, end), inside in windows_of(grouped, window).items()
        for rank, row in enumerate(sorted(inside, key=lambda r: order(r, ascending))[:n], start=1)
    }
    assert valid == expected
