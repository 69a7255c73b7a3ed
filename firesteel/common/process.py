"""Child processes that tell when they are ready, are watched, and never outlive their cluster.

Parent side: `spawn`. Child side: `watch_lifeline` first of all, `announce_ready` when it serves.

Two inherited pipes do this, without polling and without trusting anybody to clean up:

* ready: the child writes one JSON line when it serves (its addresses), then closes it. EOF before
  that line means it failed to start; its log says why.
* lifeline: the parent holds the only write end and never writes. When the parent dies, however it
  dies, the kernel closes it; the child's whole process group is then killed: a JVM and other
  helpers go with it. The reader is a shell in that group, a megabyte that needs nothing of the
  child, whose native code may hold the interpreter. It does the same when the child itself dies.
  (Not PR_SET_PDEATHSIG: it ends the child alone, orphans its helpers, and fires when the parent's
  *thread* ends.)

Masters pass their own lifeline on (`lifeline="inherit"`), so a JobMaster or TaskExecutor ends with
the cluster, not with the Dispatcher or ResourceManager that happened to start it. A slot's process
gets its TaskExecutor's own.
"""

from __future__ import annotations

import asyncio
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

_own_lifeline: tuple[int, int] | None = (
    None  # (read end for children, write end kept open by this process)
)
_alive: int | None = (
    None  # never written, closed by the kernel when this process ends: its group killer reads EOF
)


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


def announce_ready(**facts: Any) -> None:
    """Tells the parent, if one waits, that this process serves; `facts` are its addresses and the
    like.
    """
    fd = os.environ.pop(_READY_FD, None)
    if fd is not None:
        with os.fdopen(int(fd), "w") as pipe:
            pipe.write(json.dumps(facts) + "\n")


def watch_lifeline() -> None:
    """Ends this process, and its process group, when whoever holds the lifeline dies. Call it first
    in `main`.
    """
    if ready := os.environ.get(_READY_FD):
        os.set_inheritable(
            int(ready), False
        )  # a helper that held it would hide our death from who waits for it
    fd = os.environ.get(_LIFELINE_FD)
    if fd is None:
        return
    os.set_inheritable(int(fd), False)
    if os.getpgrp() == os.getpid():  # a group of our own
        _start_group_killer(int(fd))
    threading.Thread(target=_die_with, args=(int(fd),), name="lifeline", daemon=True).start()


def _start_group_killer(lifeline: int) -> None:
    """A shell in our group that ends it when the lifeline or this process does; deaf to a polite
    end of the group.
    """
    global _alive
    alive_read, _alive = os.pipe()
    os.posix_spawn(
        "/bin/sh",
        [
            "sh",
            "-c",
            "trap '' HUP INT TERM; (read -r _ <&3; kill -KILL 0) & read -r _; kill -KILL 0",
        ],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, lifeline, 0),
            (os.POSIX_SPAWN_DUP2, alive_read, 3),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )
    os.close(alive_read)


def _die_with(fd: int) -> None:
    while os.read(fd, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass


def _lifeline_for_children(kind: Literal["own", "inherit"]) -> int:
    inherited = os.environ.get(_LIFELINE_FD)
    if kind == "inherit" and inherited is not None:
        return int(inherited)
    global _own_lifeline
    if _own_lifeline is None:
        _own_lifeline = os.pipe()
    return _own_lifeline[0]


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


def exit_reason(code: int) -> str:
    """For people: what an exit code means."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"exit code {code} (killed by {signal.Signals(-code).name})"
    except ValueError:  # a real-time signal
        return f"exit code {code} (killed by signal {-code})"


def log_tail(log_path: Path, lines: int = 15) -> str:
    """The last lines of a log, indented; empty if there is none."""
    try:
        with open(log_path, "rb") as log_file:
            log_file.seek(max(0, log_file.seek(0, os.SEEK_END) - 200 * lines))
            tail = log_file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in tail)


def _and_log(log_path: Path | None) -> str:
    tail = log_tail(log_path) if log_path is not None else ""
    return f"; the end of {log_path}:\n{tail}" if tail else ""
