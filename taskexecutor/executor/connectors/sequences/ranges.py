"""Sequences generated in Spark: a task's splits are partitions of one plan, cached where that is
sound (taskexecutor.executor.columnar.cached_plans.reusable_plan).

Spark's aggregation looks up a row's group in a small map first, then in a larger one, which takes
several times as long. If the first rows alone have more groups than fit into the small map, it is
enlarged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.connectors import SequenceSource
from firesteel.operator import PlanMeter
from firesteel.operators import Spec
from firesteel.operators.aggregates import aggregate_of
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.cached_plans.reusable_plan import (
    ATTEMPTS,
    ROW_BY_ROW,
    NotReusable,
    ReusablePlan,
    node_classes,
    reusable_plan,
    temporary_conf,
)
from taskexecutor.executor.columnar.runners.runner import Runner
from taskexecutor.executor.columnar.schemas import conform, to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPLITS_PER_PLAN = 1024
PART_BYTES = 32 * 2**20  # results that the JVM holds at a time, estimated from earlier splits
_MOST_PARTS = 16
_PART_ROWS = 1000  # a first split has no more parts than this many rows have each
_PART_S = 0.5  # approximate time of a part; its Spark job costs tens of milliseconds
_AGGREGATED_PART_S = 1.5  # if each part has partial results for all of its keys
_MAP_BITS = 16  # Spark's default: the fast map holds two to the power of this many groups
_MAP_SHARE = 8  # the map may use this fraction of the JVM's heap: one eighth
_LARGE = 8  # counting groups does not pay for splits with less than this many times the rows
_PYTHON = {"BatchEvalPythonExec", "ArrowEvalPythonExec"}
_ALLOWED = ROW_BY_ROW | {"RangeExec"} | _PYTHON


class RangePlans:
    """The plans of one task. `gives_way`: splits are read in parts of about equal time, because
    checkpoints wait for the end of a part.
    """

    def __init__(
        self,
        session: SparkSession,
        source: SequenceSource,
        specs: Sequence[Spec],
        cores: int,
        meter: PlanMeter,
        *,
        gives_way: bool,
    ) -> None:
        self._session = session
        self._meter = meter
        self._source = source
        self._specs = tuple(specs)
        self._cores = cores
        self._attempts = ATTEMPTS
        self._aggregated = aggregate_of(specs) is not None
        self._parts = 1  # of a split, one after the other
        self._map_bits: int | None = None
        self._split_rows = 0
        self._divided = 1  # from the next split on
        self._split = self._part = 0  # the split that is being read, and its next part
        self._size_bytes = 0  # of the split's results so far
        self._took_s = 0.0
        self._gives_way = gives_way
        self._begin = 0  # where the cached plan's first split starts
        self._block = -1  # which block of SPLITS_PER_PLAN splits the cached plan covers
        self._rdd: Any = None
        self._schema: pa.Schema | None = None
        self._cached: ReusablePlan | None = None
        self._calls_python = True  # until a plan shows that it does not

    @property
    def frame(self) -> DataFrame | None:
        """The DataFrame of the cached plan."""
        return None if self._cached is None else self._cached.frame

    @property
    def calls_python(self) -> bool:
        """Whether functions of the program may compute with the rows."""
        return self._calls_python

    @property
    def part_rows(self) -> int:
        """The numbers of one part of the last covered split."""
        return self._split_rows // self._parts

    def covers(self, start: int, end: int, *, most_rows: float | None) -> bool:
        """Returns whether a cached plan covers this split; makes one if possible. A part should
        have at most `most_rows` rows; None: any number. Calls functions of the program.
        """
        if not self._split_rows:
            self._split_rows = end - start
            if not self._aggregated:
                parts = min(_MOST_PARTS, max(1, self._split_rows // _PART_ROWS))
                self._parts = self._divided = 1 << (parts.bit_length() - 1)
        number, rest = divmod(start - self._source.start, self._split_rows)
        if rest or end - start != self._split_rows:
            return False  # the last split
        if self._cached is not None and self._cached.outdated:
            self._cached, self._rdd, self._block, self._attempts = None, None, -1, ATTEMPTS
        divided = self._divided
        if most_rows is not None:
            divided = max(divided, _power_of_2(self._split_rows / most_rows))
        if divided != self._parts:  # needs a plan with a different number of partitions
            self._parts, self._block = divided, -1
        self._split, self._part = number % SPLITS_PER_PLAN, 0
        self._size_bytes, self._took_s = 0, 0.0
        block = number // SPLITS_PER_PLAN
        if block != self._block and self._attempts:
            self._rdd = None
            try:
                with self._meter.planning:
                    self._make(block)
                self._meter.made()
                self._block = block
            except NotReusable as reason:
                self._meter.not_cached(str(reason))
                self._attempts -= 1
        return self._rdd is not None

    def run(self, schema: pa.Schema) -> Generator[pa.RecordBatch, None, None]:
        """Yields the result of the next part of the last covered split, as batches of exactly
        `schema`. The JVM completes each part first.
        """
        self._meter.ran_cached()
        first = (self._split * self._parts + self._part) * self._cores
        begun_s = time.monotonic()
        for batch in self._job(range(first, first + self._cores), schema):
            self._took_s += time.monotonic() - begun_s
            self._size_bytes += batch.nbytes
            yield batch
            begun_s = time.monotonic()
        self._took_s += time.monotonic() - begun_s
        self._part += 1
        if self._part == self._parts:
            self._divide()

    def _divide(self) -> None:
        """Decides into how many parts splits are divided, based on the last split."""
        wanted = self._size_bytes / PART_BYTES
        if self._gives_way:
            part_s = _AGGREGATED_PART_S if self._aggregated else _PART_S
            wanted = max(wanted, self._took_s / part_s)
        parts = _power_of_2(wanted)
        if parts > self._parts or 2 * parts <= self._parts:
            self._divided = parts

    @property
    def next(self) -> int:
        """The number after the last part."""
        slices = SPLITS_PER_PLAN * self._parts
        done = self._split * self._parts + self._part
        return self._begin + done * (SPLITS_PER_PLAN * self._split_rows) // slices

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
                content = file.read(int.from_bytes(header, "big"))
                with self._meter.converting:
                    batch = pa.ipc.read_record_batch(pa.py_buffer(content), self._schema)
                    batch = conform(batch, schema) if batch.num_rows else batch
                if batch.num_rows:
                    yield batch
        finally:
            for closable in (file, sock):
                with suppress(OSError):
                    closable.close()

    def _make(self, block: int) -> None:
        session: Any = self._session
        begin = self._source.start + block * SPLITS_PER_PLAN * self._split_rows
        end = begin + SPLITS_PER_PLAN * self._split_rows
        if end > 2**63 - 1:
            raise NotReusable("it would exceed the largest BIGINT")
        numbers = session.range(begin, end, 1, SPLITS_PER_PLAN * self._parts * self._cores)
        column = self._source.column
        leaf, empty = (
            each.withColumnRenamed("id", column) for each in (numbers, session.range(0, 0, 1, 2))
        )
        cached = reusable_plan(session, leaf, empty, self._specs, _ALLOWED)
        self._schema = to_arrow(cached.frame.schema)
        self._begin = begin
        self._cached = cached
        self._calls_python = bool(node_classes(cached.physical) & _PYTHON)
        if self._map_bits is None:
            self._map_bits = self._find_map_bits(begin)
        with temporary_conf(session, _map_settings(self._map_bits)):  # generates the code here
            self._rdd = cached.frame._jdf.toArrowBatchRdd(cached.physical).toJavaRDD()

    def _find_map_bits(self, begin: int) -> int:
        """Returns the size of the map. Its columns are allocated in full, and must leave room for
        other data.
        """
        assert self._schema is not None
        many = 2 << _MAP_BITS
        if (
            not self._aggregated
            or self._split_rows < _LARGE * many
            or not all(map(pa.types.is_primitive, self._schema.types))
        ):
            return _MAP_BITS
        session: Any = self._session
        rows = session.range(begin, begin + many, 1, 1).withColumnRenamed("id", self._source.column)
        if composed.apply(rows, self._specs, cores=1).count() <= 1 << _MAP_BITS:
            return _MAP_BITS
        group_bytes = 9 * len(self._schema) + 8
        groups = (
            session._jvm.java.lang.Runtime.getRuntime().maxMemory() // _MAP_SHARE // group_bytes
        )
        return max(_MAP_BITS, int(groups).bit_length() - 1)


class CachedRange(Runner):
    """Runs the next part of the split that the plans cover last."""

    is_job = True

    def __init__(self, plans: RangePlans, start: int) -> None:
        self._plans = plans
        self._start = start

    def plan(self) -> DataFrame:
        assert self._plans.frame is not None
        return self._plans.frame

    def run(self, schema: pa.Schema, job_group: str) -> Generator[pa.RecordBatch, None, None]:
        yield from self._plans.run(schema)
        self.rows = self._plans.next - self._start


def _power_of_2(parts: float) -> int:
    """Returns the next one that is a number of parts."""
    return 1 << (min(_MOST_PARTS, max(1, math.ceil(parts))) - 1).bit_length()


def _map_settings(bits: int) -> dict[str, str]:
    if bits == _MAP_BITS:
        return {}
    # Columnar, because a row-based map is limited to its first page of memory.
    prefix = "spark.sql.codegen.aggregate"
    return {
        f"{prefix}.map.vectorized.enable": "true",
        f"{prefix}.fastHashMap.capacityBit": str(bits),
    }
