"""The parent's side of a child process: start it, wait until it is ready, watch it and end it.

The child's side and the two pipes between them are in `firesteel.common.process.lifeline`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from firesteel.common.process.lifeline import LIFELINE_FD, READY_FD, lifeline_for_children
from firesteel.common.process.log_files import LOG_FILE

# The environment of processes that fork others, or whose libraries do: with its handlers, gRPC may
# abort the new process before it executes anything.
WITHOUT_FORK_HANDLERS = {"GRPC_ENABLE_FORK_SUPPORT": "0"}
# For a start on a busy machine. The death of the process ends the wait.
READY_TIMEOUT_S = 180.0


def module_command(module: str, *arguments: str) -> list[str]:
    """Returns the command of a process that runs a module. Files in its current directory, such as
    a program called `queue.py`, do not shadow modules.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


class StartFailed(Exception):
    """A child ended, or was silent for too long, before it was ready. `reason` is the message
    without the command and the end of the log.
    """

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class Started(Protocol):
    """A process with the interface of asyncio's subprocesses."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...


class Child:
    """A started process. `ready` is what it announced; `returncode` is None while it lives."""

    def __init__(self, process: Started, argv: Sequence[str], log_path: Path | None) -> None:
        self._process = process
        self.argv = tuple(argv)
        self.log_path = log_path
        self.ready: dict[str, Any] = {}
        self._group_ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        """Returns the exit code once the process has ended; kills the remains of its group."""
        code = await self._process.wait()
        if not self._group_ended:  # later, another process may have its pid
            self._group_ended = True
            _signal_group(self._process.pid, signal.SIGKILL)
        return code

    def signal(self, number: int) -> None:
        if self._process.returncode is None:
            _signal_group(self._process.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL to the child and its whole process group."""
        self.signal(signal.SIGKILL)

    async def stop(self, grace_s: float = 5.0) -> int:
        """Sends SIGTERM, then SIGKILL after `grace_s`; returns the exit code."""
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
    ready_timeout_s: float = READY_TIMEOUT_S,
    stdin: socket.socket | None = None,
) -> Child:
    """Starts a process in its own group and waits until it has announced that it is ready. Its
    standard input is `stdin`, or empty.

    Raises StartFailed with the command, the exit code and the end of its log.
    """
    with _starting(log_path, env, lifeline_for_children(lifeline)) as start:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=stdin.fileno() if stdin is not None else asyncio.subprocess.DEVNULL,
            stdout=start.log_file,
            stderr=start.log_file,
            cwd=cwd,
            env=start.env,
            pass_fds=start.pass_fds,
            process_group=0,
        )
    child = Child(process, argv, log_path)
    await await_ready(child, _read_line(start.ready_read), ready_timeout_s)
    return child


async def await_ready(child: Child, line: Awaitable[bytes], timeout_s: float) -> None:
    """Returns when the child has announced that it is ready; otherwise kills it.

    `line` is the announcement, empty if the child ends first. Raises StartFailed."""
    try:
        announced = await asyncio.wait_for(line, timeout_s)
        if not announced:
            raise _ended_before_ready(child.argv, await child.wait(), child.log_path)
        child.ready = json.loads(announced)
    except TimeoutError:
        child.kill()
        await child.wait()
        raise _not_ready(child.argv, timeout_s, child.log_path) from None
    except BaseException:
        child.kill()
        await child.wait()  # the loop may end before it has seen the exit by itself
        raise


@dataclass(frozen=True, slots=True)
class BlockingChild:
    """A process started without an event loop. `ready` is its announcement."""

    process: subprocess.Popen[bytes]
    ready: Mapping[str, str]

    def stop(self, grace_s: float = 10.0) -> int:
        """Sends SIGTERM, then SIGKILL after `grace_s`; returns the exit code."""
        return _stop_blocking(self.process, grace_s)


def spawn_blocking(
    argv: Sequence[str],
    *,
    log_path: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    lifeline: int | None = None,
    ready_timeout_s: float = READY_TIMEOUT_S,
) -> BlockingChild:
    """Works like `spawn`, for a caller without an event loop. The process gets its own session.

    `lifeline` is the read end of a pipe whose other end the caller keeps; if None, the process
    outlives its starter.
    """
    with _starting(log_path, env, lifeline) as start, _interrupts_deferred() as interrupted:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=start.log_file,
            stderr=start.log_file,
            cwd=cwd,
            env=start.env,
            pass_fds=start.pass_fds,
            start_new_session=True,  # Ctrl-C in the terminal does not reach it
        )
    try:
        if interrupted:
            raise KeyboardInterrupt
        line = _read_line_blocking(start.ready_read, ready_timeout_s)
        if not line:
            raise _ended_before_ready(argv, process.wait(), log_path)
        return BlockingChild(process, json.loads(line))
    except TimeoutError:
        _stop_blocking(process)
        raise _not_ready(argv, ready_timeout_s, log_path) from None
    except BaseException:
        _stop_blocking(process)
        raise


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[list[int]]:
    """Defers Ctrl-C inside the `with`, and adds it to the list: a process that is being started
    must be known before it can be stopped.
    """
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True, slots=True)
class _Start:
    """The descriptors and the environment that a child inherits."""

    ready_read: int
    pass_fds: tuple[int, ...]
    env: dict[str, str]
    log_file: BinaryIO | None


@contextlib.contextmanager
def _starting(
    log_path: Path | None, env: Mapping[str, str] | None, lifeline: int | None
) -> Iterator[_Start]:
    """Closes at the end what only the child needs, and everything after a failure."""
    child_env = dict(os.environ if env is None else env)
    child_env.pop(LIFELINE_FD, None)
    child_env.pop(LOG_FILE, None)
    ready_read, ready_write = os.pipe()
    pass_fds = (ready_write,) if lifeline is None else (ready_write, lifeline)
    child_env[READY_FD] = str(ready_write)
    if lifeline is not None:
        child_env[LIFELINE_FD] = str(lifeline)
    try:
        with contextlib.ExitStack() as stack:
            log_file = _open_log(log_path, stack) if log_path else None
            if log_file is not None:
                child_env[LOG_FILE] = os.path.abspath(log_file.name)
            yield _Start(ready_read, pass_fds, child_env, log_file)
    except BaseException:
        os.close(ready_read)
        raise
    finally:
        os.close(ready_write)


def _open_log(log_path: Path, stack: contextlib.ExitStack) -> BinaryIO | None:
    """Opens the log; returns None if the disk is full. The child then uses this process's log."""
    try:
        return stack.enter_context(open(log_path, "ab"))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return None


def _stop_blocking(process: subprocess.Popen[bytes], grace_s: float = 10.0) -> int:
    process.terminate()
    try:
        return process.wait(grace_s)
    except subprocess.TimeoutExpired:
        _signal_group(process.pid, signal.SIGKILL)
        return process.wait()


def _ended_before_ready(argv: Sequence[str], code: int, log_path: Path | None) -> StartFailed:
    return StartFailed(
        f"{_shown(argv)} ended with code {code} before it was ready{_and_log(log_path)}",
        reason=exit_reason(code),
    )


def _not_ready(argv: Sequence[str], timeout_s: float, log_path: Path | None) -> StartFailed:
    reason = f"was not ready within {timeout_s:g} s"
    return StartFailed(f"{_shown(argv)} {reason}{_and_log(log_path)}", reason=reason)


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


def _read_line_blocking(fd: int, timeout_s: float) -> bytes:
    """Returns a line, or the text before EOF. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    line = b""
    with os.fdopen(fd, "rb"):
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise TimeoutError
            data = os.read(fd, 65536)
            if not data:
                break
            line += data
    return line


def _shown(argv: Sequence[str]) -> str:
    return " ".join("python" if part == sys.executable else part for part in argv)


def _and_log(log_path: Path | None) -> str:
    if log_path is None:
        return ""
    if tail := log_tail(log_path):
        return f"; the end of {log_path}:\n{tail}"
    with contextlib.suppress(OSError):
        if not shutil.disk_usage(log_path.parent).free:
            return f"; {log_path} has no reason: no space is left in {log_path.parent}"
    return ""


def exit_reason(code: int) -> str:
    """Describes an exit code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"exit code {code} (killed by {signal.Signals(-code).name})"
    except ValueError:  # a real-time signal
        return f"exit code {code} (killed by signal {-code})"


def log_tail(log_path: Path, lines: int = 15) -> str:
    """Returns the last lines of a log, indented; empty if the log is missing."""
    try:
        with open(log_path, "rb") as log_file:
            log_file.seek(max(0, log_file.seek(0, os.SEEK_END) - 200 * lines))
            tail = log_file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in tail)
