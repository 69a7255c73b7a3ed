"""gRPC servers with health checks and reflection, and channels to them.

A call that ends with an unexpected exception gets a status like that of every other refusal. gRPC
itself would answer with UNKNOWN and the text of the exception, or not at all if that text is not
valid UTF-8.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_reflection.v1alpha import reflection

from firesteel.common.logs import get_logger
from firesteel.common.rpc.bearer import CALL_KINDS
from firesteel.common.rpc.errors import MAX_MESSAGE_BYTES
from firesteel.common.rpc.status import Reason, abort
from firesteel.errors import FiresteelError
from firesteel.text import text_of

if TYPE_CHECKING:
    from firesteel.common.rpc.authentication import Authentication

log = get_logger(__name__)

CONNECT_TIMEOUT_MS = 10_000
MAX_CALLS = 1_000  # at a time, on one connection
PORT_CLOSES_S = 0.05  # after the last connection of a process that dies
_REFUSED_WITHIN_S = 1.0

_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a second server on a taken port is an error, not a silent share
    # HTTP/2 pings find a dead peer, in addition to our own heartbeats.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Clients that connect and say nothing are cut, and the calls of one connection are limited.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_concurrent_streams", MAX_CALLS),
]


def new_server(
    services: Sequence[ServiceDescriptor], *, authentication: Authentication | None = None
) -> grpc.aio.Server:
    """An unstarted server that answers health checks and reflection for `services`. Without
    `authentication`, it answers every caller.

    The caller adds the servicers.
    """
    wrappers = [_with_unexpected_errors]
    if authentication is not None:
        wrappers.append(authentication.checking)
    server = grpc.aio.server(options=_OPTIONS, interceptors=[_WrappedHandlers(wrappers)])
    names = [service.full_name for service in services]
    _add_health(server, names)
    reflection.enable_server_reflection([*names, HEALTH, reflection.SERVICE_NAME], server)
    return server


def health_server() -> grpc.aio.Server:
    """An unstarted server that answers health checks of the whole process, and nothing else."""
    server = grpc.aio.server(options=_OPTIONS)
    _add_health(server)
    return server


def _add_health(server: grpc.aio.Server, services: Sequence[str] = ()) -> None:
    checker = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checker, server)
    for name in ["", *services]:
        checker._server_status[name] = health_pb2.HealthCheckResponse.SERVING


class AddressTaken(FiresteelError):
    """The port is in use by another process."""


def bind(
    server: grpc.aio.Server,
    host: str,
    port: int,
    credentials: grpc.ServerCredentials | None = None,
) -> str:
    """Binds to a port (0: any free one); returns host:port. With `credentials`, the port speaks
    TLS. Raises AddressTaken with the reason.
    """
    if not 0 <= port <= 65535:
        raise AddressTaken(f"cannot listen on {host}:{port}: ports are 0 to 65535")
    try:
        # gRPC's own error is two lines of C++ without the reason; a plain socket has it.
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, target = addresses[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except OSError as error:
        raise AddressTaken(f"cannot listen on {host}:{port}: {error.strerror}") from error
    try:
        if credentials is None:
            bound = server.add_insecure_port(f"{host}:{port}")
        else:
            bound = server.add_secure_port(f"{host}:{port}", credentials)
    except RuntimeError as error:
        raise AddressTaken(f"cannot listen on {host}:{port}: {error}") from error
    if bound == 0:
        raise AddressTaken(
            f"cannot listen on {host}:{port}: it is in use or not an address of this machine"
        )
    return f"{host}:{bound}"


def bind_unix(server: grpc.aio.Server, path: Path) -> str:
    """Binds to a Unix socket in a folder that only this user can open; returns unix:<path>."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    path.unlink(missing_ok=True)  # left by a process that was killed
    address = f"unix:{path}"
    server.add_insecure_port(address)
    path.chmod(0o600)
    return address


def aio_channel(
    address: str, credentials: grpc.ChannelCredentials | None = None
) -> grpc.aio.Channel:
    """Returns a channel to host:port; with `credentials`, over TLS."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=_channel_options())
    return grpc.aio.secure_channel(address, credentials, options=_channel_options())


async def refuses(address: str) -> bool:
    """Whether the machine answers that nothing listens there: then the process that did has ended,
    if it never listens anew. Nothing is known while nobody answers.
    """
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_REFUSED_WITHIN_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except OSError:  # also TimeoutError
        return False
    writer.close()
    return False


def channel(
    address: str, credentials: grpc.ChannelCredentials | None = None, *, server_name: str = ""
) -> grpc.Channel:
    """As `aio_channel`, for threads. `server_name` is that of the server's certificate, if it is
    reached at another address.
    """
    options = _channel_options()
    if credentials is None:
        return grpc.insecure_channel(address, options=options)
    named = [("grpc.ssl_target_name_override", server_name)] if server_name else []
    return grpc.secure_channel(address, credentials, options=[*options, *named])


def _channel_options() -> list[tuple[str, int]]:
    # Reconnect eagerly: a restarted master is back within a second, a standby in less.
    return [o for o in _OPTIONS if "so_reuseport" not in o[0]] + [
        ("grpc.initial_reconnect_backoff_ms", 100),
        # For how long a peer may be silent when it is connected to: on a busy machine, it may be.
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
        ("grpc.max_reconnect_backoff_ms", 250),
        # Channels would otherwise share a connection to one address, and a new one would report the
        # failure of an attempt of an earlier one.
        ("grpc.use_local_subchannel_pool", 1),
        # A name may change its address when another master leads; gRPC would ask after 30 s.
        ("grpc.dns_min_time_between_resolutions_ms", 100),
    ]


class _WrappedHandlers(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Wraps the handler of each method once, by functions of a handler and the method's name. The
    first function's wrapper is the innermost.
    """

    def __init__(self, wrappers: Sequence[Callable[[Any, str], Any]]) -> None:
        self._wrappers = wrappers
        self._handlers: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        name = str(handler_call_details.method)  # type: ignore[attr-defined]
        handler = self._handlers.get(name)
        if handler is None:
            handler = await continuation(handler_call_details)
            if handler is None:  # unknown method
                return None
            for wrap in self._wrappers:
                handler = wrap(handler, name)
            self._handlers[name] = handler
        return handler


def _with_unexpected_errors(handler: Any, name: str) -> Any:
    """Returns a handler that logs exceptions of the servicer, and ends their calls with
    INTERNAL_ERROR.
    """
    wrapped = {kind: _wrapped(getattr(handler, kind), name) for kind in CALL_KINDS}
    return handler._replace(**wrapped)


def _wrapped(method: Any, name: str) -> Any:
    if method is None:  # the handler is of another kind
        return None
    if inspect.isasyncgenfunction(method):

        async def streaming(request: Any, context: Any) -> AsyncIterator[Any]:
            async with contextlib.aclosing(method(request, context)) as answers:
                try:
                    async for answer in answers:
                        yield answer
                except Exception as error:
                    await _end(context, name, error)

        return streaming

    async def plain(request: Any, context: Any) -> Any:
        try:
            return await method(request, context)
        except Exception as error:
            await _end(context, name, error)

    return plain


async def _end(context: Any, name: str, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    log.error("a call failed unexpectedly", method=name, exc_info=error)
    message = f"{name.rpartition('/')[2]} failed: {type(error).__name__}: {text_of(error)}"
    await abort(context, Reason.INTERNAL_ERROR, message)
