"""Collected rows on their way to a Dispatcher that is away, forgets to answer, or refuses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc
from firesteel.common.service.platform import SYSTEM
from jobmaster.collected_rows import CollectedRows

SINK = "0" * 32
ATTEMPT = "a" * 32
TIMEOUT_S = 60.0


class StubDispatcher(dispatcher_pb2_grpc.DispatcherServicer):
    """Keeps what it is sent; fails with the codes that a test gives it, one per request."""

    def __init__(self) -> None:
        self.generations: list[int] = []
        self.kept: list[tuple[int, int, bytes]] = []  # restart, index, chunk
        self.failures: list[grpc.StatusCode] = []

    async def AppendResults(
        self, request: dispatcher_pb2.AppendResultsRequest, context: Any
    ) -> dispatcher_pb2.AppendResultsResponse:
        if self.failures and (code := self.failures.pop(0)) is not grpc.StatusCode.OK:
            await context.abort(code, "the disk is full")
        self.generations.append(request.generation)
        self.kept.append((request.generation % 2**32, request.index, request.ipc_stream))
        return dispatcher_pb2.AppendResultsResponse()


class Sender:
    def __init__(self, dispatcher: StubDispatcher, rows: CollectedRows) -> None:
        self.dispatcher = dispatcher
        self.rows = rows

    async def append(self, chunk: bytes, group: str = "") -> str:
        """Returns what went wrong."""
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.rows.append(SINK, ATTEMPT, chunk, group, done.set_result)
        return await asyncio.wait_for(done, TIMEOUT_S)


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    dispatcher = StubDispatcher()
    server = SYSTEM.transport.server([])
    dispatcher_pb2_grpc.add_DispatcherServicer_to_server(dispatcher, server)  # type: ignore[no-untyped-call]
    address = SYSTEM.transport.bind(server, "127.0.0.1", 0)
    await server.start()
    rows = CollectedRows(SYSTEM.transport, address, job_id="j", epoch=1, sinks=[SINK])
    running = asyncio.create_task(rows.run())
    yield Sender(dispatcher, rows)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await server.stop(None)


async def test_chunks_are_renumbered_after_a_restart(sender: Sender) -> None:
    sender.rows.begin(0, [SINK])
    assert await sender.append(b"a") == ""
    assert await sender.append(b"b") == ""
    sender.rows.begin(1, [SINK])
    assert await sender.append(b"a") == ""
    assert sender.dispatcher.kept == [
        (0, 0, b""),
        (0, 0, b"a"),
        (0, 1, b"b"),
        (1, 0, b""),
        (1, 0, b"a"),
    ]


async def test_what_shows_a_group_has_a_number_too(sender: Sender) -> None:
    for chunk in (b"a", b"", b"b"):
        assert await sender.append(chunk, "g") == ""
    assert sender.dispatcher.kept == [(0, 0, b"a"), (0, 1, b""), (0, 2, b"b")]


async def test_a_chunk_without_an_answer_is_sent_again_under_its_number(sender: Sender) -> None:
    sender.dispatcher.failures = [
        grpc.StatusCode.OK,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    ]
    assert await sender.append(b"a") == ""
    assert await sender.append(b"b") == ""
    assert sender.dispatcher.kept == [(0, 0, b"a"), (0, 1, b"b")]


async def test_a_chunk_that_is_refused_is_reported_and_leaves_no_gap(sender: Sender) -> None:
    sender.dispatcher.failures = [grpc.StatusCode.RESOURCE_EXHAUSTED]
    assert await sender.append(b"a") == "the disk is full"
    assert await sender.append(b"b") == ""
    assert sender.dispatcher.kept == [(0, 0, b"b")]


async def test_chunks_continue_an_earlier_job_masters_until_the_job_restarts(
    sender: Sender,
) -> None:
    earlier = dispatcher_pb2.CollectedChunks(operator_id=SINK, generation=7, chunks=3)
    rows = CollectedRows(
        SYSTEM.transport,
        sender.rows._dispatcher,
        job_id="j",
        epoch=2,
        sinks=[SINK],
        follows=[earlier],
    )
    running = asyncio.create_task(rows.run())
    again = Sender(sender.dispatcher, rows)
    for chunk in (b"a", b"b"):
        assert await again.append(chunk, "g") == ""
    rows.begin(1, [SINK])
    assert await again.append(b"c", "g") == ""
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert sender.dispatcher.kept == [(7, 3, b"a"), (7, 4, b"b"), (1, 0, b""), (1, 0, b"c")]
    assert sender.dispatcher.generations == [7, 7, (2 << 32) + 1, (2 << 32) + 1]
