"""Rows that wait for their checkpoint, in a file, so that their number is not limited by memory."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pyarrow as pa


class SpooledRows:
    """An Arrow IPC stream in the slot's folder. Its file is unlinked, so it is freed with its last
    reader, even if processes are killed.
    """

    def __init__(self, schema: pa.Schema) -> None:
        number, self._path = tempfile.mkstemp(prefix="rows-", suffix=".arrow")
        os.close(number)
        self._file = pa.OSFile(self._path, "wb")
        self._writer = pa.ipc.new_stream(self._file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def finish(self) -> WrittenRows:
        self._writer.close()
        self._file.close()
        with pa.memory_map(self._path) as mapped:
            content = mapped.read_buffer()  # a part of the file, which stays mapped
        os.unlink(self._path)
        return WrittenRows(content)

    def discard(self) -> None:
        self._writer.close()
        self._file.close()
        os.unlink(self._path)


class WrittenRows:
    """A value of keyed state. It is pickled as bytes, because a checkpoint needs no separate
    file.
    """

    def __init__(self, content: pa.Buffer) -> None:
        self.content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (self.content.to_pybytes(),)
