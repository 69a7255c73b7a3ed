"""Wrong addresses are reported clearly and soon."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health, health_pb2_grpc

from firesteel.client import connection
from firesteel.client.cli import arguments, main
from firesteel.client.client import Client
from firesteel.client.connection import checked_address
from firesteel.common.rpc import server
from firesteel.errors import ClusterUnreachable


@pytest.fixture
def serve() -> Iterator[Callable[[bytes | None], str]]:
    """Starts a server that answers everybody with these bytes, or with silence, and returns its
    address.
    """
    listeners: list[socket.socket] = []
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(answer: bytes | None) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                    connections.append(connection)
                    if answer is not None:
                        connection.sendall(answer)
                        connection.close()
                except OSError:
                    return

        threads.append(threading.Thread(target=accept, daemon=True))
        threads[-1].start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)  # closing it would not wake who accepts
    for thread in threads:
        thread.join()
    for each in [*listeners, *connections]:
        each.close()


@pytest.fixture
def dead_address() -> Iterator[str]:
    """Yields the address of a port that is bound, so that it stays free, but does not listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_dead_port_is_known_immediately(dead_address: str) -> None:
    """Not after a timeout, whose message is another."""
    with pytest.raises(
        ClusterUnreachable,
        match=rf"nothing answers at {dead_address} .*firesteel cluster start.*-m",
    ):
        Client(dead_address)


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\xff" * 100, None],
    ids=["http", "garbage", "silence"],
)
def test_what_is_not_firesteel_is_known_soon(
    serve: Callable[[bytes | None], str], answer: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is None:
        monkeypatch.setattr(connection, "CHECK_TIMEOUT_S", 0.2)
    silence = (
        r"has not answered for 0\.2 s: it hangs, or is "
        if answer is None
        else "^the process at .* is "
    )
    with pytest.raises(ClusterUnreachable, match=silence + "not a Firesteel cluster"):
        Client(serve(answer))


def test_a_hung_process_is_reported_as_silent_every_time(
    serve: Callable[[bytes | None], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC gives up the connection at nearly the same time, with another status."""
    shrink = 40
    monkeypatch.setattr(connection, "CHECK_TIMEOUT_S", connection.CHECK_TIMEOUT_S / shrink)
    monkeypatch.setattr(server, "CONNECT_TIMEOUT_MS", server.CONNECT_TIMEOUT_MS // shrink)
    address = serve(None)
    for _ in range(10):
        with pytest.raises(ClusterUnreachable, match=r"has not answered for 0\.2 s: it hangs"):
            Client(address)


def test_an_address_that_drops_packets_is_reported_as_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel drops the packets to a listener whose queue of connections is full."""
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.2)
    with contextlib.ExitStack() as sockets:
        full = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        while True:
            waiting = sockets.enter_context(socket.socket())
            waiting.settimeout(0.2)
            if waiting.connect_ex(full.getsockname()):
                break
        address = f"127.0.0.1:{full.getsockname()[1]}"
        silence = rf"nothing has answered at {address} within 0\.2 s; start a cluster"
        with pytest.raises(ClusterUnreachable, match=silence):
            Client(address)


def test_another_grpc_server_is_not_a_dispatcher() -> None:
    other = grpc.server(futures.ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), other)
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    try:
        with pytest.raises(ClusterUnreachable, match="not a cluster's Dispatcher"):
            Client(f"127.0.0.1:{port}")
    finally:
        other.stop(None).wait()


@pytest.mark.parametrize(
    "address", ["localhost", "localhost:", ":6123", "localhost:port", "localhost:70000", ""]
)
def test_an_invalid_address_is_reported(address: str) -> None:
    with pytest.raises(ClusterUnreachable, match="expected HOST:PORT"):
        checked_address(address)


def test_a_host_that_does_not_exist() -> None:
    with pytest.raises(ClusterUnreachable, match="there is no host 'no.such.host.invalid'"):
        Client("no.such.host.invalid:6123")


@pytest.mark.parametrize("verb", [["list"], ["show", "a" * 32], ["cancel", "a" * 32]])
def test_every_verb_prints_one_sentence_and_fails(verb: list[str], dead_address: str) -> None:
    result = CliRunner().invoke(main, [*verb, "-m", dead_address])
    assert result.exit_code == 1
    assert result.output.startswith("Error: nothing answers at 127.0.0.1:")
    assert "Traceback" not in result.output


def test_an_error_says_where_a_cluster_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRESTEEL_DIR", str(tmp_path))
    monkeypatch.delenv("FIRESTEEL_CONF_DIR", raising=False)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        monkeypatch.setattr(arguments, "_configured_address", lambda conf: f"127.0.0.1:{port}")
        result = CliRunner().invoke(main, ["list"])
    assert result.exit_code == 1
    assert f"nothing answers at 127.0.0.1:{port}" in result.output
    assert f"No cluster is configured, and none runs in {tmp_path}." in result.output
