"""The stand-in for PySpark's test helpers, and what names in the JVM stand for."""

from __future__ import annotations

import importlib
import socket
import sys
import threading
from collections import deque
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from py4j import protocol
from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView

from firesteel.errors import FiresteelError
from firesteel.plan import java_calls
from firesteel.plan.java_calls import hasten, release_garbage
from taskexecutor.executor.columnar.jvm.gateway import (
    _TEST_HELPERS,
    _refuse_invalid_text,
    _TestHelpers,
    without_conversion,
)


def test_the_test_helpers_are_imported_on_demand(monkeypatch) -> None:
    helpers = _TestHelpers(_TEST_HELPERS)
    monkeypatch.setitem(sys.modules, _TEST_HELPERS, helpers)
    assert importlib.import_module(_TEST_HELPERS).have_numpy
    assert sys.modules[_TEST_HELPERS] is helpers

    from pyspark.testing.utils import assertDataFrameEqual, have_numpy

    assert assertDataFrameEqual.__module__ == _TEST_HELPERS
    assert sys.modules[_TEST_HELPERS] is not helpers
    assert have_numpy


class _Client:
    """Py4J's client of a JVM that has these classes; single words are imported ones."""

    def __init__(self, *classes: str) -> None:
        self.classes = set(classes)
        self.asked: list[str] = []
        self.deque: deque[Any] = deque()
        self.gateway_property = SimpleNamespace(pool=None)
        self.converters: Any = None
        self.finalizer_deque: deque[Any] = deque()
        self.is_connected = True
        self.connections: list[Any] = []
        self.garbage_collect_object: Any = None

    def _get_connection(self) -> Any:
        if not self.connections:
            raise OSError("the JVM has ended")
        return self.connections.pop()

    def _give_back_connection(self, connection: Any) -> None:
        self.connections.append(connection)

    def _create_new_connection(self) -> Any:
        raise AssertionError("it is replaced")

    def send_command(self, command: str) -> str:
        assert command.startswith("r\nu\n")
        name = command.split("\n")[2]
        self.asked.append(name)
        if name in self.classes:
            return f"{protocol.SUCCESS_CLASS}{name}"
        return protocol.SUCCESS_PACKAGE if name != "failing" else "x"


def jvm_of(client: _Client) -> JVMView:
    hasten(client)
    return JVMView(client, "default", "view")


def test_answers_are_acknowledged_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as opened:
        jvms: list[socket.socket] = []

        def connection() -> Any:
            client = opened.enter_context(socket.create_connection(server.getsockname()))
            jvms.append(opened.enter_context(server.accept()[0]))
            return SimpleNamespace(socket=client, stream=client.makefile("rb"))

        client = _Client()
        client._create_new_connection = connection  # type: ignore[method-assign]
        client.deque.append(connection())
        hasten(client)
        client.deque.append(client._create_new_connection())
        for jvm, each in zip(jvms, client.deque, strict=True):
            for answer in (b"!yv", b"!ys" + b"x" * 10_000):
                each.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
                jvm.sendall(answer + b"\n")
                assert each.stream.readline() == answer + b"\n"
                assert each.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
            each.stream.close()


def test_objects_are_released_in_few_requests() -> None:
    """The JVM answers each release; no answer may be left for the next call on the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        python = socket.create_connection(server.getsockname())
        jvm = server.accept()[0]
    released: list[str] = []

    def answer() -> None:
        with jvm, jvm.makefile("r") as requests:
            while next(requests, "") == "m\n":
                assert next(requests) == "d\n"
                released.append(next(requests).strip())
                assert next(requests) == "e\n"
                jvm.sendall(b"!yv\n")
            jvm.sendall(b"!yslast\n")

    answering = threading.Thread(target=answer)
    answering.start()
    client = _Client()
    with python, python.makefile("rb") as stream:
        connection = SimpleNamespace(socket=python, stream=stream)
        client.connections.append(connection)
        hasten(client)
        targets = [f"o{number}" for number in range(1_234)]
        for target in targets:
            client.garbage_collect_object(target)
        client.finalizer_deque.appendleft("stop")
        release_garbage(client)
        assert released == targets
        assert list(client.finalizer_deque) == ["stop"]
        python.sendall(b"c\n")
        assert stream.readline() == b"!yslast\n"
        assert client.connections == [connection]
    answering.join()


@pytest.mark.parametrize("how", [socket.SHUT_WR, socket.SHUT_RDWR])
def test_a_connection_that_breaks_during_a_release_is_closed(how: int) -> None:
    python, jvm = socket.socketpair()
    jvm.shutdown(how)
    closed: list[bool] = []
    client = _Client()
    with python, jvm, python.makefile("rb") as stream:
        client.connections.append(
            SimpleNamespace(socket=python, stream=stream, close=lambda: closed.append(True))
        )
        hasten(client)
        client.garbage_collect_object("o1")
        release_garbage(client)
    assert closed == [True]
    assert not client.connections
    client.garbage_collect_object("o2")
    release_garbage(client)  # there is no connection
    assert not client.finalizer_deque


def test_the_thread_of_py4j_releases_what_has_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    client = _Client()
    hasten(client)
    sent: list[list[str]] = []
    monkeypatch.setattr(java_calls, "_release", lambda _, targets: sent.append(list(targets)))
    monkeypatch.setattr(java_calls.time, "sleep", lambda _: client.garbage_collect_object("o3"))
    client.garbage_collect_object("o1")
    client.garbage_collect_object("o2")
    owner, target = client.finalizer_deque.pop()
    owner.garbage_collect_object(target, False)
    assert sent == [["o1", "o2", "o3"]]


def test_the_jvm_is_asked_once_what_a_name_stands_for() -> None:
    client = _Client("java.util.ArrayList", "org.apache.spark.sql.functions")
    jvm = jvm_of(client)
    for _ in range(2):
        assert isinstance(jvm.java.util.ArrayList, JavaClass)
        assert isinstance(jvm.org.apache.spark.sql.functions, JavaClass)
    assert client.asked == [
        "java",
        "java.util",
        "java.util.ArrayList",
        "org",
        "org.apache",
        "org.apache.spark",
        "org.apache.spark.sql",
        "org.apache.spark.sql.functions",
    ]


def test_a_class_that_is_defined_later_is_found() -> None:
    client = _Client()
    jvm = jvm_of(client)
    assert isinstance(jvm.org.ours.Later, JavaPackage)
    client.classes.add("org.ours.Later")
    assert isinstance(jvm.org.ours.Later, JavaClass)


def test_a_single_word_is_something_else_after_an_import() -> None:
    client = _Client()
    jvm = jvm_of(client)
    assert isinstance(jvm.functions, JavaPackage)
    client.classes.add("functions")
    assert isinstance(jvm.functions, JavaClass)
    for _ in range(2):
        with pytest.raises(protocol.Py4JError):
            jvm.__getattr__("failing")
    assert client.asked.count("failing") == 2


def test_a_call_without_conversion_sends_the_same_bytes() -> None:
    asked: list[object] = []
    sent: list[str] = []

    class Converter:
        def can_convert(self, value: object) -> bool:
            asked.append(value)
            return False

    client = _Client()
    client.converters = [Converter()]
    client.send_command = lambda command: sent.append(command) or "yv"  # type: ignore[func-returns-value,method-assign]
    arguments = ("a group", 7, "two\nlines", True, None)
    JavaMember("first", None, "o1", client)(*arguments)
    assert asked == list(arguments)
    without_conversion(JavaMember("first", None, "o1", client))(*arguments)
    assert len(asked) == len(arguments)
    assert sent[0] == sent[1]


def test_a_text_that_is_not_valid_is_named_before_the_jvm_gets_it() -> None:
    client = _Client()
    _refuse_invalid_text(client)
    with pytest.raises(FiresteelError, match=r"'caf\\udce9' is not valid UTF-8.*column name"):
        client.send_command("c\nz:functions\ncol\nscaf\udce9\ne\n")
    assert client.send_command("r\nu\ncafé\ne\n") == protocol.SUCCESS_PACKAGE
    assert client.asked == ["café"]
