"""Rows into a kept plan: Spark reads Arrow's columns where they are, in shared memory.

The plan's leaf is a table whose column vectors are Arrow's buffers (`jvm/java/FiresteelScan.java`).
A bundle's buffers are copied into shared memory, without any conversion, and a new partition of the
leaf says where they are.
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
from taskexecutor.executor.spark.columns import slabs
from taskexecutor.executor.spark.jvm.engine import SparkEngine
from taskexecutor.executor.spark.jvm.local_tasks import singleton
from taskexecutor.executor.spark.plans.kept import NotKept
from taskexecutor.executor.spark.plans.leaf_columns import decoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

LEAF = frozenset({"BatchScanExec", "ColumnarToRowExec"})
_ROOM_BYTES = 2**31 - 2**20  # of a bundle: the JVM maps at most 2 GiB in one piece
_KEPT_BYTES = 40 * MIB  # of memory, from one bundle to the next
_ALIGNMENT = 64
_NOWHERE = -(2**63)  # instead of the place of a buffer


def frame(engine: SparkEngine, schema: StructType, spool: Any = None) -> DataFrame:
    """A frame over bundles of this schema: without rows until a bundle comes. With a
    FiresteelSpool, over its rows.

    Its columns' names must be distinct.
    """
    from pyspark.sql import DataFrame

    session: Any = engine.session
    jvm = session._jvm
    engine.code.load("FiresteelScan")
    engine.code.load("FiresteelPassing")
    table = engine.code.type("FiresteelTable")(
        jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()), spool
    )
    none = singleton(jvm, "scala.None")
    relation = singleton(
        jvm, "org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation"
    ).create(table, none, none)
    shown = engine.code.type("FiresteelPassing").shown(relation)
    dataset = singleton(jvm, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(dataset.ofRows(session._jsparkSession, shown), session)


def columns_read(engine: SparkEngine, physical: Any) -> list[str]:
    """The names of the columns that a plan over `frame` needs, in their order. Raises NotKept if it
    is over something else.
    """
    leaves = physical.collectLeaves()
    scans = [leaves.apply(index) for index in range(leaves.size())]
    scans = [leaf for leaf in scans if _kind(leaf) == "BatchScanExec"]
    if len(scans) != 1 or not is_scan(scans[0]):
        raise NotKept("it does not read its input, or something else, too")
    return list(engine.code.type("FiresteelTable").columnsRead(scans[0].scan()))


def rows_read(engine: SparkEngine, scanning: Any) -> int | None:
    """How many rows a node of a plan reads that a leaf of `frame` has become; None if it is no such
    node, or reads bundles.
    """
    if not is_scan(scanning):
        return None
    count = int(engine.code.type("FiresteelTable").rowsRead(scanning.scan()))
    return count if count >= 0 else None


def is_scan(batch_scan: Any) -> bool:
    """Whether this BatchScanExec is a leaf that `frame` has made."""
    return _kind(batch_scan.scan()) == "FiresteelScan"


def _items(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


class Placed(ABC):
    """Where Arrow's buffers are copied to, unconverted, for a FiresteelReader to find them."""

    @abstractmethod
    def _copy(self, buffer: pa.Buffer | None, start: int, size: int) -> int:
        """Where these bytes are from now on."""

    def place(self, batch: pa.RecordBatch, columns: Sequence[str]) -> list[int]:
        """The number of the batch's rows, and where these of its columns are."""
        places = [batch.num_rows]
        for name in columns:
            self._column(decoded(batch.column(name)), places)
        return places

    def _column(self, array: pa.Array, places: list[int]) -> None:
        """Of each column: its validity bits, how far they are shifted, its values, its offsets, and
        what FiresteelVector calls `first`.
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


class SharedRows(Placed):
    """Shared memory for one bundle at a time."""

    def __init__(self) -> None:
        self._fd = -1
        self._fd = os.memfd_create("firesteel-bundle")
        os.ftruncate(self._fd, _ROOM_BYTES)  # sparse
        self._bytes: Any = np.frombuffer(mmap.mmap(self._fd, _ROOM_BYTES), np.uint8)
        self._end = 0  # of what the bundle has
        self._used = 0  # by any bundle since the memory was given back
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

    def put(self, batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> str:
        """Replaces the bundle by these columns. Returns where it is, as FiresteelReader reads it,
        in base64: Py4J hands texts over much faster than bytes.
        """
        if self._used > _KEPT_BYTES:
            self.release_memory()
        self._end = 0
        places: list[int] = []
        for batch in batches:
            places += self.place(batch, columns)
        self._used = max(self._used, self._end)
        return b64encode(struct.pack(f"<{len(places)}q", *places)).decode()

    def release_memory(self) -> None:
        os.ftruncate(self._fd, 0)
        os.ftruncate(self._fd, _ROOM_BYTES)
        self._used = 0

    def _copy(self, buffer: pa.Buffer | None, start: int, size: int) -> int:
        at = self._end
        if buffer is None or size <= 0:
            return at
        if at + size > _ROOM_BYTES:
            raise FiresteelError(f"a row of a bundle is larger than {_ROOM_BYTES} bytes")
        self._bytes[at : at + size] = np.frombuffer(buffer, np.uint8, size, start)
        self._end = -(-(at + size) // _ALIGNMENT) * _ALIGNMENT
        return at

    def close(self) -> None:
        """Frees the memory, once the JVM has closed it, too."""
        self._bytes = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close
