"""Functions of these benchmarks' programs, in a module with few imports, because a slot's process
imports it while its job waits.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

FAIL = "fail"
FAILED = "failed-"
FIRST = "first-"


class Seen:
    """Records when the first rows arrived in this attempt; fails if there is a file `fail`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first = True

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self.first and batch.num_rows:
                self.first = False
                self.note(FIRST)
            try:
                (self.folder / FAIL).unlink()
            except FileNotFoundError:
                yield batch
            else:
                self.note(FAILED)
                raise RuntimeError("fails to be restarted")

    def note(self, what: str) -> None:
        (self.folder / f"{what}{time.time_ns()}-{uuid.uuid4().hex[:8]}").touch()


def slow(rows_per_s: float) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that passes on this many rows per second."""

    def take(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(batch.num_rows / rows_per_s)
            yield batch

    return take
