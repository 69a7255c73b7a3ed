"""Starts processes as copies of one that has imported their code: see `fork_server`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from firesteel.common.process.child import (
    READY_TIMEOUT_S,
    Child,
    StartFailed,
    await_ready,
    module_command,
)
from firesteel.common.process.lifeline import LIFELINE_FD, READY_FD, lifeline_for_children
from firesteel.common.process.log_files import LOG_FILE

_READ_BYTES = 65_536
_SERVER = "firesteel.common.process.fork_server"
_NAME = "the process that starts others"
_NOT_KNOWN = 255  # the exit code of a process that has outlived its server


class ForkServer:
    """Starts processes that all run one `module_command(MODULE, ...)`, where `MODULE.__main__`
    has a click command `main`.

    The server process starts with the first of them, and again if it has died; they survive it.
    """

    def __init__(self, argv: Sequence[str], lifeline: Literal["own", "inherit"]) -> None:
        assert list(argv[:3]) == [sys.executable, "-P", "-m"], argv
        self._argv = tuple(argv)
        self._lifeline: Literal["own", "inherit"] = lifeline
        self._server: subprocess.Popen[bytes] | None = None
        self._unread = b""  # the start of a reply
        self._copies: dict[int, _Copy] = {}  # by number: the copies that have not ended
        self._next_number = 0

    async def spawn(
        self, *, log_path: Path | None = None, ready_timeout_s: float = READY_TIMEOUT_S
    ) -> Child:
        """Works like `process.spawn`."""
        server = self._server or self._start()
        number, self._next_number = self._next_number, self._next_number + 1
        copy = self._copies[number] = _Copy()
        request = {"number": number, "log_path": log_path and os.path.abspath(log_path)}
        assert server.stdin is not None
        with suppress(BrokenPipeError):  # it has just ended, and will be started again
            server.stdin.write(json.dumps(request).encode() + b"\n")
        try:
            await asyncio.wait_for(asyncio.shield(copy.started), ready_timeout_s)
        except BaseException as error:
            copy.unwanted = True
            if isinstance(error, TimeoutError):
                raise StartFailed(f"{_NAME} does not answer") from None
            raise
        child = Child(copy, self._argv, log_path)
        await await_ready(child, copy.announced, ready_timeout_s)
        return child

    def stop(self) -> None:
        """Ends the server. Its processes survive."""
        if self._server is not None:
            self._end_of(self._server)

    def _start(self) -> subprocess.Popen[bytes]:
        lifeline = lifeline_for_children(self._lifeline)
        env = {key: os.environ[key] for key in os.environ if key not in (READY_FD, LOG_FILE)}
        server = self._server = subprocess.Popen(
            module_command(_SERVER, *self._argv[3:]),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**env, LIFELINE_FD: str(lifeline)},
            pass_fds=[lifeline],
            process_group=0,
        )
        assert server.stdout is not None
        asyncio.get_running_loop().add_reader(server.stdout, self._read, server)
        return server

    def _read(self, server: subprocess.Popen[bytes]) -> None:
        assert server.stdout is not None
        content = server.stdout.read(_READ_BYTES)
        if not content:
            self._end_of(server)
            return
        *replies, self._unread = (self._unread + content).split(b"\n")
        for reply in replies:
            self._take(**json.loads(reply))

    def _end_of(self, server: subprocess.Popen[bytes]) -> None:
        assert server.stdin is not None and server.stdout is not None
        asyncio.get_running_loop().remove_reader(server.stdout)
        server.stdin.close()
        server.stdout.close()
        server.wait()
        self._server, self._unread = None, b""
        copies, self._copies = self._copies, {}
        for copy in copies.values():
            copy.lose_server()

    def _take(self, *, number: int, **facts: Any) -> None:
        copy = self._copies.get(number)
        if copy is None:
            return  # the announcement is no longer awaited
        match facts:
            case {"pid": pid}:
                copy.start(pid)
            case {"announced": line}:
                copy.announce(line.encode())
            case {"code": code}:
                copy.end(code)
        if copy.over:
            del self._copies[number]


class _Copy:
    """A copy, for `Child`, with the interface of asyncio's processes."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.pid = 0  # known once started
        self.started: asyncio.Future[None] = loop.create_future()
        self.announced: asyncio.Future[bytes] = loop.create_future()
        self.unwanted = False  # no caller waits for it
        self._ended: asyncio.Future[int] = loop.create_future()
        self._orphaned: asyncio.Task[None] | None = None

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def start(self, pid: int) -> None:
        self.pid = pid
        self.started.set_result(None)
        if self.unwanted:
            self.kill()

    def announce(self, line: bytes) -> None:
        if not self.announced.done():  # it may be done if its caller has left
            self.announced.set_result(line)

    def end(self, code: int) -> None:
        self._ended.set_result(code)

    @property
    def over(self) -> bool:
        """Whether no more replies about it follow."""
        return self.announced.done() and self._ended.done()

    def lose_server(self) -> None:
        """Handles the loss of the server. When the copy ends is still known, but not how."""
        if not self.started.done():
            if not self.unwanted:
                self.started.set_exception(StartFailed(f"{_NAME} has ended"))
            return
        if self.returncode is None:
            self._orphaned = asyncio.create_task(self._await_end(), name=f"orphan {self.pid}")
        if not self.announced.done():
            self.announce(b"")  # its announcement is not read
            self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _await_end(self) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        with suppress(ProcessLookupError):
            process = os.pidfd_open(self.pid)
            loop.add_reader(process, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(process)
                os.close(process)
        self.end(_NOT_KNOWN)
