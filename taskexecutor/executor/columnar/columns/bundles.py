"""Runs bundles through a cached plan in columns: shared memory for input and output, and one JVM
call per bundle if its results fit into one batch. Passthrough columns do not enter Spark.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing, suppress

import pyarrow as pa

from firesteel.common.units import MIB
from firesteel.operator import PlanMeter
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.cached_plans.reusable_plan import ReusablePlan
from taskexecutor.executor.columnar.columns.distinct import Repeats
from taskexecutor.executor.columnar.columns.rows import SharedRows, columns_read
from taskexecutor.executor.columnar.columns.sink import ColumnSink
from taskexecutor.executor.columnar.jvm import gateway
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.schemas import conformed

_PART_BYTES = 32 * MIB  # of a bundle in shared memory at a time, unless a single row is larger
_SMALL_BATCH_ROWS = 4_096  # batches with a smaller average are concatenated first


class ColumnBundles:
    """A cached plan over `rows.frame` for bundles of one operator."""

    def __init__(self, engine: SparkEngine, plan: ReusablePlan, *, whole: bool = False) -> None:
        """`whole`: the plan relates the rows of a bundle, which is not divided."""
        self.cached = plan
        self.computes = choose.computed_by(
            spark=plan.passthrough is None or not plan.passthrough.complete,
            grouped=plan.grouping is not None,
        )
        self._whole = whole
        self._running = False
        self._passthrough = plan.passthrough
        passes = plan.passthrough.columns if plan.passthrough is not None else []
        self._plan: _RunPlan | None = None  # None: Spark has nothing to compute
        self._repeats: Repeats | None = None  # set if repeated texts are worth searching for
        if plan.passthrough is None or not plan.passthrough.complete:
            self._plan = _RunPlan(engine, plan)
            nested = any(pa.types.is_nested(kind) for kind in self._plan.schema.types)
            if plan.passthrough is not None and plan.deterministic and not nested:
                self._repeats = Repeats(
                    self._plan.read, self._plan.schema, filtered=plan.passthrough.filtered
                )
        read = self._plan.read if self._plan is not None else []
        self.columns = {*passes, *read}  # names of the columns that it needs
        # Columns that the results take values from, by row number.
        filtered = plan.passthrough is not None and plan.passthrough.filtered
        self.late = frozenset(passes).difference(read) if filtered else frozenset[str]()

    @property
    def reusable(self) -> bool:
        """Whether another job may reuse it: see CachedPlan."""
        return self.cached.reusable and not self._running

    def run(
        self, table: pa.Table, schema: pa.Schema, group: str, meter: PlanMeter
    ) -> Generator[pa.RecordBatch, None, None]:
        self._running = True
        names = [name for name in table.schema.names if name in self.columns]
        needed = table.select(names or table.schema.names[:1])
        for batches in [needed.to_batches()] if self._whole else parts_of(needed):
            with closing(self._results(batches, group, meter)) as results:
                for columns in results:
                    yield conformed(columns, schema)
        self._running = False

    def _results(
        self, batches: Sequence[pa.RecordBatch], group: str, meter: PlanMeter
    ) -> Generator[list[pa.Array], None, None]:
        """Yields the columns of batches."""
        passthrough, plan = self._passthrough, self._plan
        if plan is None:
            assert passthrough is not None
            yield from passthrough.results(batches, ())
            return
        if passthrough is not None and self._repeats is not None:
            found = self._repeats.values(batches, lambda texts: plan.run([texts], group, meter))
            if found is not None:
                yield from passthrough.results_at(batches, *found)
                return
        with closing(plan.run(batches, group, meter)) as computed:
            if passthrough is not None:
                yield from passthrough.results(batches, computed)
                return
            for batch in computed:
                yield batch.columns

    def release_memory(self) -> None:
        if self._repeats is not None:
            self._repeats.forget()
        if self._plan is not None:
            self._plan.release_memory()

    def close(self) -> None:
        if self._plan is not None:
            self._plan.close()


class _RunPlan:
    """The plan in the JVM, and the shared memory of its input and results."""

    def __init__(self, engine: SparkEngine, plan: ReusablePlan) -> None:
        self.read = columns_read(engine, plan.physical)
        self._sink = ColumnSink(engine, plan.rows.schema, grouping=plan.grouping)
        self.schema = self._sink.schema
        self._rows = SharedRows()
        self._java = engine.code.type("FiresteelBundleRuns")(
            self._sink.fuse(plan.physical).execute(),
            self._sink.java,
            engine.session_properties(),
            *engine.local_tasks.resources,
        )
        self._java.map(self._rows.path, self._rows.room_bytes)
        self._first = gateway.without_conversion(self._java.first)
        self._next = gateway.without_conversion(self._java.next)

    def run(
        self, batches: Sequence[pa.RecordBatch], group: str, meter: PlanMeter
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yields the plan's results in batches that are computed on demand."""
        with meter.converting:
            packed = self._rows.put(batches, self.read)
        results = self._sink.filled(
            lambda slab: self._first(group, packed, slab), self._next, meter.converting
        )
        try:
            yield from results
        except BaseException:  # the plan's own errors have ended the run
            self._java.end()
            raise

    def release_memory(self) -> None:
        self._rows.release_memory()
        self._sink.release_memory()

    def close(self) -> None:
        with suppress(Exception):  # the JVM may have ended
            self._java.close()
        self._rows.close()
        self._sink.close()


def parts_of(table: pa.Table) -> Generator[list[pa.RecordBatch], None, None]:
    """Yields few, large batches that are passed to the JVM together."""
    rows = max(1, table.num_rows * _PART_BYTES // max(1, table.nbytes))
    for start in range(0, table.num_rows, rows):
        # A slice without columns has the requested number of rows, even past the end.
        part = table.slice(start, min(rows, table.num_rows - start))
        batches = part.to_batches()
        if len(batches) > 1 and part.num_rows < len(batches) * _SMALL_BATCH_ROWS:
            batches = part.combine_chunks().to_batches()
        yield batches
