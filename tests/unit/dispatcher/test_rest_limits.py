"""The limits of the REST server, over real connections where they concern connections."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from dispatcher.rest.limits import FAILURES_AT_ONCE, Limits, Rates
from firesteel.common.config import Configuration

HOST = "127.0.0.1"


def test_a_rate_allows_a_burst_and_then_so_many_a_second() -> None:
    rates = Rates(2.0, 4.0)
    assert [rates.take("a", 10.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 0.5]
    assert rates.take("b", 10.0) == 0.0
    assert rates.take("a", 10.5) == 0.0
    assert rates.take("a", 10.5) == 0.5
    assert [rates.take("a", 99.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 0.5]
    assert Rates(0.0, 0.0).take("a", 0.0) == 0.0


class Server:
    def __init__(self, limits: Limits, address: tuple[str, int]) -> None:
        self.limits = limits
        self.address = address
        self.url = f"http://{HOST}:{address[1]}"
        self.hold = asyncio.Event()

    async def get(self, path: str = "/", token: str = "ada") -> tuple[int, str, str | None]:
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(self.url + path) as answer,
        ):
            return answer.status, await answer.text(), answer.headers.get("Retry-After")


@asynccontextmanager
async def _served(
    values: dict[str, str], clock: list[float] | None = None
) -> AsyncIterator[Server]:
    conf = Configuration(values)
    limits = Limits(conf) if clock is None else Limits(conf, now_s=lambda: clock[0])
    listener = socket.create_server((HOST, 0))
    served = Server(limits, listener.getsockname())

    async def handle(request: web.Request) -> web.Response:
        if request.path == "/held":
            await served.hold.wait()
        await request.read()
        forged = request.headers.get("Authorization") == "Bearer forged"
        return web.Response(
            text="x" * 10_000_000 if request.path == "/large" else "ok",
            status=401 if forged else 200,
        )

    app = web.Application(middlewares=[limits.guard])
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    server = await limits.serve(runner, listener, None)
    try:
        yield served
    finally:
        served.hold.set()
        server.close()
        limits.close()
        await runner.cleanup()


async def test_callers_and_addresses_have_a_rate() -> None:
    async with _served({"rest.limit.requests-per-second": "2"}, [0.0]) as server:
        statuses = [await server.get(token="ada") for _ in range(5)]
        assert [status for status, _, _ in statuses] == [200, 200, 200, 200, 429]
        _, message, retry_after = statuses[-1]
        assert "from 127.0.0.1 (rest.limit.requests-per-second); try again in 1 s" in message
        assert retry_after == "1"
    async with _served({"rest.limit.requests-per-second": "0"}, [0.0]) as server:
        assert {(await server.get())[0] for _ in range(20)} == {200}


async def test_requests_at_a_time_have_a_limit() -> None:
    async with _served({"rest.limit.concurrent-requests": "2"}) as server:
        held = [asyncio.create_task(server.get("/held")) for _ in range(2)]
        while (answer := await server.get())[0] == 200:
            await asyncio.sleep(0)
        assert answer[0] == 429
        assert "rest.limit.concurrent-requests" in answer[1]
        assert (await server.get(token="bob"))[0] == 200
        server.hold.set()
        assert [status for status, _, _ in await asyncio.gather(*held)] == [200, 200]
        assert (await server.get())[0] == 200


async def test_failed_authentications_are_slowed_and_valid_tokens_are_not() -> None:
    clock = [0.0]
    async with _served({}, clock) as server:
        for _ in range(int(FAILURES_AT_ONCE)):
            assert (await server.get(token="forged"))[0] == 401
        status, message, _ = await server.get(token="forged")
        assert (status, "without a valid token (rest.limit.failures-per-second)" in message) == (
            429,
            True,
        )
        assert (await server.get())[0] == 200
        clock[0] += 1.0
        assert (await server.get(token="forged"))[0] == 401


async def _connect(
    server: Server, sent: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(sent)
    return reader, writer


async def _is_cut(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionResetError:
        return True


async def test_a_new_connection_replaces_one_that_is_idle() -> None:
    async with _served({"rest.limit.connections": "3"}) as server:
        held = asyncio.create_task(server.get("/held"))
        while not server.limits._answering:
            await asyncio.sleep(0)
        slow = [await _connect(server, b"GET / HTTP/1.1\r\n") for _ in range(2)]
        assert (await server.get())[0] == 200
        assert await _is_cut(slow[0][0])  # the first of them
        slow[1][1].write(b"Host: x\r\n\r\n")
        assert (await slow[1][0].readline()).startswith(b"HTTP/1.1 200")
        server.hold.set()
        assert (await held)[0] == 200
        for _, writer in slow:
            writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nX: ",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nx",
        b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["nothing", "headers", "no more requests", "body", "answer"],
)
async def test_clients_that_are_too_slow_are_cut(sent: bytes) -> None:
    clock = [0.0]
    async with _served({"rest.limit.read-timeout": "30 s"}, clock) as server:
        reader, writer = await _connect(server, sent)
        if sent.endswith(b"\r\n\r\nx"):
            while not server.limits._answering:
                await asyncio.sleep(0)
        elif sent.endswith(b"\r\n\r\n"):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            while server.limits._answering and "large" not in sent.decode():
                await asyncio.sleep(0)
        while not server.limits._connections:
            await asyncio.sleep(0)
        clock[0] = 29.0
        server.limits.sweep()
        assert server.limits._connections
        clock[0] = 31.0
        server.limits.sweep()
        while server.limits._connections:
            await asyncio.sleep(0)
        writer.close()


async def test_an_ordinary_upload_is_not_cut() -> None:
    clock = [0.0]
    async with _served({}, clock) as server:
        _, writer = await _connect(
            server, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n"
        )
        while not server.limits._answering:
            await asyncio.sleep(0)
        clock[0] = 31.0
        writer.write(b"x" * 100_000)
        (connection,) = server.limits._connections.values()
        while connection._received_bytes < 100_000:
            await asyncio.sleep(0)
        server.limits.sweep()
        assert server.limits._connections
        writer.close()


async def test_thousands_of_slow_connections_delay_no_other_client() -> None:
    async with _served({}) as server:
        slow = [socket.create_connection(server.address) for _ in range(100)]
        for number in range(1_900):
            slow.append(socket.create_connection(server.address))
            slow[-1].sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
            if number % 100 == 0:
                await asyncio.sleep(0)
        begin_s = time.monotonic()
        for _ in range(10):
            assert (await server.get())[0] == 200
        assert time.monotonic() - begin_s < 5
        assert len(server.limits._connections) <= 1_000
        for connection in slow:
            connection.close()
