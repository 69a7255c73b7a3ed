"""Lines from a socket, by the operator that reads them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pyarrow as pa
import pytest

from firesteel.common.operator_messages import SplitAssigned, SplitsExhausted
from firesteel.connectors import SocketSource
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.testing import OperatorHarness
from taskexecutor.executor.connectors.split_source import SplitReading

SCHEMA = pa.schema([("value", pa.string())])


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def reading(port: int) -> OperatorHarness:
    source = SocketSource("127.0.0.1", port)
    harness = OperatorHarness(
        SplitReading(source.create_reader, SCHEMA), [], output_schema=SCHEMA
    ).open()
    (split,) = source.splits(4)
    harness.deliver(SplitAssigned(number=0, split_json=json.dumps(split)))
    harness.deliver(SplitsExhausted())
    return harness


def lines(harness: OperatorHarness, count: int) -> list[str]:
    """Polls until this many rows have come; loopback delivers them soon."""
    while len(found := [row["value"] for row in harness.rows()]) < count:
        assert harness.poll()
    return found


def test_lines_come_as_they_are_sent_until_the_server_closes(server: socket.socket) -> None:
    harness = reading(server.getsockname()[1])
    assert harness.poll(), "it connects, and waits"
    connection, _ = server.accept()
    with connection:
        connection.sendall("one\r\ntwo\n\nthé".encode())
        assert lines(harness, 3) == ["one", "two", ""], "a line that has not ended stays"
        connection.sendall(b"\xc3\xa9\n\xff\n" + b"x" * 200_000 + b"\nlast")
        assert lines(harness, 6)[3:] == ["théé", "\N{REPLACEMENT CHARACTER}", "x" * 200_000]
    assert lines(harness, 7)[6] == "last", "also without a newline"
    while harness.poll():
        pass
    harness.close()


def test_nothing_listening_is_an_error_with_the_address(server: socket.socket) -> None:
    port = server.getsockname()[1]
    server.close()
    harness = reading(port)
    with pytest.raises(FiresteelError, match=rf"127.0.0.1:{port}: Connection refused; start a"):
        harness.poll()
    harness.close()


def test_a_wrong_address_is_refused() -> None:
    with pytest.raises(InvalidProgram, match="port is 0; it must be 1 to 65535"):
        SocketSource("localhost", 0)
    with pytest.raises(InvalidProgram, match="host is ''"):
        SocketSource("", 9999)
