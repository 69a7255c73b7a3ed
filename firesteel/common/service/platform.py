"""The interface between a service and its machine: a network, a clock and processes.

Shells take a `Platform` as an argument and reach the outside world only through it. So the
simulation runs the real shells: on virtual time, over an in-memory transport, with processes that
it can kill, pause and resume. Sleeping, waiting and threads (`asyncio.to_thread`,
`loop.run_in_executor`) go through asyncio, whose event loop the simulation replaces.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from firesteel.common.process import READY_TIMEOUT_S, Child, spawn
from firesteel.common.process.forked import ForkServer
from firesteel.common.rpc.bearer import carry_token
from firesteel.common.rpc.server import aio_channel, bind, bind_unix, new_server, refuses

if TYPE_CHECKING:
    from firesteel.common.security.security import Security


class Clock(Protocol):
    def monotonic(self) -> float:
        """Returns seconds for deadlines, equal to the running event loop's `time()`."""

    def time(self) -> float:
        """Returns seconds since 1970, which may jump. For display, never for deadlines."""


class Transport(Protocol):
    def channel(self, address: str) -> grpc.aio.Channel:
        """Returns a channel to host:port, for generated stubs."""

    async def refuses(self, address: str) -> bool:
        """Whether nothing listens there, as its machine reports; see
        firesteel.common.rpc.server.
        """

    def server(self, services: Sequence[ServiceDescriptor]) -> grpc.aio.Server:
        """Returns an unstarted server that answers health checks and reflection for `services`."""

    def bind(self, server: grpc.aio.Server, host: str, port: int) -> str:
        """Binds (port 0: any free one); returns host:port. Raises AddressTaken."""

    def bind_unix(self, server: grpc.aio.Server, path: Path) -> str:
        """Binds to a Unix socket in its own folder, which only this user can access."""


class Process(Protocol):
    """A started process; see firesteel.common.process.Child."""

    ready: dict[str, Any]

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def signal(self, number: int) -> None: ...

    def kill(self) -> None: ...

    async def stop(self, grace_s: float = 5.0) -> int: ...


class Processes(Protocol):
    @property
    def pid(self) -> int:
        """The id of this process."""

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        log_path: Path | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        lifeline: Literal["own", "inherit"] = "own",
        ready_timeout_s: float = READY_TIMEOUT_S,
    ) -> Process:
        """Starts a process; returns when it has announced that it is ready. Raises StartFailed."""

    def kill(self, pid: int) -> None:
        """Sends SIGKILL to a process that another one started; does nothing if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    clock: Clock
    transport: Transport
    processes: Processes
    security: Security | None = None  # of this process; None: disabled


class _SystemClock:
    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)


class GrpcTransport:
    """The machine's network. With `security`, servers authenticate their callers, and channels
    carry the token of this process.
    """

    refuses = staticmethod(refuses)
    bind_unix = staticmethod(bind_unix)

    def __init__(self, security: Security | None = None) -> None:
        self._security = security

    def channel(self, address: str) -> grpc.aio.Channel:
        if self._security is None:
            return aio_channel(address)
        channel = aio_channel(address, self._security.channel_credentials())
        if self._security.carries_tokens:
            carry_token(channel, self._security.token)
        return channel

    def server(self, services: Sequence[ServiceDescriptor]) -> grpc.aio.Server:
        security = self._security
        if security is None:
            return new_server(services)
        from firesteel.common.rpc.authentication import Authentication

        checks = Authentication(
            security.verifier,
            audit=lambda call: security.audit(call),
            owner_of=lambda job_id: security.owner_of(job_id),
            limits=security.limits,
        )
        return new_server(services, authentication=checks)

    def bind(self, server: grpc.aio.Server, host: str, port: int) -> str:
        credentials = self._security.server_credentials() if self._security else None
        return bind(server, host, port, credentials)


class _SystemProcesses:
    spawn = staticmethod(spawn)

    @property
    def pid(self) -> int:
        return os.getpid()

    def kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


class ForkedProcesses(_SystemProcesses):
    """Starts one command many times, `python -m MODULE ...`, for a service: the processes are
    copies of one that has imported all of it.
    """

    def __init__(self) -> None:
        self._servers: dict[tuple[tuple[str, ...], str], ForkServer] = {}

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        log_path: Path | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        lifeline: Literal["own", "inherit"] = "own",
        ready_timeout_s: float = READY_TIMEOUT_S,
        stdin: socket.socket | None = None,
    ) -> Child:
        assert env is None and cwd is None and stdin is None, "they are those of this process"
        key = tuple(argv), lifeline
        if key not in self._servers:
            self._servers[key] = ForkServer(argv, lifeline)
        return await self._servers[key].spawn(log_path=log_path, ready_timeout_s=ready_timeout_s)


SYSTEM = Platform(clock=_SystemClock(), transport=GrpcTransport(), processes=_SystemProcesses())
