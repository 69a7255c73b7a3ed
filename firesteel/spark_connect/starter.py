"""Starts streaming queries: plans them, adds their sinks and submits their jobs."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.sql.connect import proto

from firesteel.client.client import Client
from firesteel.client.execution import JobClient
from firesteel.client.execution_context import ExecutionContext, within
from firesteel.common.config import options
from firesteel.common.logs import get_logger
from firesteel.errors import FiresteelError
from firesteel.operators import JoinSpec, RunningAggregateSpec, SourceSpec, Spec
from firesteel.plan.job_graph_generator import operator_id_of
from firesteel.spark_connect.available_now import process_available, stop_when_read
from firesteel.spark_connect.imported_positions import continue_from
from firesteel.spark_connect.kafka_table import renamed
from firesteel.spark_connect.locations import Location, RunningQuery, open_location, still_runs
from firesteel.spark_connect.memory import MemoryTable
from firesteel.spark_connect.observations import Observation, collect, metrics_of
from firesteel.spark_connect.operations import SessionKey
from firesteel.spark_connect.outer_frames import MAX_BYTES, OuterFrame
from firesteel.spark_connect.planner import PlannedStream, stream_of
from firesteel.spark_connect.queries import StartedQuery
from firesteel.spark_connect.refusals import Refused
from firesteel.spark_connect.sinks import QuerySink, sink_of
from firesteel.spark_connect.sources import schema_of
from firesteel.spark_connect.spark import Spark
from firesteel.spark_connect.tables import refresh, written_to_files
from firesteel.spark_connect.triggers import Trigger, trigger_of

log = get_logger(__name__)

ROWS_S = 60.0  # for rows of a memory sink whose checkpoint is complete

# Spark ends a query with its first error. A job ends with the first error of its program. It is
# restarted after the loss of a process, and some times after any other error, which it may have
# from another process.
_RESTARTS = {
    options.RESTART_AFTER_USER_ERRORS.key: "fail",
    options.RESTART_STRATEGY.key: "failure-rate",
    options.RESTART_MAX_FAILURES.key: "2",
    options.RESTART_FAILURE_INTERVAL.key: "10 min",
    options.RESTART_FAILURE_DELAY.key: "500 ms",
}
_STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
_BACKENDS = {"RocksDBStateStoreProvider": "rocksdb", "HDFSBackedStateStoreProvider": "hashmap"}


class JobStarter:
    """Starts queries as jobs. `context_of` returns how those of a session run; `modules` are the
    local modules that their functions may refer to; `warn` shows a warning to the user.
    """

    def __init__(
        self,
        spark: Spark,
        context_of: Callable[[SessionKey], ExecutionContext],
        modules: frozenset[str] = frozenset(),
        warn: Callable[[str], None] = log.warning,
    ) -> None:
        self._modules = modules
        self._warn = warn
        self._spark = spark
        self._context_of = context_of
        # By session and name: the tables of memory sinks, also of queries that have ended.
        self._tables: defaultdict[SessionKey, dict[str, MemoryTable]] = defaultdict(dict)
        # By session: the tables of the catalog that its queries write.
        self._written: defaultdict[SessionKey, set[str]] = defaultdict(set)
        self._showing = threading.Lock()

    def start(self, session: SessionKey, request: proto.WriteStreamOperationStart) -> StartedQuery:
        self._spark.prepare(session.user_id, session.session_id)  # it may be its first call

        def analyzed() -> Any:
            relation = renamed(request.input)
            own = session.user_id, session.session_id
            self._spark.keep_event_times(*own, relation)
            return self._spark.analyzed(*own, relation.SerializeToString())

        if request.table_name:
            own = self._spark.holder(session.user_id, session.session_id).session()
            files = written_to_files(own, request, analyzed().schema())
            started = self.start_analyzed(session, files, analyzed=analyzed)
            self._written[session].add(request.table_name)
            return started
        return self.start_analyzed(session, request, analyzed=analyzed)

    def start_analyzed(
        self,
        session: SessionKey,
        request: proto.WriteStreamOperationStart,
        *,
        analyzed: Callable[[], Any],
        settings: Mapping[str, str] | None = None,
    ) -> StartedQuery:
        """Starts a query with the Catalyst plan that `analyzed` returns, and these settings of
        Spark SQL besides those of the session.
        """
        trigger = trigger_of(request)
        sink = sink_of(request, trigger, lambda relation: self._read(session, relation))
        context = self._context_of(session)
        settings = {
            **self._spark.settings(session.user_id, session.session_id),
            **(settings or {}),
        }
        client = context.client()
        location = open_location(
            request,
            required=sink.needs_location,
            runs=lambda query: still_runs(query, client),
            settings=settings,
        )
        try:
            with within(context):
                return self._started(
                    session, request, analyzed, context, trigger, sink, location, settings
                )
        except BaseException:
            location.close()
            raise

    def _read(self, session: SessionKey, relation: bytes) -> OuterFrame:
        """Returns the rows of a DataFrame that a function refers to."""
        user_id, session_id = session.user_id, session.session_id
        known = renamed(proto.Relation.FromString(relation)).SerializeToString()
        plan = self._spark.analyzed(user_id, session_id, known)
        if plan.isStreaming():
            raise Refused(
                "the function of foreachBatch refers to a streaming DataFrame outside of it: it can"
                " only use the DataFrame of the batch, and DataFrames that are not streams"
            )
        rows = self._spark.rows(user_id, session_id, plan)
        if rows.nbytes > MAX_BYTES:
            raise Refused(
                "the function of foreachBatch refers to a DataFrame outside of it, which has"
                f" {rows.nbytes} bytes of rows; up to {MAX_BYTES} are sent to slots: read it inside"
                " the function, with batch.sparkSession"
            )
        return OuterFrame(rows, schema_of(plan.schema()))

    def _started(
        self,
        session: SessionKey,
        request: proto.WriteStreamOperationStart,
        analyzed: Callable[[], Any],
        context: ExecutionContext,
        trigger: Trigger,
        sink: QuerySink,
        location: Location,
        settings: Mapping[str, str],
    ) -> StartedQuery:
        sink.check_restore(location)
        planned = stream_of(
            self._spark,
            session.user_id,
            session.session_id,
            analyzed(),
            output_mode=sink.output_mode,
            batches=sink.batches,
            configuration={
                **({} if context.conf.is_set(options.RESTART_STRATEGY) else _RESTARTS),
                **settings,
                **location.configuration(),
            },
            begun_us=location.begun_us,
        )
        for warning in (*planned.warnings, *_growing_state(planned)):
            self._warn(warning)
        program = planned.environment._program
        if (positions := location.imported()) is not None:
            continue_from(program.graph.nodes, positions, location.uri)
        program.modules |= self._modules
        program.configuration |= trigger.configuration(limited=_is_limited(planned))
        if not context.conf.is_set(options.STATE_BACKEND):
            program.configuration |= _state_backend(planned, settings.get(_STATE_STORE, ""))
        added = sink.add_to(planned, location.completed)
        collected = [(each, collect(each)) for each in planned.observed]
        name = request.query_name or f"query {location.query_id}"
        job = planned.environment.execute_async(name)
        embedded = context.embedded_cluster is not None
        client = context.client()
        location.started(RunningQuery(job.job_id, name, "" if embedded else client.address))

        def stop() -> None:
            if not location.is_temporary:
                try:
                    job.stop(location.savepoints)
                    return
                except FiresteelError as error:
                    # It does not run yet, or fails: the next start continues from its last
                    # checkpoint.
                    log.warning("no savepoint", job_id=job.job_id, reason=str(error))
            job.cancel()

        table: MemoryTable | None = None
        if sink.memory:
            table = MemoryTable(
                client,
                job.job_id,
                operator_id_of(added._operator()),
                name=sink.memory,
                schema=planned.schema,
                output_mode=sink.output_mode,
            )
            self._tables[session][sink.memory] = table
        observations = [
            Observation(client, job.job_id, each, operator_id_of(sink._operator()), settings)
            for each, sink in collected
        ]
        if trigger.ends:
            threading.Thread(
                target=self._stop_when_read,
                args=(client, job.job_id, location.savepoints),
                name=f"available-now-{job.job_id}",
                daemon=True,
            ).start()

        def process() -> bool:
            checkpoint_id = process_available(client, job.job_id)
            if table is not None:
                table.wait(checkpoint_id)
            return checkpoint_id is not None

        tables = [each.table for each in observations] + ([table] if table is not None else [])

        def await_rows(checkpoint_id: int | None) -> None:
            for each in tables:
                try:
                    each.wait(checkpoint_id, ROWS_S)
                except (TimeoutError, FiresteelError) as error:
                    log.warning("rows for the program", job_id=job.job_id, reason=str(error))

        def closed() -> None:
            for each in tables:
                each.close()
            location.ended()
            location.close()

        return StartedQuery(
            query_id=location.query_id,
            job=job,
            sources=_sources(job, planned.sources),
            sink=sink.description,
            explain=lambda: _explanation(job),
            location="" if location.is_temporary else location.uri,
            last_batch=location.last_batch,
            batch_ended=location.batch_ended,
            await_rows=await_rows,
            observed=lambda checkpoint_id: metrics_of(observations, checkpoint_id),
            stop=stop,
            process_available=process,
            closed=closed,
        )

    def before(self, session: SessionKey, plan: proto.Plan) -> None:
        """Called before Spark runs or analyses a plan of the session: lets it know Kafka, and shows
        the rows of memory sinks. Views of streams keep their event times.
        """
        self._spark.prepare(session.user_id, session.session_id)
        if plan.command.HasField("create_dataframe_view"):
            self._spark.keep_event_times(
                session.user_id, session.session_id, plan.command.create_dataframe_view
            )
        for name in sorted(self._written.get(session, ())):
            refresh(self._spark.holder(session.user_id, session.session_id).session(), name)
        if session not in self._tables:
            return
        with self._showing:
            for table in list(self._tables[session].values()):
                if (rows := table.changed_rows()) is not None:
                    self._spark.create_view(
                        session.user_id, session.session_id, table.name, rows, table.schema
                    )

    def release(self, session: SessionKey) -> None:
        """Called when a session ends, after its queries."""
        self._tables.pop(session, None)
        self._written.pop(session, None)

    def _stop_when_read(self, client: Client, job_id: str, savepoints: str) -> None:
        try:
            stop_when_read(client, job_id, savepoints)
        except FiresteelError:
            log.exception("a query that should end was not stopped", job_id=job_id)


def _growing_state(planned: PlannedStream) -> Iterator[str]:
    """Yields a warning for each operator whose state grows with every row."""
    for node in planned.environment._program.graph.nodes:
        if not _grows(node.spec):
            continue
        if isinstance(node.spec, JoinSpec):
            yield (
                f"{node.name} keeps all rows of both streams forever, because its condition does"
                " not bound the distance of their event times: call withWatermark on both streams,"
                " and add a condition such as b.time BETWEEN a.time AND a.time + INTERVAL 1 HOUR"
            )
        else:
            yield (
                f"{node.name} keeps all values of each group forever, because one of its functions"
                " reads them all: call withWatermark, group by a window of the time, and use the"
                " output mode append or update"
            )


def _grows(spec: Spec) -> bool:
    match spec:
        case JoinSpec():
            return spec.within is None
        case RunningAggregateSpec():
            merges = (how for each in spec.aggregates for how in each.merge.values())
            return "list" in merges and not spec.expires and not spec.forgets
    return False


def _is_limited(planned: PlannedStream) -> bool:
    """Whether a source reads a limited number of rows between two checkpoints."""
    return any(
        getattr(spec.source, "max_records_per_checkpoint", None) is not None
        for spec in _specs(planned)
        if isinstance(spec, SourceSpec)
    )


def _state_backend(planned: PlannedStream, state_store: str) -> dict[str, str]:
    """Returns the backend that Spark's setting names. Otherwise, state that grows with every row
    is on disk.
    """
    backend = _BACKENDS.get(state_store.rpartition(".")[2])
    if backend is None and any(map(_grows, _specs(planned))):
        backend = "rocksdb"
    return {} if backend is None else {options.STATE_BACKEND.key: backend}


def _specs(planned: PlannedStream) -> Iterator[Spec]:
    return (node.spec for node in planned.environment._program.graph.nodes)


def _sources(job: JobClient, described: Mapping[str, str]) -> tuple[str, ...]:
    """Returns descriptions of a job's sources, in the order of its vertices. `described` has some
    of them, by uid.
    """
    return tuple(
        described.get(operator.uid) or operator.name.removeprefix("Source: ")
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
