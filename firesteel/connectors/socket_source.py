"""SocketSource: reads lines of text from a TCP server, for experiments."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from firesteel.connectors.source import EndOfSplit, Source, SourceReader, Split
from firesteel.errors import FiresteelError, InvalidProgram

if TYPE_CHECKING:
    import pyarrow as pa

    from firesteel.operator import RuntimeContext

CONNECT_TIMEOUT_S = 10.0
_READ_BYTES = 64 * 1024
_LONGEST_LINE_BYTES = 32 * 1024 * 1024
_BATCH_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SocketSource(Source):
    """Reads lines of UTF-8 text from a TCP server into a column `value STRING`, for experiments.

    As in Spark's `socket` format and Flink's `socketTextStream`, one subtask connects to `host` and
    `port`, and the stream ends when the server closes the connection. Start a server first, such as
    `nc -lk 9999`. The slot's machine connects, so `localhost` means that machine.

    It is not fault-tolerant: a restored job reconnects, and lines that were received before are
    lost or repeated, depending on the server. A line ends with a newline; a carriage return before
    it is removed. The job fails if the address has no listener.
    """

    bounded: ClassVar[bool] = False

    host: str
    port: int

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not self.host:
            raise InvalidProgram(
                f"SocketSource: host is {self.host!r}; name one, such as 'localhost'"
            )
        if not isinstance(self.port, int) or not 0 < self.port < 65536:
            raise InvalidProgram(f"SocketSource: port is {self.port!r}; it must be 1 to 65535")

    @property
    def display_name(self) -> str:
        return f"Socket {self.host}:{self.port}"

    @property
    def fixed_parallelism(self) -> int:
        return 1

    def output_schema(self) -> str:
        return "value STRING"

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [{"host": self.host, "port": self.port}]

    def create_reader(self, context: RuntimeContext) -> SourceReader:
        return _SocketReader()


class _SocketReader(SourceReader):
    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._rest = b""  # of an incomplete line
        self._address = ""

    def begin(self, split: Split) -> None:
        host, port = split["host"], split["port"]
        self._address = f"{host}:{port}"
        try:
            self._socket = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
        except OSError as error:
            raise FiresteelError(
                f"SocketSource cannot connect to {self._address}: {error.strerror or error}; start"
                f" a server there first, for example: nc -lk {port}"
            ) from error
        self._socket.setblocking(False)

    def poll(self) -> pa.RecordBatch | None:
        if self._socket is None:
            raise EndOfSplit
        parts = [self._rest]
        size, ended = len(self._rest), False
        while size < _BATCH_BYTES + len(self._rest):
            readable, _, _ = select.select([self._socket], [], [], 0)
            if not readable:
                break
            try:
                received = self._socket.recv(_READ_BYTES)
            except OSError as error:
                raise FiresteelError(
                    f"SocketSource: the connection to {self._address} is lost:"
                    f" {error.strerror or error}"
                ) from error
            if not received:
                ended = True
                break
            parts.append(received)
            size += len(received)
        *lines, self._rest = b"".join(parts).split(b"\n")
        if ended:
            self.close()
            lines += [self._rest] if self._rest else []
            self._rest = b""
        if len(self._rest) > _LONGEST_LINE_BYTES:
            raise FiresteelError(
                f"SocketSource: a line from {self._address} has more than"
                f" {_LONGEST_LINE_BYTES:,} bytes"
            )
        if not lines:
            return None if not ended else _batch([])
        return _batch([line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines])

    def position(self) -> None:
        return None

    def restore(self, position: None) -> None:
        """Does nothing: earlier lines cannot be read again, so it continues with new ones."""

    def close(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()


def _batch(lines: list[str]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.record_batch([pa.array(lines, pa.string())], names=["value"])
