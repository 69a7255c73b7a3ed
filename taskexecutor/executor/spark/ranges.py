"""Sequences generated inside Spark: the splits of a task are partitions of one plan that is kept.

A new plan per split would be analysed, optimised and compiled anew, and the JVM would begin again with interpreting it, which
takes longer than the split's 4 M rows. So one plan over many splits is made, and each split runs its own partitions of it. That
is sound if, and done only if,

* the functions of the program do not look at the rows while they make their plan (no Spark job runs meanwhile),
* they make the same plan when they are called again, and it does not contain the time of day, and
* every operator of the plan works on each partition for itself. The exchange between the halves of the partial aggregate,
  the plan's last step, is taken out: what several partitions have of one key is merged later, like everything partial.

Anything else takes the usual way, a plan per split.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.connectors import SequenceSource
from firesteel.plan.specs import PartialWindowAggregateSpec, Spec
from taskexecutor.executor.spark import plans
from taskexecutor.executor.spark.schemas import conform, to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPLITS_PER_PLAN = 1024
PART_BYTES = 32 * 2**20  # of results that the JVM has at a time, as far as the splits before tell
_MOST_PARTS = 16
_ATTEMPTS = 3  # other tasks' jobs may be taken for the function's own

_ROW_BY_ROW = frozenset(
    {
        "RangeExec", "ProjectExec", "FilterExec", "GenerateExec", "ExpandExec", "WholeStageCodegenExec", "InputAdapter",
        "BatchEvalPythonExec", "ArrowEvalPythonExec",
    }
)  # fmt: skip
_AGGREGATION = frozenset({"HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec", "SortExec"})
_EXCHANGE = "ShuffleExchangeExec"


class RangePlans:
    """One per task. Not for sources with watermarks, which are observed per split."""

    def __init__(self, session: SparkSession, source: SequenceSource, specs: Sequence[Spec], cores: int) -> None:
        self._session = session
        self._source = source
        self._specs = tuple(specs)
        self._cores = cores
        self._attempts = _ATTEMPTS
        aggregated = bool(specs) and isinstance(specs[-1], PartialWindowAggregateSpec)
        self._parts = 1 if aggregated else _MOST_PARTS  # of a split, one after the other
        self._split_rows = 0
        self._block = -1  # which SPLITS_PER_PLAN splits the kept plan is about
        self._rdd: Any = None
        self._schema: pa.Schema | None = None
        self.frame: DataFrame | None = None  # of the kept plan

    def covers(self, start: int, end: int) -> bool:
        """Whether a kept plan has this split; makes one if that can be done. Calls the functions of the program."""
        if not self._split_rows:
            self._split_rows = end - start
        number, rest = divmod(start - self._source.start, self._split_rows)
        if rest or end - start != self._split_rows:
            return False  # the last one
        block = number // SPLITS_PER_PLAN
        if block != self._block and self._attempts:
            self._rdd = None
            if self._make(block):
                self._block = block
            else:
                self._attempts -= 1
        return self._rdd is not None

    def run(self, start: int, schema: pa.Schema) -> Generator[pa.RecordBatch, None, None]:
        """The result of a split that is covered, batches of exactly `schema`; part by part, each whole in the JVM first."""
        size_bytes = 0
        first = (start - self._source.start) // self._split_rows % SPLITS_PER_PLAN * self._parts * self._cores
        for part in range(first, first + self._parts * self._cores, self._cores):
            for batch in self._job(range(part, part + self._cores), schema):
                size_bytes += batch.nbytes
                yield batch
        parts = min(_MOST_PARTS, max(1, math.ceil(size_bytes / PART_BYTES)))
        if parts > self._parts or 2 * parts < self._parts:
            self._parts = 1 << (parts - 1).bit_length()
            self._block = -1  # the next split makes a plan with other partitions

    def _job(self, wanted: range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        from pyspark.util import _create_local_socket

        session: Any = self._session
        partitions = session._jvm.java.util.ArrayList()
        for partition in wanted:
            partitions.append(partition)
        port, secret, _ = session._jvm.PythonRDD.runJob(session._jsc.sc(), self._rdd, partitions)
        file: Any
        file, sock = _create_local_socket((port, secret))
        try:
            while header := file.read(4):
                batch = pa.ipc.read_record_batch(pa.py_buffer(file.read(int.from_bytes(header, "big"))), self._schema)
                if batch.num_rows:
                    yield conform(batch, schema)
        finally:
            for closable in (file, sock):
                with suppress(OSError):
                    closable.close()

    def _make(self, block: int) -> bool:
        session: Any = self._session
        scheduler = session._jsc.sc().dagScheduler()
        jobs_before = scheduler.numTotalJobs()
        self._applied(session.range(0, 0, 1, 2))
        if scheduler.numTotalJobs() != jobs_before:
            return False
        begin = self._source.start + block * SPLITS_PER_PLAN * self._split_rows
        end = begin + SPLITS_PER_PLAN * self._split_rows
        if end > 2**63 - 1:
            return False
        numbers = session.range(begin, end, 1, SPLITS_PER_PLAN * self._parts * self._cores)
        rows, frame = self._applied(numbers)
        _, again = self._applied(numbers)
        analyzed = frame._jdf.queryExecution().analyzed()
        time_of_day = session._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
        if analyzed.containsPattern(time_of_day) or not analyzed.sameResult(again._jdf.queryExecution().analyzed()):
            return False
        if not _all_in(rows._jdf.queryExecution().executedPlan(), _ROW_BY_ROW):
            return False
        plan = frame._jdf.queryExecution().executedPlan()
        if frame is not rows:
            if not _all_in(plan, _ROW_BY_ROW | _AGGREGATION | {_EXCHANGE}):
                return False
            session._jvm.SparkSession.setActiveSession(session._jsparkSession)  # of this thread: new nodes ask for it
            plan = _without_exchange(session, plan)
        self._rdd = frame._jdf.toArrowBatchRdd(plan).toJavaRDD()
        self._schema = to_arrow(frame.schema)
        self.frame = frame
        return True

    def _applied(self, numbers: DataFrame) -> tuple[DataFrame, DataFrame]:
        """The rows as the functions leave them; then what the whole group makes of them, the same if nothing is aggregated."""
        rows = numbers.withColumnRenamed("id", self._source.column)
        last = self._specs[-1] if self._specs else None
        if not isinstance(last, PartialWindowAggregateSpec):
            rows = plans.apply(rows, self._specs, cores=self._cores)
            return rows, rows
        rows = plans.apply(rows, self._specs[:-1], cores=self._cores)
        return rows, plans.partial_window_aggregate(rows, last, cores=0)


def _children(plan: Any) -> list[Any]:
    children = plan.children()
    return [children.apply(index) for index in range(children.size())]


def _all_in(plan: Any, allowed: frozenset[str]) -> bool:
    """Whether the plan has nodes of these classes only, and no subqueries."""
    if not plan.subqueriesAll().isEmpty():
        return False
    return plan.getClass().getSimpleName() in allowed and all(_all_in(child, allowed) for child in _children(plan))


def _without_exchange(session: Any, plan: Any) -> Any:
    children = _children(plan)
    if plan.getClass().getSimpleName() == _EXCHANGE:
        return children[0]
    if not children:
        return plan
    instead = session._jvm.java.util.ArrayList()
    for child in children:
        instead.append(_without_exchange(session, child))
    return plan.withNewChildren(session._jvm.PythonUtils.toSeq(instead))
