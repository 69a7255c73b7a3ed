"""Downloads of job files from a Dispatcher that is unavailable, stops, or is replaced."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import xxhash

from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc
from firesteel.common.ids import Epoch
from firesteel.common.job_graph import Blob, BlobKind
from firesteel.common.leader import FixedLeaders, Leader, LeaderRetriever, Office
from firesteel.common.service.platform import SYSTEM
from firesteel.errors import FiresteelError
from firesteel.high_availability.retriever import Retriever
from taskexecutor import blobs
from taskexecutor.blobs import BlobCache

CONTENT = b"x = 1"
BLOB = Blob(
    hash=xxhash.xxh3_128_hexdigest(CONTENT),
    name="lib.py",
    kind=BlobKind.FILE,
    size_bytes=len(CONTENT),
)


class Dispatcher(dispatcher_pb2_grpc.DispatcherServicer):
    """Breaks downloads off with these codes, in the midst of the file, one after the other."""

    address = ""

    def __init__(self, *failures: grpc.StatusCode, content: bytes = CONTENT) -> None:
        self.failures = list(failures)
        self.downloads = 0
        self._content = content

    async def DownloadBlob(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.downloads += 1
        yield dispatcher_pb2.BlobChunk(hash=request.hash, data=self._content[:2])
        if self.failures:
            await context.abort(self.failures.pop(0), "a reason")
        yield dispatcher_pb2.BlobChunk(data=self._content[2:])


Start = Callable[[Dispatcher], Awaitable[Dispatcher]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    servers: list[grpc.aio.Server] = []

    async def start(dispatcher: Dispatcher) -> Dispatcher:
        server = SYSTEM.transport.server([])
        dispatcher_pb2_grpc.add_DispatcherServicer_to_server(dispatcher, server)  # type: ignore[no-untyped-call]
        dispatcher.address = SYSTEM.transport.bind(server, "127.0.0.1", 0)
        await server.start()
        servers.append(server)
        return dispatcher

    yield start
    for server in servers:
        await server.stop(None)


class ElectedLeaders(FixedLeaders):
    def __init__(self) -> None:
        self.dispatcher = Retriever(Office.DISPATCHER)

    def of(self, office: Office, address: str) -> LeaderRetriever:
        return self.dispatcher


def cache(tmp_path: Path, leaders: FixedLeaders | None = None) -> BlobCache:
    cache = BlobCache(tmp_path, leaders=leaders or FixedLeaders(), platform=SYSTEM)
    cache.start()
    return cache


async def test_a_download_restarts_while_the_dispatcher_is_away(
    tmp_path: Path, start: Start
) -> None:
    dispatcher = await start(
        Dispatcher(
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.CANCELLED,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
    )
    path = await cache(tmp_path).get(BLOB, dispatcher.address)
    assert path.read_bytes() == CONTENT
    assert dispatcher.downloads == 4
    assert list(tmp_path.iterdir()) == [path]


async def test_a_download_follows_the_dispatcher_that_leads(tmp_path: Path, start: Start) -> None:
    leaders, leads = ElectedLeaders(), await start(Dispatcher())

    class Standby(Dispatcher):
        async def DownloadBlob(self, request: Any, context: Any) -> AsyncIterator[Any]:
            leaders.dispatcher.announced(Leader(leads.address, Epoch(2)))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "a standby")
            yield

    standby = await start(Standby())
    leaders.dispatcher.announced(Leader(standby.address, Epoch(1)))
    path = await cache(tmp_path, leaders).get(BLOB, standby.address)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT], ids=lambda c: c.name
)
async def test_a_refused_blob_is_not_requested_again(
    tmp_path: Path, start: Start, code: grpc.StatusCode
) -> None:
    dispatcher = await start(Dispatcher(code))
    with pytest.raises(FiresteelError, match=f"{code.name}: a reason"):
        await cache(tmp_path).get(BLOB, dispatcher.address)
    assert dispatcher.downloads == 1


async def test_a_blob_with_another_content_is_not_requested_again(
    tmp_path: Path, start: Start
) -> None:
    dispatcher = await start(Dispatcher(content=b"another"))
    with pytest.raises(FiresteelError, match=r"file 'lib.py' .* is not what was uploaded"):
        await cache(tmp_path).get(BLOB, dispatcher.address)
    assert dispatcher.downloads == 1
    assert not list(tmp_path.iterdir())


async def test_a_dispatcher_that_is_away_for_too_long_is_named(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "RETRY_S", 0.3)
    dispatcher = await start(Dispatcher(*[grpc.StatusCode.UNAVAILABLE] * 99))
    tried = r"gave up after 0 s"
    named = f"file 'lib.py' .* at {dispatcher.address}; {tried}: UNAVAILABLE: a reason"
    with pytest.raises(FiresteelError, match=named):
        await cache(tmp_path).get(BLOB, dispatcher.address)
    assert dispatcher.downloads > 1
    with pytest.raises(FiresteelError, match=f"Dispatcher; {tried}: no Dispatcher leads"):
        await cache(tmp_path, ElectedLeaders()).get(BLOB, dispatcher.address)
