"""Runs a source's rows that are Arrow columns with a cached plan, like bundles."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from firesteel.operator import PlanMeter
from firesteel.operators import Spec, WatermarkSpec
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.cached_plans.cache_keys import cache_key
from taskexecutor.executor.columnar.cached_plans.composed import event_time_us
from taskexecutor.executor.columnar.cached_plans.leaf_columns import leaf_columns
from taskexecutor.executor.columnar.cached_plans.observations import RowObserver
from taskexecutor.executor.columnar.cached_plans.reusable_plan import (
    ATTEMPTS,
    ROW_BY_ROW,
    NotReusable,
    ReusablePlan,
    attempted,
    is_still,
    reusable_plan,
)
from taskexecutor.executor.columnar.cached_plans.row_partials import GivenRows
from taskexecutor.executor.columnar.cached_plans.wanted_rows import WantedRows, wanted_rows
from taskexecutor.executor.columnar.columns import rows
from taskexecutor.executor.columnar.columns.bundles import ColumnBundles
from taskexecutor.executor.columnar.columns.sink import ColumnSink
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.plan_cache import CachedPlan
from taskexecutor.executor.columnar.runners.grouped_columns import (
    GroupedColumns,
    grouped_outside,
    latest_us,
)
from taskexecutor.executor.columnar.schemas import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_TIME = pa.timestamp("us", "UTC")


class ColumnPlans:
    """The cached plan of one operator's columns."""

    def __init__(
        self,
        engine: SparkEngine,
        schema: StructType,
        specs: Sequence[Spec],
        watermarks: WatermarkSpec | None,
        meter: PlanMeter,
    ) -> None:
        """The columns' names must be distinct."""
        self._engine = engine
        self._schema = schema
        self._specs = tuple(specs)
        self._watermarks = watermarks
        self._meter = meter
        self._key = cache_key(schema, specs, "columns", watermarks)
        self._attempts = ATTEMPTS
        self._plan: SourcePlan | None = None

    def plan(self) -> SourcePlan | None:
        """Returns the cached plan, or None. Calls functions of the program to make it."""
        if self._plan is not None and self._plan.cached.outdated:
            self.close()
            self._attempts = ATTEMPTS
        if self._plan is None and self._attempts == ATTEMPTS:
            with self._meter.planning:
                self._plan = self._cached()
        if self._plan is None and self._attempts:
            self._attempts -= 1
            self._plan = attempted(self._meter, self._made)
        return self._plan

    def close(self) -> None:
        plan, self._plan = self._plan, None
        if plan is not None:
            self._engine.plan_cache.put(self._key, plan)

    def _cached(self) -> SourcePlan | None:
        """Returns the plan of an earlier job."""
        session, specs = self._engine.session, self._specs
        plan: SourcePlan | None = self._engine.plan_cache.take(
            self._key, lambda plan: is_still(session, plan.cached, specs)
        )
        if plan is not None:
            plan.meter = self._meter
        return plan

    def _made(self) -> SourcePlan:
        engine = self._engine
        enter = ColumnSink.suits(engine, self._schema)
        if obstacle := choose.source_columns(enter=enter):
            raise NotReusable(obstacle)
        leaf = rows.frame(engine, self._schema)
        time = self._watermarks.column if self._watermarks is not None else None
        observer: RowObserver | None = None
        if time is not None and not self._time_is_plain:
            observer = RowObserver(engine)
            leaf = observer.times(leaf, event_time_us(time, 0))
        allowed = ROW_BY_ROW | rows.LEAF
        cached = reusable_plan(
            engine.session, leaf, leaf, self._specs, allowed, by_arrow=self._by_arrow
        )
        obstacle = choose.source_columns(
            enter=enter,
            leave=ColumnSink.suits(engine, cached.rows.schema),
            asks_for_file=engine.code.type("FiresteelArrowTable").asksForFile(cached.physical),
        )
        if obstacle:
            raise NotReusable(obstacle)
        if cached.grouping is not None and self._time_is_plain:
            given = leaf_columns(engine, cached.physical)
            if given is not None:
                return GroupedColumns(engine, cached, given, time, self._meter)
        wanted = wanted_rows(cached.physical)
        return ColumnPlan(ColumnBundles(engine, cached), wanted, observer or time, self._meter)

    @property
    def _time_is_plain(self) -> bool:
        """Returns whether the latest event time is the maximum of a column, or not needed."""
        if self._watermarks is None:
            return True
        return bool(to_arrow(self._schema).field(self._watermarks.column).type == _TIME)

    def _by_arrow(self, given: GivenRows) -> bool:
        if self._time_is_plain:
            return grouped_outside(self._engine, given)
        return ColumnSink.groups(self._engine, given)


class SourcePlan(CachedPlan, Protocol):
    """A plan for a source's columns. One run at a time."""

    cached: ReusablePlan
    meter: PlanMeter  # of the operator that currently has it
    columns: set[str]  # names of the columns that it needs
    takes_dictionaries: bool  # whether texts may be dictionaries
    late: frozenset[str]  # columns of the resulting rows that no expression uses
    wanted: WantedRows | None  # other rows may be dropped
    computes: str  # see `choose`

    @property
    def frame(self) -> DataFrame: ...

    @property
    def latest_us(self) -> int | None:
        """The latest event time of the last run, if any."""

    def run(
        self, table: pa.Table, schema: pa.Schema, group: str
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yields the results in batches of exactly `schema`, each computed on demand. `table` has
        the plan's `columns`, and may have others.
        """


class ColumnPlan:
    """A cached plan. One run at a time."""

    takes_dictionaries = True

    def __init__(
        self,
        bundles: ColumnBundles,
        wanted: WantedRows | None,
        times: RowObserver | str | None,
        meter: PlanMeter,
    ) -> None:
        """`wanted`: other rows may be dropped. `times` observes the event times, or is the column
        that contains them. Dropped rows also have a time.
        """
        self._bundles = bundles
        self._times = times
        self.meter = meter
        self.cached = bundles.cached
        self._latest_us: int | None = None
        # Names of the columns that it needs.
        self.columns = {*bundles.columns, *([times] if isinstance(times, str) else [])}
        self.late = bundles.late
        self.computes = bundles.computes
        self.wanted = wanted if times is None else None
        self._wanted_behind_times = wanted if isinstance(times, str) else None

    @property
    def frame(self) -> DataFrame:
        return self.cached.frame

    @property
    def latest_us(self) -> int | None:
        """The latest event time of the last run, if any."""
        if isinstance(self._times, RowObserver):
            return self._times.latest_us
        return self._latest_us

    def run(
        self, table: pa.Table, schema: pa.Schema, group: str
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yields the results in batches of exactly `schema`, each computed on demand. `table` has
        the plan's `columns`, and may have others.
        """
        if isinstance(self._times, RowObserver):
            self._times.reset()
        elif self._times is not None:
            self._latest_us = latest_us(table.column(self._times))
            if self._wanted_behind_times is not None:
                table = self._wanted_behind_times.of(table)
        self.meter.ran_cached()
        yield from self._bundles.run(table, schema, group, self.meter)

    @property
    def reusable(self) -> bool:
        return self._bundles.reusable

    def release_memory(self) -> None:
        self._bundles.release_memory()

    def close(self) -> None:
        self._bundles.close()
