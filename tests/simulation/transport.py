"""gRPC without sockets: channels and servers that the generated stubs and servicers accept.

Calls behave as over HTTP/2: all calls of a channel share one connection, whose messages arrive in
order, late, and are lost only when it breaks. A connection is closed by its client, broken by the
network (both ends notice; what was under way is lost), closed by the death of a process (what it
had sent still arrives), or blocked: nothing passes, and after a while the keepalive pings of the
ends that live find out.

Messages cross as bytes, so no object is shared between processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from firesteel.common.rpc.server import AddressTaken
from tests.simulation.loop import CURRENT, ProcessState, VirtualLoop

KEEPALIVE_S = (10.0, 20.0)  # until a connection on which nothing passes is found to be broken
LOCAL_DELAY_S = (0.0001, 0.003)  # on a Unix socket
RECONNECT_S = (0.1, 1.0)  # first and longest pause of a channel that cannot connect
EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]

CLIENT, SERVER = 0, 1  # the ends of a connection


class Network:
    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self.loop = loop
        self.slowness = 1.0
        self.listeners: dict[str, Server] = {}
        self.silent: set[str] = set()  # addresses on machines that are gone
        self.connections: list[Connection] = []
        self.traps: list[
            str
        ] = []  # kinds of messages; the next of each is lost, and its connection
        self.on_trap: Callable[[str, Connection], None] = lambda kind, connection: None
        self._chance = chance
        self._ports = itertools.count(20_001)
        self._cuts: list[tuple[ProcessState, ProcessState]] = []

    def transport(self) -> Transport:
        """For the process that is running."""
        return Transport(self)

    def delay_s(self) -> float:
        """Mostly short; now and then one message is much later than the others."""
        chance = self._chance
        return self.slowness * (
            chance.uniform(0.0002, 0.003) if chance.random() < 0.97 else chance.uniform(0.003, 0.3)
        )

    def between(self, least: float, most: float) -> float:
        return self._chance.uniform(least, most)

    def next_port(self) -> int:
        return next(self._ports)

    def open_connections(self) -> list[Connection]:
        self.connections = [c for c in self.connections if c.is_open[CLIENT] or c.is_open[SERVER]]
        return [c for c in self.connections if c.is_open[CLIENT] and c.is_open[SERVER]]

    # ---- faults

    def cut(self, one: ProcessState, other: ProcessState, for_s: float) -> None:
        """Nothing passes between the two for a while; then TCP sends what it has kept."""
        pair = (one, other)
        self._cuts.append(pair)
        between = [c for c in self.open_connections() if set(c.processes) == {one, other}]
        for connection in between:
            connection.block()

        def heal() -> None:
            self._cuts.remove(pair)
            for connection in between:
                connection.unblock()

        self.loop.call_later(for_s, heal)

    def is_cut(self, one: ProcessState, other: ProcessState) -> bool:
        return any({one, other} == set(pair) for pair in self._cuts)

    def died(self, process: ProcessState, *, silently: bool) -> None:
        """`silently`: with its machine, so no operating system closes its connections."""
        for address in [a for a, server in self.listeners.items() if server.process is process]:
            del self.listeners[address]
            if silently:
                self.silent.add(address)
        for connection in self.connections:
            for end in (CLIENT, SERVER):
                if connection.processes[end] is process and connection.is_open[end]:
                    connection.is_open[end] = False
                    if silently:
                        connection.block(for_good=True)
                    else:
                        connection.carry(1 - end, connection.lose, 1 - end, "Socket closed")

    def paused(self, process: ProcessState) -> None:
        """Leaves the pings of the process's peers unanswered."""
        for connection in self.open_connections():
            if process in connection.processes:
                end = 1 - connection.processes.index(process)
                self.loop.call_later(
                    self.between(*KEEPALIVE_S), connection.ping_unanswered, end, process
                )


class Connection:
    """Between a channel (its CLIENT end) and a server (its SERVER end)."""

    def __init__(self, network: Network, channel: Channel, server: Server) -> None:
        self.network = network
        self.channel = channel
        self.server = server
        self.processes = (channel.process, server.process)
        self.is_open = [True, True]
        self.client_calls: dict[int, ClientCall] = {}
        self.server_calls: dict[int, ServerCall] = {}
        self.local = channel.address.startswith("unix:")  # quick, and loses nothing
        self.blocked = False
        self._for_good = False
        self._broken = False
        self._waiting: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = []  # while blocked
        self._last_arrival = [0.0, 0.0]

    def __str__(self) -> str:
        return f"{self.processes[CLIENT].name} to {self.processes[SERVER].name}"

    def carry(self, to: int, deliver: Callable[..., None], *args: Any) -> None:
        """Calls `deliver` at the other end, in its process."""
        if self._broken:
            return
        if self.blocked:
            self._waiting.append((to, deliver, args))
            return
        loop = self.network.loop
        delay_s = self.network.between(*LOCAL_DELAY_S) if self.local else self.network.delay_s()
        when = max(self._last_arrival[to], loop.time() + delay_s)
        self._last_arrival[to] = when
        loop.deliver_at(when, self.processes[to], self._arrive, to, deliver, args)

    def _arrive(self, to: int, deliver: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._broken or not self.is_open[to]:
            return
        if self.blocked:
            self._waiting.append((to, deliver, args))
        else:
            deliver(*args)

    def send(self, to: int, call: int, kind: str, data: Any, look: Callable[[], str]) -> None:
        """One frame of a call. `look` names the message, for traps."""
        traps = self.network.traps
        if traps and not self.local and (name := look()) in traps:
            traps.remove(name)
            self.network.on_trap(name, self)
            self.break_()
        elif to == SERVER:
            self.carry(SERVER, self._at_server, call, kind, data)
        else:
            self.carry(CLIENT, self._at_client, call, kind, data)

    def _at_server(self, number: int, kind: str, data: Any) -> None:
        if kind == "start":
            self.server_calls[number] = ServerCall(self, number, *data)
        elif (call := self.server_calls.get(number)) is not None:
            call.receive(kind, data)

    def _at_client(self, number: int, kind: str, data: Any) -> None:
        if (call := self.client_calls.get(number)) is not None:
            call.receive(kind, data)

    def close(self, end: int) -> None:
        """By this end, in order: what was sent before still arrives."""
        if self.is_open[end]:
            self.is_open[end] = False
            self.carry(1 - end, self.lose, 1 - end, "Socket closed")

    def break_(self) -> None:
        """Breaks the connection as a network does: messages in flight are lost, and each end
        notices in its own time.
        """
        if self._broken:
            return
        self._broken = True
        for end in (CLIENT, SERVER):
            when = self.network.loop.time() + self.network.between(0.0, 0.5)
            self.network.loop.deliver_at(
                when, self.processes[end], self.lose, end, "Connection reset by peer"
            )

    def block(self, *, for_good: bool = False) -> None:
        """Nothing passes any more. `for_good`: also if something unblocks it."""
        if self._for_good or (self.blocked and not for_good):
            return
        self.blocked, self._for_good = True, for_good
        for end in (CLIENT, SERVER):
            self.network.loop.call_later(
                self.network.between(*KEEPALIVE_S), self.ping_unanswered, end, None
            )

    def unblock(self) -> None:
        if self._for_good:
            return
        self.blocked = False
        waiting, self._waiting = self._waiting, []
        for to, deliver, args in waiting:
            self.carry(to, deliver, *args)

    def ping_unanswered(self, end: int, paused: ProcessState | None) -> None:
        """At one end, the keepalive timeout has passed since the other was paused, or nothing
        could pass.
        """
        silent = self.blocked if paused is None else paused.paused
        process = self.processes[end]
        if silent and self.is_open[end] and process.alive:
            loop = self.network.loop
            loop.deliver_at(loop.time(), process, self._give_up, end)  # once it is not paused

    def _give_up(self, end: int) -> None:
        if self.is_open[end]:
            self.lose(end, "keepalive watchdog timeout")
            # The other end finds it when it is resumed, or when something passes again.
            self.carry(1 - end, self.lose, 1 - end, "Socket closed")

    def lose(self, end: int, why: str) -> None:
        """This end learns that the connection is gone."""
        if not self.is_open[end]:
            return
        self.is_open[end] = False
        if end == CLIENT:
            self.channel.lost(self)
            for client_call in list(self.client_calls.values()):
                client_call.finish(grpc.StatusCode.UNAVAILABLE, why)
        else:
            for server_call in list(self.server_calls.values()):
                server_call.peer_gone()


class Transport:
    """`firesteel.common.service.platform.Transport`."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def channel(self, address: str) -> Any:
        return Channel(self._network, address)

    async def refuses(self, address: str) -> bool:
        network = self._network
        await asyncio.sleep(network.delay_s())
        return address not in network.listeners and address not in network.silent

    def server(self, services: Sequence[ServiceDescriptor]) -> Any:
        return Server(self._network)

    def bind(self, server: Any, host: str, port: int) -> str:
        return self._bind(server, f"{host}:{port or self._network.next_port()}")

    def bind_unix(self, server: Any, path: Path) -> str:
        return self._bind(server, f"unix:{path}")

    def _bind(self, server: Server, address: str) -> str:
        if address in self._network.listeners:
            raise AddressTaken(f"cannot listen on {address}: Address already in use")
        self._network.listeners[address] = server
        return address


# ------------------------------------------------------------ the client's side


class Channel:
    """Stands in for `grpc.aio.Channel` in the generated stubs."""

    def __init__(self, network: Network, address: str) -> None:
        process = CURRENT.get()
        assert process is not None, "channels belong to processes"
        self.network = network
        self.address = address
        self.process = process
        self.closed = False
        self._connection: Connection | None = None
        self._connecting = False
        self._attempt = 0
        self._pause_s = RECONNECT_S[0]
        self._waiting: list[ClientCall] = []
        self._failed = False  # the last attempt
        self._changes: list[asyncio.Future[None]] = []
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        if self.closed:
            return
        self.closed = True
        waiting, self._waiting = self._waiting, []
        connection, self._connection = self._connection, None
        for call in [*waiting, *(connection.client_calls.values() if connection else ())]:
            call.cancel()
        if connection is not None:
            connection.close(CLIENT)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        if self._connection is None and try_to_connect and not self._failed:
            self._connect()
        if self._connection is not None:
            return grpc.ChannelConnectivity.READY
        if self._connecting:
            return grpc.ChannelConnectivity.CONNECTING
        states = grpc.ChannelConnectivity
        return states.TRANSIENT_FAILURE if self._failed else states.IDLE

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        while self.get_state() is last_observed_state:
            changed = self.network.loop.create_future()
            self._changes.append(changed)
            await changed

    def _multi_callable(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., ClientCall]:
        def call(
            request: Any = None,
            *,
            timeout: float | None = None,
            metadata: Any = None,
            wait_for_ready: bool | None = None,
            **_: Any,
        ) -> ClientCall:
            return ClientCall(
                self,
                method,
                request_serializer,
                response_deserializer,
                request,
                timeout=timeout,
                metadata=tuple(metadata or ()),
                wait_for_ready=bool(wait_for_ready),
            )

        return call

    unary_unary = unary_stream = stream_unary = stream_stream = _multi_callable

    # ---- its connection

    def start(self, call: ClientCall) -> None:
        if self.closed:
            raise grpc.aio.UsageError("Channel is closed.")
        if self._connection is not None:
            call.connected(self._connection, next(self._numbers))
        else:
            self._waiting.append(call)
            self._connect()

    def forget(self, call: ClientCall) -> None:
        if call in self._waiting:
            self._waiting.remove(call)

    def lost(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None

    def _connect(self) -> None:
        if self._connecting or self.closed:
            return
        self._connecting, self._failed = True, False
        self._attempt += 1
        loop = self.network.loop
        when = loop.time() + self.network.delay_s()
        server = self.network.listeners.get(self.address)
        if server is None or not server.serving:
            loop.deliver_at(when, self.process, self._refused)
        elif self.network.is_cut(self.process, server.process):
            loop.deliver_at(when + 2.0, self.process, self._refused)
        else:  # accepted by the operating system; the handshake needs the process
            loop.deliver_at(when, server.process, self._accept, server)
            loop.deliver_at(when + 10.0, self.process, self._no_answer, self._attempt)

    def _accept(self, server: Server) -> None:
        loop = self.network.loop
        when = loop.time() + self.network.delay_s()
        if not server.serving:
            loop.deliver_at(when, self.process, self._refused)
        else:
            loop.deliver_at(when, self.process, self._established, server)

    def _established(self, server: Server) -> None:
        if not self._connecting or self.closed:
            return
        self._connecting = False
        if not server.process.alive:
            self._connecting = True
            self._refused()
            return
        self._pause_s = RECONNECT_S[0]
        connection = self._connection = Connection(self.network, self, server)
        self.network.connections.append(connection)
        server.connections.append(connection)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.connected(connection, next(self._numbers))
        self._has_changed()

    def _has_changed(self) -> None:
        changes, self._changes = self._changes, []
        for changed in changes:
            if not changed.done():
                changed.set_result(None)

    def _no_answer(self, attempt: int) -> None:
        if self._connecting and self._attempt == attempt and not self.closed:
            self._refused()

    def _refused(self) -> None:
        if not self._connecting:
            return
        self._connecting, self._failed = False, True
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            if call.wait_for_ready:
                self._waiting.append(call)
            else:
                call.finish(
                    grpc.StatusCode.UNAVAILABLE,
                    f"failed to connect to all addresses; last error: {self.address}",
                )
        self._has_changed()
        if self._waiting and not self.closed:
            loop = self.network.loop
            loop.deliver_at(loop.time() + self._pause_s, self.process, self._connect)
            self._pause_s = min(RECONNECT_S[1], self._pause_s * 2)


class Status(NamedTuple):
    """How a call ends."""

    code: grpc.StatusCode
    details: str = ""
    trailing_metadata: tuple[tuple[str, bytes], ...] = ()


class ClientCall:
    """One call of any of the four kinds, seen from its client."""

    def __init__(
        self,
        channel: Channel,
        method: str,
        serialize: Any,
        deserialize: Any,
        request: Any,
        *,
        timeout: float | None,
        metadata: tuple[Any, ...],
        wait_for_ready: bool,
    ) -> None:
        self.wait_for_ready = wait_for_ready
        self._channel = channel
        self._method = method
        self._serialize = serialize
        self._deserialize = deserialize
        self._connection: Connection | None = None
        self._number = 0
        self._unsent: list[tuple[str, Any, Callable[[], str]]] = []
        self._received: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._status: Status | None = None
        self._cancelled = False
        self._writer: asyncio.Task[None] | None = None
        loop = channel.network.loop
        self._send("start", (method, metadata), lambda: method.rpartition("/")[2])
        self._timer = loop.call_later(timeout, self._timed_out) if timeout is not None else None
        if hasattr(request, "SerializeToString"):
            self._send_message(request)
            self._send("end", None, lambda: "")
        else:
            self._writer = loop.create_task(self._write(aiter(request)))
        channel.start(self)

    # ---- what callers use

    async def read(self) -> Any:
        """The next message, or EOF. Raises AioRpcError if the call has failed."""
        while not self._received:
            if self._status is not None:
                if self._status.code is grpc.StatusCode.OK:
                    return EOF
                raise self._error()
            self._waiter = self._channel.network.loop.create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self._deserialize(self._received.popleft())

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not EOF:
            yield message

    def __await__(self) -> Any:
        return self._response().__await__()

    async def _response(self) -> Any:
        message = await self.read()
        if message is EOF:
            raise AssertionError(f"{self._method}: no answer")
        return message

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._cancelled = True
        self._send("cancel", None, lambda: "")
        self.finish(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
        return True

    def cancelled(self) -> bool:
        return self._cancelled

    def done(self) -> bool:
        return self._status is not None

    # ---- frames

    async def _write(self, requests: AsyncIterator[Any]) -> None:
        async for request in requests:
            if self._status is not None:
                return
            self._send_message(request)
        self._send("end", None, lambda: "")

    def _send_message(self, message: Any) -> None:
        self._send("message", self._serialize(message), lambda: _kind(message, ""))

    def _send(self, kind: str, data: Any, look: Callable[[], str]) -> None:
        if self._connection is None:
            self._unsent.append((kind, data, look))
        elif self._connection.is_open[CLIENT]:
            self._connection.send(SERVER, self._number, kind, data, look)

    def connected(self, connection: Connection, number: int) -> None:
        self._connection, self._number = connection, number
        connection.client_calls[number] = self
        unsent, self._unsent = self._unsent, []
        for frame in unsent:
            self._send(*frame)

    def receive(self, kind: str, data: Any) -> None:
        if kind == "status":
            self._finish(data)
        else:
            self._received.append(data)
            self._wake()

    def finish(self, code: grpc.StatusCode, details: str) -> None:
        self._finish(Status(code, details))

    def _finish(self, status: Status) -> None:
        if self._status is not None:
            return
        self._status = status
        if self._connection is not None:
            self._connection.client_calls.pop(self._number, None)
        else:
            self._channel.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._writer is not None:
            self._writer.cancel()
        self._wake()

    def _timed_out(self) -> None:
        if self._status is None:
            self._send("cancel", None, lambda: "")
            self.finish(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _error(self) -> BaseException:
        assert self._status is not None
        if self._cancelled:
            return asyncio.CancelledError()
        code, details, metadata = self._status
        return grpc.aio.AioRpcError(
            code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details=details
        )


def _kind(message: Any, otherwise: str) -> str:
    """Returns the name that traps use for a message: its variant, or else its call."""
    with contextlib.suppress(ValueError):
        return str(message.WhichOneof("message"))
    return otherwise


# ------------------------------------------------------------ the server's side


class Server:
    """Stands in for `grpc.aio.Server` in `add_XServicer_to_server`."""

    def __init__(self, network: Network) -> None:
        process = CURRENT.get()
        assert process is not None, "servers belong to processes"
        self.network = network
        self.process = process
        self.serving = False
        self.methods: dict[str, Any] = {}
        self.connections: list[Connection] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        pass  # the registered ones do

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self.methods.update({f"/{service}/{name}": h for name, h in handlers.items()})

    async def start(self) -> None:
        self.serving = True

    async def stop(self, grace: float | None) -> None:
        self.serving = False
        listeners = self.network.listeners
        for address in [a for a, server in listeners.items() if server is self]:
            del listeners[address]
        if self.tasks and grace:
            await asyncio.wait(set(self.tasks), timeout=grace)
        for connection in self.connections:
            for call in list(connection.server_calls.values()):
                call.peer_gone()
            connection.close(SERVER)
        if self.tasks:
            await asyncio.wait(set(self.tasks))


class ServerCall:
    """One call, seen from its server; the servicer's context."""

    def __init__(
        self, connection: Connection, number: int, method: str, metadata: tuple[Any, ...]
    ) -> None:
        self._connection = connection
        self._number = number
        self._method = method
        self._metadata = metadata
        self._received: deque[Any] = deque()
        self._no_more = False
        self._waiter: asyncio.Future[None] | None = None
        self._status: Status | None = None
        self._gone = False
        self._code, self._details = grpc.StatusCode.OK, ""
        self._trailing: tuple[tuple[str, bytes], ...] = ()
        server = connection.server
        self._handler = server.methods.get(method)
        self._task = server.network.loop.create_task(self._run())
        server.tasks.add(self._task)
        self._task.add_done_callback(server.tasks.discard)

    # ---- grpc.aio.ServicerContext

    async def read(self) -> Any:
        while not self._received:
            if self._no_more:
                return EOF
            self._waiter = self._connection.network.loop.create_future()
            await self._waiter
        return self._handler.request_deserializer(self._received.popleft())

    async def write(self, message: Any) -> None:
        if not self._gone and self._connection.is_open[SERVER]:
            self._connection.send(
                CLIENT,
                self._number,
                "message",
                self._handler.response_serializer(message),
                lambda: _kind(message, f"{self._method.rpartition('/')[2]} answer"),
            )

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> None:
        self._code, self._details, self._trailing = code, details, trailing_metadata
        raise grpc.aio.AbortError("Locally aborted.")

    def peer(self) -> str:
        return f"ipv4:{self._connection.processes[CLIENT].name}"

    def invocation_metadata(self) -> tuple[Any, ...]:
        return self._metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._details = details

    def cancelled(self) -> bool:
        return self._gone

    def done(self) -> bool:
        return self._status is not None or self._gone

    async def _requests(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not EOF:
            yield message

    # ---- frames

    def receive(self, kind: str, data: Any) -> None:
        if kind == "message":
            self._received.append(data)
        elif kind == "end":
            self._no_more = True
        else:
            self.peer_gone()
        self._wake()

    def peer_gone(self) -> None:
        """Readers see an orderly end first; gRPC cancels the call a moment later."""
        if self._gone or self._status is not None:
            return
        self._gone = self._no_more = True
        self._connection.server_calls.pop(self._number, None)
        self._wake()
        network = self._connection.network
        network.loop.deliver_at(
            network.loop.time() + network.between(0.0, 0.02),
            self._connection.processes[SERVER],
            self._task.cancel,
        )

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _run(self) -> None:
        try:
            await self._handle()
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            self._code, self._details = grpc.StatusCode.CANCELLED, "the server ended the call"
        except Exception as error:
            self._code = grpc.StatusCode.UNKNOWN
            self._details = f"Unexpected {type(error)}: {error}"
            network = self._connection.network
            network.loop.report(f"servicer of {self._method}", error)
        self._finish()

    async def _handle(self) -> None:
        handler = self._handler
        if handler is None:
            await self.abort(grpc.StatusCode.UNIMPLEMENTED, f"no method {self._method}")
        function = (
            handler.stream_stream
            or handler.unary_stream
            or handler.stream_unary
            or handler.unary_unary
        )
        request = self._requests() if handler.request_streaming else await self.read()
        if request is EOF:
            return
        if inspect.isasyncgenfunction(function):
            async for message in function(request, self):
                await self.write(message)
        else:
            response = await function(request, self)
            if not handler.response_streaming:
                await self.write(response)

    def _finish(self) -> None:
        self._status = Status(self._code, self._details, self._trailing)
        connection = self._connection
        connection.server_calls.pop(self._number, None)
        if not self._gone and connection.is_open[SERVER]:
            connection.send(CLIENT, self._number, "status", self._status, lambda: "")
