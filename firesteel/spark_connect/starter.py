"""Starts streaming queries: plans them, adds their sinks and submits their jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pyspark.sql.connect import proto

from firesteel.client.execution import JobClient
from firesteel.client.execution_context import ExecutionContext
from firesteel.common.config import options
from firesteel.spark_connect.locations import Location, RunningQuery, open_location, still_runs
from firesteel.spark_connect.operations import SessionKey
from firesteel.spark_connect.queries import StartedQuery
from firesteel.spark_connect.sinks import PlannedStream, QuerySink, sink_of
from firesteel.spark_connect.spark import Spark
from firesteel.spark_connect.triggers import Trigger, trigger_of

# Spark ends a query with its first error. A job is restarted after the loss of a process, and some
# times after any other error, which it may have from another process.
_RESTARTS = {
    options.RESTART_STRATEGY.key: "failure-rate",
    options.RESTART_MAX_FAILURES.key: "2",
    options.RESTART_FAILURE_INTERVAL.key: "10 min",
    options.RESTART_FAILURE_DELAY.key: "500 ms",
}


class Plan(Protocol):
    """Plans a query: see `planner.stream_of`."""

    def __call__(
        self,
        spark: Spark,
        user_id: str,
        session_id: str,
        relation: bytes,
        *,
        output_mode: str,
        batches: bool,
        configuration: Mapping[str, str],
    ) -> PlannedStream: ...


class JobStarter:
    """Starts queries as jobs on the cluster of the program."""

    def __init__(self, spark: Spark, context: ExecutionContext, plan: Plan) -> None:
        self._spark = spark
        self._context = context
        self._plan = plan

    def start(self, session: SessionKey, request: proto.WriteStreamOperationStart) -> StartedQuery:
        trigger = trigger_of(request)
        sink = sink_of(request, trigger)
        settings = self._spark.settings(session.user_id, session.session_id)
        client = self._context.client()
        location = open_location(
            request,
            required=sink.needs_location,
            runs=lambda query: still_runs(query, client),
            settings=settings,
        )
        try:
            return self._started(session, request, trigger, sink, location, settings)
        except BaseException:
            location.close()
            raise

    def _started(
        self,
        session: SessionKey,
        request: proto.WriteStreamOperationStart,
        trigger: Trigger,
        sink: QuerySink,
        location: Location,
        settings: Mapping[str, str],
    ) -> StartedQuery:
        planned = self._plan(
            self._spark,
            session.user_id,
            session.session_id,
            request.input.SerializeToString(),
            output_mode=sink.output_mode,
            batches=sink.batches,
            configuration={
                **({} if self._context.conf.is_set(options.RESTART_STRATEGY) else _RESTARTS),
                **settings,
                **trigger.configuration(),
                **location.configuration(),
            },
        )
        sink.add_to(planned, location.completed)
        name = request.query_name or f"query {location.query_id}"
        job = planned.environment.execute_async(name)
        embedded = self._context.embedded_cluster is not None
        client = self._context.client()
        location.started(RunningQuery(job.job_id, name, "" if embedded else client.address))

        def stop() -> None:
            if location.is_temporary:
                job.cancel()
            else:
                job.stop(location.savepoints)

        def closed() -> None:
            location.ended()
            location.close()

        return StartedQuery(
            query_id=location.query_id,
            job=job,
            sources=_sources(job),
            sink=sink.description,
            explanation=_explanation(job),
            location="" if location.is_temporary else location.uri,
            stop=stop,
            closed=closed,
        )

    def before(self, session: SessionKey) -> None:
        """Called before Spark runs or analyses a plan of the session."""

    def release(self, session: SessionKey) -> None:
        """Called when a session ends, after its queries."""


def _sources(job: JobClient) -> tuple[str, ...]:
    """Describes the sources of a job, in the order of its vertices."""
    return tuple(
        operator.name.removeprefix("Source: ")
        for vertex in job.job_graph.vertices
        for operator in vertex.operators
        if operator.kind == "Source" and not operator.name.endswith(" plan")
    )


def _explanation(job: JobClient) -> str:
    """Returns the plan of the job as text."""
    from firesteel.client import render

    console = render.console()
    with console.capture() as text:
        for part in render.plan(job.job_graph):
            console.print(part)
    return str(text.get())
