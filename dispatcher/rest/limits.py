"""The limits of the REST server: requests per second and at a time, and connections.

    connection: closed if it is idle for too long, or if it is idle longest when there are too many
      request: refused with 429 if its address or its caller has made too many
        authentication that fails: 429 if it has failed too often from this address
        body and answer: the connection is cut if the client is too slow

A caller is the bearer of one token. A valid token is accepted however often others at the same
address have failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from dispatcher.rest.requests import Handler
from firesteel.common.config import Configuration, options
from firesteel.common.logs import get_logger
from firesteel.common.security.limits import FAILURES_AT_ONCE, Rates

log = get_logger(__name__)

SLOWEST_BYTES_PER_S = 1_000  # of a request's body
TLS_HANDSHAKE_S = 10.0
BACKLOG = 1_024  # connections that the system accepts before this process does
_MAX_CONNECTIONS = 10_000
_OTHER_FILES = 200  # that this process keeps open


@dataclass(slots=True, kw_only=True)
class _Crowd:
    """The connections of one address, or all of them. `idle` has those that answer no request, the
    longest idle first.
    """

    count: int = 0
    idle: dict[_Connection, None] = field(default_factory=dict)


class Limits:
    """Guards one server. `serve` limits its connections, and `guard` its requests."""

    def __init__(
        self, conf: Configuration | None = None, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        conf = conf or Configuration()
        per_s = conf.get(options.REST_REQUEST_RATE)
        failures_per_s = conf.get(options.REST_FAILURE_RATE)
        self._now_s = now_s
        self._by_address = Rates(per_s, 2 * per_s)
        self._by_caller = Rates(per_s, 2 * per_s)
        self._failures = Rates(failures_per_s, FAILURES_AT_ONCE * failures_per_s)
        self._at_a_time = conf.get(options.REST_CONCURRENT_REQUESTS)
        self._answering: Counter[str] = Counter()
        self._timeout_s = conf.get(options.REST_READ_TIMEOUT)
        self._per_address = conf.get(options.REST_CONNECTIONS)
        self._total = _MAX_CONNECTIONS
        self._all = _Crowd()
        self._crowds: dict[str, _Crowd] = {}
        self._connections: dict[Any, _Connection] = {}  # by transport
        self._sweeping: asyncio.Task[None] | None = None

    # ---- connections

    async def serve(
        self, runner: web.AppRunner, listener: socket.socket, context: ssl.SSLContext | None
    ) -> asyncio.Server:
        """Serves the application's connections from now on."""
        self._total = min(_MAX_CONNECTIONS, _raised_file_limit() - _OTHER_FILES)
        inner: Callable[[], asyncio.Protocol] = runner.server  # type: ignore[assignment]
        server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(inner(), self),
            sock=listener,
            ssl=context,
            ssl_handshake_timeout=TLS_HANDSHAKE_S if context else None,
            backlog=BACKLOG,
        )
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep(), name="rest-limits")
        return server

    def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()

    def opened(self, connection: _Connection) -> None:
        crowd = self._crowds.get(connection.address, _Crowd())
        for crowded, limit in ((crowd, self._per_address), (self._all, self._total)):
            if crowded.count >= limit:
                next(iter(crowded.idle), connection).cut()
        if connection.transport.is_closing():
            return
        self._crowds[connection.address] = crowd
        self._connections[connection.transport] = connection
        for joined in (crowd, self._all):
            joined.count += 1
            joined.idle[connection] = None

    def closed(self, connection: _Connection) -> None:
        if self._connections.pop(connection.transport, None) is None:
            return
        crowd = self._crowds[connection.address]
        for left in (crowd, self._all):
            left.count -= 1
            left.idle.pop(connection, None)
        if not crowd.count:
            del self._crowds[connection.address]

    @contextlib.contextmanager
    def _busy(self, request: web.Request) -> Iterator[None]:
        connection = self._connections.get(request.transport)
        if connection is None:  # of a test
            yield
            return
        crowds = (self._crowds[connection.address], self._all)
        for crowd in crowds:
            crowd.idle.pop(connection, None)
        connection.begin(request, self._now_s())
        try:
            yield
        finally:
            connection.end(self._now_s())
            if connection.transport in self._connections:
                for crowd in crowds:
                    crowd.idle[connection] = None

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._timeout_s / 4)
            self.sweep()

    def sweep(self) -> None:
        """Cuts the connections of clients that are too slow."""
        now_s = self._now_s()
        for connection in list(self._connections.values()):
            if connection.is_too_slow(now_s, self._timeout_s):
                connection.cut()

    def now_s(self) -> float:
        return self._now_s()

    # ---- requests

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses requests over the limits. The first middleware."""
        address = request.remote or ""
        caller = request.headers.get("Authorization") or request.headers.get("Cookie") or ""
        now_s = self._now_s()
        for rates, key, whose in (
            (self._by_address, address, f"from {address}"),
            (self._by_caller, caller, "with this token"),
        ):
            if key and (wait_s := rates.take(key, now_s)):
                return _too_many(
                    f"too many requests {whose} ({options.REST_REQUEST_RATE.key})", wait_s
                )
        if self._answering[caller] >= self._at_a_time:
            return _too_many(
                f"{self._at_a_time} requests with this token are being answered"
                f" ({options.REST_CONCURRENT_REQUESTS.key})",
                1.0,
            )
        self._answering[caller] += 1
        try:
            with self._busy(request):
                answer = await handler(request)
        finally:
            self._answering[caller] -= 1
            if not self._answering[caller]:
                del self._answering[caller]
        if answer.status == 401 and (wait_s := self._failures.take(address, self._now_s())):
            return _too_many(
                f"too many requests from {address} without a valid token"
                f" ({options.REST_FAILURE_RATE.key})",
                wait_s,
            )
        return answer


class _Connection(asyncio.Protocol):
    """Passes everything on to the protocol of the server."""

    def __init__(self, inner: asyncio.Protocol, limits: Limits) -> None:
        self.transport: Any = None
        self.address = ""
        self._inner = inner
        self._limits = limits
        self._request: web.Request | None = None  # that is being answered
        self._since_s = limits.now_s()  # when it became idle, or the request started
        self._received_bytes = 0  # since then
        self._blocked_since_s: float | None = None  # the client does not read

    def begin(self, request: web.Request, now_s: float) -> None:
        self._request, self._since_s, self._received_bytes = request, now_s, 0

    def end(self, now_s: float) -> None:
        self._request, self._since_s = None, now_s

    def is_too_slow(self, now_s: float, timeout_s: float) -> bool:
        if self._blocked_since_s is not None:
            return now_s - self._blocked_since_s > timeout_s
        elapsed_s = now_s - self._since_s
        if elapsed_s <= timeout_s:
            return False
        if self._request is None:
            return True
        arrives = not self._request.content.is_eof()
        return arrives and self._received_bytes < elapsed_s * SLOWEST_BYTES_PER_S

    def cut(self) -> None:
        self._limits.closed(self)  # the transport reports it later
        self.transport.abort()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        self._limits.opened(self)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._blocked_since_s = self._limits.now_s()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._blocked_since_s = None
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._limits.closed(self)
        self._inner.connection_lost(error)


def _too_many(message: str, wait_s: float) -> web.Response:
    seconds = max(1, math.ceil(wait_s))
    return web.json_response(
        {"errors": [f"{message}; try again in {seconds} s"]},
        status=429,
        headers={"Retry-After": str(seconds)},
    )


def _raised_file_limit() -> int:
    """Lets this process have as many open files as it may; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_CONNECTIONS + _OTHER_FILES
    if soft < wanted:
        soft = min(wanted, hard) if hard != resource.RLIM_INFINITY else wanted
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
