"""Runs bundles with a cached plan: rows enter and leave the generated code without a Spark job and
without a new plan. See docs/decisions/0009 and 0015.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from firesteel.common.units import MIB
from firesteel.operator import PlanMeter
from firesteel.operators import Spec
from taskexecutor.executor.columnar.cached_plans.cache_keys import cache_key
from taskexecutor.executor.columnar.cached_plans.reusable_plan import (
    ATTEMPTS,
    ROW_BY_ROW,
    WHOLE,
    NotReusable,
    attempted,
    is_still,
    reusable_plan,
)
from taskexecutor.executor.columnar.columns import rows
from taskexecutor.executor.columnar.columns.bundles import ColumnBundles
from taskexecutor.executor.columnar.columns.sink import ColumnSink
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.runners import messages
from taskexecutor.executor.columnar.runners.messages import MessageBundles
from taskexecutor.executor.columnar.schemas import conform, to_arrow, to_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WHOLE_BYTES = 32 * MIB  # larger bundles whose rows are related can only spill in a job
BUNDLE_ROWS = 100_000  # larger bundles of a slot with several cores run on all of them, as a job


class BundlePlans:
    """The cached plan of one operator's bundles, made with the first bundle if that is sound."""

    def __init__(
        self,
        engine: SparkEngine,
        schema: pa.Schema,
        specs: Sequence[Spec],
        meter: PlanMeter,
        *,
        whole: bool = False,
    ) -> None:
        """`whole`: the plan relates the rows of a bundle to each other."""
        self._engine = engine
        self._whole = whole
        self._meter = meter
        self._schema = schema  # of the bundles
        self._spark_schema = to_spark(schema)
        self._canonical = to_arrow(self._spark_schema)
        self._specs = tuple(specs)
        self._attempts = ATTEMPTS if schema.names else 0
        self._plan: ColumnBundles | MessageBundles | None = None
        self._key = cache_key(self._spark_schema, specs, "whole" if whole else "bundles")

    def suits(self, rows: int, size_bytes: int = 0) -> bool:
        """Returns whether a cached plan is the fastest way for a bundle of this size."""
        if self._whole and size_bytes > WHOLE_BYTES:
            return False
        return rows <= BUNDLE_ROWS or self._engine.cores == 1

    @property
    def frame(self) -> DataFrame | None:
        """The cached plan's DataFrame; None if there is no cached plan."""
        return self._plan.cached.frame if self._plan is not None else None

    @property
    def undecided(self) -> bool:
        """Whether there is no plan yet, but another attempt to make one is worthwhile."""
        return self._plan is None and self._attempts > 0

    def drop_if_outdated(self) -> None:
        """Drops a plan that holds an older read of a static table. Called between bundles."""
        if self._plan is not None and self._plan.cached.outdated:
            self.close()
            self._attempts = ATTEMPTS

    def make(self) -> None:
        """Tries to make the plan, which sets `frame`. Calls functions of the program."""
        if self._attempts == ATTEMPTS:
            session, specs = self._engine.session, self._specs
            with self._meter.planning:
                self._plan = self._engine.plan_cache.take(
                    self._key, lambda plan: is_still(session, plan.cached, specs)
                )
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
        self._meter.ran_cached()
        assert self._plan is not None
        yield from self._plan.run(table, schema, group, self._meter)

    def close(self) -> None:
        plan, self._plan = self._plan, None
        if isinstance(plan, ColumnBundles):
            self._engine.plan_cache.put(self._key, plan)
        elif plan is not None:
            plan.close()

    def _made(self) -> ColumnBundles | MessageBundles:
        engine = self._engine
        names = [name.lower() for name in self._schema.names]
        if len(set(names)) == len(names) and ColumnSink.suits(engine, self._spark_schema):
            leaf = rows.frame(engine, self._spark_schema)
            by_arrow = functools.partial(ColumnSink.groups, engine)
            allowed = (WHOLE if self._whole else ROW_BY_ROW) | rows.LEAF
            cached = reusable_plan(
                engine.session,
                leaf,
                leaf,
                self._specs,
                allowed,
                by_arrow=by_arrow,
                whole=self._whole,
            )
            if ColumnSink.suits(engine, cached.rows.schema):
                return ColumnBundles(engine, cached, whole=self._whole)
        if self._whole:
            raise NotReusable("its rows have columns that Spark cannot read from Arrow")
        leaf = messages.frame(engine, self._spark_schema)
        cached = reusable_plan(engine.session, leaf, leaf, self._specs, ROW_BY_ROW | messages.LEAF)
        return MessageBundles(engine, cached)
