"""Errors in the form in which a Spark Connect server reports them: PySpark's client raises the same
exception as for an error of Spark.
"""

from __future__ import annotations

import json

from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import EXCEPTION_CLASS_MAPPING

from firesteel.errors import FiresteelError, InvalidProgram

ANALYSIS_EXCEPTION = "org.apache.spark.sql.AnalysisException"
SPARK_EXCEPTION = "org.apache.spark.SparkException"
QUERY_EXCEPTION = "org.apache.spark.sql.streaming.StreamingQueryException"

MAX_MESSAGE_CHARS = 2_000  # of what travels in the trailers of a call, which are limited to 8 KB


class QueryFailed(FiresteelError):
    """A streaming query ended with an error. The message starts with the user's traceback."""


class IllegalState(FiresteelError):
    """The program asks for something that its session or query does not allow."""


def status_of(error: Exception) -> status_pb2.Status:
    """Returns the status of a call that ends with this error."""
    message, condition, state = str(error), "", ""
    if isinstance(error, PySparkException):
        condition, state = error.getCondition() or "", error.getSqlState() or ""
    java_class = _java_class(error)
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[:MAX_MESSAGE_CHARS] + "..."
    metadata = {"classes": json.dumps([java_class])}
    if condition:
        metadata["errorClass"] = condition
    if state:
        metadata["sqlState"] = state
    detail = any_pb2.Any()
    detail.Pack(
        error_details_pb2.ErrorInfo(reason=java_class, domain="org.apache.spark", metadata=metadata)
    )
    return status_pb2.Status(code=code_pb2.INTERNAL, message=message, details=[detail])


def _java_class(error: Exception) -> str:
    """Returns the class that PySpark's client maps to the same exception."""
    if isinstance(error, PySparkException):
        names = {kind.__name__ for kind in type(error).__mro__}
        for java_class, kind in EXCEPTION_CLASS_MAPPING.items():
            if kind.__name__ in names:
                return java_class
    if isinstance(error, QueryFailed):
        return QUERY_EXCEPTION
    if isinstance(error, InvalidProgram):
        return ANALYSIS_EXCEPTION
    if isinstance(error, IllegalState):
        return "java.lang.IllegalArgumentException"
    return SPARK_EXCEPTION
