"""The parent's side of a child process: start it, wait until it is ready, watch it, end it.

The child's side and the two pipes between them are in `firesteel.common.process.lifeline`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from firesteel.common.process.exits import log_tail
from firesteel.common.process.lifeline import LIFELINE_FD, READY_FD, lifeline_for_children


class StartFailed(Exception):
    """A child ended, or stayed silent too long, before it was ready."""


class Child:
    """A started process. `ready` is what it announced; `returncode` is None while it lives."""

    def __init__(
        self, process: asyncio.subprocess.Process, argv: Sequence[str], log_path: Path | None
    ) -> None:
        self._process = process
        self.argv = tuple(argv)
        self.log_path = log_path
        self.ready: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        """The exit code, once the process has ended; what it left behind in its group is killed."""
        code = await self._process.wait()
        _signal_group(self._process.pid, signal.SIGKILL)
        return code

    def signal(self, number: int) -> None:
        if self._process.returncode is None:
            _signal_group(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL to the child and all of its process group."""
        self.signal(signal.SIGKILL)

    async def stop(self, grace_s: float = 5.0) -> int:
        """SIGTERM, then SIGKILL after `grace_s`; returns the exit code."""
        self.signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self.wait(), grace_s)
        except TimeoutError:
            self.kill()
            return await self.wait()


async def spawn(
    argv: Sequence[str],
    *,
    log_path: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    lifeline: Literal["own", "inherit"] = "own",
    ready_timeout_s: float = 60.0,
) -> Child:
    """Starts a process in a group of its own and waits until it has announced that it is ready.

    Raises StartFailed, naming the command, the exit code and the end of its log.
    """
    ready_read, ready_write = os.pipe()
    lifeline_read = lifeline_for_children(lifeline)
    try:
        log_file = open(log_path, "ab") if log_path else None  # noqa: SIM115 - closed below, the child has its own
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                cwd=cwd,
                env={
                    **(os.environ if env is None else env),
                    READY_FD: str(ready_write),
                    LIFELINE_FD: str(lifeline_read),
                },
                pass_fds=(ready_write, lifeline_read),
                process_group=0,
            )
        finally:
            if log_file:
                log_file.close()
    except BaseException:
        os.close(ready_read)
        raise
    finally:
        os.close(ready_write)
    child = Child(process, argv, log_path)
    try:
        line = await asyncio.wait_for(_read_line(ready_read), ready_timeout_s)
        if not line:
            code = await child.wait()
            raise StartFailed(
                f"{_shown(argv)} ended with code {code} before it was ready{_and_log(log_path)}"
            )
        child.ready = json.loads(line)
    except TimeoutError:
        child.kill()
        await child.wait()
        raise StartFailed(
            f"{_shown(argv)} was not ready within {ready_timeout_s:g} s{_and_log(log_path)}"
        ) from None
    except BaseException:
        child.kill()
        raise
    return child


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass


async def _read_line(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb")
    )
    try:
        return await reader.readline()
    finally:
        transport.close()


def _shown(argv: Sequence[str]) -> str:
    return " ".join("python" if part == sys.executable else part for part in argv)


def _and_log(log_path: Path | None) -> str:
    tail = log_tail(log_path) if log_path is not None else ""
    return f"; the end of {log_path}:\n{tail}" if tail else ""
