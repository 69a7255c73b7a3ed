"""The streaming queries of the front's sessions: commands of Spark Connect, answered by jobs."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql.connect import proto

from firesteel.client.execution import JobClient
from firesteel.client.job_details import JobDetails
from firesteel.common.error_report import error_info
from firesteel.common.logs import get_logger
from firesteel.common.states import JobStatus
from firesteel.errors import ErrorInfo, FiresteelError
from firesteel.spark_connect.failures import QUERY_EXCEPTION, IllegalState, Interrupted, QueryFailed
from firesteel.spark_connect.locations import NO_BATCH, LastBatch
from firesteel.spark_connect.operations import Operation, SessionKey
from firesteel.spark_connect.progress import (
    Batch,
    ProgressReporter,
    QueryIds,
    Status,
    idle_event,
    progress_event,
    started_event,
    terminated_event,
)

ENDING_S = 5.0  # a job that cannot be stopped because it has just ended
OUTPUT_END_S = 20.0  # after the end of a job, for its printed lines
_OF_FUNCTIONS = "PYTHON_EXCEPTION"  # Spark's condition of errors of the program's functions
PATIENCE_S = 20.0  # with a job that waits, until a warning
_EVENTS = proto.StreamingQueryEventType

log = get_logger(__name__)


@dataclass(kw_only=True)
class StartedQuery:
    """A query whose job is submitted."""

    query_id: str  # a UUID, which survives restarts with the same checkpoint location
    job: JobClient
    sources: tuple[str, ...] = ()  # descriptions
    sink: str = ""
    explain: Callable[[], str] = field(default=lambda: "")  # returns the plan, as text
    location: str = ""  # of checkpoints; empty: state ends with the query
    last_batch: LastBatch = NO_BATCH  # of the query's earlier runs
    batch_ended: Callable[[LastBatch], None] = field(default=lambda _: None)
    # Called before the progress of a batch is published, with the checkpoint that ended it or None
    # at the end of the job: waits until the rows of the batch are visible to the program.
    await_rows: Callable[[int | None], None] = field(default=lambda _: None)
    # Returns the metrics of observations since its last call, up to a checkpoint, in the order of
    # checkpoints.
    observed: Callable[[int | None], list[dict[str, Any]]] = field(default=lambda _: [])
    stop: Callable[[], None]  # ends the job, with its state if there is a location
    # Waits until the sinks have the results of everything that the sources had when it was called;
    # returns False if the job has ended. None: not known.
    process_available: Callable[[], bool] | None = None
    # Called when the job has ended; returns an error that the job itself does not have.
    closed: Callable[[], None] = field(default=lambda: None)


class Starter(Protocol):
    """Plans a query and submits its job."""

    def start(
        self, session: SessionKey, request: proto.WriteStreamOperationStart
    ) -> StartedQuery: ...

    def before(self, session: SessionKey, plan: proto.Plan) -> None:
        """Called before Spark runs or analyses a plan of the session, which it may change."""

    def release(self, session: SessionKey) -> None:
        """Called when a session ends, after its queries."""


class StreamingQuery:
    """One start of a query. A thread follows its job until the job has ended."""

    def __init__(
        self,
        name: str,
        started: StartedQuery,
        publish: Callable[[int, str], None],
        warn: Callable[[str], None],
    ) -> None:
        self.ids = QueryIds(query_id=started.query_id, run_id=str(uuid.uuid4()), name=name)
        self.started = started
        self.failure: QueryFailed | None = None
        self.ended = threading.Event()
        self.started_at_ms = _now_ms()
        self._publish = publish
        self._warn = warn
        self._waits_since: float | None = time.monotonic()  # None: the user knows
        self._progress = ProgressReporter(
            self.ids,
            sources=started.sources,
            sink=started.sink,
            first_batch=started.last_batch.number + 1,
            starts=started.last_batch.ends,
        )
        self._lock = threading.Lock()
        self._stopping = False

    def follow(self, ended: Callable[[StreamingQuery], None]) -> None:
        """Follows the job in a thread; calls `ended` in it once the query has ended."""

        def run() -> None:
            try:
                self._follow()
            except Exception as error:
                self.failure = self._failed(error_info(error))
            with contextlib.suppress(FiresteelError):
                self.started.closed()
            self.ended.set()
            ended(self)
            exception = str(self.failure) if self.failure else None
            condition = self.failure.cause if self.failure else ""
            event = terminated_event(self.ids, exception, condition)
            self._publish(_EVENTS.QUERY_TERMINATED_EVENT, event)

        threading.Thread(target=run, name=f"query-{self.ids.run_id}", daemon=True).start()

    def _follow(self) -> None:
        last: JobDetails | None = None
        for details in self.started.job.watch():
            last = details
            self._warn_of_wait(details)
            with self._lock:
                news = self._progress.update(details, _now_ms())
            if isinstance(news, Batch):
                if news.rows:
                    self.started.batch_ended(LastBatch(news.number, news.ends))
                self.started.await_rows(news.checkpoint_id)
                self._publish_batches(news)
            elif news is not None:
                self._publish(_EVENTS.QUERY_IDLE_EVENT, idle_event(self.ids, news))
        self.started.job.await_output(OUTPUT_END_S)
        if last is not None and last.status is JobStatus.FAILED:
            self.failure = self._failed(last.exceptions[0] if last.exceptions else None)

    def _publish_batches(self, batch: Batch) -> None:
        """Publishes a batch. Metrics of observations are those of one checkpoint: if the batch has
        several, as many batches are published.
        """
        for index, metrics in enumerate(self.started.observed(batch.checkpoint_id) or [{}]):
            with self._lock:
                each = self._progress.publish(batch, metrics, again=index > 0)
            self._publish(_EVENTS.QUERY_PROGRESS_EVENT, progress_event(each))

    def _warn_of_wait(self, details: JobDetails) -> None:
        """Warns once of each wait that is longer than PATIENCE_S."""
        now = time.monotonic()
        if not details.waiting_for:
            self._waits_since = now
        elif self._waits_since is not None and now - self._waits_since >= PATIENCE_S:
            self._waits_since = None
            self._warn(f"{self.shown} is not running: its job waits for {details.waiting_for}")

    def _failed(self, error: ErrorInfo | None) -> QueryFailed:
        """Describes the failure, the user's traceback first."""
        summary = error.summary if error else "the cluster has no record of its failure"
        where = f" in {error.task_name}" if error and error.task_name else ""
        job = self.started.job.job_id
        about = f"{self.shown} failed{where}, with its job {job}: {summary}"
        message, cause = about, error.condition if error else ""
        if error is not None and error.user_traceback:
            message, cause = f"{error.user_traceback}\n{about}", cause or _OF_FUNCTIONS
        ids = {"id": self.ids.query_id, "runId": self.ids.run_id}
        return QueryFailed(message, cause, ids)

    @property
    def shown(self) -> str:
        name = f" {self.ids.name!r}" if self.ids.name else ""
        return f"query{name} [id = {self.ids.query_id}, runId = {self.ids.run_id}]"

    @property
    def is_active(self) -> bool:
        return not self.ended.is_set()

    @property
    def status(self) -> Status:
        if self.failure is not None:
            return Status(f"Terminated with exception: {self.failure}")
        with self._lock:
            return self._progress.status

    @property
    def recent(self) -> list[str]:
        with self._lock:
            return [batch.progress for batch in self._progress.recent]

    def stop(self) -> None:
        """Ends the query, and waits for its end. A query that has ended stays as it is."""
        with self._lock:
            first, self._stopping = not self._stopping, True
        if first and self.is_active:
            try:
                self.started.stop()
            except FiresteelError:
                if not self.ended.wait(ENDING_S):  # it may have ended by itself
                    self._stopping = False
                    raise
        self.ended.wait()


class _Session:
    """The queries and the listeners of one session."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.queries: dict[str, StreamingQuery] = {}  # by run id
        self.starting: set[str] = set()  # names
        self.terminated: list[StreamingQuery] = []  # since `resetTerminated`
        self.buses: list[queue.SimpleQueue[proto.StreamingQueryListenerEvent | None]] = []

    @property
    def active(self) -> list[StreamingQuery]:
        return [each for each in self.queries.values() if each.is_active]

    def publish(self, kind: int, event: str) -> None:
        message = proto.StreamingQueryListenerEvent(event_json=event, event_type=kind)  # type: ignore[arg-type]
        with self.changed:
            for bus in self.buses:
                bus.put(message)

    def ended(self, query: StreamingQuery) -> None:
        with self.changed:
            self.terminated.append(query)
            self.changed.notify_all()

    def close_buses(self) -> None:
        with self.changed:
            for bus in self.buses:
                bus.put(None)


class StreamingQueries:
    """Answers the commands of streaming queries: see `front.Commands`. `warn` shows the user a
    warning.
    """

    def __init__(self, starter: Starter, warn: Callable[[str], None] = log.warning) -> None:
        self._starter = starter
        self._warn = warn
        self._lock = threading.Lock()
        self._sessions: dict[SessionKey, _Session] = {}

    def handler(self, command: proto.Command) -> Callable[[Operation], None] | None:
        match command.WhichOneof("command_type"):
            case "write_stream_operation_start":
                return lambda operation: self._start(
                    operation, command.write_stream_operation_start
                )
            case "streaming_query_command":
                return lambda operation: self._query(operation, command.streaming_query_command)
            case "streaming_query_manager_command":
                return lambda operation: self._manager(
                    operation, command.streaming_query_manager_command
                )
            case "streaming_query_listener_bus_command":
                return lambda operation: self._listeners(
                    operation, command.streaming_query_listener_bus_command
                )
            case _:
                return None

    def before(self, session: SessionKey, plan: proto.Plan) -> None:
        self._starter.before(session, plan)

    def release(self, session: SessionKey) -> None:
        """Stops the queries of a session that ends."""
        with self._lock:
            released = self._sessions.pop(session, None)
        if released is not None:
            released.close_buses()
            _stop_all(released.active, log.warning)
        self._starter.release(session)

    def close(self, say: Callable[[str], None]) -> None:
        """Stops all queries, and says which ones were active."""
        with self._lock:
            sessions, self._sessions = self._sessions, {}
        active = [query for each in sessions.values() for query in each.active]
        for query in active:
            name = query.ids.name or query.ids.query_id
            kept = (
                f"its state is kept in {query.started.location}"
                if query.started.location
                else "it has no checkpointLocation, so its state is not kept"
            )
            say(f"query {name} was active when the program ended, and is stopped; {kept}")
        _stop_all(active, say)
        for session in sessions.values():
            session.close_buses()

    def _of(self, session: SessionKey) -> _Session:
        with self._lock:
            return self._sessions.setdefault(session, _Session())

    # -- starting

    def _start(self, operation: Operation, request: proto.WriteStreamOperationStart) -> None:
        session = self._of(operation.session)
        name = request.query_name
        with _reserved(session, name):
            started = self._starter.start(operation.session, request)
            query = StreamingQuery(name, started, session.publish, self._warn)
            with session.changed:
                session.queries[query.ids.run_id] = query
            query.follow(session.ended)
        operation.respond(
            write_stream_operation_start_result=proto.WriteStreamOperationStartResult(
                query_id=_instance_id(query),
                name=name,
                query_started_event_json=started_event(query.ids, query.started_at_ms),
            )
        )

    # -- one query

    def _query(self, operation: Operation, command: proto.StreamingQueryCommand) -> None:
        query = self._of(operation.session).queries.get(command.query_id.run_id)
        if query is None or query.ids.query_id != command.query_id.id:
            raise IllegalState(
                f"there is no query with id {command.query_id.id} and runId"
                f" {command.query_id.run_id} in this session; if the server has restarted since,"
                " its job still runs, and `firesteel list` shows it"
            )
        result = proto.StreamingQueryCommandResult(query_id=_instance_id(query))
        match command.WhichOneof("command"):
            case "status":
                status = query.status
                result.status.status_message = status.message
                result.status.is_data_available = status.is_data_available
                result.status.is_trigger_active = status.is_trigger_active
                result.status.is_active = query.is_active
            case "last_progress":
                result.recent_progress.recent_progress_json.extend(query.recent[-1:])
            case "recent_progress":
                result.recent_progress.recent_progress_json.extend(query.recent)
            case "stop":
                query.stop()
            case "process_all_available":
                _process_available(query)
            case "explain":
                result.explain.result = query.started.explain()
            case "exception":
                result.exception.SetInParent()
                if query.failure is not None:
                    result.exception.exception_message = f"{QUERY_EXCEPTION}: {query.failure}"
                    result.exception.error_class = query.failure.condition
            case "await_termination":
                waits = command.await_termination
                timeout_ms = waits.timeout_ms if waits.HasField("timeout_ms") else None
                ended = self._wait(
                    operation, timeout_ms, lambda: [query] if not query.is_active else []
                )
                result.await_termination.terminated = ended
        operation.respond(streaming_query_command_result=result)

    def _wait(
        self,
        operation: Operation,
        timeout_ms: int | None,
        ended: Callable[[], list[StreamingQuery]],
    ) -> bool:
        """Waits until there are ended queries; returns whether there are. Raises the failure of
        one of them, or Interrupted.
        """
        session = self._of(operation.session)

        def wake() -> None:
            with session.changed:
                session.changed.notify_all()

        operation.on_cancel(wake)
        with session.changed:
            session.changed.wait_for(
                lambda: ended() or operation.cancelled.is_set(),
                None if timeout_ms is None else timeout_ms / 1000,
            )
            queries = ended()
        if operation.cancelled.is_set() and not queries:
            raise Interrupted
        for query in queries:
            if query.failure is not None:
                raise query.failure
        return bool(queries)

    # -- the manager

    def _manager(self, operation: Operation, command: proto.StreamingQueryManagerCommand) -> None:
        session = self._of(operation.session)
        result = proto.StreamingQueryManagerCommandResult()
        match command.WhichOneof("command"):
            case "active":
                result.active.SetInParent()
                with session.changed:
                    result.active.active_queries.extend(map(_instance, session.active))
            case "get_query":
                with session.changed:
                    for query in session.active:
                        if query.ids.query_id == command.get_query:
                            result.query.CopyFrom(_instance(query))
            case "await_any_termination":
                waits = command.await_any_termination
                timeout_ms = waits.timeout_ms if waits.HasField("timeout_ms") else None
                result.await_any_termination.terminated = self._wait(
                    operation, timeout_ms, lambda: session.terminated
                )
            case "reset_terminated":
                with session.changed:
                    session.terminated.clear()
                result.reset_terminated = True
            case "list_listeners":
                result.list_listeners.SetInParent()
            case other:  # of clients in other languages
                raise IllegalState(
                    f"the command {other} of a StreamingQueryManager is not supported: listeners"
                    " run in the program, as those of PySpark do"
                )
        operation.respond(streaming_query_manager_command_result=result)

    # -- listeners

    def _listeners(
        self, operation: Operation, command: proto.StreamingQueryListenerBusCommand
    ) -> None:
        """Sends events until the client removes its last listener."""
        session = self._of(operation.session)
        if command.WhichOneof("command") == "remove_listener_bus_listener":
            session.close_buses()
            return
        events: queue.SimpleQueue[proto.StreamingQueryListenerEvent | None] = queue.SimpleQueue()
        operation.on_cancel(lambda: events.put(None))
        with session.changed:
            session.buses.append(events)
        added = proto.StreamingQueryListenerEventsResult(listener_bus_listener_added=True)
        operation.respond(streaming_query_listener_events_result=added)
        while (event := events.get()) is not None:
            operation.respond(
                streaming_query_listener_events_result=proto.StreamingQueryListenerEventsResult(
                    events=[event]
                )
            )
        with session.changed:
            session.buses.remove(events)


@contextlib.contextmanager
def _reserved(session: _Session, name: str) -> Iterator[None]:
    """Refuses a name that an active query has."""
    if not name:
        yield
        return
    with session.changed:
        taken = {query.ids.name for query in session.active} | session.starting
        if name in taken:
            raise IllegalState(
                f"Cannot start query with name {name} as a query with that name is already active"
                " in this SparkSession"
            )
        session.starting.add(name)
    try:
        yield
    finally:
        with session.changed:
            session.starting.discard(name)


def _process_available(query: StreamingQuery) -> None:
    """Returns once the query has processed what its sources had when this was called."""
    if query.started.process_available is None:
        raise IllegalState(f"{query.shown} does not report when its sources are read")
    try:
        if query.is_active and not query.started.process_available():
            query.ended.wait()
    except FiresteelError:  # no checkpoint can be taken: perhaps because the query fails
        if not query.ended.wait(ENDING_S):
            raise
    if query.failure is not None:
        raise query.failure


def _stop_all(queries: list[StreamingQuery], say: Callable[[str], None]) -> None:
    """Stops queries at the same time, and says which ones do not stop."""

    def stop(query: StreamingQuery) -> None:
        try:
            query.stop()
        except Exception as error:
            say(f"{query.shown} did not stop: {error}")

    threads = [threading.Thread(target=stop, args=(query,), daemon=True) for query in queries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _instance_id(query: StreamingQuery) -> proto.StreamingQueryInstanceId:
    return proto.StreamingQueryInstanceId(id=query.ids.query_id, run_id=query.ids.run_id)


def _instance(
    query: StreamingQuery,
) -> proto.StreamingQueryManagerCommandResult.StreamingQueryInstance:
    return proto.StreamingQueryManagerCommandResult.StreamingQueryInstance(
        id=_instance_id(query), name=query.ids.name or None
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
