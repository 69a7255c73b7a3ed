"""Collects rows from a cached plan: its generated loop writes values into Arrow columns.

The plan gets an additional filter, whose condition writes a row's values into the columns of a
batch and is true only at the end of the batch. So values are copied from the variables of the
generated code to shared memory, and no row object is created. The other half is
FiresteelColumnSink.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.cached_plans.reusable_plan import regenerated
from taskexecutor.executor.columnar.cached_plans.row_partials import GivenRows
from taskexecutor.executor.columnar.columns.slabs import Batches, Slabs
from taskexecutor.executor.columnar.grouping.row_partials import RowPartials
from taskexecutor.executor.columnar.jvm import gateway
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.local_tasks import LocalTask
from taskexecutor.executor.columnar.schemas import to_arrow

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_ROWS = 65_536  # maximum
_GROUPED_ROWS = 262_144  # if rows are grouped: larger batches give fewer results
_TEXT_BYTES = 8 * 2**20  # of a batch: it ends with the row that exceeds this
_FIXED_BYTES = 32 * 2**20  # the same for numbers
_LEAST_ROWS = 1024


class ColumnSink:
    """Collects the rows of one plan. One run at a time."""

    @staticmethod
    def suits(engine: SparkEngine, schema: StructType) -> bool:
        """Returns whether rows of this schema are supported: all types except month intervals,
        variants, geometries, user-defined types and void; at least one column.
        """
        java = engine.code.type("FiresteelColumnSink")
        return bool(schema.fields) and bool(java.suits(_in_java(engine, schema)))

    @staticmethod
    def groups(engine: SparkEngine, given: GivenRows) -> bool:
        """Returns whether the sink should collect the rows' contributions and group them."""
        leave = ColumnSink.suits(engine, given.frame.schema)
        return not choose.grouped_outside(numbers=given.numbers, leave=leave)

    def __init__(
        self,
        engine: SparkEngine,
        schema: StructType,
        *,
        batch_rows: int = BATCH_ROWS,
        limit_bytes: int | None = None,
        grouping: RowPartials | None = None,
    ) -> None:
        """`limit_bytes` limits a batch's memory, by default to the size of the JVM's heap. A batch
        has at most `batch_rows` rows, unless one input row produces more. `grouping` is applied to
        each batch, which is larger then.
        """
        self._expressions = engine.code.type("FiresteelExpressions")
        self._session: Any = engine.session
        self.schema = to_arrow(schema)
        widths = [_width(kind) for kind in self.schema.types]
        self._grouping = grouping
        batch_rows = batch_rows if grouping is None else _GROUPED_ROWS
        rows = min(batch_rows, max(_LEAST_ROWS, _FIXED_BYTES // (sum(widths) + 1)))
        texts = max(1, widths.count(0))
        self.java = engine.code.type("FiresteelColumnSink")(
            _in_java(engine, schema), rows, _TEXT_BYTES // texts
        )
        self._next = gateway.without_conversion(self.java.next)
        self._batches = Batches(self.schema)
        self._slabs = Slabs(self.java, self._batches.buffers, limit_bytes or engine.heap_bytes)

    def fuse(self, plan: Any) -> Any:
        """Returns the physical plan that writes its rows here. It has no columns, and few rows."""
        self._session._jvm.SparkSession.setActiveSession(self._session._jsparkSession)
        return regenerated(
            self._session, plan, lambda each: self.java.after(self._expressions.replaced(each))
        )

    def batches(self, rows: Any, task: LocalTask) -> Generator[pa.RecordBatch, None, None]:
        """Yields the results of a fused plan's `rows`, an iterator in the JVM: batches of `schema`,
        in order, not empty, each computed on demand.
        """
        self.java.begin(rows, task.java)
        yield from self.filled(self._next, self._next)

    def filled(
        self,
        first: Callable[[int], str],
        following: Callable[[int], str],
        converting: AbstractContextManager[Any] = nullcontext(),  # noqa: B008 - it has no state
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yields the batches that these calls write into the slab of the given number; the calls
        return the result of FiresteelColumnSink.next().
        """
        fill, last = first, False
        while not last:
            lease = self._slabs.take()
            try:
                packed = b64decode(fill(lease.slab.number))
                fill = following
                with converting:
                    last, rows, *report = struct.unpack(f"<{len(packed) // 8}q", packed)
                    if not rows:
                        continue
                    batch = self._batches.batch(lease, rows, iter(report), self._slabs.scarce())
            finally:
                # the batch holds it; an error's traceback, which holds this frame, must not
                del lease
            if self._grouping is not None:
                with converting:
                    batch = self._grouping.grouped(batch)
                yield batch
                continue
            for start in range(0, rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS) if rows > BATCH_ROWS else batch
            del batch

    def release_memory(self) -> None:
        """Releases memory between runs. Batches in use stay valid."""
        self._slabs.release_memory()

    def close(self) -> None:
        """Frees the memory. Batches in use stay valid."""
        self._slabs.close()


def _width(kind: pa.DataType) -> int:
    """Returns the width of a value in bytes; 0 if it varies."""
    try:
        return int(kind.bit_width + 7) // 8
    except ValueError:
        return 0


def _in_java(engine: SparkEngine, schema: StructType) -> Any:
    jvm: Any = engine.session._jvm
    return jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
