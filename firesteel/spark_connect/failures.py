"""Errors in the form in which a Spark Connect server reports them: PySpark's client raises the same
exception as for an error of Spark.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping

from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import convert_exception
from pyspark.errors.exceptions.connect import EXCEPTION_CLASS_MAPPING
from pyspark.sql.connect import proto

from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.spark_connect.refusals import Refused

ANALYSIS_EXCEPTION = "org.apache.spark.sql.AnalysisException"
SPARK_EXCEPTION = "org.apache.spark.SparkException"
QUERY_EXCEPTION = "org.apache.spark.sql.streaming.StreamingQueryException"

MAX_MESSAGE_CHARS = 1_000  # in the trailers of a call, which are limited to 8 KB
MAX_REPORTS = 1_000


class QueryFailed(FiresteelError):
    """A streaming query ended with an error. The message starts with the user's traceback.
    `cause` is the condition of the error if Spark would have one for it, or empty; `ids` are those
    of the query and its run.
    """

    condition = "STREAM_FAILED"  # of every such error, as in Spark

    def __init__(self, message: str, cause: str, ids: Mapping[str, str]) -> None:
        super().__init__(message)
        self.cause = cause
        self.parameters = {**ids, "message": message}


class IllegalState(FiresteelError):
    """The program calls something that its session or query does not allow."""


class Interrupted(FiresteelError):
    """The program has interrupted the operation."""

    def __init__(self) -> None:
        super().__init__("[OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008")


class Reports:
    """Reports errors as statuses of calls. Long messages are kept for `FetchErrorDetails`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._details: dict[str, proto.FetchErrorDetailsResponse] = {}

    def status_of(self, error: Exception) -> status_pb2.Status:
        """Returns the status of a call that ends with this error."""
        if isinstance(error, Py4JJavaError):  # of a class that PySpark does not know
            error = convert_exception(error.java_exception)
        message, condition, state = str(error), "", ""
        if isinstance(error, PySparkException):
            condition, state = error.getCondition() or "", error.getSqlState() or ""
        classes, parameters = [_java_class(error)], {}
        if isinstance(error, Refused):
            classes, parameters = list(error.error.value), error.parameters
            condition, state = error.condition, error.sql_state
        if isinstance(error, QueryFailed):
            condition, state, parameters = error.condition, "XXKST", error.parameters
        if isinstance(error, Interrupted):
            condition, state = "OPERATION_CANCELED", "HY008"
        java_class = classes[0]
        metadata = {"classes": json.dumps(classes)}
        if condition:
            metadata["errorClass"] = condition
        if state:
            metadata["sqlState"] = state
        shown = json.dumps(parameters)
        if max(len(message), len(shown)) > MAX_MESSAGE_CHARS:
            metadata["errorId"] = self._keep(java_class, message, condition, parameters)
        elif parameters:
            metadata["messageParameters"] = shown
        if len(message) > MAX_MESSAGE_CHARS:
            message = f"{message[:MAX_MESSAGE_CHARS]}..."
        detail = any_pb2.Any()
        detail.Pack(
            error_details_pb2.ErrorInfo(
                reason=java_class, domain="org.apache.spark", metadata=metadata
            )
        )
        return status_pb2.Status(code=code_pb2.INTERNAL, message=message, details=[detail])

    def _keep(
        self, java_class: str, message: str, condition: str, parameters: Mapping[str, str]
    ) -> str:
        error_id = str(uuid.uuid4())
        kind = proto.FetchErrorDetailsResponse
        throwable = None
        if condition:
            throwable = kind.SparkThrowable(error_class=condition, message_parameters=parameters)
        details = kind(
            root_error_idx=0,
            errors=[
                kind.Error(
                    error_type_hierarchy=[java_class], message=message, spark_throwable=throwable
                )
            ],
        )
        with self._lock:
            self._details[error_id] = details
            while len(self._details) > MAX_REPORTS:
                del self._details[next(iter(self._details))]
        return error_id

    def details(
        self, request: proto.FetchErrorDetailsRequest
    ) -> proto.FetchErrorDetailsResponse | None:
        """Returns the whole of an error; None if it is not one of these."""
        with self._lock:
            kept = self._details.get(request.error_id)
        if kept is None:
            return None
        response = proto.FetchErrorDetailsResponse(
            session_id=request.session_id,
            server_side_session_id=request.client_observed_server_side_session_id,
        )
        response.MergeFrom(kept)
        return response


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
