"""A client's streams continue when the Dispatcher is back, however long they were silent;
cancellations reach it, and other calls reach the leader.
"""

from __future__ import annotations

import itertools
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from firesteel._proto import (
    dispatcher_pb2,
    dispatcher_pb2_grpc,
    job_logs_pb2,
    job_master_pb2,
    resource_manager_pb2,
)
from firesteel.client import client, interruptible
from firesteel.client.client import Client
from firesteel.client.collected import CollectedBatches
from firesteel.client.execution import _ask_to_cancel
from firesteel.client.execution_context import ExecutionContext
from firesteel.common.ids import Epoch, JobId
from firesteel.common.job_graph import JobGraph
from firesteel.common.leader import Leader
from firesteel.common.rpc.status import Reason, status_of
from firesteel.common.states import JobStatus
from firesteel.errors import (
    ClusterUnreachable,
    FiresteelError,
    JobNotFound,
    PayloadTooLarge,
    SubmissionRejected,
)

JOB, SINK = "a" * 32, "b" * 32
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, Reason.SHUTTING_DOWN)
STREAMS: dict[str, Callable[[Client], Iterator[Any]]] = {
    "watch": lambda client: client.watch_job(JOB),
    "rows": lambda client: client.fetch_results(JOB, SINK),
    "logs": lambda client: client.logs(JOB, follow=True),
}


class Away(dispatcher_pb2_grpc.DispatcherServicer):
    """Breaks off the first calls, as a Dispatcher that stops does, and then answers."""

    def __init__(self, calls: int, how: grpc.StatusCode | Reason, text: str = "I say no") -> None:
        """`how`: a reason, or a code of gRPC itself."""
        self.calls = calls
        self.text = text
        self.cancelled: list[str] = []
        self.submitted: list[str] = []
        self._how = how

    def _unless_away(self, context: Any) -> None:
        self.calls -= 1
        if self.calls >= 0:
            if isinstance(self._how, Reason):
                context.abort_with_status(status_of(self._how, self.text))
            context.abort(self._how, self.text)

    def SubmitJob(self, request: Any, context: Any) -> Any:
        self._unless_away(context)
        self.submitted.append(request.job_graph.job_id)
        return dispatcher_pb2.SubmitJobResponse(job_id=request.job_graph.job_id)

    def GetJobDetails(self, request: Any, context: Any) -> Any:
        self._unless_away(context)
        return job_master_pb2.JobDetails(job_id=JOB)

    def WatchJob(self, request: Any, context: Any) -> Iterator[Any]:
        self._unless_away(context)
        yield job_master_pb2.JobDetails(job_id=JOB, status=JobStatus.FINISHED.value)

    def FetchResults(self, request: Any, context: Any) -> Iterator[Any]:
        self._unless_away(context)
        yield dispatcher_pb2.ResultChunk(generation=1, index=0)

    def FetchLogs(self, request: Any, context: Any) -> Iterator[Any]:
        self._unless_away(context)
        yield job_logs_pb2.JobLogLines()

    def ListJobs(self, request: Any, context: Any) -> Any:
        self._unless_away(context)
        return dispatcher_pb2.ListJobsResponse()

    def CancelJob(self, request: Any, context: Any) -> Any:
        self._unless_away(context)
        self.cancelled.append(request.job_id)
        return job_master_pb2.CancelJobResponse()

    def TakeCheckpoint(self, request: Any, context: Any) -> Any:
        self._unless_away(context)
        return job_master_pb2.TakeCheckpointResponse(checkpoint_id=7, path="/savepoint")

    def StopTaskExecutor(self, request: Any, context: Any) -> Iterator[Any]:
        self._unless_away(context)
        yield resource_manager_pb2.StopTaskExecutorProgress()


ONCE: dict[str, Callable[[Client], Any]] = {
    "savepoint": lambda client: client.savepoint(JOB),
    "checkpoint": lambda client: client.checkpoint(JOB),
    "stop": lambda client: client.stop(JOB),
    "stop of a TaskExecutor": lambda client: list(client.stop_task_executor("c" * 32)),
}


@contextmanager
def serving(dispatcher: Away) -> Iterator[str]:
    """At the address that it yields."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    checker = health.HealthServicer()
    checker.set("firesteel.v1.Dispatcher", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    dispatcher_pb2_grpc.add_DispatcherServicer_to_server(dispatcher, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture
def dispatcher(request: pytest.FixtureRequest) -> Away:
    """A Dispatcher that is away for this number of calls, which end with this code."""
    return Away(*request.param)


@pytest.fixture
def connected(dispatcher: Away) -> Iterator[Client]:
    with serving(dispatcher) as address, Client(address) as connected:
        yield connected


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("dispatcher", [(1, code) for code in AWAY], indirect=True)
def test_the_time_without_a_message_is_not_the_time_away(
    connected: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RECONNECT_TIMEOUT_S", 0.0)
    for _ in STREAMS[stream](connected):
        pass


@pytest.mark.parametrize("stream", ["rows", "logs"])
def test_the_time_in_which_a_stream_was_open_is_not_the_time_away(
    stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streams of this Dispatcher break twice, each time before their first message."""
    monkeypatch.setattr(client, "RECONNECT_TIMEOUT_S", 0.0)
    opened = threading.Semaphore(0)

    class Silent(Away):
        def _unless_away(self, context: Any) -> None:
            context.send_initial_metadata(())
            opened.acquire()
            super()._unless_away(context)

    def answers(call: Any, wait: Callable[[Any], bool] = client._answers) -> bool:
        answered = wait(call)
        opened.release()
        return answered

    monkeypatch.setattr(client, "_answers", answers)
    with (
        serving(Silent(2, grpc.StatusCode.UNAVAILABLE)) as address,
        Client(address) as connected,
    ):
        for _ in STREAMS[stream](connected):
            pass


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("dispatcher", [(10, code) for code in AWAY], indirect=True)
def test_a_dispatcher_that_is_away_for_too_long_is_reported(
    connected: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RECONNECT_TIMEOUT_S", 0.05)
    with pytest.raises(ClusterUnreachable, match="no longer answers"):
        for _ in STREAMS[stream](connected):
            pass


@pytest.mark.parametrize("dispatcher", [(2, code) for code in AWAY], indirect=True)
@pytest.mark.parametrize(
    "leave",
    [
        lambda client: CollectedBatches(client, JOB, SINK, lambda batch: batch).close(),
        lambda client: _ask_to_cancel(client, JOB, ExecutionContext(mode="remote")),
    ],
    ids=["a with block", "Ctrl-C"],
)
def test_a_cancellation_reaches_a_dispatcher_that_was_away(
    connected: Client, dispatcher: Away, leave: Callable[[Client], None]
) -> None:
    leave(connected)
    assert dispatcher.cancelled == [JOB]


@pytest.mark.parametrize("dispatcher", [(1, code) for code in AWAY], indirect=True)
def test_a_job_that_is_not_cancelled_is_not_awaited(
    connected: Client, dispatcher: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RECONNECT_TIMEOUT_S", -1.0)
    batches = CollectedBatches(connected, JOB, SINK, lambda batch: batch)
    with pytest.raises(ClusterUnreachable):
        batches.close()
    batches.close()
    assert dispatcher.cancelled == [JOB]


@pytest.mark.parametrize(
    "call",
    [
        *(lambda client, call=each: list(call(client)) for each in STREAMS.values()),
        lambda client: client.cancel(JOB),
    ],
    ids=[*STREAMS, "cancellation"],
)
def test_an_interrupted_call_does_not_block_others(call: Callable[[Client], Any]) -> None:
    """The exception of a signal may otherwise leave locks of the channel taken."""
    main = threading.get_ident()
    called, ended = threading.Event(), threading.Event()

    class Waiting(Away):
        def _unless_away(self, context: Any) -> None:
            if not ended.is_set():
                called.set()
                ended.wait()

    def interrupt() -> None:
        called.wait()
        signal.pthread_kill(main, signal.SIGINT)

    with serving(Waiting(0, grpc.StatusCode.OK)) as address, Client(address) as client:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt) as raised:
            call(client)
        frames = traceback.extract_tb(raised.value.__traceback__)
        assert not [frame for frame in frames if "grpc" in Path(frame.filename).parts]
        ended.set()
        client.cancel(JOB)
        assert client.wait(JOB).status is JobStatus.FINISHED


def test_calls_need_no_thread_while_the_interpreter_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since Python 3.12, functions of `atexit` start none."""

    def refuse(run: Callable[[], None]) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(interruptible, "_start", refuse)
    with serving(Away(0, grpc.StatusCode.OK)) as address, Client(address) as client:
        assert client.job_details(JOB).job_id == JOB


class Elected:
    """Finds these leaders, one after the other."""

    def __init__(self, *addresses: str) -> None:
        self._leaders = [Leader(address, Epoch(e)) for e, address in enumerate(addresses)]

    def find(self, *, timeout_s: float) -> Leader:
        return self._leaders.pop(0) if len(self._leaders) > 1 else self._leaders[0]

    def close(self) -> None:
        pass


NOTHING_DONE = (Reason.NOT_LEADER, Reason.COORDINATION_UNAVAILABLE, Reason.STARTING)


@pytest.mark.parametrize("call", ONCE)
@pytest.mark.parametrize("refusal", NOTHING_DONE, ids=lambda reason: reason.name)
@pytest.mark.parametrize("known", [True, False], ids=["the next one leads", "none leads yet"])
def test_what_is_called_once_is_called_at_the_dispatcher_that_leads(
    call: str, refusal: Reason, known: bool
) -> None:
    before = Away(2, refusal)
    with serving(before) as old, serving(Away(0, grpc.StatusCode.OK)) as new, Client(old) as client:
        found = [new] if known else [old, old, new]
        client._connection._finder = Elected(*found)  # type: ignore[assignment]
        ONCE[call](client)
    assert before.calls == (2 if known else 0)


@pytest.mark.parametrize("call", ONCE)
@pytest.mark.parametrize("dispatcher", [(1, code) for code in AWAY], indirect=True)
def test_the_outcome_of_a_single_call_is_unknown_if_the_dispatcher_ends(
    connected: Client, call: str
) -> None:
    with pytest.raises(ClusterUnreachable, match=r"not known; `firesteel (show|cluster status)"):
        ONCE[call](connected)


@pytest.mark.parametrize("text", ["a standby: Socket closed", "failed to connect", ""])
def test_a_dispatchers_reason_for_not_answering_is_told_and_gRPCs_is_not(text: str) -> None:
    by_dispatcher = Away(1, Reason.STORAGE_UNAVAILABLE, text)
    by_grpc = Away(1, grpc.StatusCode.UNAVAILABLE, text)
    for dispatcher, message in (
        (by_dispatcher, f"no longer answers: {text or 'UNAVAILABLE'}$"),
        (by_grpc, "no longer answers; start a"),
    ):
        with (
            serving(dispatcher) as address,
            Client(address) as client,
            pytest.raises(ClusterUnreachable, match=message),
        ):
            client.list_jobs()


@pytest.mark.parametrize(
    ("reason", "error", "message"),
    [
        (Reason.JOB_NOT_FOUND, JobNotFound, "^I say no$"),
        (Reason.JOB_DATA_GONE, JobNotFound, "^I say no$"),
        (Reason.PAYLOAD_TOO_LARGE, PayloadTooLarge, "^I say no$"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, PayloadTooLarge, "^I say no$"),
        (Reason.STORE_UNAVAILABLE, FiresteelError, "^I say no$"),
        (Reason.REASON_UNSPECIFIED, FiresteelError, "^I say no$"),
        (Reason.NOT_LEADER, ClusterUnreachable, "I say no: connect to the leader, or find it"),
        (Reason.SHUTTING_DOWN, ClusterUnreachable, "no longer answers: I say no$"),
    ],
)
def test_a_refusal_is_the_error_of_its_reason(
    reason: Reason | grpc.StatusCode, error: type[FiresteelError], message: str
) -> None:
    with serving(Away(1, reason)) as address, Client(address) as client:
        with pytest.raises(FiresteelError, match=message) as raised:
            client.job_details(JOB)
        assert type(raised.value) is error
        assert client.job_details(JOB).job_id == JOB


def test_a_call_waits_for_a_dispatcher_that_starts() -> None:
    with serving(Away(3, Reason.STARTING)) as address, Client(address) as client:
        assert client.list_jobs() == []


@pytest.mark.parametrize("text", ["a standby", "ZooKeeper"])
@pytest.mark.parametrize(
    ("before", "known"),
    [
        ([Reason.NOT_LEADER], True),
        ([Reason.SHUTTING_DOWN, Reason.NOT_LEADER], False),
        ([grpc.StatusCode.UNAVAILABLE, Reason.NOT_LEADER], False),
        ([Reason.STARTING, Reason.NOT_LEADER], True),
    ],
)
def test_a_job_is_in_doubt_only_if_a_dispatcher_may_have_it(
    before: list[grpc.StatusCode | Reason], known: bool, text: str
) -> None:
    answers = itertools.chain(before, itertools.repeat(before[-1]))

    class Changing(Away):
        def _unless_away(self, context: Any) -> None:
            self._how = next(answers)
            super()._unless_away(context)

    graph = JobGraph(job_id=JobId(JOB), name="a job", vertices=(), edges=())
    dispatcher = Changing(9, before[0], text)
    with (
        serving(dispatcher) as address,
        Client(address) as client,
        pytest.raises(ClusterUnreachable, match=text) as raised,
    ):
        client.submit(graph)
    assert ("is not known" in str(raised.value)) is not known
    assert not dispatcher.submitted


def test_a_submission_that_was_refused_is_no_job_in_doubt() -> None:
    graph = JobGraph(job_id=JobId(JOB), name="a job", vertices=(), edges=())
    with (
        serving(Away(1, Reason.CHECKPOINTS_UNUSABLE)) as address,
        Client(address) as client,
        pytest.raises(SubmissionRejected, match="^I say no$"),
    ):
        client.submit(graph)
