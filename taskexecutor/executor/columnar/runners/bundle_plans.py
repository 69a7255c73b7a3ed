"""Runs bundles with a cached plan: rows enter and leave the generated code without a Spark job and
without a new plan. See docs/decisions/0009 and 0015.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.operator import PlanMeter
from firesteel.operators import Spec
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.cached_plans.cache_keys import cache_key
from taskexecutor.executor.columnar.cached_plans.leaf_columns import leaf_columns
from taskexecutor.executor.columnar.cached_plans.reusable_plan import (
    ATTEMPTS,
    ROW_BY_ROW,
    WHOLE,
    NotMergedByRow,
    NotReusable,
    attempted,
    is_still,
    reusable_plan,
)
from taskexecutor.executor.columnar.columns import rows
from taskexecutor.executor.columnar.columns.bundles import ColumnBundles
from taskexecutor.executor.columnar.columns.sink import ColumnSink
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.transfer import BundleLoader
from taskexecutor.executor.columnar.runners import messages
from taskexecutor.executor.columnar.runners.grouped_columns import GroupedColumns, grouped_outside
from taskexecutor.executor.columnar.runners.messages import MessageBundles
from taskexecutor.executor.columnar.runners.runner import NewPlan, Runner
from taskexecutor.executor.columnar.schemas import conform, to_arrow, to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


_Plan = ColumnBundles | GroupedColumns | MessageBundles


class BundlePlans:
    """The cached plan of one operator's bundles, made with the first bundle if that is sound."""

    def __init__(
        self,
        engine: SparkEngine,
        schema: pa.Schema,
        specs: Sequence[Spec],
        meter: PlanMeter,
        *,
        by_row: bool = False,
        whole: bool = False,
    ) -> None:
        """`by_row`: each row is a partial result of the aggregate, the last operator. `whole`: the
        plan relates the rows of a bundle to each other.
        """
        self._engine = engine
        self._by_row = by_row
        self._whole = whole
        self._meter = meter
        self._schema = schema  # of the bundles
        self._spark_schema = to_spark(schema)
        self._canonical = to_arrow(self._spark_schema)
        self._specs = tuple(specs)
        self._attempts = ATTEMPTS if schema.names else 0
        self._plan: _Plan | None = None
        kind = "whole" if whole else "rows" if by_row else "bundles"
        self._key = cache_key(self._spark_schema, specs, kind)
        self._loader = BundleLoader(engine.session, engine.bundles, schema)

    @property
    def spark_schema(self) -> StructType:
        """The schema of the bundles."""
        return self._spark_schema

    def prepare(
        self,
        bundle: Sequence[pa.RecordBatch],
        on_spark: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Makes the plan inside `on_spark()`, if it is missing and the bundle could be its first.
        Called between bundles.
        """
        if self._plan is not None and self._plan.cached.outdated:  # it holds an older static table
            self.close()
            self._attempts = ATTEMPTS
        if self._plan is None and self._attempts and not self._needs_job(bundle):
            with on_spark():
                self.make()

    @contextmanager
    def runner(
        self, bundle: Sequence[pa.RecordBatch], planned: Callable[[DataFrame], DataFrame]
    ) -> Iterator[Runner]:
        """Returns the runner of a bundle, inside the `with`. `planned` returns the results over a
        DataFrame, for a new plan.
        """
        rows = sum(batch.num_rows for batch in bundle)
        if self._plan is not None and not self._needs_job(bundle):
            yield _CachedBundle(self, self._plan, bundle, rows)
            return
        with ExitStack() as loaded:

            def make() -> DataFrame:
                with self._meter.converting:
                    leaf = loaded.enter_context(self._loader.dataframe(bundle))
                return planned(leaf)

            yield NewPlan(self._meter, make, rows)

    def _needs_job(self, bundle: Sequence[pa.RecordBatch]) -> bool:
        rows = sum(batch.num_rows for batch in bundle)
        size_bytes = sum(batch.nbytes for batch in bundle) if self._whole else 0
        return bool(choose.fits_one_task(rows, size_bytes, self._engine.cores, whole=self._whole))

    @property
    def frame(self) -> DataFrame | None:
        """The cached plan's DataFrame; None if there is no cached plan."""
        return self._plan.cached.frame if self._plan is not None else None

    def make(self) -> None:
        """Tries to make the plan, which sets `frame`. Calls functions of the program."""
        if self._attempts == ATTEMPTS:
            session, specs = self._engine.session, self._specs
            with self._meter.planning:
                self._plan = self._engine.plan_cache.take(
                    self._key, lambda plan: is_still(session, plan.cached, specs)
                )
            if isinstance(self._plan, GroupedColumns):
                self._plan.meter = self._meter
        self._attempts -= 1
        if self._plan is None:
            self._plan = attempted(self._meter, self._made)

    def run(
        self, batches: Sequence[pa.RecordBatch], schema: pa.Schema, group: str
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yields the results in batches of exactly `schema`, each computed on demand."""
        with self._meter.converting:
            conforming = [conform(batch, self._schema) for batch in batches]
            table = pa.Table.from_batches(conforming, self._schema)
            if not self._schema.equals(self._canonical):
                table = table.cast(self._canonical)
        assert self._plan is not None
        if isinstance(self._plan, GroupedColumns):
            yield from self._plan.run(table, schema, group)
            return
        self._meter.ran_cached()
        yield from self._plan.run(table, schema, group, self._meter)

    def close(self) -> None:
        plan, self._plan = self._plan, None
        if isinstance(plan, ColumnBundles | GroupedColumns):
            self._engine.plan_cache.put(self._key, plan)
        elif plan is not None:
            plan.close()

    def _made(self) -> _Plan:
        engine = self._engine
        enter = ColumnSink.suits(engine, self._spark_schema)
        obstacle = choose.columns_pass(self._schema, enter=enter)
        if not obstacle:
            leaf = rows.frame(engine, self._spark_schema)
            by_arrow = functools.partial(grouped_outside, engine)
            allowed = (WHOLE if self._whole else ROW_BY_ROW) | rows.LEAF
            try:
                cached = reusable_plan(
                    engine.session,
                    leaf,
                    leaf,
                    self._specs,
                    allowed,
                    by_arrow=by_arrow,
                    by_row=self._by_row,
                    whole=self._whole,
                )
            except NotMergedByRow:
                self._attempts = 0  # it never will be
                raise
            leave = ColumnSink.suits(engine, cached.rows.schema)
            obstacle = choose.columns_pass(self._schema, enter=enter, leave=leave)
            if not obstacle:
                if cached.grouping is not None:
                    given = leaf_columns(engine, cached.physical)
                    if given is not None:
                        return GroupedColumns(engine, cached, given, None, self._meter)
                return ColumnBundles(engine, cached, whole=self._whole)
        if self._whole or self._by_row:
            raise NotReusable(obstacle)
        leaf = messages.frame(engine, self._spark_schema)
        cached = reusable_plan(engine.session, leaf, leaf, self._specs, ROW_BY_ROW | messages.LEAF)
        return MessageBundles(engine, cached)


class _CachedBundle(Runner):
    def __init__(
        self,
        plans: BundlePlans,
        plan: _Plan,
        bundle: Sequence[pa.RecordBatch],
        rows: int,
    ) -> None:
        self._plans = plans
        self._plan = plan
        self._bundle = bundle
        self.computes = plan.computes
        self.rows = rows

    def plan(self) -> DataFrame:
        return self._plan.cached.frame

    def run(self, schema: pa.Schema, job_group: str) -> Generator[pa.RecordBatch, None, None]:
        return self._plans.run(self._bundle, schema, job_group)
