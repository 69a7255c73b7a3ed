"""Passes rows into a cached plan: Spark reads Arrow columns in place, in shared memory.

The plan's leaf is a table whose column vectors are Arrow buffers (FiresteelScan). A bundle's
buffers are copied into shared memory, without conversion, and a new partition of the leaf describes
their locations.
"""

from __future__ import annotations

import mmap
import os
import struct
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from firesteel.common.units import MIB
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.cached_plans.leaf_columns import decoded
from taskexecutor.executor.columnar.cached_plans.reusable_plan import NotReusable
from taskexecutor.executor.columnar.columns import slabs
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.local_tasks import singleton

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

LEAF = frozenset({"BatchScanExec", "ColumnarToRowExec"})
_ROOM_BYTES = 2**31 - 2**20  # size limit of a bundle: the JVM maps at most 2 GiB at once
_KEPT_BYTES = 40 * MIB  # memory kept between bundles
_ALIGNMENT = 64
_NOWHERE = -(2**63)  # marks a missing buffer


def frame(engine: SparkEngine, schema: StructType, spool: Any = None) -> DataFrame:
    """Returns a DataFrame over bundles of this schema, without rows until there is a bundle; or
    over the rows of a FiresteelSpoolPartition.

    The columns' names must be distinct.
    """
    from pyspark.sql import DataFrame

    session: Any = engine.session
    jvm = session._jvm
    table = engine.code.type("FiresteelArrowTable")(
        jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()), spool
    )
    none = singleton(jvm, "scala.None")
    relation = singleton(
        jvm, "org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation"
    ).create(table, none, none)
    shown = engine.code.type("FiresteelPassthrough").shown(relation)
    dataset = singleton(jvm, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(dataset.ofRows(session._jsparkSession, shown), session)


def columns_read(engine: SparkEngine, physical: Any) -> list[str]:
    """Returns the names of the columns that a plan over `frame` needs, in order. Raises NotReusable
    if the plan has other leaves.
    """
    leaves = physical.collectLeaves()
    scans = [leaves.apply(index) for index in range(leaves.size())]
    scans = [leaf for leaf in scans if _kind(leaf) == "BatchScanExec"]
    if len(scans) != 1 or not is_scan(scans[0]):
        raise NotReusable("it does not read its input, or reads other data as well")
    return list(engine.code.type("FiresteelArrowTable").columnsRead(scans[0].scan()))


def rows_read(engine: SparkEngine, scanning: Any) -> int | None:
    """Returns the number of rows read by a plan node that implements a leaf of `frame`; None for
    other nodes, or if it reads bundles.
    """
    if not is_scan(scanning):
        return None
    count = int(engine.code.type("FiresteelArrowTable").rowsRead(scanning.scan()))
    return count if count >= 0 else None


def is_scan(batch_scan: Any) -> bool:
    """Returns whether this BatchScanExec is a leaf that `frame` has made."""
    return _kind(batch_scan.scan()) == "FiresteelScan"


def _items(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


class Placed(ABC):
    """The location to which Arrow buffers are copied, without conversion, for the
    FiresteelBatchReader.
    """

    @abstractmethod
    def _copy(self, buffer: pa.Buffer | None, start: int, size: int) -> int:
        """Copies the bytes and returns their location."""

    def place(self, batch: pa.RecordBatch, columns: Sequence[str]) -> list[int]:
        """Returns the batch's number of rows, and the locations of these columns."""
        places = [batch.num_rows]
        for name in columns:
            self._column(decoded(batch.column(name)), places)
        return places

    def _column(self, array: pa.Array, places: list[int]) -> None:
        """Appends for each column: its validity bits, their shift, its values, its offsets, and
        FiresteelArrowVector's `first`.
        """
        kind, count, offset = array.type, len(array), array.offset
        buffers = array.buffers()
        if array.null_count:
            places += (self._bits(buffers[0], offset, count), offset % 8)
        else:
            places += (_NOWHERE, 0)
        if pa.types.is_struct(kind):
            places += (_NOWHERE, _NOWHERE, 0)
            for index in range(kind.num_fields):
                self._column(array.field(index), places)
        elif pa.types.is_map(kind) or pa.types.is_list(kind):
            ends = np.frombuffer(buffers[1], np.int32, count + 1, 4 * offset) if count else [0, 0]
            first, size = int(ends[0]), int(ends[-1]) - int(ends[0])
            places += (_NOWHERE, self._copy(buffers[1], 4 * offset, 4 * (count + 1)), first)
            parts = [array.keys, array.items] if pa.types.is_map(kind) else [array.values]
            for part in parts:
                self._column(part.slice(first, size), places)
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            ends = np.frombuffer(buffers[1], np.int32, count + 1, 4 * offset) if count else [0, 0]
            first, size = int(ends[0]), int(ends[-1]) - int(ends[0])
            data = self._copy(buffers[2], first, size) - first
            places += (data, self._copy(buffers[1], 4 * offset, 4 * (count + 1)), 0)
        elif pa.types.is_boolean(kind):
            places += (self._bits(buffers[1], offset, count), _NOWHERE, offset % 8)
        else:
            width = kind.bit_width // 8
            places += (self._copy(buffers[1], offset * width, count * width), _NOWHERE, 0)

    def _bits(self, buffer: pa.Buffer, offset: int, count: int) -> int:
        return self._copy(buffer, offset // 8, (offset % 8 + count + 7) // 8)


class SharedBytes:
    """Shared memory for one bundle at a time."""

    def __init__(self) -> None:
        self._fd = -1
        self._fd = os.memfd_create("firesteel-bundle")
        os.ftruncate(self._fd, _ROOM_BYTES)  # sparse
        self._bytes: Any = np.frombuffer(mmap.mmap(self._fd, _ROOM_BYTES), np.uint8)
        self._end = 0  # end of the bundle
        self._used = 0  # maximum used by bundles since memory was released
        slabs.count(self)

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @property
    def room_bytes(self) -> int:
        return _ROOM_BYTES

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_blocks * 512 if self._fd >= 0 else 0

    def clear(self) -> None:
        """Starts the next bundle."""
        self._used = max(self._used, self._end)
        if self._used > _KEPT_BYTES:
            self.release_memory()
        self._end = 0

    def copy(self, content: np.ndarray[Any, Any]) -> int:
        """Appends an array, and returns its location."""
        at = self.reserve(content.nbytes)
        self.view(at, content.nbytes)[:] = content.view(np.uint8)
        return at

    def reserve(self, size: int) -> int:
        """Returns the location of this many new bytes at the end of the bundle."""
        at = self._end
        if at + size > _ROOM_BYTES:
            raise FiresteelError(f"a row of a bundle is larger than {_ROOM_BYTES} bytes")
        self._end = -(-(at + size) // _ALIGNMENT) * _ALIGNMENT
        return at

    def view(self, at: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Returns bytes in place. They change with the next bundle."""
        content: np.ndarray[Any, np.dtype[np.uint8]] = self._bytes[at : at + size]
        return content

    def release_memory(self) -> None:
        os.ftruncate(self._fd, 0)
        os.ftruncate(self._fd, _ROOM_BYTES)
        self._used = 0

    def close(self) -> None:
        """Frees the memory, once the JVM has also closed it."""
        self._bytes = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


class SharedRows(SharedBytes, Placed):
    """Shared memory for the rows of one bundle at a time."""

    def put(self, batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> str:
        """Replaces the bundle by these columns. Returns their locations, in the form that
        FiresteelBatchReader reads, as base64: Py4J transfers strings much faster than bytes.
        """
        self.clear()
        places: list[int] = []
        for batch in batches:
            places += self.place(batch, columns)
        return b64encode(struct.pack(f"<{len(places)}q", *places)).decode()

    def _copy(self, buffer: pa.Buffer | None, start: int, size: int) -> int:
        if buffer is None or size <= 0:
            return self._end
        return self.copy(np.frombuffer(buffer, np.uint8, size, start))
