"""Starts streaming queries: plans them, adds their sinks and submits their jobs."""

from __future__ import annotations

from pyspark.sql.connect import proto

from firesteel.client.execution_context import ExecutionContext
from firesteel.errors import InvalidProgram
from firesteel.spark_connect.operations import SessionKey
from firesteel.spark_connect.queries import StartedQuery
from firesteel.spark_connect.spark import Spark


class JobStarter:
    """Starts queries as jobs on the cluster of the program."""

    def __init__(self, spark: Spark, context: ExecutionContext) -> None:
        self._spark = spark
        self._context = context

    def start(self, session: SessionKey, request: proto.WriteStreamOperationStart) -> StartedQuery:
        raise InvalidProgram("streaming queries are not planned yet")

    def before(self, session: SessionKey) -> None:
        """Called before Spark runs or analyses a plan of the session."""

    def release(self, session: SessionKey) -> None:
        """Called when a session ends, after its queries."""
