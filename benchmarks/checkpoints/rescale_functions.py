"""Functions of the benchmark of rescaling, in a module with few imports, because a slot's process
imports it while its job waits.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from firesteel.connectors import Source, SourceReader
from firesteel.operator import OperatorState, RuntimeContext, StreamOperator

FILLED = "filled"
TIMES = "times-"
VALUE_BYTES = 1000
FILL_ROWS, PACED_ROWS = 500, 20


class Keys(Source):
    """Each key once, as fast as possible; then random keys at a rate."""

    def __init__(self, keys: int, rate_per_s: float, folder: Path) -> None:
        self.keys, self.rate_per_s, self.folder = keys, rate_per_s, folder

    def output_schema(self) -> str:
        return "k BIGINT"

    def splits(self, parallelism: int) -> list[dict[str, int]]:
        return [{}]

    def create_reader(self, context: RuntimeContext) -> SourceReader:
        return _Reader(self)


class _Reader(SourceReader):
    poll_interval_s = 0.002

    def __init__(self, source: Keys) -> None:
        self.source, self.next, self.due = source, 0, 0.0

    def begin(self, split: object) -> None:
        self.next = 0

    def poll(self) -> pa.RecordBatch | None:
        source = self.source
        if self.next < source.keys:
            found = range(self.next, min(self.next + FILL_ROWS, source.keys))
            self.next = found.stop
            return pa.record_batch({"k": pa.array(found, pa.int64())})
        now = time.monotonic()
        if now < self.due:
            return None
        if not self.due:
            (source.folder / FILLED).touch()
        self.due = max(self.due, now - 0.1) + PACED_ROWS / source.rate_per_s
        chosen = random.choices(range(source.keys), k=PACED_ROWS)
        return pa.record_batch({"k": pa.array(chosen, pa.int64())})

    def position(self) -> int:
        return self.next

    def restore(self, position: int) -> None:
        self.next = position


class Keep(StreamOperator):
    """Reads and replaces a kilobyte of state for each row."""

    def initialize_state(self, state: OperatorState) -> None:
        self.state = state.keyed

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        counts = []
        for key in batch["k"].to_pylist():
            count, _ = self.state.get("kept", key) or (0, b"")
            self.state.put("kept", key, (count + 1, random.randbytes(VALUE_BYTES)))
            counts.append(count + 1)
        self.output.emit(batch.append_column("n", pa.array(counts, pa.int64())))


class Times:
    """Records when rows reach the sink: a file per attempt, with a line per batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path: Path | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self.path is None:
            self.path = self.folder / f"{TIMES}{uuid.uuid4().hex[:8]}"
        for batch in batches:
            if batch.num_rows:
                with self.path.open("a") as file:
                    file.write(f"{time.time_ns()}\n")
            yield batch
