"""Makes Py4J's calls of the JVM faster."""

from __future__ import annotations

import socket
from typing import Any

_ROOT_PACKAGES = frozenset({"com", "java", "javax", "org", "scala"})
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # of Linux


def hasten(client: Any) -> None:
    """Makes a client resolve each name only once, and acknowledge answers without a delay."""
    _remember_names(client)
    _acknowledge(client)


def _acknowledge(client: Any) -> None:
    """Makes the client acknowledge a packet as soon as it arrives.

    Java sends an answer of more than 8 KiB as several packets, the last one only once the others
    are acknowledged. For that, Linux waits up to 40 ms for data that it could send along.
    """
    create = client._create_new_connection

    def create_acknowledging() -> Any:
        connection = create()
        connection.stream = _Acknowledging(connection.socket, connection.stream)
        return connection

    if _QUICK_ACK is not None:
        client._create_new_connection = create_acknowledging
        for connection in client.deque:
            connection.stream = _Acknowledging(connection.socket, connection.stream)


class _Acknowledging:
    """The answers of a connection."""

    def __init__(self, connection: socket.socket, stream: Any) -> None:
        self._connection = connection
        self._stream = stream

    def readline(self) -> bytes:
        assert _QUICK_ACK is not None
        self._connection.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)  # until data is sent again
        line: bytes = self._stream.readline()
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _remember_names(client: Any) -> None:
    """Makes the client resolve each dotted name in the JVM only once.

    To resolve `jvm.java.util.ArrayList`, it requests `java`, `java.util` and the whole name each
    time, and for the first two the JVM searches all of Spark's jars for classes of these names.
    """
    from py4j import protocol

    question = protocol.REFLECTION_COMMAND_NAME + protocol.REFL_GET_UNKNOWN_SUB_COMMAND_NAME
    send = client.send_command
    answers: dict[str, Any] = {}

    def send_unless_known(command: str, *args: Any, **kwargs: Any) -> Any:
        if not command.startswith(question):
            return send(command, *args, **kwargs)
        answer = answers.get(command)
        if answer is None:
            answer = send(command, *args, **kwargs)
            name = command.removeprefix(question).partition("\n")[0]
            if _is_lasting(name, answer):
                answers[command] = answer
        return answer

    client.send_command = send_unless_known


def _is_lasting(name: str, answer: str) -> bool:
    """Returns whether the name's meaning is permanent. A single word may change its meaning after
    an import, and a name that is not a class may become one.
    """
    from py4j import protocol

    *packages, last = name.split(".")
    if not packages and last not in _ROOT_PACKAGES:
        return False
    if answer == protocol.SUCCESS_PACKAGE:
        return last[:1].islower()
    return answer.startswith(protocol.SUCCESS_CLASS)
