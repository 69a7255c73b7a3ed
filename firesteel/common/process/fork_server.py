"""`python -m firesteel.common.process.fork_server MODULE [ARGUMENT...]`: imports what
`python -m MODULE` runs, and becomes that process in a copy of itself for each request.

A service's imports take half a second of CPU time. A copy of a process that has made them, and has
called `prepare` if the module has such a function, takes some milliseconds, and shares their
memory. `forked.ForkServer` starts this server, writes requests to its standard input and reads the
outcomes from its standard output. The server ends when its input ends; the copies survive.

It has one thread, since a copy inherits only one; except that the allocator which comes with
pyarrow has its own, which it does without in copies.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import sys
from collections.abc import Callable
from typing import Any

from firesteel.common.process.child import module_command
from firesteel.common.process.lifeline import READY_FD
from firesteel.common.process.log_files import LOG_FILE

_READ_BYTES = 65_536
_ARG_START, _ARG_END = 45, 46  # positions in /proc/PID/stat, after the name


def main() -> None:
    module, *arguments = sys.argv[1:]
    replies = os.dup(1)
    os.dup2(2, 1)  # printed text is not a reply
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's import would start other threads
    imported = importlib.import_module(f"{module}.__main__")
    command: Callable[[], object] = imported.main
    if (prepare := getattr(imported, "prepare", None)) is not None:
        prepare()
    gc.collect()
    gc.freeze()  # a collection in a copy would write to all shared memory
    if _Server(replies).serve():
        sys.argv = [f"{module}/__main__.py", *arguments]
        _show_command(module_command(module, *arguments))
        command()


class _Server:
    def __init__(self, replies: int) -> None:
        self._replies = replies
        self._selector = selectors.DefaultSelector()
        self._unread = b""  # the start of a request
        self._reads: dict[int, bytearray] = {}  # by descriptor: the announcement of a copy so far
        self._open = True
        self._is_copy = False

    def serve(self) -> bool:
        """Returns True in each copy, and False in the server when it ends."""
        self._selector.register(0, selectors.EVENT_READ, self._take_requests)
        while self._open:
            for key, _ in self._selector.select():
                key.data()
                if self._is_copy:
                    return True
        return False

    def _take_requests(self) -> None:
        content = os.read(0, _READ_BYTES)
        self._open = bool(content)
        *requests, self._unread = (self._unread + content).split(b"\n")
        for request in requests:
            self._copy(**json.loads(request))
            if self._is_copy:
                return

    def _copy(self, *, number: int, log_path: str | None) -> None:
        ready_read, ready_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._is_copy = True
            os.close(ready_read)
            self._enter_copy(ready_write, log_path)
            return
        os.close(ready_write)
        with contextlib.suppress(OSError):  # the copy has done so itself, or has ended
            os.setpgid(pid, pid)
        self._reply(number, pid=pid)
        self._reads[ready_read] = bytearray()
        self._watch(ready_read, lambda: self._take_announcement(number, ready_read))
        ended = os.pidfd_open(pid)
        self._watch(ended, lambda: self._reap(number, pid, ended))

    def _enter_copy(self, ready: int, log_path: str | None) -> None:
        os.setpgid(0, 0)
        for descriptor in [self._replies, *self._selector.get_map()]:
            if isinstance(descriptor, int) and descriptor > 2:
                os.close(descriptor)
        self._selector.close()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.environ[READY_FD] = str(ready)
        if log_path is not None:
            log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            os.environ[LOG_FILE] = log_path

    def _take_announcement(self, number: int, ready: int) -> None:
        content = os.read(ready, _READ_BYTES)
        read = self._reads[ready]
        read += content
        if not content or read.endswith(b"\n"):
            self._reply(number, announced=read.decode())
            self._selector.unregister(ready)
            os.close(ready)
            del self._reads[ready]

    def _reap(self, number: int, pid: int, ended: int) -> None:
        self._selector.unregister(ended)
        os.close(ended)
        _, status = os.waitpid(pid, 0)
        self._reply(number, code=os.waitstatus_to_exitcode(status))

    def _watch(self, descriptor: int, react: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, react)

    def _reply(self, number: int, **facts: Any) -> None:
        os.write(self._replies, json.dumps({"number": number, **facts}).encode() + b"\n")


def _show_command(argv: list[str]) -> None:
    """Makes `ps` show this command, as far as it fits into the space of the server's command."""
    with open("/proc/self/stat") as file:
        facts = file.read().rpartition(")")[2].split()
    start, end = int(facts[_ARG_START]), int(facts[_ARG_END])
    text = b"".join(os.fsencode(word) + b"\0" for word in argv)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
