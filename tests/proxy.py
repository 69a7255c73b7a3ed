"""A TCP proxy in front of a server, which can be away, or lose an answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Proxy:
    """Listens on a separate port while it is up. `target` is the path of a Unix socket."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._loses_answer_to = b""
        self.lost = threading.Event()  # an answer
        self.port = 0
        self.up()

    def up(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept, self._listener)

    def down(self) -> None:
        """Connections break, and new ones are refused."""
        assert self._listener is not None
        with self._lock:
            ended, self._listener = [self._listener, *self._connections], None
        for each in ended:
            _shut(each)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def lose_answer_to(self, request: bytes) -> None:
        """The next one that contains these bytes reaches the server; instead of the answer, the
        client gets the end of the connection.
        """
        self._loses_answer_to = request

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                with self._lock:
                    if self._listener is not listener:
                        _shut(client)
                        _shut(server)
                        return
                    self._connections |= {client, server}
                loses = threading.Event()
                self._start(self._requests, client, server, loses)
                self._start(self._answers, client, server, loses)

    def _requests(
        self, client: socket.socket, server: socket.socket, loses: threading.Event
    ) -> None:
        with self._both_end(client, server):
            while data := client.recv(65_536):
                if self._loses_answer_to and self._loses_answer_to in data:
                    self._loses_answer_to = b""
                    loses.set()
                server.sendall(data)

    def _answers(
        self, client: socket.socket, server: socket.socket, loses: threading.Event
    ) -> None:
        with self._both_end(client, server):
            while data := server.recv(65_536):
                if loses.is_set():
                    self.lost.set()
                    return
                client.sendall(data)

    @contextlib.contextmanager
    def _both_end(self, client: socket.socket, server: socket.socket) -> Iterator[None]:
        try:
            with contextlib.suppress(OSError):
                yield
        finally:
            _shut(client)
            _shut(server)
            with self._lock:
                self._connections -= {client, server}


def _shut(ended: socket.socket) -> None:
    """Wakes whoever waits at it."""
    with contextlib.suppress(OSError):
        ended.shutdown(socket.SHUT_RDWR)
    ended.close()
