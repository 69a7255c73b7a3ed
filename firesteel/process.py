"""Child processes that tell when they are ready, are watched, and never outlive their cluster.

Parent side: `spawn`. Child side: `watch_lifeline` first of all, `announce_ready` when it serves.

Two inherited pipes do this, without polling and without trusting anybody to clean up:

* ready: the child writes one JSON line when it serves (its addresses), then closes it. EOF before that line means it
  failed to start; its log says why.
* lifeline: the parent holds the only write end and never writes. When the parent dies, however it dies, the kernel
  closes it, the child reads EOF and kills its own process group at once.

Masters pass their own lifeline on (`lifeline="inherit"`), so a JobMaster or TaskExecutor ends with the cluster, not
with the Dispatcher or ResourceManager that happened to start it. A slot's process gets its TaskExecutor's own.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

_READY_FD = "FIRESTEEL_READY_FD"
_LIFELINE_FD = "FIRESTEEL_LIFELINE_FD"
_PARENT_PID = "FIRESTEEL_PARENT_PID"  # set where the child's lifeline is held by its direct parent

_own_lifeline: tuple[int, int] | None = None  # (read end for children, write end kept open by this process)


class StartFailed(Exception):
    """A child ended, or stayed silent too long, before it was ready."""


class Child:
    """A started process. `ready` is what it announced; `returncode` is None while it lives."""

    def __init__(self, process: asyncio.subprocess.Process, argv: Sequence[str], log_path: Path | None) -> None:
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
        return await self._process.wait()

    def signal(self, number: int) -> None:
        if self._process.returncode is None:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        """SIGKILL to the child and all of its process group."""
        self.signal(signal.SIGKILL)

    async def stop(self, grace_s: float = 5.0) -> int:
        """SIGTERM, then SIGKILL after `grace_s`; returns the exit code."""
        self.signal(signal.SIGTERM)
        try:
            return await asyncio.wait_for(self._process.wait(), grace_s)
        except TimeoutError:
            self.kill()
            return await self._process.wait()


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
    lifeline_read = _lifeline_for_children(lifeline)
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
                    _READY_FD: str(ready_write),
                    _LIFELINE_FD: str(lifeline_read),
                    _PARENT_PID: str(os.getpid()) if _holds_lifeline(lifeline_read) else "",
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
            raise StartFailed(f"{_shown(argv)} ended with code {code} before it was ready{_log_tail(log_path)}")
        child.ready = json.loads(line)
    except TimeoutError:
        child.kill()
        await child.wait()
        raise StartFailed(f"{_shown(argv)} was not ready within {ready_timeout_s:g} s{_log_tail(log_path)}") from None
    except BaseException:
        child.kill()
        raise
    return child


def announce_ready(**facts: Any) -> None:
    """Tells the parent, if one waits, that this process serves; `facts` are its addresses and the like."""
    fd = os.environ.pop(_READY_FD, None)
    if fd is not None:
        with os.fdopen(int(fd), "w") as pipe:
            pipe.write(json.dumps(facts) + "\n")


def watch_lifeline() -> None:
    """Ends this process, and its process group, when whoever holds the lifeline dies. Call it first in `main`."""
    fd = os.environ.get(_LIFELINE_FD)
    if fd is None:
        return
    os.set_inheritable(int(fd), False)
    if parent := os.environ.get(_PARENT_PID):
        _die_with_parent(int(parent))
    threading.Thread(target=_die_with, args=(int(fd),), name="lifeline", daemon=True).start()


def _die_with_parent(parent: int) -> None:
    """Asks the kernel for SIGKILL when the parent dies: works even while native code holds the interpreter."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def _die_with(fd: int) -> None:
    while os.read(fd, 1):
        pass
    if os.getpgrp() == os.getpid():  # a group of our own: helpers such as a JVM go with us
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _lifeline_for_children(kind: Literal["own", "inherit"]) -> int:
    inherited = os.environ.get(_LIFELINE_FD)
    if kind == "inherit" and inherited is not None:
        return int(inherited)
    global _own_lifeline
    if _own_lifeline is None:
        _own_lifeline = os.pipe()
    return _own_lifeline[0]


def _holds_lifeline(read_end: int) -> bool:
    return _own_lifeline is not None and _own_lifeline[0] == read_end


async def _read_line(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb"))
    try:
        return await reader.readline()
    finally:
        transport.close()


def _shown(argv: Sequence[str]) -> str:
    return " ".join("python" if part == sys.executable else part for part in argv)


def _log_tail(log_path: Path | None, lines: int = 15) -> str:
    if log_path is None or not log_path.exists():
        return ""
    tail = log_path.read_text(errors="replace").splitlines()[-lines:]
    return f"; the end of {log_path}:\n  " + "\n  ".join(tail)
