"""Bundles through a kept plan in columns: shared memory in, shared memory out, and one call of the
JVM for a bundle whose results fit into one batch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress

import pyarrow as pa

from firesteel.common.units import MIB
from firesteel.operator import PlanMeter
from taskexecutor.executor.spark.columns.rows import SharedRows, columns_read
from taskexecutor.executor.spark.columns.sink import ColumnSink
from taskexecutor.executor.spark.jvm.engine import SparkEngine
from taskexecutor.executor.spark.plans.kept import KeptPlan
from taskexecutor.executor.spark.schemas import conform

_PART_BYTES = 32 * MIB  # of a bundle in shared memory at a time, unless a single row has more
_SMALL_BATCH_ROWS = 4_096  # batches with fewer rows, on average, are joined first


class ColumnBundles:
    """A kept plan over `rows.frame` for bundles of one operator."""

    def __init__(self, engine: SparkEngine, plan: KeptPlan, meter: PlanMeter) -> None:
        self.kept = plan
        self._meter = meter
        self._read = columns_read(plan.physical)
        self._sink = ColumnSink(engine, plan.rows.schema, meter=meter, grouping=plan.grouping)
        self._rows = SharedRows()
        self._java = engine.code.type("FiresteelBundles")(
            self._sink.fuse(plan.physical).execute(),
            self._sink.java,
            engine.session_properties(),
            *engine.local_tasks.resources,
        )
        self._java.map(self._rows.path, self._rows.room_bytes)

    def run(
        self, table: pa.Table, schema: pa.Schema, group: str
    ) -> Generator[pa.RecordBatch, None, None]:
        for part in parts_of(table.select([n for n in table.schema.names if n in self._read])):
            yield from self._run(part, schema, group)

    def _run(
        self, batches: Sequence[pa.RecordBatch], schema: pa.Schema, group: str
    ) -> Generator[pa.RecordBatch, None, None]:
        with self._meter.converting:
            packed = self._rows.put(batches)
        results = self._sink.filled(
            lambda slab: self._java.first(group, packed, slab), self._java.next
        )
        try:
            for batch in results:
                yield conform(batch, schema)
        except BaseException:  # its own errors have ended it
            self._java.end()
            raise

    def close(self) -> None:
        with suppress(Exception):  # the JVM may be gone
            self._java.close()
        self._rows.close()
        self._sink.close()


def parts_of(table: pa.Table) -> Generator[list[pa.RecordBatch], None, None]:
    """Batches, few and large, that are handed over together."""
    rows = max(1, table.num_rows * _PART_BYTES // max(1, table.nbytes))
    for start in range(0, table.num_rows, rows):
        # Without columns, a slice has as many rows as it is asked for.
        part = table.slice(start, min(rows, table.num_rows - start))
        batches = part.to_batches()
        if len(batches) > 1 and part.num_rows < len(batches) * _SMALL_BATCH_ROWS:
            batches = part.combine_chunks().to_batches()
        yield batches
