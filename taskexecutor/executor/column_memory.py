"""Where state in columns is: in memory as far as a slot has memory for it, and beyond that in files
that the operating system pages in and out.

The files have no names, so they go with the last array that needs them, or with the process. Their
room on the disk is taken when they are made: a full disk is an error then, and never later, when
memory is written.
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

_SMALL_BYTES = 256 << 10  # an array of less is in memory: a file costs a descriptor
_TINY_BYTES = 1 << 10  # a batch of less is, too: its Python objects are as large
_SHARED_BYTES = 16 * MIB  # of a file that batches share which are small parts of it
_SHARE = 16
_PIECE_BYTES = (4 * MIB, 64 * MIB)


class SlotColumnMemory:
    """Of a slot. Arrays and batches may be made in any thread."""

    def __init__(
        self,
        budget_bytes: int | None = None,
        directory: Path | None = None,
        changed: Callable[[int], None] = lambda in_memory_bytes: None,
    ) -> None:
        """`budget_bytes`: what may be in memory, None for all; `directory`: where files are made,
        None for where temporary files go; `changed`: called when more is in memory, or less.
        """
        self.budget_bytes = budget_bytes
        self._directory = directory
        self._changed = changed
        self._lock = threading.Lock()
        self._in_memory_bytes = self._told_bytes = 0
        self._in_files_bytes = 0
        self._sharing = threading.Lock()
        self._shared: memoryview | None = None  # what is left of the last file that batches share
        # What is no longer needed. Without the lock: a thread that has it may collect garbage.
        self._freed: deque[tuple[int, bool]] = deque()

    @property
    def piece_bytes(self) -> int | None:
        """How large pieces of state should be at most, as a piece is in memory when it is made or
        changed; None: as large as they come.
        """
        if self.budget_bytes is None:
            return None
        least, most = _PIECE_BYTES
        return min(max(self.budget_bytes // 8, least), most)

    @property
    def in_memory_bytes(self) -> int:
        """Of arrays and batches that are not small; 0 without a budget: nothing is counted then."""
        with self._lock:
            self._settle()
            return self._in_memory_bytes

    @property
    def in_files_bytes(self) -> int:
        with self._lock:
            self._settle()
            return self._in_files_bytes

    def empty(self, count: int, dtype: Any) -> np.ndarray[Any, Any]:
        """An array with any content. Raises FiresteelError if the disk is full."""
        kind = np.dtype(dtype)
        size = count * kind.itemsize
        if self.budget_bytes is None or size < _SMALL_BYTES:
            return np.empty(count, kind)
        if not self._takes(size):
            return np.frombuffer(self._mapped(size), kind, count)
        array = np.empty(count, kind)
        self._count(array, size)
        return array

    def full(self, count: int, value: Any, dtype: Any) -> np.ndarray[Any, Any]:
        array = self.empty(count, dtype)
        array.fill(value)
        return array

    def grown(self, array: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
        """The array with room for so many, and for as many again as it had, so that it is copied
        a few times however it grows.
        """
        grown = self.empty(max(count, 2 * len(array)), array.dtype)
        grown[: len(array)] = array
        return grown

    def kept(self, batch: pa.RecordBatch, size_bytes: int | None = None) -> pa.RecordBatch:
        """The batch, or its copy in a file. `size_bytes`: its size, if it is known, more or less:
        to find out costs more than all else here.
        """
        if self.budget_bytes is None:
            return batch
        size = batch.nbytes if size_bytes is None else size_bytes
        if size < _TINY_BYTES:
            return batch
        if self._takes(size):
            self._count(batch, size)
            return batch
        counted = pa.MockOutputStream()
        _write(batch, counted)
        content = pa.py_buffer(self._room(counted.size()))
        _write(batch, pa.FixedSizeBufferWriter(content))
        return pa.ipc.open_stream(pa.BufferReader(content)).read_next_batch()

    def _takes(self, size: int) -> bool:
        """Whether there is memory for it, which it takes then."""
        assert self.budget_bytes is not None
        with self._lock:
            self._settle()
            if self._in_memory_bytes + size > self.budget_bytes:
                return False
            self._in_memory_bytes += size
            self._tell()
        return True

    def _count(self, array: object, size: int) -> None:
        """Until it is gone."""
        weakref.finalize(array, self._freed.append, (size, True)).atexit = False

    def _settle(self) -> None:
        while self._freed:
            size, in_memory = self._freed.popleft()
            if in_memory:
                self._in_memory_bytes -= size
            else:
                self._in_files_bytes -= size
        self._tell()

    def _tell(self) -> None:
        """Not of each small change."""
        if abs(self._in_memory_bytes - self._told_bytes) >= _SMALL_BYTES:
            self._told_bytes = self._in_memory_bytes
            self._changed(self._told_bytes)

    def _room(self, size: int) -> memoryview:
        """Of a file of its own, or of one that what is small shares with others: it goes with the
        last of them.
        """
        if size > _SHARED_BYTES // _SHARE:
            return memoryview(self._mapped(size))
        with self._sharing:
            if self._shared is None or len(self._shared) < size:
                self._shared = memoryview(self._mapped(_SHARED_BYTES))
            found, self._shared = self._shared[:size], self._shared[-(-size // 64) * 64 :]
        return found

    def _mapped(self, size: int) -> mmap.mmap:
        directory = self._directory or Path(tempfile.gettempdir())
        try:
            with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                found = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise FiresteelError(
                f"state in columns in {directory} (state.backend.rocksdb.localdir,"
                f" {_free_bytes(directory)} bytes free) failed: {size} bytes more: {error}"
            ) from error
        with self._lock:
            self._in_files_bytes += size
        weakref.finalize(found, self._freed.append, (size, False)).atexit = False
        return found


IN_MEMORY = SlotColumnMemory()


def _write(batch: pa.RecordBatch, to: Any) -> None:
    with pa.ipc.new_stream(to, batch.schema) as writer:
        writer.write_batch(batch)


def _free_bytes(directory: Path) -> int:
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return 0
