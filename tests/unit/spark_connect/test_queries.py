"""The commands of streaming queries, with jobs whose details a test decides."""

from __future__ import annotations

import json
import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.connect import proto

from firesteel.client.job_details import (
    JobDetails,
)
from firesteel.common.states import JobStatus
from firesteel.errors import ErrorInfo, FiresteelError, InvalidProgram
from firesteel.spark_connect import queries
from firesteel.spark_connect.failures import IllegalState, Interrupted, QueryFailed
from firesteel.spark_connect.operations import Operation, SessionKey
from firesteel.spark_connect.queries import StartedQuery, StreamingQueries
from tests.unit.spark_connect.test_progress import details, vertex
from tests.waiting import eventually

ADA, BOB = SessionKey("ada", str(uuid.uuid4())), SessionKey("bob", str(uuid.uuid4()))


class Job:
    """A job whose details are put into `news`."""

    def __init__(self) -> None:
        self.job_id = uuid.uuid4().hex
        self.news: queue.SimpleQueue[JobDetails] = queue.SimpleQueue()
        self.stopped = threading.Event()

    def watch(self) -> Iterator[JobDetails]:
        while True:
            details = self.news.get()
            yield details
            if details.status.globally_terminal:
                return

    def await_output(self, timeout_s: float) -> bool:
        return True

    def tell(self, status: JobStatus, error: ErrorInfo | None = None) -> None:
        errors = (error,) if error else ()
        self.news.put(
            JobDetails(job_id=self.job_id, name="q", status=status, start_ms=1, exceptions=errors)
        )

    def stop(self) -> None:
        self.stopped.set()
        self.tell(JobStatus.CANCELED)


def with_rows(read: int, status: JobStatus) -> JobDetails:
    """A job whose source has read rows, and whose second checkpoint is complete."""
    return details(vertex("Source", records_read=read), checkpoints=2, status=status)


class Starter:
    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.closed: list[str] = []
        self.released: list[SessionKey] = []
        self.refusal: FiresteelError | None = None
        self.location = ""
        self.awaited: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # checkpoints
        self.rows_are_there = threading.Event()
        self.rows_are_there.set()

    def await_rows(self, checkpoint_id: int | None) -> None:
        self.awaited.put(checkpoint_id)
        self.rows_are_there.wait()

    def process_available(self) -> bool:
        raise FiresteelError("no checkpoint can be taken: a task has failed")

    def start(self, session: SessionKey, request: proto.WriteStreamOperationStart) -> StartedQuery:
        if self.refusal is not None:
            raise self.refusal
        job = Job()
        self.jobs.append(job)
        return StartedQuery(
            query_id=str(uuid.uuid4()),
            job=job,  # type: ignore[arg-type]
            sink="console",
            explain=lambda: "the plan",
            location=self.location,
            await_rows=self.await_rows,
            stop=job.stop,
            process_available=self.process_available,
            closed=lambda: self.closed.append(job.job_id),
        )

    def before(self, session: SessionKey, plan: proto.Plan) -> None: ...

    def release(self, session: SessionKey) -> None:
        self.released.append(session)


@pytest.fixture
def starter() -> Starter:
    return Starter()


class Client:
    """Executes commands as a session does."""

    def __init__(self, starter: Starter) -> None:
        self.warnings: list[str] = []
        self.queries = StreamingQueries(starter, self.warnings.append)

    def begin(self, command: proto.Command, session: SessionKey = ADA) -> Operation:
        handler = self.queries.handler(command)
        assert handler is not None
        operation = Operation(
            proto.ExecutePlanRequest(
                session_id=session.session_id,
                user_context=proto.UserContext(user_id=session.user_id),
            )
        )
        operation.start(handler)
        return operation

    def call(self, command: proto.Command, session: SessionKey = ADA) -> Any:
        """The first response."""
        return result(self.begin(command, session))

    def start(self, name: str = "", session: SessionKey = ADA) -> Any:
        command = proto.Command()
        command.write_stream_operation_start.query_name = name
        return self.call(command, session).write_stream_operation_start_result

    def query(self, started: Any, session: SessionKey = ADA, **command: Any) -> Any:
        return self.call(query_command(started, **command), session).streaming_query_command_result

    def manager(self, session: SessionKey = ADA, **command: Any) -> Any:
        wrapped = proto.Command(
            streaming_query_manager_command=proto.StreamingQueryManagerCommand(**command)
        )
        return self.call(wrapped, session).streaming_query_manager_command_result


def query_command(started: Any, **command: Any) -> proto.Command:
    return proto.Command(
        streaming_query_command=proto.StreamingQueryCommand(query_id=started.query_id, **command)
    )


def result(operation: Operation) -> proto.ExecutePlanResponse:
    return next(iter(operation.responses("", lambda: True)))


@pytest.fixture
def client(starter: Starter) -> Client:
    return Client(starter)


def test_other_commands_are_sparks(client: Client) -> None:
    assert client.queries.handler(proto.Command()) is None
    assert client.queries.handler(proto.Command(sql_command=proto.SqlCommand())) is None


def test_each_long_wait_has_one_warning(
    client: Client, starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "PATIENCE_S", 0.0)
    started = client.start("a")
    (job,) = starter.jobs
    wait = "2 more slots (for 10 s): 4 slots exist, 4 are taken"

    def tell(waiting_for: str, status: JobStatus = JobStatus.RUNNING) -> None:
        job.news.put(replace(details(vertex("Source"), status=status), waiting_for=waiting_for))

    for waiting_for in (wait, wait, "", "1 more slot"):
        tell(waiting_for)
    eventually(lambda: len(client.warnings) == 2, "a warning of each wait")
    first, second = client.warnings
    assert first.startswith("query 'a'")
    assert first.endswith(f"is not running: its job waits for {wait}")
    assert second.endswith("its job waits for 1 more slot")
    assert client.query(started, status=True).status.status_message == "Waiting for 1 more slot"
    tell("", JobStatus.CANCELED)
    client.query(started, await_termination={})
    assert len(client.warnings) == 2


def test_processing_fails_with_the_error_of_the_query(client: Client, starter: Starter) -> None:
    started = client.start("a")
    (job,) = starter.jobs
    waiting = client.begin(query_command(started, process_all_available=True))
    job.tell(JobStatus.FAILED, ErrorInfo(summary="no such number"))
    with pytest.raises(QueryFailed, match="no such number"):
        result(waiting)


def test_processing_fails_if_a_running_query_takes_no_checkpoint(
    client: Client, starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "ENDING_S", 0.01)
    started = client.start("a")
    with pytest.raises(FiresteelError, match="no checkpoint can be taken"):
        client.query(started, process_all_available=True)
    starter.jobs[0].tell(JobStatus.CANCELED)


def test_a_name_is_unique_among_the_active_queries_of_a_session(
    client: Client, starter: Starter
) -> None:
    first = client.start("a")
    assert first.name == "a"
    with pytest.raises(IllegalState, match="query with name a as a query with that name"):
        client.start("a")
    client.start("a", session=BOB)
    client.start("")
    client.start("")
    client.query(first, stop=True)
    again = client.start("a")
    assert again.query_id.run_id != first.query_id.run_id
    assert len(starter.jobs) == 5


def test_a_query_that_cannot_start_leaves_its_name_free(client: Client, starter: Starter) -> None:
    starter.refusal = InvalidProgram("not supported")
    with pytest.raises(InvalidProgram):
        client.start("a")
    starter.refusal = None
    assert client.start("a").name == "a"


def test_a_query_is_found_while_it_is_active(client: Client) -> None:
    started, other = client.start("a"), client.start("b")
    active = client.manager(active=True).active.active_queries
    assert [each.name for each in active] == ["a", "b"]
    found = client.manager(get_query=other.query_id.id)
    assert (found.query.name, found.query.id) == ("b", other.query_id)
    client.query(other, stop=True)
    assert not client.manager(get_query=other.query_id.id).HasField("query")
    assert [each.name for each in client.manager(active=True).active.active_queries] == ["a"]
    assert not client.manager(active=True, session=BOB).active.active_queries
    assert client.query(started, status=True).status.is_active
    assert not client.query(other, status=True).status.is_active
    with pytest.raises(IllegalState, match="there is no query with id"):
        client.query(started, session=BOB, status=True)


def test_a_stop_ends_the_job_once(client: Client, starter: Starter) -> None:
    started = client.start("a")
    client.query(started, stop=True)
    client.query(started, stop=True)
    [job] = starter.jobs
    assert job.stopped.is_set()
    assert starter.closed == [job.job_id]
    assert client.query(started, await_termination={}).await_termination.terminated
    assert not client.query(started, exception=True).exception.HasField("exception_message")
    assert client.query(started, explain={"extended": True}).explain.result == "the plan"


def test_a_progress_is_published_once_its_rows_are_there(client: Client, starter: Starter) -> None:
    started = client.start("a")
    [job] = starter.jobs
    starter.rows_are_there.clear()
    job.news.put(with_rows(3, JobStatus.RUNNING))
    assert starter.awaited.get() == 2
    assert not client.query(started, recent_progress=True).recent_progress.recent_progress_json
    starter.rows_are_there.set()
    job.news.put(with_rows(4, JobStatus.FINISHED))
    assert client.query(started, await_termination={}).await_termination.terminated
    assert starter.awaited.get() is None
    shown = client.query(started, recent_progress=True).recent_progress.recent_progress_json
    assert [json.loads(each)["numInputRows"] for each in shown] == [3, 1]


def test_a_failure_is_raised_with_the_users_traceback_first(
    client: Client, starter: Starter
) -> None:
    started = client.start("a")
    waiting = client.begin(query_command(started, await_termination={}))
    starter.jobs[0].tell(
        JobStatus.FAILED,
        ErrorInfo(
            summary="ValueError: no",
            user_traceback="Traceback of mine",
            task_name="Map",
            condition="PYTHON_EXCEPTION",
        ),
    )
    with pytest.raises(QueryFailed) as raised:
        result(waiting)
    assert (raised.value.condition, raised.value.cause) == ("STREAM_FAILED", "PYTHON_EXCEPTION")
    lines = str(raised.value).splitlines()
    assert lines[0] == "Traceback of mine"
    assert lines[1].startswith(f"query 'a' [id = {started.query_id.id}")
    assert "failed in Map" in lines[1]
    with pytest.raises(QueryFailed):
        client.manager(await_any_termination={})
    text = client.query(started, exception=True).exception.exception_message
    assert text.split(": ", 1)[1] == str(raised.value)
    of_query = client.query(started, exception=True).exception
    assert of_query.error_class == "STREAM_FAILED"
    shown = client.query(started, status=True).status
    assert shown.status_message.startswith("Terminated with exception: Traceback of mine")


@pytest.mark.parametrize("of_all", [False, True])
def test_a_wait_ends_after_its_time_or_when_it_is_cancelled(client: Client, of_all: bool) -> None:
    started = client.start()

    def wait(**how: Any) -> proto.Command:
        if not of_all:
            return query_command(started, await_termination=how)
        any_of_them = proto.StreamingQueryManagerCommand.AwaitAnyTerminationCommand(**how)
        manager = proto.StreamingQueryManagerCommand(await_any_termination=any_of_them)
        return proto.Command(streaming_query_manager_command=manager)

    def terminated(response: proto.ExecutePlanResponse) -> bool:
        if of_all:
            manager = response.streaming_query_manager_command_result
            return manager.await_any_termination.terminated
        return response.streaming_query_command_result.await_termination.terminated

    assert not terminated(client.call(wait(timeout_ms=10)))
    operation = client.begin(wait())
    operation.cancel()
    with pytest.raises(Interrupted):
        result(operation)
    client.query(started, stop=True)
    assert terminated(client.call(wait()))


def test_terminated_queries_are_forgotten_on_request(client: Client) -> None:
    client.query(client.start(), stop=True)
    assert client.manager(await_any_termination={}).await_any_termination.terminated
    assert client.manager(reset_terminated=True).reset_terminated
    waited = client.manager(await_any_termination={"timeout_ms": 10})
    assert not waited.await_any_termination.terminated


def bus(add: bool) -> proto.Command:
    command = proto.StreamingQueryListenerBusCommand()
    setattr(command, f"{'add' if add else 'remove'}_listener_bus_listener", True)
    return proto.Command(streaming_query_listener_bus_command=command)


def test_listeners_get_events_until_they_are_removed(client: Client) -> None:
    operation = client.begin(bus(add=True))
    responses = iter(operation.responses("", lambda: True))
    assert next(responses).streaming_query_listener_events_result.listener_bus_listener_added
    started = client.start("a")
    client.query(started, stop=True)
    [event] = next(responses).streaming_query_listener_events_result.events
    assert event.event_type == proto.StreamingQueryEventType.QUERY_TERMINATED_EVENT
    assert started.query_id.run_id in event.event_json
    client.begin(bus(add=False))
    assert next(responses).HasField("result_complete")
    assert not list(responses)


@pytest.mark.parametrize("location", ["", "/kept/here"])
def test_the_end_of_the_program_stops_what_runs(
    client: Client, starter: Starter, location: str
) -> None:
    starter.location = location
    listener = client.begin(bus(add=True))
    client.query(client.start("ended"), stop=True)
    client.start("a")
    client.start("b", session=BOB)
    said: list[str] = []
    client.queries.close(said.append)
    assert all(job.stopped.is_set() for job in starter.jobs)
    assert len(starter.closed) == 3
    assert [text.split(" was active")[0] for text in said] == ["query a", "query b"]
    assert all((location or "its state is not kept") in text for text in said)
    responses = list(listener.responses("", lambda: True))
    assert responses[-1].HasField("result_complete")


def test_the_end_of_a_session_stops_its_queries(client: Client, starter: Starter) -> None:
    client.start("a")
    kept = client.start("b", session=BOB)
    client.queries.release(ADA)
    assert [job.stopped.is_set() for job in starter.jobs] == [True, False]
    assert starter.released == [ADA]
    assert client.query(kept, session=BOB, status=True).status.is_active


def test_a_stop_that_fails_can_be_repeated(
    client: Client, starter: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = client.start("a")
    [job] = starter.jobs
    query = client.queries._of(ADA).queries[started.query_id.run_id]
    works: Callable[[], None] = query.started.stop

    def fails() -> None:
        raise FiresteelError("no savepoint")

    query.started.stop = fails
    monkeypatch.setattr("firesteel.spark_connect.queries.ENDING_S", 0.01)
    with pytest.raises(FiresteelError, match="no savepoint"):
        client.query(started, stop=True)
    query.started.stop = works
    client.query(started, stop=True)
    assert job.stopped.is_set()
