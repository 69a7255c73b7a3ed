"""Metrics that Spark observes while a plan runs: number of rows, event times, rows scanned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from firesteel.operators import WatermarkSpec
from taskexecutor.executor.columnar.cached_plans.composed import event_time_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TIMES = "_times"


def observe_time(frame: DataFrame, spec: WatermarkSpec) -> DataFrame:
    """Returns a DataFrame that observes its number of rows and their latest event time while it
    runs.
    """
    from pyspark.sql import functions as sql

    return frame.observe(
        _TIMES, sql.expr(f"max({event_time_us(spec.column, 0)})"), sql.expr("count(1)")
    )


class ObservedTimes(NamedTuple):
    latest_us: int | None  # None if no row has an event time
    rows: int


def observed_times(frame: DataFrame) -> ObservedTimes:
    """Returns the observed times after the plan has run."""
    return ObservedTimes(*(observed(frame, _TIMES) or (None, 0)))


def observed(frame: DataFrame, name: str) -> tuple[Any, ...] | None:
    """Returns the values of `DataFrame.observe(name, ...)` after the plan has run; None if Spark
    found that no rows are needed.
    """
    found = frame._jdf.queryExecution().observedMetrics().get(name)
    if not found.isDefined():
        return None
    row = found.get()
    return tuple(row.get(index) for index in range(row.length()))


def rdd_rows(frame: DataFrame, rdd: int) -> int:
    """Returns how many rows Spark read from the RDD with this id, after the plan has run."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.getClass().getSimpleName() == "RDDScanExec" and leaf.rdd().id() == rdd:
            return int(leaf.metrics().get("numOutputRows").get().value())
    return 0


def scanned_rows(frame: DataFrame, path: str) -> int:
    """Returns how many rows Spark read from the file, by the scan's metrics, after the plan has
    run.

    Rows that the file's reader skips because of a pushed-down filter do not count. Returns 0 if the
    plan has no scan of `path`.
    """
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.getClass().getSimpleName() != "FileSourceScanExec":
            continue
        roots = leaf.relation().location().rootPaths()
        rows = leaf.metrics().get("numOutputRows")
        if roots.size() == 1 and roots.head().toUri().getPath() == path and rows.isDefined():
            return int(rows.get().value())
    return 0
