"""Rows out of a kept plan: its generated loop writes its values into Arrow's columns.

The plan gets one more filter, whose condition puts a row's values into the columns of a batch, and
is true at the end of the batch only. So values go from the variables of the generated code to
shared memory, and no row is ever made. `jvm/java/FiresteelSink.java` is the other half.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from taskexecutor.executor.aggregation.row_partials import RowPartials
from taskexecutor.executor.spark.columns.slabs import Batches, Slabs
from taskexecutor.executor.spark.jvm import gateway
from taskexecutor.executor.spark.jvm.engine import SparkEngine
from taskexecutor.executor.spark.jvm.local_tasks import LocalTask
from taskexecutor.executor.spark.plans.kept import generated_anew
from taskexecutor.executor.spark.plans.row_partials import GivenRows
from taskexecutor.executor.spark.schemas import to_arrow

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_ROWS = 65_536  # at most
_GROUPED_ROWS = 262_144  # where rows are grouped: the more, the fewer results
_TEXT_BYTES = 8 * 2**20  # of a batch: the row that exceeds it is its last one
_FIXED_BYTES = 32 * 2**20  # the same for numbers
_LEAST_ROWS = 1024


class ColumnSink:
    """Takes the rows of one plan. One run at a time."""

    @staticmethod
    def suits(engine: SparkEngine, schema: StructType) -> bool:
        """Whether rows of this schema can be taken: all but columns of intervals in months, of
        variants, of geometries, of user-defined types and of nothing, and no columns at all.
        """
        engine.code.load("FiresteelSink")
        java = engine.code.type("FiresteelSink")
        return bool(schema.fields) and bool(java.suits(_in_java(engine, schema)))

    @staticmethod
    def groups(engine: SparkEngine, given: GivenRows) -> bool:
        """Whether what rows give is to be taken, and grouped here."""
        return not given.numbers and ColumnSink.suits(engine, given.frame.schema)

    def __init__(
        self,
        engine: SparkEngine,
        schema: StructType,
        *,
        batch_rows: int = BATCH_ROWS,
        limit_bytes: int | None = None,
        grouping: RowPartials | None = None,
    ) -> None:
        """`limit_bytes`: of the memory of a batch, the size of the JVM's heap by default. A batch
        has `batch_rows`, and more only if one input row becomes more. `grouping`: what becomes of
        each batch; it is larger then.
        """
        engine.code.load("FiresteelSink")
        engine.code.load("FiresteelExpressions")
        self._expressions = engine.code.type("FiresteelExpressions")
        self._session: Any = engine.session
        self.schema = to_arrow(schema)
        widths = [_width(kind) for kind in self.schema.types]
        self._grouping = grouping
        batch_rows = batch_rows if grouping is None else _GROUPED_ROWS
        rows = min(batch_rows, max(_LEAST_ROWS, _FIXED_BYTES // (sum(widths) + 1)))
        texts = max(1, widths.count(0))
        self.java = engine.code.type("FiresteelSink")(
            _in_java(engine, schema), rows, _TEXT_BYTES // texts
        )
        self._next = gateway.without_conversion(self.java.next)
        self._batches = Batches(self.schema)
        self._slabs = Slabs(self.java, self._batches.buffers, limit_bytes or engine.heap_bytes)

    def fuse(self, plan: Any) -> Any:
        """The physical plan that puts its rows here. It has no columns, and few rows."""
        self._session._jvm.SparkSession.setActiveSession(self._session._jsparkSession)
        return generated_anew(
            self._session, plan, lambda each: self.java.after(self._expressions.replaced(each))
        )

    def batches(self, rows: Any, task: LocalTask) -> Generator[pa.RecordBatch, None, None]:
        """What a fused plan's `rows` (an iterator in the JVM) leave here: batches of `schema`, in
        order, none of them empty, each computed on demand.
        """
        self.java.begin(rows, task.java)
        yield from self.filled(self._next, self._next)

    def filled(
        self,
        first: Callable[[int], str],
        following: Callable[[int], str],
        converting: AbstractContextManager[Any] = nullcontext(),  # noqa: B008 - it has no state
    ) -> Generator[pa.RecordBatch, None, None]:
        """The batches that these calls make in the slab of the given number; the calls return what
        FiresteelSink.next() does.
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
                del lease  # the batch has it; an error, whose traceback has this frame, must not
            if self._grouping is not None:
                with converting:
                    batch = self._grouping.grouped(batch)
                yield batch
                continue
            for start in range(0, rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS) if rows > BATCH_ROWS else batch
            del batch

    def release_memory(self) -> None:
        """Between runs. Batches that are in use stay valid."""
        self._slabs.release_memory()

    def close(self) -> None:
        """Frees the memory. Batches that are in use stay valid."""
        self._slabs.close()


def _width(kind: pa.DataType) -> int:
    """Of a value; 0 if it varies."""
    try:
        return int(kind.bit_width + 7) // 8
    except ValueError:
        return 0


def _in_java(engine: SparkEngine, schema: StructType) -> Any:
    jvm: Any = engine.session._jvm
    return jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
