"""Makes Py4J's calls of the JVM faster."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from typing import Any

_ROOT_PACKAGES = frozenset({"com", "java", "javax", "org", "scala"})
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # of Linux
_GARBAGE_S = 0.1  # the time between two requests of Py4J's thread
_GARBAGE_OBJECTS = 500  # of one request, whose answers fit into the buffers of a connection


def hasten(client: Any) -> None:
    """Makes a client resolve each name only once, acknowledge answers without a delay, and release
    many objects at a time.
    """
    _remember_names(client)
    _acknowledge(client)
    _release_together(client)


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


def _release_together(client: Any) -> None:
    """Makes Py4J's thread release the JVM's objects that Python no longer refers to in few
    requests: one for each object would keep the other threads from running half of the time.
    """

    def release(target_id: str, enqueue: bool = True) -> None:
        if enqueue:
            client.finalizer_deque.appendleft((client, target_id))
            return
        client.finalizer_deque.append((client, target_id))
        time.sleep(_GARBAGE_S)
        release_garbage(client)

    client.garbage_collect_object = release


def release_garbage(client: Any) -> None:
    """Releases objects in the JVM that Python no longer refers to. A thread of Py4J also does so,
    but sleeps for a second when it has released everything.
    """
    while targets := _take_garbage(client.finalizer_deque):
        _release(client, targets)


def _take_garbage(garbage: Any) -> list[str]:
    targets: list[str] = []
    with contextlib.suppress(IndexError):
        while len(targets) < _GARBAGE_OBJECTS:
            entry = garbage.pop()
            if not isinstance(entry, tuple):  # a request to stop
                garbage.append(entry)
                break
            targets.append(entry[1])
    return targets


def _release(client: Any, targets: Sequence[str]) -> None:
    from py4j import protocol

    if not client.is_connected:
        return
    request = protocol.MEMORY_COMMAND_NAME + protocol.MEMORY_DEL_SUBCOMMAND_NAME
    try:
        connection = client._get_connection()
    except Exception:
        return  # the JVM has ended, and its objects with it
    try:
        connection.socket.sendall("".join(f"{request}{each}\ne\n" for each in targets).encode())
        for _ in targets:
            if not connection.stream.readline():
                raise ConnectionError("the JVM has ended")
    except BaseException as error:
        connection.close()  # it may have unread answers
        if not isinstance(error, Exception):
            raise
    else:
        client._give_back_connection(connection)
