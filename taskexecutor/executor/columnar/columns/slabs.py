"""Shared memory in which the slot's JVM writes batches, one at a time in each slab.

A slab is an anonymous file: it is freed with its last process, however that ends, and the size of
/dev/shm does not limit it. It is sparse: every buffer has room for Arrow's maximum, and only
written pages take memory. A batch uses the slab's memory directly, and the slab is reused once the
last buffer of the batch is garbage.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa

from firesteel.common.units import MIB

MOST = 4  # slabs of a sink; if all are in use, batches are copied
KEPT_BYTES = 32 * MIB  # a slab that has grown larger is not reused
_COPIED_BYTES = 64 * 1024  # smaller batches are copied, because keeping one should not keep a slab
_ROOM_BITS = 32  # room in the file for each buffer; as in FiresteelColumnSink.java
_LEAST_MAPPED = 64 * 1024


class SharedMemory(Protocol):
    @property
    def size_bytes(self) -> int:
        """The memory in use, as opposed to the reserved file range."""


_all: weakref.WeakSet[SharedMemory] = weakref.WeakSet()


def count(memory: SharedMemory) -> None:
    _all.add(memory)


def total_bytes() -> int:
    """Returns the shared memory of this process for batches and bundles."""
    return sum(memory.size_bytes for memory in list(_all))


class Slab:
    def __init__(self, java: Any, buffers: int, limit_bytes: int) -> None:
        self._fd = -1
        self._mapped: list[pa.Buffer | None] = [None] * buffers
        self._fd = os.memfd_create("firesteel-batch")
        os.ftruncate(self._fd, buffers << _ROOM_BITS)
        self.number: int = java.addSlab(f"/proc/{os.getpid()}/fd/{self._fd}", limit_bytes)
        count(self)

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_blocks * 512 if self._fd >= 0 else 0

    def buffer(self, index: int, size: int, owner: object) -> pa.Buffer:
        """Returns the first bytes of a buffer, which keep `owner` alive."""
        mapped = self._mapped[index]
        if mapped is None or mapped.size < size:
            length = max(_LEAST_MAPPED, 1 << (size - 1).bit_length())
            mapped = self._mapped[index] = pa.py_buffer(
                mmap.mmap(self._fd, length, prot=mmap.PROT_READ, offset=index << _ROOM_BITS)
            )
        return pa.foreign_buffer(mapped.address, size, base=owner)

    def close(self) -> None:
        """Frees the memory, once the JVM has also closed it."""
        self._mapped = []
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


class Slabs:
    """The slabs of one sink, created on demand."""

    def __init__(self, java: Any, buffers: int, limit_bytes: int) -> None:
        self._java = java
        self._buffers = buffers
        self._limit_bytes = limit_bytes
        # All slabs. A garbage lease returns its slab, which must not be garbage at the same time.
        self._slabs: set[Slab] = set()
        self._free: list[Slab] = []
        self._closed = False
        self._lock = threading.RLock()  # leases end in any thread, at any time

    def take(self) -> Lease:
        """Returns a slab for the next batch."""
        with self._lock:
            slab = self._free.pop() if self._free else None
        if slab is not None and slab.size_bytes > KEPT_BYTES:
            self._java.removeSlab(slab.number)
            self._close(slab)
            slab = None
        if slab is None:
            slab = Slab(self._java, self._buffers, self._limit_bytes)
            with self._lock:
                self._slabs.add(slab)
        return Lease(self, slab)

    def scarce(self) -> bool:
        """Returns whether all slabs are in use."""
        with self._lock:
            return not self._free and len(self._slabs) >= MOST

    def __len__(self) -> int:
        return len(self._slabs)

    def give_back(self, slab: Slab) -> None:
        with self._lock:
            if slab in self._slabs and not self._closed:
                self._free.append(slab)
                return
        self._close(slab)

    def _close(self, slab: Slab) -> None:
        with self._lock:
            self._slabs.discard(slab)
        slab.close()

    def release_memory(self) -> None:
        """Gives up all slabs. Batches in use stay valid."""
        with self._lock:
            self._slabs = set()
            free, self._free = self._free, []
        with suppress(Exception):  # the JVM may have ended
            self._java.close()
        for slab in free:
            slab.close()

    def close(self) -> None:
        """Closes all slabs. Batches in use stay valid."""
        with self._lock:
            self._closed = True
        self.release_memory()


class Lease:
    """A slab in use. It is returned when nothing references the lease."""

    def __init__(self, slabs: Slabs, slab: Slab) -> None:
        self._slabs = slabs
        self.slab = slab

    def __del__(self) -> None:
        self._slabs.give_back(self.slab)


class Batches:
    """Makes record batches from the JVM's report of written values."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.buffers = sum(_buffers(kind) for kind in schema.types)

    def batch(self, lease: Lease, rows: int, report: Iterator[int], copied: bool) -> pa.RecordBatch:
        """Makes a batch. `report` holds for each column and its children the number of values, of
        nulls, and of bytes.
        """
        reading = _Reading(lease, report)
        arrays = [reading.array(kind) for kind in self._schema.types]
        if copied or reading.size_bytes < _COPIED_BYTES:
            arrays = [_copy(array) for array in arrays]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Reading:
    def __init__(self, lease: Lease, report: Iterator[int]) -> None:
        self._lease = lease
        self._report = report
        self._index = 0  # of the next buffer
        self.size_bytes = 0

    def array(self, kind: pa.DataType) -> pa.Array:
        count, nulls, used = next(self._report), next(self._report), next(self._report)
        validity = self._buffer((count + 7) // 8 if nulls else None)
        buffers: list[pa.Buffer | None] = [validity]
        children: list[pa.Array] | None = None
        if pa.types.is_struct(kind):
            children = [self.array(kind.field(index).type) for index in range(kind.num_fields)]
        elif pa.types.is_map(kind):
            buffers.append(self._buffer(4 * (count + 1)))
            parts = [self.array(kind.key_type), self.array(kind.item_type)]
            entries = pa.struct([kind.key_field, kind.item_field])
            children = [pa.Array.from_buffers(entries, len(parts[0]), [None], 0, 0, parts)]
        elif pa.types.is_list(kind):
            buffers.append(self._buffer(4 * (count + 1)))
            children = [self.array(kind.value_type)]
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            buffers += [self._buffer(4 * (count + 1)), self._buffer(used)]
        else:
            buffers.append(self._buffer((count * kind.bit_width + 7) // 8))
        return pa.Array.from_buffers(kind, count, buffers, nulls, 0, children)

    def _buffer(self, size: int | None) -> pa.Buffer | None:
        index = self._index
        self._index += 1
        if size is None:
            return None
        self.size_bytes += size
        return self._lease.slab.buffer(index, size, self._lease) if size else pa.py_buffer(b"")


def _buffers(kind: pa.DataType) -> int:
    """Returns the number of a column's buffers in a slab; as in FiresteelColumnSink.java."""
    if pa.types.is_struct(kind):
        return 1 + sum(_buffers(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_map(kind):
        return 2 + _buffers(kind.key_type) + _buffers(kind.item_type)
    if pa.types.is_list(kind):
        return 2 + _buffers(kind.value_type)
    return 3 if pa.types.is_string(kind) or pa.types.is_binary(kind) else 2


def _copy(array: pa.Array) -> pa.Array:
    return pa.concat_arrays([array, array.slice(0, 0)])
