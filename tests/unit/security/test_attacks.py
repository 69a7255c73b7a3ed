"""Malformed bytes, and connections without requests, at each kind of server. The server
answers ordinary callers afterwards.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pyarrow.flight as flight
import pytest

from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc
from firesteel.common.metrics import Registry
from firesteel.common.rpc.bearer import carry_token
from firesteel.common.rpc.errors import MAX_MESSAGE_BYTES
from firesteel.common.rpc.server import aio_channel
from firesteel.common.rpc.status import Reason, reason_of
from firesteel.common.security.job_keys import JobKeys, issue
from firesteel.common.security.keys import Keys
from firesteel.common.security.roles import Role
from firesteel.common.security.security import Security
from firesteel.common.service.platform import GrpcTransport
from taskexecutor.executor.exchange import wire
from taskexecutor.executor.exchange.registry import PartitionRegistry
from taskexecutor.executor.exchange.security import ExchangeSecurity, SlotKeys, open_client
from taskexecutor.executor.exchange.server import ExchangeServer

HOST = "127.0.0.1"
JOB = "1" * 32
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_RANDOM = random.Random(17)


def _frame(kind: int, flags: int, stream: int, body: bytes, *, length: int | None = None) -> bytes:
    """An HTTP/2 frame."""
    size = len(body) if length is None else length
    return struct.pack(">I", size)[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + body


_SETTINGS = _frame(4, 0, 0, b"")
MALFORMED = {
    "random bytes": _RANDOM.randbytes(4096),
    "HTTP/1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a long HTTP/1 header": b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + _RANDOM.randbytes(500),
    "half a preface": PREFACE[:10],
    "random bytes after the preface": PREFACE + _SETTINGS + _RANDOM.randbytes(4096),
    "a truncated frame": PREFACE + _SETTINGS + _frame(1, 4, 1, b"\x82", length=1000),
    "a huge frame": PREFACE + _SETTINGS + _frame(0, 0, 1, b"x" * 100, length=2**24 - 1),
    "random headers": PREFACE + _SETTINGS + _frame(1, 5, 1, _RANDOM.randbytes(1000)),
    "headers without an end": PREFACE
    + _SETTINGS
    + _frame(1, 0, 1, b"\x82\x86\x84")
    + b"".join(_frame(9, 0, 1, b"\x00\x01a\x01b" * 1000) for _ in range(50)),
    "many streams that are reset": PREFACE
    + _SETTINGS
    + b"".join(
        _frame(1, 4, 2 * n + 1, b"\x82\x86\x84\x41\x01x") + _frame(3, 0, 2 * n + 1, b"\0\0\0\x08")
        for n in range(2_000)
    ),
    "many pings and settings": PREFACE + (_SETTINGS + _frame(6, 0, 0, b"12345678")) * 2_000,
}


def _attack(address: str, content: bytes) -> None:
    """Sends the bytes, and reads what comes back for a moment."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        try:
            connection.sendall(content)
            connection.settimeout(0.05)
            while connection.recv(65536):
                pass
        except OSError:  # the server has hung up, or waits for more
            pass


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys.open(tmp_path_factory.mktemp("security"))


def _security(keys: Keys, role: Role) -> Security:
    return Security(keys, subject="x", role=role, tls=False, hosts=(HOST,))


class _Answers(dispatcher_pb2_grpc.DispatcherServicer):
    async def ListJobs(self, request, context):
        return dispatcher_pb2.ListJobsResponse()

    async def UploadBlob(self, request_iterator, context):
        raise AssertionError("no caller may call it")


@pytest.fixture
async def grpc_address(keys: Keys) -> AsyncIterator[str]:
    transport = GrpcTransport(_security(keys, Role.DISPATCHER))
    server = transport.server([dispatcher_pb2.DESCRIPTOR.services_by_name["Dispatcher"]])
    dispatcher_pb2_grpc.add_DispatcherServicer_to_server(_Answers(), server)
    address = transport.bind(server, HOST, 0)
    await server.start()
    yield address
    await server.stop(None)


async def _list_jobs(address: str, keys: Keys) -> None:
    async with aio_channel(address) as channel:
        carry_token(channel, keys.token)
        stub = dispatcher_pb2_grpc.DispatcherStub(channel)
        await stub.ListJobs(dispatcher_pb2.ListJobsRequest(), timeout=60)


async def test_malformed_bytes_do_not_stop_a_grpc_server(grpc_address, keys) -> None:
    for content in MALFORMED.values():
        await asyncio.to_thread(_attack, grpc_address, content)
    await _list_jobs(grpc_address, keys)


def _raw(method: str) -> Callable[[grpc.aio.Channel, bytes], Awaitable[bytes]]:
    def call(channel: grpc.aio.Channel, content: bytes) -> Awaitable[bytes]:
        return channel.unary_unary(f"/firesteel.v1.Dispatcher/{method}")(content, timeout=60)

    return call


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (_RANDOM.randbytes(1000), grpc.StatusCode.INVALID_ARGUMENT),
        (b"\xff" * 100, grpc.StatusCode.INVALID_ARGUMENT),
        (b"\x0a\xff\xff\xff\xff\x0f", grpc.StatusCode.INVALID_ARGUMENT),  # a field of 4 GB
        (b"x" * (MAX_MESSAGE_BYTES + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
    ids=["random", "ones", "a huge length", "too large"],
)
async def test_malformed_messages_are_refused(content, code, grpc_address, keys) -> None:
    async with aio_channel(grpc_address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:  # and not parsed
            await _raw("ListJobs")(channel, content)
        assert reason_of(error.value) in (Reason.NO_CREDENTIAL, None)
    async with aio_channel(grpc_address) as channel:
        carry_token(channel, keys.token)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await _raw("ListJobs")(channel, content)
        assert error.value.code() is code
    await _list_jobs(grpc_address, keys)


async def test_thousands_of_slow_connections_stop_no_grpc_server(grpc_address, keys) -> None:
    host, _, port = grpc_address.rpartition(":")
    slow = []
    try:
        for number in range(2_000):
            slow.append(socket.create_connection((host, int(port))))
            slow[-1].sendall(PREFACE[: number % 24])
        begin_s = time.monotonic()
        await _list_jobs(grpc_address, keys)
        assert time.monotonic() - begin_s < 30
    finally:
        for connection in slow:
            connection.close()


@pytest.fixture
def exchange(keys: Keys) -> Iterator[tuple[ExchangeServer, JobKeys]]:
    own = issue(b"s" * 32, JOB, 1, now_s=time.time())
    slot = SlotKeys(wait_s=0.1)
    slot.assign(own)
    security = ExchangeSecurity(keys_of=slot.of, find=slot.find)
    server = ExchangeServer(PartitionRegistry(timeout_s=60), HOST, security)
    yield server, own
    server.stop()


def _exchange(
    server: ExchangeServer, keys: JobKeys, *, command: bytes = b"", metadata: bytes = b""
) -> None:
    security = ExchangeSecurity(keys_of=lambda job_id: keys, find=lambda *key: None)
    descriptor = flight.FlightDescriptor.for_command(command or wire.encode_descriptor(JOB, "r"))
    with open_client(security, server.address) as client:
        writer, reader = client.do_exchange(descriptor, security.call_options(JOB))
        if metadata:
            writer.write_metadata(metadata)
        writer.done_writing()
        while True:
            reader.read_chunk()


def _is_served(server: ExchangeServer, keys: JobKeys) -> None:
    with pytest.raises(StopIteration):
        _exchange(server, keys)


def test_malformed_bytes_do_not_stop_an_exchange(exchange) -> None:
    server, keys = exchange
    for content in MALFORMED.values():
        _attack(server.address, content)
    _is_served(server, keys)


@pytest.mark.parametrize(
    "command",
    [b"x", b"firesteel-exchange/1 ../../etc/passwd r", _RANDOM.randbytes(200), b"x" * 100_000],
    ids=["x", "a path", "random", "long"],
)
def test_malformed_descriptors_are_refused(command, exchange) -> None:
    server, keys = exchange
    with pytest.raises(flight.FlightError):
        _exchange(server, keys, command=command)
    _is_served(server, keys)


@pytest.mark.parametrize(
    "metadata",
    [
        b"\x00",
        b"\x01",
        _RANDOM.randbytes(300),
        b"\x02" + b"\xff" * 16,
        b"\x01" + b"\xff" * 16 + b"\x04",
    ],
    ids=["unknown", "truncated", "random", "a channel that is not open", "cut off"],
)
def test_malformed_records_end_their_stream_alone(metadata, exchange) -> None:
    server, keys = exchange
    with pytest.raises(flight.FlightError):
        _exchange(server, keys, metadata=metadata)
    _is_served(server, keys)


def test_no_other_method_of_flight_is_served(exchange) -> None:
    server, _ = exchange
    descriptor = flight.FlightDescriptor.for_path("x")
    with flight.FlightClient(f"grpc://{server.address}") as client:
        for call in (
            lambda: list(client.list_flights()),
            lambda: client.get_flight_info(descriptor),
            lambda: client.get_schema(descriptor),
            lambda: client.do_get(flight.Ticket(b"x")).read_all(),
            lambda: list(client.do_action(flight.Action("x", b""))),
            lambda: list(client.list_actions()),
        ):
            with pytest.raises((flight.FlightError, NotImplementedError)):
                call()


def test_malformed_bytes_do_not_stop_a_metrics_endpoint(keys: Keys, tmp_path: Path) -> None:
    registry = Registry()
    port = registry.serve(HOST, "0", security=_security(keys, Role.TASK_EXECUTOR))
    try:
        for content in MALFORMED.values():
            _attack(f"{HOST}:{port}", content)
        request = f"GET /metrics HTTP/1.0\r\nAuthorization: Bearer {keys.token()}\r\n\r\n"
        with socket.create_connection((HOST, port), timeout=60) as connection:
            connection.sendall(request.encode())
            assert connection.recv(65536).startswith(b"HTTP/1.0 200")
    finally:
        registry.close()
