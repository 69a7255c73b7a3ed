"""Operators with every kind of state downstream of one source, and their expected output once it has
ended. That depends on the rows alone, whichever process died.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from firesteel import (
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    Tumbling,
    ValueStateDescriptor,
)
from firesteel import Session as SessionWindow
from firesteel.connectors import FileSink
from firesteel.datastream import DataStream

SPLIT_MS, ROW_MS = 10_000, 50  # of event time; the rows of a split are together
WINDOW_MS = 30_000
TOP = 3
# Event time that subtasks may be apart: splits are read in any order after a failure.
DISORDER = "120 s"
SUMMED = "split INT, rows BIGINT, total BIGINT"
RESULT = "what STRING, of BIGINT, start BIGINT, rows BIGINT, total BIGINT, row_kind STRING"
_SCHEMA = pa.schema(
    [("what", pa.string())]
    + [(name, pa.int64()) for name in ("of", "start", "rows", "total")]
    + [("row_kind", pa.string())]
)


def event_time_ms(split: int, n: int) -> int:
    return split * SPLIT_MS + n * ROW_MS


class Summed(StatefulProcessor):
    """Emits the sum of a split's rows once event time has passed it."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.sums = handle.getValueState("sums", "rows BIGINT, total BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        found = [row.n for row in rows]
        count, total = self.sums.get() or (0, 0)
        self.sums.update((count + len(found), total + sum(found)))
        if not count:
            self.handle.registerTimer((key[0] + 1) * SPLIT_MS)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        yield Row(split=key[0], rows=self.sums.get()[0], total=self.sums.get()[1])
        self.sums.clear()


class SummedOneByOne(KeyedProcessFunction):
    """The same, row by row."""

    def open(self, runtime_context: Any) -> None:
        self.sums = runtime_context.get_state(
            ValueStateDescriptor("sums", "rows BIGINT, total BIGINT")
        )

    def process_element(self, value: Row, ctx: Any) -> None:
        count, total = self.sums.value() or (0, 0)
        self.sums.update((count + 1, total + value.n))
        ctx.timer_service().register_event_time_timer(
            ctx.timestamp() // SPLIT_MS * SPLIT_MS + SPLIT_MS
        )

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), *self.sums.value()
        self.sums.clear()


class SummedTogether(CoProcessFunction):
    """The same, if the second stream has had the split, once."""

    def open(self, context: Any) -> None:
        self.numbers = context.get_list_state("numbers")
        self.seen = context.get_state("seen")

    def process_element1(self, value: Row, ctx: Any) -> None:
        self.numbers.add(value.n)
        ctx.timer_service().register_event_time_timer((value.split + 1) * SPLIT_MS)

    def process_element2(self, value: Row, ctx: Any) -> None:
        self.seen.update((self.seen.value() or 0) + 1)

    def on_timer(self, timestamp_ms: int, ctx: Any) -> Any:
        found = list(self.numbers.get())
        yield ctx.get_current_key(), len(found), sum(found) * self.seen.value()
        self.numbers.clear()
        self.seen.clear()


class SummedIfTold(KeyedBroadcastProcessFunction):
    """Emits the same sum if each subtask has received the split's broadcast exactly once."""

    def open(self, context: Any) -> None:
        self.numbers = context.get_list_state("numbers")

    def process_element(self, value: Row, ctx: Any) -> None:
        self.numbers.add(value.n)
        ctx.timer_service().register_event_time_timer((value.split + 1) * SPLIT_MS)

    def process_broadcast_element(self, value: Row, ctx: Any) -> None:
        told = ctx.get_broadcast_state("told")
        told.put(value.split, (told.get(value.split) or 0) + 1)

    def on_timer(self, timestamp_ms: int, ctx: Any) -> Any:
        split, found = ctx.get_current_key(), list(self.numbers.get())
        times_told = ctx.get_broadcast_state("told").get(split) or 0
        yield split, len(found), sum(found) * times_told
        self.numbers.clear()


async def answered(row: Row) -> Row:
    """Calls are in flight whenever a process dies, and pass each other."""
    await asyncio.sleep(row.n % 7 / 50)
    return row


def add_to(rows: DataStream, folder: Path) -> None:
    """`rows`: split INT, n BIGINT, key BIGINT, at TIMESTAMP, the event time."""
    by_key, by_split = rows.key_by("key"), rows.key_by("split")
    once = rows.drop_duplicates("split", within="1 hour")
    streams = [
        by_key.window(Tumbling(f"{WINDOW_MS} ms"))
        .aggregate("count(*) AS rows", "sum(n) AS total")
        .map_in_arrow(_as("window", "key", "window_start"), RESULT),
        by_split.window(SessionWindow("5 s"))
        .aggregate("count(*) AS rows", "sum(n) AS total")
        .map_in_arrow(_as("session", "split", "window_start"), RESULT),
        by_key.aggregate("count(*) AS rows", "sum(n) AS total").map_in_arrow(
            _as("running", "key"), RESULT
        ),
        by_split.transform_with_state(Summed(), SUMMED, "append", "event_time").map_in_arrow(
            _as("processor", "split"), RESULT
        ),
        by_split.process(SummedOneByOne(), SUMMED).map_in_arrow(_as("one", "split"), RESULT),
        rows.connect(once)
        .key_by("split", "split")
        .co_process(SummedTogether(), SUMMED)
        .map_in_arrow(_as("together", "split"), RESULT),
        by_split.connect(once.select("split").broadcast("told"))
        .process(SummedIfTold(), SUMMED)
        .map_in_arrow(_as("told", "split"), RESULT),
        by_split.top_n(TOP, by="n")
        .select_expr("split", "rank AS rows", "n AS total", "row_kind")
        .map_in_arrow(_as("top", "split"), RESULT),
        by_split.rows_between(-1, 1, by="n")
        .aggregate("sum(n) AS total")
        .select_expr("split", "n AS rows", "total", "row_kind")
        .map_in_arrow(_as("around", "split"), RESULT),
        rows.join(once.select("split"), on="split")
        .select_expr("split", "1 AS rows", "n AS total")
        .map_in_arrow(_as("joined", "split"), RESULT),
        rows.interval_join(
            once.select_expr("split", "at AS first"),
            on="split",
            between=(f"-{SPLIT_MS} ms", f"{SPLIT_MS} ms"),
            times=("at", "first"),
        )
        .select_expr("split", "1 AS rows", "n AS total")
        .map_in_arrow(_as("near", "split"), RESULT),
        rows.map_async(answered, capacity=20, ordered=False)
        .key_by("split")
        .window(SessionWindow("5 s"))
        .aggregate("count(*) AS rows", "sum(n) AS total")
        .map_in_arrow(_as("answered", "split", "window_start"), RESULT),
    ]
    streams[0].union(*streams[1:]).sink_to(FileSink(str(folder)))


def _as(
    what: str, of: str, start: str | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def columns(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            zeros = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
            us = zeros if start is None else batch[start].cast(pa.int64())
            changes = "row_kind" in batch.schema.names
            yield pa.RecordBatch.from_arrays(
                [
                    pa.repeat(pa.scalar(what), batch.num_rows),
                    batch[of].cast(pa.int64()),
                    pc.divide(us, 1000),
                    batch["rows"].cast(pa.int64()),
                    batch["total"].cast(pa.int64()),
                    batch["row_kind"] if changes else pa.repeat("insert", batch.num_rows),
                ],
                schema=_SCHEMA,
            )

    return columns


def check(folder: Path, read: list[tuple[int, int, int]]) -> None:
    """`read`: the rows, as (split, n, key)."""
    found = defaultdict(list)
    there: dict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for row in ds.dataset(folder, format="parquet").to_table().to_pylist():
        values = row["of"], row["start"], row["rows"], row["total"]
        found[row["what"]].append(values)
        there[row["what"]][values] += 1 if row["row_kind"] == "insert" else -1
    by_split = _sums((split, 0, n) for split, n, _ in read)
    by_key = _sums((key, 0, n) for _, n, key in read)
    assert sorted(found["processor"]) == by_split
    assert sorted(found["one"]) == by_split
    assert sorted(found["together"]) == by_split
    assert sorted(found["told"]) == by_split
    for joined in ("joined", "near"):
        assert _sums((split, 0, total) for split, _, _, total in found[joined]) == by_split
    sessions = [(split, event_time_ms(split, 0), *sums) for split, _, *sums in by_split]
    assert sorted(found["session"]) == sessions
    assert sorted(found["answered"]) == sessions
    windows = ((k, event_time_ms(s, n) // WINDOW_MS * WINDOW_MS, n) for s, n, k in read)
    assert sorted(found["window"]) == _sums(windows)
    updates = Counter((key, rows) for key, _, rows, _ in found["running"])
    assert max(updates.values()) == 1, "no row twice"
    latest = {key: (key, *of) for key, *of in sorted(found["running"])}
    assert sorted(latest.values()) == by_key
    numbers: dict[int, list[int]] = defaultdict(list)
    for split, n, _ in sorted(read):
        numbers[split].append(n)
    top = [
        (s, 0, rank, n)
        for s, ns in numbers.items()
        for rank, n in enumerate(ns[: -TOP - 1 : -1], 1)
    ]
    assert _left(there["top"]) == dict.fromkeys(top, 1)
    around = [
        (split, 0, n, sum(ns[max(at - 1, 0) : at + 2]))
        for split, ns in numbers.items()
        for at, n in enumerate(ns)
    ]
    assert _left(there["around"]) == dict.fromkeys(around, 1)


def _left(there: Counter[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
    """Returns the rows that changes have not retracted, with their counts."""
    return {row: count for row, count in there.items() if count}


def _sums(rows: Iterator[tuple[int, int, int]]) -> list[tuple[int, ...]]:
    """Returns the count and sum of the numbers of each (key, start)."""
    sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for key, start, n in rows:
        sums[key, start][0] += 1
        sums[key, start][1] += n
    return sorted((*of, *found) for of, found in sums.items())
