"""Allocates state in columns: in memory up to the slot's budget, then in files that the operating
system pages in and out.

The files are unlinked, so they are freed with the last array that uses them, or with the process.
Their disk space is allocated when they are created: a full disk is reported then, instead of
crashing the process at a later write to memory.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from firesteel.common.units import MIB
from firesteel.errors import FiresteelError

_SMALL_BYTES = 256 << 10  # smaller arrays stay in memory: a file costs a descriptor
_TINY_BYTES = 1 << 10  # smaller batches stay in memory: their Python objects are as large
_SHARED_BYTES = 16 * MIB  # size of a file shared by batches that are a small part of it
_SHARE = 16
_PIECE_BYTES = (4 * MIB, 64 * MIB)


class SlotColumnMemory:
    """The column memory of a slot. Thread-safe."""

    def __init__(
        self,
        budget_bytes: int | None = None,
        directory: Path | None = None,
        changed: Callable[[int], None] = lambda in_memory_bytes: None,
    ) -> None:
        """`budget_bytes` limits memory; None for no limit. Files are created in `directory`; None
        for the directory of temporary files. `changed` is called with the bytes in memory when they
        change.
        """
        self.budget_bytes = budget_bytes
        self._directory = directory
        self._changed = changed
        self._lock = threading.Lock()
        self._in_memory_bytes = self._reported_bytes = 0
        self._in_files_bytes = 0
        self._sharing = threading.Lock()
        self._shared: memoryview | None = None  # the unused rest of the last shared file
        # Sizes to subtract. Appended to without the lock, because garbage may be collected in a
        # thread that holds it.
        self._freed: deque[tuple[int, bool]] = deque()

    @property
    def piece_bytes(self) -> int | None:
        """Maximum size of a piece of state, as a piece is in memory while it is made or changed;
        None for no limit.
        """
        if self.budget_bytes is None:
            return None
        least, most = _PIECE_BYTES
        return min(max(self.budget_bytes // 8, least), most)

    @property
    def in_memory_bytes(self) -> int:
        """Bytes of the larger arrays and batches in memory; 0 without a budget, since nothing is
        counted then.
        """
        with self._lock:
            self._settle()
            return self._in_memory_bytes

    @property
    def in_files_bytes(self) -> int:
        with self._lock:
            self._settle()
            return self._in_files_bytes

    def empty(self, count: int, dtype: Any) -> np.ndarray[Any, Any]:
        """Returns an uninitialized array. Raises FiresteelError if the disk is full."""
        kind = np.dtype(dtype)
        size = count * kind.itemsize
        if self.budget_bytes is None or size < _SMALL_BYTES:
            return np.empty(count, kind)
        if not self._reserve(size):
            return np.frombuffer(self._mapped(size), kind, count)
        array = np.empty(count, kind)
        self._count(array, size)
        return array

    def full(self, count: int, value: Any, dtype: Any) -> np.ndarray[Any, Any]:
        array = self.empty(count, dtype)
        array.fill(value)
        return array

    def grown(self, array: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
        """Returns a copy of the array with room for at least `count` values and twice its length,
        so that repeated growth copies it only a few times.
        """
        grown = self.empty(max(count, 2 * len(array)), array.dtype)
        grown[: len(array)] = array
        return grown

    def kept(self, batch: pa.RecordBatch, size_bytes: int | None = None) -> pa.RecordBatch:
        """Returns the batch, or its copy in a file. `size_bytes` is its approximate size, if known:
        to compute it costs more than everything else here.
        """
        if self.budget_bytes is None:
            return batch
        size = batch.nbytes if size_bytes is None else size_bytes
        if size < _TINY_BYTES:
            return batch
        if self._reserve(size):
            self._count(batch, size)
            return batch
        return self._in_file(batch)

    def kept_table(self, table: pa.Table) -> pa.Table:
        """Returns the table, with batches in files as `kept` returns them. The others are counted
        until this table is garbage-collected: no Python object stands for one of its batches.
        """
        if self.budget_bytes is None:
            return table
        batches: list[pa.RecordBatch] = []
        in_memory_bytes = 0
        for batch in table.to_batches():
            size = batch.nbytes
            if size >= _TINY_BYTES:
                if self._reserve(size):
                    in_memory_bytes += size
                else:
                    batch = self._in_file(batch)
            batches.append(batch)
        kept = pa.Table.from_batches(batches, table.schema)
        self._count(kept, in_memory_bytes)
        return kept

    def _in_file(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a copy of the batch in a file."""
        counted = pa.MockOutputStream()
        _write(batch, counted)
        content = pa.py_buffer(self._allocate(counted.size()))
        _write(batch, pa.FixedSizeBufferWriter(content))
        return pa.ipc.open_stream(pa.BufferReader(content)).read_next_batch()

    def _reserve(self, size: int) -> bool:
        """Reserves memory for the size. Returns False if the budget is exhausted."""
        assert self.budget_bytes is not None
        with self._lock:
            self._settle()
            if self._in_memory_bytes + size > self.budget_bytes:
                return False
            self._in_memory_bytes += size
            self._report()
        return True

    def _count(self, array: object, size: int) -> None:
        """Counts the size until the array is garbage-collected."""
        weakref.finalize(array, self._freed.append, (size, True)).atexit = False

    def _settle(self) -> None:
        while self._freed:
            size, in_memory = self._freed.popleft()
            if in_memory:
                self._in_memory_bytes -= size
            else:
                self._in_files_bytes -= size
        self._report()

    def _report(self) -> None:
        """Reports the bytes in memory, unless they changed little."""
        if abs(self._in_memory_bytes - self._reported_bytes) >= _SMALL_BYTES:
            self._reported_bytes = self._in_memory_bytes
            self._changed(self._reported_bytes)

    def _allocate(self, size: int) -> memoryview:
        """Returns room in a separate file, or for small sizes in a shared one, which is freed with
        its last user.
        """
        if size > _SHARED_BYTES // _SHARE:
            return memoryview(self._mapped(size))
        with self._sharing:
            if self._shared is None or len(self._shared) < size:
                self._shared = memoryview(self._mapped(_SHARED_BYTES))
            part, self._shared = self._shared[:size], self._shared[-(-size // 64) * 64 :]
        return part

    def _mapped(self, size: int) -> mmap.mmap:
        directory = self._directory or Path(tempfile.gettempdir())
        try:
            with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                memory = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise FiresteelError(
                f"state in columns in {directory} (state.backend.rocksdb.localdir,"
                f" {_free_bytes(directory)} bytes free) cannot grow by {size} bytes: {error}"
            ) from error
        with self._lock:
            self._in_files_bytes += size
        weakref.finalize(memory, self._freed.append, (size, False)).atexit = False
        return memory


IN_MEMORY = SlotColumnMemory()


def _write(batch: pa.RecordBatch, to: Any) -> None:
    with pa.ipc.new_stream(to, batch.schema) as writer:
        writer.write_batch(batch)


def _free_bytes(directory: Path) -> int:
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return 0
