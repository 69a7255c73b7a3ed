"""The stacks of the JVM's threads, read over the caller's own connection: other threads' calls do
not wait for it.

In pinned thread mode, each connection of Python has a thread in the JVM. The port of the connection
identifies it.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from taskexecutor.executor.columnar.jvm.gateway import without_conversion

_WORKER = "Executor task launch worker"
_REFRESH_S = 1.0


class JvmStack(NamedTuple):
    state: str  # of java.lang.Thread
    frames: list[str]  # "at ..." lines without "at", the innermost first


class JvmThreads:
    """For one thread. Each method makes calls to the JVM, which take about a millisecond."""

    def __init__(self, session: Any) -> None:
        jvm = session._jvm
        self._jvm = jvm
        self._server = session.sparkContext._gateway.java_gateway_server
        self._carrier = jvm.java.lang.Throwable()
        self._carry = without_conversion(self._carrier.setStackTrace)
        exceptions = jvm.org.apache.commons.lang3.exception.ExceptionUtils
        self._text = without_conversion(exceptions.getStackTrace)
        self._by_port: dict[int, Any] = {}
        self._workers: list[Any] = []
        self._listed_s = 0.0

    def serving(self, port: int) -> Any:
        """Returns the java.lang.Thread that serves the connection from this local port; None if
        there is none.
        """
        if port not in self._by_port:
            server, connection = "py4j.GatewayServer", "py4j.ClientServerConnection"
            socket, thread = self._field(connection, "socket"), self._field(connection, "jvmThread")
            self._by_port = {
                socket.get(each).getPort(): thread.get(each)
                for each in self._field(server, "connections").get(self._server)
            }
        return self._by_port.get(port)

    def workers(self) -> list[Any]:
        """Returns the threads that run tasks of Spark jobs, listed at most once a second."""
        if time.monotonic() - self._listed_s > _REFRESH_S:
            named = ((thread, str(thread.getName())) for thread in self._all())
            self._workers = [thread for thread, name in named if name.startswith(_WORKER)]
            self._listed_s = time.monotonic()
        return self._workers

    def stack(self, thread: Any) -> JvmStack:
        state = str(thread.getState().toString())
        self._carry(thread.getStackTrace())
        lines = str(self._text(self._carrier)).splitlines()
        return JvmStack(state, [line.removeprefix("\tat ") for line in lines[1:]])

    def dump(self) -> list[tuple[str, JvmStack]]:
        """Returns the name and the stack of every thread."""
        return [(str(thread.getName()), self.stack(thread)) for thread in self._all()]

    def _all(self) -> list[Any]:
        return list(self._jvm.java.lang.Thread.getAllStackTraces().keySet())

    def _field(self, owner: str, name: str) -> Any:
        field = self._jvm.java.lang.Class.forName(owner).getDeclaredField(name)
        field.setAccessible(True)
        return field
