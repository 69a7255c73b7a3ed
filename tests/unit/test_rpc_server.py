"""Servers: the addresses at which they listen, and their messages about these."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from firesteel.client.cluster.supervisor import reserved_port
from firesteel.common.rpc.server import AddressTaken, aio_channel, bind, channel, new_server
from firesteel.common.rpc.status import Reason, abort, reason_of


async def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(AddressTaken, match=r"cannot listen on 192\.0\.2\.1:0: "):
        bind(new_server([]), "192.0.2.1", 0)


async def test_a_reserved_port_is_for_one_server_after_another_only() -> None:
    reserved, port = reserved_port("127.0.0.1")
    with reserved:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        for _ in range(2):
            server = new_server([])
            assert bind(server, "127.0.0.1", port) == f"127.0.0.1:{port}"
            await server.start()
            socket.create_connection(("127.0.0.1", port)).close()
            with pytest.raises(AddressTaken, match="in use"):
                bind(new_server([]), "127.0.0.1", port)
            await server.stop(None)


def test_a_server_on_a_busy_machine_may_accept_a_connection_late() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    def passed_on(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # one of them has hung up
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def busy() -> None:
        near, _ = listener.accept()
        time.sleep(1.0)
        with near, socket.create_connection(("127.0.0.1", port)) as far:
            back = threading.Thread(target=passed_on, args=(far, near))
            back.start()
            passed_on(near, far)
            back.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=busy)
        thread.start()
        with channel(f"127.0.0.1:{listener.getsockname()[1]}") as connection:
            stub = health_pb2_grpc.HealthStub(connection)
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        thread.join()
    server.stop(None).wait()


class _ServicerError(Exception):
    """An error that its servicer does not expect."""


_NOT_UTF_8 = "no file 'caf\udce9'"


async def _refuse(request: Any, context: Any) -> bytes:
    await abort(context, Reason.BLOB_NOT_FOUND, _NOT_UTF_8)


async def _refuse_in_stream(request: Any, context: Any) -> AsyncIterator[bytes]:
    yield b"first"
    await abort(context, Reason.BLOB_NOT_FOUND, _NOT_UTF_8)


async def _fail(request: Any, context: Any) -> bytes:
    raise _ServicerError(_NOT_UTF_8)


async def _fail_in_stream(request: Any, context: Any) -> AsyncIterator[bytes]:
    yield b"first"
    raise _ServicerError(_NOT_UTF_8)


async def _fail_when_it_has_written(request: Any, context: Any) -> None:
    await context.write(b"first")
    raise _ServicerError(_NOT_UTF_8)


@contextlib.asynccontextmanager
async def _serving(handler: Any) -> AsyncIterator[grpc.aio.Channel]:
    """Yields a channel to a server with the method /Test/Call."""
    server = new_server([])
    methods = {"Call": handler}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Test", methods)])
    address = bind(server, "127.0.0.1", 0)
    await server.start()
    async with aio_channel(address) as connection:
        yield connection
    await server.stop(None)


_KINDS = ("unary_unary", "stream_unary", "unary_stream", "stream_stream")


async def _ended(connection: grpc.aio.Channel, kind: str) -> grpc.aio.AioRpcError:
    call = getattr(connection, kind)("/Test/Call")
    answer = call(iter([b""]) if kind.startswith("stream") else b"", timeout=60)
    reading = _read(answer) if kind.endswith("stream") else answer
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await reading
    return raised.value


async def _read(answers: Any) -> None:
    async for _ in answers:
        pass


@pytest.mark.parametrize("kind", _KINDS)
async def test_a_message_that_is_not_utf_8_reaches_the_client(kind: str) -> None:
    method = _refuse_in_stream if kind.endswith("stream") else _refuse
    handler = getattr(grpc, f"{kind}_rpc_method_handler")(method)
    with capture_logs() as logs:
        async with _serving(handler) as connection:
            error = await _ended(connection, kind)
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == r"no file 'caf\udce9'"
    assert reason_of(error) is Reason.BLOB_NOT_FOUND
    assert not logs


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("unary_unary", _fail),
        ("stream_unary", _fail),
        ("unary_stream", _fail_in_stream),
        ("stream_stream", _fail_in_stream),
        ("unary_stream", _fail_when_it_has_written),
    ],
)
async def test_an_unexpected_error_is_logged_and_reaches_the_client(kind: str, method: Any) -> None:
    handler = getattr(grpc, f"{kind}_rpc_method_handler")(method)
    with capture_logs() as logs:
        async with _serving(handler) as connection:
            error = await _ended(connection, kind)
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == r"Call failed: _ServicerError: no file 'caf\udce9'"
    assert reason_of(error) is Reason.INTERNAL_ERROR
    assert [(entry["event"], entry["method"]) for entry in logs] == [
        ("a call failed unexpectedly", "/Test/Call")
    ]


_WITH_A_BROKEN_POLLER = """
import os, sys, time
import firesteel.client.client
import grpc

channel = grpc.insecure_channel("127.0.0.1:1")
connected = grpc.channel_ready_future(channel)
time.sleep(0.2)  # its threads poll
for fd in os.listdir("/proc/self/fd"):
    try:
        if "eventpoll" in os.readlink(f"/proc/self/fd/{fd}"):
            os.close(int(fd))
    except OSError:
        pass
time.sleep(0.2)  # they fail repeatedly
os._exit(0)
"""


def test_grpc_prints_nothing_between_the_lines_of_a_command() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _WITH_A_BROKEN_POLLER],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"},
        check=True,
    )
    assert (ended.stdout, ended.stderr) == ("", "")
