"""A program that convicts every row that is lost, doubled or counted from other state than its own:
numbered rows of two sources, counted by key, into files, through calls that are in flight when it
dies.

A test holds the sources where it wants, and lets the counting tasks take batch by batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row

from firesteel import Environment
from firesteel.connectors import EndOfSplit, FileSink, Source, SourceReader
from firesteel.operator import OperatorState, RuntimeContext, StreamOperator

SCHEMA = "source STRING, split INT, n BIGINT, key BIGINT"
SPLITS, KEYS, BATCH_ROWS = 4, 7, 10
ALL = 10**9


@dataclass
class Control:
    """Controls what the tasks of a test's job may do."""

    rows: dict[str, int]  # of each split of a source
    # How far a split may be read, by source and number; the others: to their end.
    limits: dict[tuple[str, int], int] = field(default_factory=dict)
    begun: list[tuple[str, int]] = field(default_factory=list)  # splits, by source and number
    free: threading.Event = field(default_factory=threading.Event)  # counting needs no permit
    permits: defaultdict[int, threading.Semaphore] = field(  # a batch each, by subtask
        default_factory=lambda: defaultdict(lambda: threading.Semaphore(0))
    )
    waiting: set[int] = field(default_factory=set)  # subtasks with a batch and without a permit
    restored: list[dict[str, Any]] = field(default_factory=list)  # of each counting subtask
    # The final content of the counting subtasks' lists, by attempt and subtask.
    totals: dict[tuple[int, int], int] = field(default_factory=dict)

    def await_permit(self, context: RuntimeContext) -> None:
        self.waiting.add(context.task.subtask)
        while not (self.free.is_set() or context.cancelled):
            if self.permits[context.task.subtask].acquire(timeout=0.01):
                break
        self.waiting.discard(context.task.subtask)


CONTROLS: dict[str, Control] = {}


class Numbers(Source):
    def __init__(self, control: str, name: str) -> None:
        self.control, self.name = control, name

    def output_schema(self) -> str:
        return SCHEMA

    def splits(self, parallelism: int) -> list[dict[str, int]]:
        return [{"split": split} for split in range(SPLITS)]

    def create_reader(self, context: RuntimeContext) -> SourceReader:
        return NumbersReader(CONTROLS[self.control], self.name)


class NumbersReader(SourceReader):
    poll_interval_s = 0.005

    def __init__(self, control: Control, name: str) -> None:
        self.control, self.name = control, name

    def begin(self, split: dict[str, int]) -> None:  # type: ignore[override]
        self.split, self.next = split["split"], 0
        self.control.begun.append((self.name, self.split))

    def poll(self) -> pa.RecordBatch | None:
        if self.next >= self.control.rows[self.name]:
            raise EndOfSplit
        if self.next >= self.control.limits.get((self.name, self.split), ALL):
            return None
        end = min(self.next + BATCH_ROWS, self.control.rows[self.name])
        numbers = list(range(self.next, end))
        self.next = end
        return pa.record_batch(
            {
                "source": pa.array([self.name] * len(numbers)),
                "split": pa.array([self.split] * len(numbers), pa.int32()),
                "n": pa.array(numbers, pa.int64()),
                "key": pa.array([n % KEYS for n in numbers], pa.int64()),
            }
        )

    def position(self) -> int:
        return self.next

    def restore(self, position: int) -> None:  # type: ignore[override]
        self.next = position


class Counting(StreamOperator):
    """Counts the rows of each key, and keeps something in every kind of state."""

    def __init__(self, control: str) -> None:
        self.control = CONTROLS[control]

    def initialize_state(self, state: OperatorState) -> None:
        self.keyed = state.keyed
        self.rows = state.list_state("rows")  # of each batch
        self.known = state.union_list_state("subtasks")
        self.rule = state.broadcast_state("rule")
        self.control.restored.append(
            {"union": sorted(self.known), "rule": dict(self.rule), "begun": not state.restored}
        )
        self.known[:] = [f"{self.context.task.subtask} of {self.context.task.parallelism}"]
        self.rule["modulo"] = KEYS

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        self.control.await_permit(self.context)
        counts = []
        for key in batch["key"].to_pylist():
            counts.append((self.keyed.get("count", key) or 0) + 1)
            self.keyed.put("count", key, counts[-1])
        self.rows.append(batch.num_rows)
        self.output.emit(batch.append_column("count", pa.array(counts, pa.int64())))

    def finish(self) -> None:
        task = self.context.task
        self.control.totals[task.attempt, task.subtask] = sum(self.rows)


async def answer(row: Row) -> Row:
    """Keeps some rows waiting while others pass."""
    await asyncio.sleep(row.n % 3 / 500)
    return row


def program(name: str, out: Path, parallelism: int, configuration: dict[str, str]) -> Environment:
    """`name`: of its Control."""
    env = Environment(parallelism=parallelism, configuration=configuration)
    first = env.from_source(Numbers(name, "a"), name="a", uid="a")
    second = env.from_source(Numbers(name, "b"), name="b", uid="b")
    counted = (
        first.union(second)
        .key_by("key")
        .operator("count", lambda: Counting(name), f"{SCHEMA}, count BIGINT", uid="count")
    )
    answered = counted.map_async(answer, capacity=4, ordered=False, uid="answered")
    answered.sink_to(FileSink(str(out)), uid="files")
    return env


def rows_in(out: Path) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for path in out.glob("part-*"):
        rows += zip(*pq.read_table(path).to_pydict().values(), strict=True)
    return rows


def check_counted_once(out: Path, control: Control) -> None:
    rows = rows_in(out)
    expected = [
        (source, split, n)
        for source, many in control.rows.items()
        for split in range(SPLITS)
        for n in range(many)
    ]
    assert sorted(row[:3] for row in rows) == expected, "every row once"
    for key in range(KEYS):
        counts = sorted(row[4] for row in rows if row[3] == key)
        assert counts == list(range(1, len(counts) + 1)), "and counted once"
    last = max(attempt for attempt, _ in control.totals)
    total = sum(n for (attempt, _), n in control.totals.items() if attempt == last)
    assert total == len(rows), "no list is lost or doubled"
