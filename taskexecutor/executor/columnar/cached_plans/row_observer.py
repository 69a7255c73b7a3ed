"""Observes the rows of a plan that runs in local tasks: the latest event time, malformed rows.

Cheaper than `DataFrame.observe`, which creates an object for each row: a filter whose condition
calls a Java object and is true. The call is nondeterministic for Spark, so it observes all rows of
the DataFrame, whatever is filtered later. This only works if the JVM of the object runs the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.local_tasks import singleton

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CLASS = "FiresteelRowObserver"


class RowObserver:
    """The observer of one plan, which runs once at a time; call `reset` before each run."""

    def __init__(self, engine: SparkEngine) -> None:
        session: Any = engine.session
        engine.code.load(_CLASS)
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
