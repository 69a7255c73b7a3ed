"""The proxy that `make chaos` cuts connections with: the cuts are real, and end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from firesteel.common.rpc.server import aio_channel, bind, new_server
from tests.tunnels import PROXY, Ends, Tunnels

SOON_S = 60.0
SELF = Ends(os.getpid(), os.getpid())


@pytest.fixture
def tunnels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tunnels]:
    tunnels = Tunnels()
    monkeypatch.setenv(PROXY, tunnels.environment[PROXY])
    yield tunnels
    tunnels.close()


@pytest.fixture
async def health(tunnels: Tunnels) -> AsyncIterator[health_pb2_grpc.HealthStub]:
    """Yields a stub of a server that is reached through the tunnels."""
    server = new_server([])
    address = bind(server, "127.0.0.1", 0)
    await server.start()
    async with aio_channel(address) as channel:
        yield health_pb2_grpc.HealthStub(channel)
    await server.stop(0)


async def check(stub: health_pb2_grpc.HealthStub, timeout_s: float = SOON_S) -> None:
    await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True)


async def check_over_a_new_connection(stub: health_pb2_grpc.HealthStub) -> None:
    """A call that starts as the old connection breaks may be sent on it and fail with it."""
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                return await check(stub)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise


async def test_everything_passes_and_who_is_connected_is_known(
    tunnels: Tunnels, health: health_pb2_grpc.HealthStub
) -> None:
    await check(health)
    assert await asyncio.to_thread(tunnels.between) == [SELF]


async def test_a_reset_breaks_a_stream_and_a_new_connection_passes(
    tunnels: Tunnels, health: health_pb2_grpc.HealthStub
) -> None:
    watch = health.Watch(health_pb2.HealthCheckRequest())
    await watch.read()
    await asyncio.to_thread(tunnels.reset, SELF)
    with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
        await watch.read()
    await check_over_a_new_connection(health)


async def test_while_it_is_silent_nothing_passes_and_afterwards_everything_does(
    tunnels: Tunnels, health: health_pb2_grpc.HealthStub
) -> None:
    await check(health)
    with tunnels.silent(SELF):
        answer = asyncio.create_task(check(health))
        with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
            await check(health, timeout_s=0.2)
        assert not answer.done()
    await answer


def test_connections_still_open_at_the_end_are_closed() -> None:
    tunnels = Tunnels()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(("127.0.0.1", _port(tunnels)), SOON_S) as passing,
        socket.create_connection(("127.0.0.1", _port(tunnels)), SOON_S) as without_a_request,
    ):
        passing.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % server.getsockname()[1])
        assert passing.recv(100).startswith(b"HTTP/1.1 200")
        accepted, _ = server.accept()
        tunnels.close()
        with accepted:
            for end in (passing, without_a_request, accepted):
                with contextlib.suppress(ConnectionResetError):
                    assert end.recv(100) == b""
    del tunnels
    gc.collect()  # a socket that is left open becomes a warning, which fails the test


def _port(tunnels: Tunnels) -> int:
    return int(tunnels.environment[PROXY].rpartition(":")[2])
