"""StatefulProcessors as PySpark's documentation and tests write them; nothing in here knows of Firesteel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

# -- the example of DataFrame.groupBy().transformWithState, word for word

output_schema = StructType([StructField("id", StringType(), True), StructField("count", IntegerType(), True)])
state_schema = StructType([StructField("value", IntegerType(), True)])


class SimpleStatefulProcessor(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle):
        self.num_violations_state = handle.getValueState("numViolations", state_schema)

    def handleInputRows(self, key, rows):
        new_violations = 0
        count = 0
        exists = self.num_violations_state.exists()
        if exists:
            existing_violations_row = self.num_violations_state.get()
            existing_violations = existing_violations_row[0]
        else:
            existing_violations = 0
        for row in rows:
            if row.temperature is not None:
                count += 1
                if row.temperature > 100:
                    new_violations += 1
        updated_violations = new_violations + existing_violations
        self.num_violations_state.update((updated_violations,))
        yield Row(id=key, count=count)

    def close(self) -> None:
        pass


# -- the example of transformWithStateInPandas, word for word


class SimplePandasProcessor(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle):
        self.num_violations_state = handle.getValueState("numViolations", state_schema)

    def handleInputRows(self, key, rows):
        new_violations = 0
        count = 0
        exists = self.num_violations_state.exists()
        if exists:
            existing_violations_row = self.num_violations_state.get()
            existing_violations = existing_violations_row[0]
        else:
            existing_violations = 0
        for pdf in rows:
            pdf_count = pdf.count()
            count += pdf_count.get("temperature")
            violations_pdf = pdf.loc[pdf["temperature"] > 100]
            new_violations += violations_pdf.count().get("temperature")
        updated_violations = new_violations + existing_violations
        self.num_violations_state.update((updated_violations,))
        yield pd.DataFrame({"id": key, "count": count})

    def close(self) -> None:
        pass


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
    """Sums up a key's values until nothing has come for 10 s: each row moves the key's only timer."""

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
