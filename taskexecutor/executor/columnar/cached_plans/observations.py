"""Metrics of a running plan: number of rows, event times, rows scanned, malformed rows.

Spark observes plans that run as jobs. A `RowObserver` observes plans that run in local tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from firesteel.operators import WatermarkSpec
from taskexecutor.executor.columnar.cached_plans.composed import event_time_us
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.local_tasks import singleton

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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


_CLASS = "FiresteelRowObserver"


class RowObserver:
    """Observes the rows of one plan that runs in local tasks, once at a time; call `reset` before
    each run.

    Cheaper than `DataFrame.observe`, which creates an object for each row: a filter whose condition
    calls a Java object and is true. The call is nondeterministic for Spark, so it observes all rows
    of the DataFrame, whatever is filtered later. This only works if the JVM of the object runs the
    plan.
    """

    def __init__(self, engine: SparkEngine) -> None:
        session: Any = engine.session
        type_ = engine.code.type(_CLASS)
        self._session = session
        self._rows = type_()
        self._no_time = int(type_.NO_TIME)

    def times(self, frame: DataFrame, time_us: str) -> DataFrame:
        """`time_us` is SQL of a BIGINT."""
        from pyspark.sql import functions as sql

        return self._called(frame, "time", sql.expr(f"coalesce({time_us}, {self._no_time}L)"))

    def malformed(self, frame: DataFrame, is_malformed: Column, evaluated: Column) -> DataFrame:
        """Both are booleans and never null. `evaluated` is evaluated and has no effect."""
        return self._called(frame, "malformed", is_malformed, evaluated)

    @staticmethod
    def is_call(condition: Any) -> bool:
        """Returns whether the condition of a filter, an Expression, is an observer's."""
        if condition.getClass().getSimpleName() != "Invoke":
            return False
        kind = condition.targetObject().dataType()
        return bool(
            kind.getClass().getSimpleName() == "ObjectType" and kind.cls().getSimpleName() == _CLASS
        )

    def reset(self) -> None:
        self._rows.reset()

    @property
    def latest_us(self) -> int | None:
        """The latest event time; None if no row has one."""
        latest = int(self._rows.latest())
        return None if latest == self._no_time else latest

    @property
    def malformed_rows(self) -> int:
        return int(self._rows.malformedRows())

    def _called(self, frame: DataFrame, method: str, *arguments: Column) -> DataFrame:
        from pyspark.sql.classic.column import Column as ClassicColumn

        jvm = self._session._jvm
        types = jvm.org.apache.spark.sql.types
        expressions = jvm.org.apache.spark.sql.catalyst.expressions
        conversion = singleton(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
        given = jvm.java.util.ArrayList()
        for argument in arguments:
            # Otherwise a call with a possibly null argument would be skipped, or return null.
            given.append(expressions.KnownNotNull(conversion.expression(argument._jc)))  # type: ignore[attr-defined]
        call = expressions.objects.Invoke(
            expressions.Literal(self._rows, types.ObjectType(self._rows.getClass())),
            method,
            singleton(jvm, "org.apache.spark.sql.types.BooleanType"),
            jvm.PythonUtils.toSeq(given),
            jvm.PythonUtils.toSeq(jvm.java.util.ArrayList()),
            True,
            False,
            False,  # nondeterministic
        )
        return frame.where(ClassicColumn(conversion.column(call)))
