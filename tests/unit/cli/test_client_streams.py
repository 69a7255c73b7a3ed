"""A client's streams go on when the Dispatcher is back, however long they had nothing to say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc, job_logs_pb2, job_master_pb2
from firesteel.client import client
from firesteel.client.client import Client
from firesteel.common.states import JobStatus
from firesteel.errors import ClusterUnreachable

JOB = "a" * 32
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
STREAMS: dict[str, Callable[[Client], Iterator[Any]]] = {
    "watch": lambda client: client.watch_job(JOB),
    "rows": lambda client: client.fetch_results(JOB, "b" * 32),
    "logs": lambda client: client.logs(JOB, follow=True),
}


class Away(dispatcher_pb2_grpc.DispatcherServicer):
    """Breaks off the first calls, as a Dispatcher that stops does, and then answers."""

    def __init__(self, calls: int, code: grpc.StatusCode) -> None:
        self.calls = calls
        self._code = code

    def _unless_away(self, context: Any) -> None:
        self.calls -= 1
        if self.calls >= 0:
            context.abort(self._code, "the Dispatcher is stopping")

    def WatchJob(self, request: Any, context: Any) -> Iterator[Any]:
        self._unless_away(context)
        yield job_master_pb2.JobDetails(job_id=JOB, status=JobStatus.FINISHED.value)

    def FetchResults(self, request: Any, context: Any) -> Iterator[Any]:
        self._unless_away(context)
        yield dispatcher_pb2.ResultChunk(generation=1, index=0)

    def FetchLogs(self, request: Any, context: Any) -> Iterator[Any]:
        self._unless_away(context)
        yield job_logs_pb2.JobLogLines()


@pytest.fixture
def connected(request: pytest.FixtureRequest) -> Iterator[Client]:
    """To a Dispatcher that is away for so many calls, which end with this code."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    checker = health.HealthServicer()
    checker.set("firesteel.v1.Dispatcher", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    dispatcher_pb2_grpc.add_DispatcherServicer_to_server(Away(*request.param), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with Client(f"127.0.0.1:{port}") as connected:
        yield connected
    server.stop(None).wait()


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("connected", [(1, code) for code in AWAY], indirect=True)
def test_the_time_without_a_message_is_not_the_time_away(
    connected: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RECONNECT_TIMEOUT_S", 0.0)
    for _ in STREAMS[stream](connected):
        pass


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("connected", [(10, code) for code in AWAY], indirect=True)
def test_a_dispatcher_that_is_away_for_too_long_is_told(
    connected: Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RECONNECT_TIMEOUT_S", 0.05)
    with pytest.raises(ClusterUnreachable, match="no longer answers"):
        for _ in STREAMS[stream](connected):
            pass
