"""Refused: an error that the client of Spark Connect shows as Spark's."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from firesteel.errors import FiresteelError


class SparkError(Enum):
    """The Java classes of Spark's errors, which decide the exception that the client raises. Each
    value lists the class and its base classes.
    """

    ANALYSIS = ("org.apache.spark.sql.AnalysisException", "java.lang.Exception")
    ILLEGAL_ARGUMENT = (
        "org.apache.spark.SparkIllegalArgumentException",
        "java.lang.IllegalArgumentException",
        "java.lang.RuntimeException",
    )
    UNSUPPORTED = (
        "org.apache.spark.SparkUnsupportedOperationException",
        "java.lang.UnsupportedOperationException",
        "java.lang.RuntimeException",
    )


class Refused(FiresteelError):
    """A query that cannot be started. With `condition`, a name of Spark's error conditions, the
    message starts with it, and `parameters` are those of Spark's message.
    """

    def __init__(
        self,
        message: str,
        *,
        error: SparkError = SparkError.ANALYSIS,
        condition: str = "",
        parameters: Mapping[str, str] | None = None,
        sql_state: str = "",
    ) -> None:
        shown = f"[{condition}] {message}" if condition else message
        super().__init__(f"{shown} SQLSTATE: {sql_state}" if sql_state else shown)
        self.error = error
        self.condition = condition
        self.parameters = dict(parameters or {})
        self.sql_state = sql_state
