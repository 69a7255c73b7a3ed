"""StatefulProcessors as in PySpark's documentation and tests; nothing here depends on Firesteel."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

# -- the processors that TwsTester's documentation and tests use


class RunningCount(StatefulProcessor):
    """With an initial state: a Row with `initial_count`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        schema = StructType([StructField("value", LongType(), True)])
        self._count = handle.getValueState("count", schema)

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        current = self._count.get()
        total = (0 if current is None else current[0]) + len(list(rows))
        self._count.update((total,))
        yield Row(key=key[0], count=total)

    def handleInitialState(self, key, initialState, timerValues) -> None:
        self._count.update((initialState.initial_count,))


class RunningCountInPandas(RunningCount):
    def handleInputRows(self, key, rows, timerValues) -> Iterator[pd.DataFrame]:
        current = self._count.get()
        total = 0 if current is None else current[0]
        for pdf in rows:
            total += len(pdf)
        self._count.update((total,))
        yield pd.DataFrame({"key": [key[0]], "count": [total]})

    def handleInitialState(self, key, initialState, timerValues) -> None:
        self._count.update((initialState["initial_count"].iloc[0],))


class TopN(StatefulProcessor):
    """The largest scores of each key so far, in a list state."""

    def __init__(self, k: int) -> None:
        self._k = k

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._top = handle.getListState("topK", "score double")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        scores = [row.score for row in rows] + [value[0] for value in self._top.get()]
        best = sorted(scores, reverse=True)[: self._k]
        self._top.put([(score,) for score in best])
        for score in best:
            yield Row(key=key[0], score=score)


class WordFrequency(StatefulProcessor):
    """How often each word was seen per key, in a map state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._counts = handle.getMapState("frequencies", "word string", "count int")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        for row in rows:
            word = (row.word,)
            count = (self._counts.getValue(word)[0] if self._counts.containsKey(word) else 0) + 1
            self._counts.updateValue(word, (count,))
            yield Row(key=key[0], word=row.word, count=count)


class AllMethods(StatefulProcessor):
    """Does to its states what the rows say, and yields what it then sees of them."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._value = handle.getValueState("value", "v int")
        self._list = handle.getListState("list", "v int")
        self._map = handle.getMapState("map", "k string", "v int")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        for row in rows:
            self._apply(row.command, row.n)
            yield Row(key=key[0], command=row.command, seen=repr(self._seen()))

    def _apply(self, command: str, n: int) -> None:
        user_key = (str(n % 3),)
        match command:
            case "value.update":
                self._value.update((n,))
            case "value.clear":
                self._value.clear()
            case "list.put":
                self._list.put([(n,), (n + 1,)])
            case "list.appendValue":
                self._list.appendValue((n,))
            case "list.appendList":
                self._list.appendList([(n,), (n,)])
            case "list.clear":
                self._list.clear()
            case "map.updateValue":
                self._map.updateValue(user_key, (n,))
            case "map.removeKey":
                self._map.removeKey(user_key)
            case "map.clear":
                self._map.clear()

    def _seen(self) -> tuple[Any, ...]:
        return (
            self._value.exists(),
            self._value.get(),
            list(self._list.get()),
            sorted(self._map.iterator()),
            sorted(self._map.keys()),
            sorted(self._map.values()),
            [(self._map.containsKey((k,)), self._map.getValue((k,))) for k in "012"],
        )


COMMANDS = [
    "value.update",
    "value.clear",
    "list.put",
    "list.appendValue",
    "list.appendList",
    "list.clear",
    "map.updateValue",
    "map.removeKey",
    "map.clear",
]


class Session(StatefulProcessor):
    """Sums a key's values until none arrives for 10 s: each row moves the key's only timer."""

    gap_ms = 10_000

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._sum = handle.getValueState("sum", "total bigint, last bigint")

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        total, last = self._sum.get() or (0, 0)
        for row in rows:
            total += row.n
            last = max(last, row.at_ms)
        self._sum.update((total, last))
        for timer in self._handle.listTimers():
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(last + self.gap_ms)
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo) -> Iterator[Row]:
        total, _ = self._sum.get()
        self._sum.clear()
        yield Row(key=key[0], total=total, expired_ms=expiredTimerInfo.getExpiryTimeInMs())


# -- as the downtime detector of the programming guide, for Rows and for pandas


class DowntimeDetector(StatefulProcessor):
    """Says when a key has been silent for 5 s, and again every 10 s, for how long it has been."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.last_seen = handle.getValueState(
            "last_seen", StructType([StructField("value", TimestampType(), True)])
        )

    def handleInputRows(self, key, rows, timerValues) -> Iterator[Row]:
        self._seen(max(row.at.astimezone().replace(tzinfo=None) for row in rows), timerValues)
        yield Row(id=key, downtime_ms=0)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo) -> Iterator[Row]:
        yield Row(id=key, downtime_ms=self._silent_ms(timerValues))

    def _seen(self, latest: datetime.datetime, timerValues) -> None:
        before = (
            self.last_seen.get()[0]
            if self.last_seen.exists()
            else datetime.datetime.fromtimestamp(0)
        )
        if before < latest:
            for timer in self.handle.listTimers():
                self.handle.deleteTimer(timer)
            self.last_seen.update((latest,))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 5_000)

    def _silent_ms(self, timerValues) -> int:
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        self.handle.registerTimer(now_ms + 10_000)
        return now_ms - round(self.last_seen.get()[0].timestamp() * 1000)


class DowntimeDetectorInPandas(DowntimeDetector):
    def handleInputRows(self, key, rows, timerValues) -> Iterator[pd.DataFrame]:
        self._seen(
            max(pdf["at"].max() for pdf in rows)
            .tz_localize("UTC")
            .tz_convert(None)
            .to_pydatetime(),
            timerValues,
        )
        yield pd.DataFrame({"id": key, "downtime_ms": 0})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"id": key, "downtime_ms": self._silent_ms(timerValues)})
