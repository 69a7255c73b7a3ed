"""Errors of Spark by their condition, which does not change with the wording of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

WRAPPER = "org.apache.spark.SparkException"


class Condition(NamedTuple):
    """An error condition of Spark: its name and its parameters."""

    name: str  # empty: the error has none
    parameters: Mapping[str, str]


def condition_of(error: BaseException) -> Condition:
    """Returns the condition of an error that PySpark or Py4J has raised."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if isinstance(error, PySparkException):
        return Condition(error.getCondition() or "", error.getMessageParameters() or {})
    if isinstance(error, Py4JJavaError):
        return _condition_of(error.java_exception)
    return Condition("", {})


def innermost(thrown: Any) -> Any:
    """Returns the Java exception without the wrappers of Spark: its exceptions that have a cause
    and no condition.
    """
    while (
        thrown.getClass().getName() == WRAPPER
        and not thrown.getCondition()
        and thrown.getCause() is not None
    ):
        thrown = thrown.getCause()
    return thrown


def _condition_of(thrown: Any) -> Condition:
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    if not is_instance_of(SparkContext._gateway, thrown, "org.apache.spark.SparkThrowable"):
        return Condition("", {})
    name = thrown.getCondition()
    return Condition(name or "", dict(thrown.getMessageParameters()) if name else {})
