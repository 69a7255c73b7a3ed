"""All rows of an input, for a plan that relates them: files that Spark reads as columns in place,
without parsing.

The files are written sequentially, and mapped by the JVM that reads them: disk space limits their
size, memory does not.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from firesteel.common.units import MIB
from taskexecutor.executor.columnar.columns.rows import Placed
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.transfer import writing

_FILE_BYTES = 512 * MIB  # the JVM maps at most 2 GiB at once
_BATCH_ROWS = 65_536  # smaller batches are concatenated first
_BATCH_BYTES = 16 * MIB
_ALIGNMENT = 64


class Spool(Placed):
    """The rows of one input. Raises FiresteelError that names the file if the disk is full."""

    def __init__(self, folder: Path, name: str, columns: Sequence[str]) -> None:
        self._folder = folder
        self._name = name
        self._columns = columns
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._file: BinaryIO | None = None
        self._end = 0  # of the file that is being written
        self._places: list[int] = []  # of its batches
        self._written: list[tuple[Path, int, int]] = []  # offset of the places, and size
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= _BATCH_ROWS or self._waiting_bytes >= _BATCH_BYTES:
            self._write()

    def java(self, engine: SparkEngine) -> Any:
        """Returns the FiresteelSpoolPartition of all rows so far; none may be added afterwards."""
        self._write()
        self._finish()
        gateway: Any = engine.session.sparkContext._gateway
        java: Any = gateway.jvm.java.lang
        count = len(self._written)
        paths = gateway.new_array(java.String, count)
        places, sizes = (gateway.new_array(gateway.jvm.long, count) for _ in range(2))
        for index, (path, begin, size) in enumerate(self._written):
            paths[index], places[index], sizes[index] = str(path), begin, size
        return engine.code.type("FiresteelSpoolPartition")(paths, places, sizes, self.rows)

    def close(self) -> None:
        """Removes the files. Idempotent."""
        self._waiting = []
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()
        for path in self._folder.glob(f"{self._name}-*.rows"):
            path.unlink(missing_ok=True)

    def _write(self) -> None:
        if not self._waiting_rows:
            return
        batches, self._waiting = self._waiting, []
        rows, size_bytes = self._waiting_rows, self._waiting_bytes
        self._waiting_rows = self._waiting_bytes = 0
        path = self._path
        with writing(path, size_bytes):
            if self._file is None:
                self._file = path.open("wb", buffering=MIB)
            batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            self._places += self.place(batch, self._columns)
        self.rows += rows
        if self._end >= _FILE_BYTES:
            self._finish()

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._name}-{len(self._written)}.rows"

    def _finish(self) -> None:
        """Writes the file's end: the locations of its batches."""
        if self._file is None:
            return
        path, packed = self._path, struct.pack(f"<{len(self._places)}q", *self._places)
        with writing(path, len(packed)):
            self._file.write(packed)
            self._file.close()
        self._written.append((path, self._end, self._end + len(packed)))
        self._file, self._end, self._places = None, 0, []

    def _copy(self, buffer: pa.Buffer | None, start: int, size: int) -> int:
        at = self._end
        if buffer is None or size <= 0:
            return at
        assert self._file is not None
        self._file.write(np.frombuffer(buffer, np.uint8, size, start).data)
        self._end = -(-(at + size) // _ALIGNMENT) * _ALIGNMENT
        self._file.write(bytes(self._end - at - size))
        return at
