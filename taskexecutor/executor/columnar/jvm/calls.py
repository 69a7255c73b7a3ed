"""Calls of Java objects in plans: the generated code calls a method for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskexecutor.executor.columnar.jvm.local_tasks import singleton

if TYPE_CHECKING:
    from pyspark.sql import Column


def called(session: Any, target: Any, method: str, kind: Any, *arguments: Column) -> Column:
    """Returns the results of a method as a column of the Java type `kind`. The arguments and the
    results must not be null. The plan must run in the JVM of `target`.
    """
    from pyspark.sql.classic.column import Column as ClassicColumn

    jvm = session._jvm
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    conversion = singleton(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
    given = jvm.java.util.ArrayList()
    for argument in arguments:
        # Otherwise a call with a possibly null argument would be skipped, or return null.
        given.append(expressions.KnownNotNull(conversion.expression(argument._jc)))  # type: ignore[attr-defined]
    call = expressions.objects.Invoke(
        expressions.Literal(target, jvm.org.apache.spark.sql.types.ObjectType(target.getClass())),
        method,
        kind,
        jvm.PythonUtils.toSeq(given),
        jvm.PythonUtils.toSeq(jvm.java.util.ArrayList()),
        True,
        False,
        False,  # nondeterministic: called once for each row
    )
    return ClassicColumn(conversion.column(call))
