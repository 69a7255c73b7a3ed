"""A client's streams go on when the Dispatcher is back, however long they had nothing to say;
cancellations reach it, and other calls the one that leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
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
from firesteel.client import client
from firesteel.client.client import Client
from firesteel.client.collected import CollectedBatches
from firesteel.client.execution import _ask_to_cancel
from firesteel.client.execution_context import ExecutionContext
from firesteel.common.ids import Epoch
from firesteel.common.leader import Leader
from firesteel.common.states import JobStatus
from firesteel.errors import ClusterUnreachable

JOB, SINK = "a" * 32, "b" * 32
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
STREAMS: dict[str, Callable[[Client], Iterator[Any]]] = {
    "watch": lambda client: client.watch_job(JOB),
    "rows": lambda client: client.fetch_results(JOB, SINK),
    "logs": lambda client: client.logs(JOB, follow=True),
}


class Away(dispatcher_pb2_grpc.DispatcherServicer):
    """Breaks off the first calls, as a Dispatcher that stops does, and then answers."""

    def __init__(
        self, calls: int, code: grpc.StatusCode, reason: str = "the Dispatcher is stopping"
    ) -> None:
        self.calls = calls
        self.reason = reason
        self.cancelled: list[str] = []
        self._code = code

    def _unless_away(self, context: Any) -> None:
        self.calls -= 1
        if self.calls >= 0:
            context.abort(self._code, self.reason)

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
    """Away for so many calls, which end with this code."""
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


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("dispatcher", [(10, code) for code in AWAY], indirect=True)
def test_a_dispatcher_that_is_away_for_too_long_is_told(
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
def test_nobody_waits_for_the_end_of_a_job_that_is_not_cancelled(
    connected: Client, dispatcher: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RECONNECT_TIMEOUT_S", -1.0)
    batches = CollectedBatches(connected, JOB, SINK, lambda batch: batch)
    with pytest.raises(ClusterUnreachable):
        batches.close()
    batches.close()
    assert dispatcher.cancelled == [JOB]


class Elected:
    """Finds these leaders, one after the other."""

    def __init__(self, *addresses: str) -> None:
        self._leaders = [Leader(address, Epoch(e)) for e, address in enumerate(addresses)]

    def find(self, *, timeout_s: float) -> Leader:
        return self._leaders.pop(0) if len(self._leaders) > 1 else self._leaders[0]

    def close(self) -> None:
        pass


@pytest.mark.parametrize("call", ONCE)
@pytest.mark.parametrize(
    "refusal", ["this Dispatcher is a standby", "this Dispatcher no longer leads, and ends"]
)
@pytest.mark.parametrize("known", [True, False], ids=["the next one leads", "none leads yet"])
def test_what_is_called_once_is_called_at_the_dispatcher_that_leads(
    call: str, refusal: str, known: bool
) -> None:
    before = Away(2, grpc.StatusCode.UNAVAILABLE, refusal)
    with serving(before) as old, serving(Away(0, grpc.StatusCode.OK)) as new, Client(old) as client:
        found = [new] if known else [old, old, new]
        client._connection._finder = Elected(*found)  # type: ignore[assignment]
        ONCE[call](client)
    assert before.calls == (2 if known else 0)


@pytest.mark.parametrize("call", ONCE)
@pytest.mark.parametrize("dispatcher", [(1, code) for code in AWAY], indirect=True)
def test_what_is_called_once_is_not_known_if_the_dispatcher_ends_meanwhile(
    connected: Client, call: str
) -> None:
    with pytest.raises(ClusterUnreachable, match=r"not known; `firesteel (show|cluster status)"):
        ONCE[call](connected)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("s3://bucket cannot be read: AWS says no", r"no longer answers: s3://bucket cannot be"),
        ("failed to connect to all addresses; last error: ...", "no longer answers; start a"),
        ("", "no longer answers; start a"),
    ],
)
def test_a_dispatchers_reason_for_not_answering_is_told(reason: str, told: str) -> None:
    dispatcher = Away(1, grpc.StatusCode.UNAVAILABLE, reason)
    with (
        serving(dispatcher) as address,
        Client(address) as client,
        pytest.raises(ClusterUnreachable, match=told),
    ):
        client.list_jobs()
