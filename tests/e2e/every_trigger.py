"""Windows that fire by triggers, calls in flight and functions with timers after one source, and
what they must have emitted once the job has ended: nothing lost and nothing doubled, whichever
process died.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import Row

from firesteel import KeyedProcessFunction, Tumbling, ValueStateDescriptor
from firesteel import Session as SessionWindow
from firesteel.connectors import FileSink
from firesteel.datastream import DataStream
from firesteel.triggers import (
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    PurgingTrigger,
    Trigger,
    TriggerContext,
    TriggerResult,
)
from firesteel.windows import Global

from .every_state import SPLIT_MS, WINDOW_MS, event_time_ms

SIZE, SLIDE = 40, 20  # rows of a count window, of which a split has some
TICK_MS = 300
# Rows at even places keep a session open for longer than those between them, which are never last.
GAP = "CASE WHEN n % 2 = 1 THEN '6 seconds' ELSE '3 seconds' END"
SUMMED = "split INT, rows BIGINT, total BIGINT"
_SUMS = ("count(*) AS rows", "sum(n) AS total")


async def answered(row: Row) -> Row:
    """Calls are in flight whenever a process dies, and some overtake others."""
    await asyncio.sleep(row.n % 7 / 50)
    return row


class AtEndOfSplit(Trigger):
    """Fires once event time has passed the split: a timer, and a value in its state."""

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        counted = ctx.get_partitioned_state("counted")
        counted.update((counted.value() or 0) + 1)
        ctx.register_event_time_timer((element.split + 1) * SPLIT_MS)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        assert ctx.get_partitioned_state("counted").value(), "a row has registered the timer"
        ctx.get_partitioned_state("counted").clear()
        return TriggerResult.FIRE_AND_PURGE

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        """A global window is never over."""


class Ticking(KeyedProcessFunction):
    """Emits what a split has had since the last tick of the clock; what is left, once event time
    has passed the split.
    """

    def open(self, runtime_context: Any) -> None:
        self.sums = runtime_context.get_state(
            ValueStateDescriptor("sums", "rows BIGINT, total BIGINT")
        )

    def process_element(self, value: Row, ctx: Any) -> None:
        timers = ctx.timer_service()
        if self.sums.value() is None:
            timers.register_processing_time_timer(timers.current_processing_time() + TICK_MS)
        count, total = self.sums.value() or (0, 0)
        self.sums.update((count + 1, total + value.n))
        timers.register_event_time_timer((value.split + 1) * SPLIT_MS)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[int, int, int]]:
        if (sums := self.sums.value()) is not None:
            yield ctx.get_current_key(), *sums
            self.sums.clear()


def add_to(rows: DataStream, folder: Path) -> None:
    """`rows`: split INT, n BIGINT, key BIGINT, at TIMESTAMP, the event time."""
    by_key, by_split = rows.key_by("key"), rows.key_by("split")
    early = PurgingTrigger.of(ContinuousProcessingTimeTrigger.of(f"{TICK_MS} ms"))
    streams = [
        _as("counted", by_split.count_window(SIZE).aggregate(*_SUMS), "split", "window_id"),
        _as("slid", by_split.count_window(SIZE, SLIDE).aggregate(*_SUMS), "split", "window_id"),
        _as(
            "global",
            by_split.window(Global()).trigger(CountTrigger.of(SIZE)).aggregate(*_SUMS),
            "split",
            "window_id",
        ),
        _as(
            "split",
            by_split.window(Global()).trigger(AtEndOfSplit()).aggregate(*_SUMS),
            "split",
            "window_id",
        ),
        _as(
            "session",
            by_split.window(SessionWindow.with_dynamic_gap(GAP)).aggregate(*_SUMS),
            "split",
            "unix_millis(window_end)",
        ),
        _as(
            "early session",
            by_split.window(SessionWindow.with_dynamic_gap(GAP)).trigger(early).aggregate(*_SUMS),
            "split",
        ),
        _as(
            "early",
            by_key.window(Tumbling(f"{WINDOW_MS} ms")).trigger(early).aggregate(*_SUMS),
            "key",
            "unix_millis(window_start)",
        ),
        _as("ticking", by_split.process(Ticking(), SUMMED), "split"),
        _as(
            "answered in order",
            rows.map_async(answered, capacity=20)
            .key_by("split")
            .count_window(SIZE)
            .aggregate(*_SUMS),
            "split",
            "window_id",
        ),
        _as(
            "answered",
            rows.map_async(answered, capacity=20, ordered=False)
            .key_by("split")
            .process(Ticking(), SUMMED),
            "split",
        ),
    ]
    streams[0].union(*streams[1:]).sink_to(FileSink(str(folder)))


def _as(what: str, results: DataStream, of: str, begin: str = "0") -> DataStream:
    return results.select_expr(
        f"'{what}' AS what",
        f"CAST({of} AS BIGINT) AS of",
        f"CAST({begin} AS BIGINT) AS begin",
        "rows",
        "total",
    )


def check(folder: Path, read: list[tuple[int, int, int]]) -> None:
    """`read`: the rows, as (split, n, key)."""
    found: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for row in ds.dataset(folder, format="parquet").to_table().to_pylist():
        found[row["what"]].append((row["of"], row["begin"], row["rows"], row["total"]))
    numbers: dict[int, list[int]] = defaultdict(list)
    for split, n, _ in sorted(read):
        numbers[split].append(n)
    by_split = [(split, 0, len(ns), sum(ns)) for split, ns in sorted(numbers.items())]

    def windows(begin_of: Any, step: int) -> list[tuple[int, ...]]:
        """Every `step` rows of a split, the rows from `begin_of(end)` on."""
        return sorted(
            (split, window, len(some), sum(some))
            for split, ns in numbers.items()
            for window, end in enumerate(range(step, len(ns) + 1, step))
            for some in [ns[begin_of(end) : end]]
        )

    assert sorted(found["counted"]) == windows(lambda end: end - SIZE, SIZE)
    assert sorted(found["answered in order"]) == windows(lambda end: end - SIZE, SIZE)
    assert sorted(found["global"]) == windows(lambda end: 0, SIZE)
    assert sorted(found["slid"]) == sorted(
        (split, window, SIZE, sum(ns[begin : begin + SIZE]))
        for split, ns in numbers.items()
        for window, begin in enumerate(range(0, len(ns) - SIZE + 1, SLIDE))
    )
    assert sorted(found["split"]) == by_split
    sessions = [
        (split, max(event_time_ms(split, n) + gap_ms(n) for n in numbers[split]), *sums)
        for split, _, *sums in by_split
    ]
    assert sorted(found["session"]) == sessions
    for parts in ("early session", "ticking", "answered"):
        assert _whole(found[parts]) == by_split, parts
    in_windows: Counter[tuple[int, int]] = Counter()
    totals: Counter[tuple[int, int]] = Counter()
    for split, n, key in read:
        window = key, event_time_ms(split, n) // WINDOW_MS * WINDOW_MS
        in_windows[window] += 1
        totals[window] += n
    expected = sorted((*window, count, totals[window]) for window, count in in_windows.items())
    assert _whole(found["early"]) == expected


def gap_ms(n: int) -> int:
    return 6_000 if n % 2 else 3_000


def _whole(parts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The sums of the partial results of each key and window, no row of which is empty."""
    assert all(rows for _, _, rows, _ in parts)
    sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for of, begin, rows, total in parts:
        sums[of, begin][0] += rows
        sums[of, begin][1] += total
    return sorted((*window, *sum_) for window, sum_ in sums.items())
