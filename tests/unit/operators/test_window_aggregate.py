"""The keyed half of windowed aggregation: merging, firing, late records."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from firesteel.elements import Watermark
from firesteel.operators import TumblingSpec, WindowAggregateSpec
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.windows import panes, window_operator
from taskexecutor.executor.state import RestoredOperatorState, RowsSlice
from taskexecutor.executor.task.chain import NodeTarget

SIZE_US = 10
ITEMS = parse_aggregates(["count(*) AS n", "sum(x) AS s", "avg(x) AS a", "max(x) AS top"])
TIME = pa.timestamp("us", "UTC")
INPUT = pa.schema(
    [("key", pa.string()), ("window_start", TIME), ("window_end", TIME)]
    + [(name, pa.int64()) for item in ITEMS for name in item.partial]
    + [("_rows", pa.int64())]
)
OUTPUT = pa.schema(
    [
        ("key", pa.string()),
        ("window_start", TIME),
        ("window_end", TIME),
        ("n", pa.int64()),
        ("s", pa.int64()),
        ("a", pa.float64()),
        ("top", pa.int64()),
    ]
)

Row = tuple[str | None, int, int | None]  # key, time, x


def partials(*rows: Row) -> pa.RecordBatch:
    """Returns the upstream half's partial results of one bundle."""
    groups: dict[tuple[str | None, int], list[int | None]] = {}
    for key, time, x in rows:
        groups.setdefault((key, time // SIZE_US * SIZE_US), []).append(x)
    columns: dict[str, list[Any]] = {name: [] for name in INPUT.names}
    for (key, start), values in groups.items():
        present = [x for x in values if x is not None]
        total = sum(present) if present else None
        columns["key"].append(key)
        columns["window_start"].append(start)
        columns["window_end"].append(start + SIZE_US)
        columns["_rows"].append(len(values))
        columns["_p0_count"].append(len(values))
        columns["_p1_sum"].append(total)
        columns["_p2_sum"].append(total)
        columns["_p2_count"].append(len(present))
        columns["_p3_max"].append(max(present, default=None))
    arrays = [
        pa.array(columns[f.name], pa.int64() if f.type == TIME else f.type).cast(f.type)
        for f in INPUT
    ]
    return pa.record_batch(arrays, schema=INPUT)


def opened(
    allowed_lateness_us: int = 0, restored: RestoredOperatorState | None = None
) -> OperatorHarness:
    spec = WindowAggregateSpec(
        key_columns=("key",),
        window=TumblingSpec(size_us=SIZE_US),
        aggregates=ITEMS,
        allowed_lateness_us=allowed_lateness_us,
    )
    return OperatorHarness(
        window_operator(spec), [INPUT], output_schema=OUTPUT, restored=restored
    ).open()


def results(harness: OperatorHarness) -> list[tuple[Any, ...]]:
    """(key, window start in µs, n, s) of every row, in order of emission."""
    return [
        (row["key"], int(row["window_start"].timestamp() * 1e6 + 0.5), row["n"], row["s"])
        for batch in harness.batches
        for row in batch.to_pylist()
    ]


def late(harness: OperatorHarness) -> int:
    return next(
        (c.value for n, c in harness.metrics.counters.items() if n == "numLateRecordsDropped"), 0
    )


def test_a_window_fires_when_the_watermark_reaches_its_last_microsecond() -> None:
    harness = opened()
    harness.process(partials(("a", 1, 5), ("a", 9, 7)))
    harness.watermark(8)
    assert results(harness) == []
    harness.watermark(9)
    assert results(harness) == [("a", 0, 2, 12)]
    assert harness.watermarks_us == [8, 9]
    assert isinstance(
        harness.elements[-1], type(harness.elements[0])
    )  # the rows came before their watermark


def test_partials_of_many_bundles_and_producers_merge() -> None:
    harness = opened()
    for x in range(4):
        harness.process(partials(("a", 1, x), ("b", 2, None), (None, 3, 1)))
    harness.end()
    rows = {row["key"]: row for row in harness.rows()}
    assert (rows["a"]["n"], rows["a"]["s"], rows["a"]["a"], rows["a"]["top"]) == (4, 6, 1.5, 3)
    assert (rows["b"]["n"], rows["b"]["s"], rows["b"]["a"], rows["b"]["top"]) == (
        4,
        None,
        None,
        None,
    )
    assert rows[None]["s"] == 4


def test_windows_fire_in_order_of_time() -> None:
    harness = opened()
    harness.process(partials(("a", 35, 1), ("a", 5, 1), ("b", 15, 1)))
    harness.watermark(100)
    assert [start for _, start, _, _ in results(harness)] == [0, 10, 30]


def test_late_records_are_dropped_and_counted_by_rows() -> None:
    harness = opened()
    harness.process(partials(("a", 1, 1)))
    harness.watermark(9)
    harness.process(partials(("a", 2, 1), ("a", 3, 1), ("b", 4, 1), ("a", 12, 9)))
    harness.end()
    assert results(harness) == [("a", 0, 1, 1), ("a", 10, 1, 9)]
    assert late(harness) == 3


def test_allowed_lateness_updates_the_touched_keys_only_and_then_ends() -> None:
    harness = opened(allowed_lateness_us=5)
    harness.process(partials(("a", 1, 1), ("b", 1, 1)))
    harness.watermark(9)
    harness.process(partials(("a", 2, 10)))
    assert results(harness)[-1] == ("a", 0, 2, 11)
    assert len(results(harness)) == 3
    harness.watermark(14)
    harness.process(partials(("a", 2, 10)))
    assert late(harness) == 1
    harness.end()
    assert len(results(harness)) == 3


def test_a_late_but_allowed_window_that_never_was_is_emitted_immediately() -> None:
    harness = opened(allowed_lateness_us=100)
    harness.watermark(50)
    harness.process(partials(("a", 2, 10)))
    assert results(harness) == [("a", 0, 1, 10)]


def test_many_partials_are_compacted(monkeypatch: Any) -> None:
    monkeypatch.setattr(panes, "COMPACT_ROWS", 3)
    harness = opened()
    for x in range(50):
        harness.process(partials(("a", 1, x), ("b", 1, x)))
    (pane,) = harness.operator._panes.values()  # type: ignore[attr-defined]
    assert pane.rows <= 2 + 3 + 2 + 2
    harness.end()
    assert sorted(results(harness)) == [("a", 0, 50, 1225), ("b", 0, 50, 1225)]


def test_a_snapshot_has_a_row_per_key_where_many_wait() -> None:
    harness = opened()
    for x in range(5):
        harness.process(partials(("a", 1, x), ("b", 1, x), ("a", 11, x)))
    restored = harness.checkpoint(1)
    assert _stored(restored) == [("a", 0, 5), ("a", 10, 5), ("b", 0, 5)]
    harness.process(partials(("a", 1, 9)))  # fewer than are combined: they stay as they are
    assert _stored(harness.checkpoint(2)) == [("a", 0, 1), ("a", 0, 5), ("a", 10, 5), ("b", 0, 5)]
    harness.end()
    assert sorted(results(harness)) == [("a", 0, 6, 19), ("a", 10, 5, 10), ("b", 0, 5, 10)]
    again = opened(restored=restored)
    again.end()
    assert sorted(results(again)) == [("a", 0, 5, 10), ("a", 10, 5, 10), ("b", 0, 5, 10)]


def test_a_snapshot_waits_for_a_limited_number_of_rows(monkeypatch: Any) -> None:
    monkeypatch.setattr(panes, "SNAPSHOT_ROWS", 4)
    harness = opened()
    for x in range(5):
        harness.process(partials(("a", 1, x), ("a", 11, x)))
    assert _stored(harness.checkpoint(1)) == [("a", 0, 5)] + 5 * [("a", 10, 1)]
    assert _stored(harness.checkpoint(2)) == [("a", 0, 5), ("a", 10, 5)]


def _stored(restored: RestoredOperatorState) -> list[tuple[Any, ...]]:
    """(key, pane start in µs, n) of every partial row."""
    return sorted(
        (row["key"], row["_pane_start"], row["_p0_count"])
        for rows in restored.keyed
        if isinstance(rows, RowsSlice)
        for row in rows.table.to_pylist()
    )


@st.composite
def _streams(draw: st.DrawFn) -> list[list[Row] | int]:
    row = st.tuples(
        st.sampled_from(["a", "b", None]), st.integers(0, 59), st.none() | st.integers(-5, 5)
    )
    return draw(st.lists(st.lists(row, min_size=1, max_size=6) | st.integers(0, 70), max_size=12))


@given(_streams(), st.sampled_from([0, 7]))
def test_any_interleaving_equals_the_oracle(
    stream: list[list[Row] | int], lateness_us: int
) -> None:
    """Row by row: a record counts unless its window's end and lateness were passed when it came."""
    harness = opened(lateness_us)
    expected: dict[tuple[str | None, int], list[int | None]] = {}
    watermark, dropped = -(2**63), 0
    for element in stream:
        if isinstance(element, int):
            watermark = max(watermark, element)
            harness.watermark(watermark)
            continue
        harness.process(partials(*element))
        for key, time, x in element:
            start = time // SIZE_US * SIZE_US
            if start + SIZE_US - 1 + lateness_us <= watermark:
                dropped += 1
            else:
                expected.setdefault((key, start), []).append(x)
    harness.end()
    last = {(key, start): (n, s) for key, start, n, s in results(harness)}  # updates replace
    assert last == {
        group: (
            len(values),
            sum(x for x in values if x is not None) if any(x is not None for x in values) else None,
        )
        for group, values in expected.items()
    }
    assert late(harness) == dropped
    assert not harness.operator._panes  # type: ignore[attr-defined]


@st.composite
def _channels(draw: st.DrawFn) -> list[tuple[int, list[Row] | int]]:
    """Rows and watermarks of three upstream subtasks, each in its order, in any interleaving."""
    row = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 59), st.integers(-5, 5))
    element = st.lists(row, min_size=1, max_size=6) | st.integers(0, 70)
    return draw(st.lists(st.tuples(st.integers(0, 2), element), max_size=30))


@given(_channels(), st.sampled_from([0, 7]))
def test_the_slowest_of_several_channels_decides_what_is_late(
    stream: list[tuple[int, list[Row] | int]], lateness_us: int
) -> None:
    harness = opened(lateness_us)
    channels = [harness._inputs[0], *(NodeTarget(harness._node, 0) for _ in range(2))]
    reached = [-(2**63)] * len(channels)
    taken: list[tuple[str | None, int, int | None]] = []
    dropped = 0
    for channel, element in stream:
        if isinstance(element, int):
            reached[channel] = max(reached[channel], element)
            channels[channel].event(Watermark(element))
            continue
        channels[channel].batch(partials(*element))
        in_time = [
            row
            for row in element
            if row[1] // SIZE_US * SIZE_US + SIZE_US - 1 + lateness_us > min(reached)
        ]
        dropped += len(element) - len(in_time)
        taken += in_time
        assert late(harness) == dropped
    fired = [row for row in results(harness) if row[1] + SIZE_US - 1 > min(reached)]
    assert fired == [], "no window fires before every channel has passed its end"
    harness.end()
    assert late(harness) == dropped
    rows = pd.DataFrame(taken, columns=["key", "time", "x"])
    rows["start"] = rows["time"] // SIZE_US * SIZE_US
    grouped = rows.groupby(["key", "start"], dropna=False)["x"].agg(["size", "sum"])
    expected = {
        (None if pd.isna(key) else key, start): tuple(row)
        for (key, start), row in zip(grouped.index, grouped.to_numpy(), strict=True)
    }
    assert {(key, start): (n, s) for key, start, n, s in results(harness)} == expected
    assert not harness.operator._panes  # type: ignore[attr-defined]
