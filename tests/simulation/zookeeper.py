"""A simulated ZooKeeper ensemble, and clients of it that are what `Client` (kazoo's) is to the
election: their methods block (threads.py), their listeners and watches are called.

The ensemble is one server, which does what a quorum agrees on: sessions, ephemeral nodes, versions,
transactions and watches. It hears of a session up to `LAG_PART` of its timeout later than it could
have, since servers notify each other once per tick; so a session may end that much sooner.

A client that hears nothing for two thirds of the session is SUSPENDED and connects again; only the
ensemble tells it that its session is over (LOST). While it is cut off, what it has sent waits in
its socket, and may still arrive later.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.protocol.states import EventType, KazooState, WatchedEvent

from firesteel.high_availability.zookeeper.ensemble import Ensemble
from tests.simulation.loop import CURRENT, OUTSIDE
from tests.simulation.threads import Lock, OneThread, Thread, Wake, wait
from tests.simulation.world import SimulatedProcess, World

LAG_PART = 0.95 / 6  # of the session's timeout; a lease must be shorter by more
RECONNECT_S = (0.05, 1.0)
CONNECT_TIMEOUT_S = 2.0

Watch: TypeAlias = "Callable[[WatchedEvent], object]"


@dataclass(slots=True, kw_only=True)
class Node:
    """Also what `stat` is."""

    data: bytes
    version: int
    mzxid: int
    ephemeralOwner: int  # kazoo's name; 0: it outlives sessions


@dataclass(slots=True, eq=False)
class Session:
    session_id: int
    timeout_s: float
    ends_at: float
    connection: Connection | None = None


@dataclass(slots=True, eq=False)
class Connection:
    """Messages arrive in order, each way, until one end drops it."""

    client: Client
    session: Session
    dropped: bool = False  # by the ensemble: nothing that arrives on it counts
    last_arrival: list[float] = field(default_factory=lambda: [0.0, 0.0])


class ZooKeeper:
    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes: dict[str, Node] = {}
        self.sessions: dict[int, Session] = {}
        self.away = False  # without a quorum
        self._session_ids = itertools.count(1)
        self._zxids = itertools.count(1)
        self._watches: dict[str, list[tuple[Connection, Watch]]] = {}
        self._cut: dict[SimulatedProcess, list[Callable[[], None]]] = {}  # and what waits for them

    # ---- faults

    def cut(self, process: SimulatedProcess, for_s: float) -> None:
        """Nothing passes between the two for a while; then TCP sends what it has kept."""
        if process in self._cut:
            return
        self._cut[process] = []

        def heal() -> None:
            for arrive in self._cut.pop(process):
                arrive()

        self.world.after(for_s, heal)

    def flap(self, process: SimulatedProcess) -> None:
        """Breaks the connections of the process."""
        for session in list(self.sessions.values()):
            if session.connection is not None and session.connection.client.process is process:
                self._drop(session)

    def lose_quorum(self, for_s: float) -> None:
        """No server answers. The next leader of the ensemble grants each session its whole time."""
        if self.away:
            return
        self.away = True
        self.world.note("zookeeper", "has lost its quorum")
        for session in self.sessions.values():
            self._drop(session)

        def back() -> None:
            self.away = False
            self.world.note("zookeeper", "has a quorum again")
            for session in self.sessions.values():
                session.ends_at = self.world.now + session.timeout_s
                self._expire_later(session)

        self.world.after(for_s, back)

    # ---- what passes between it and its clients

    def arrives(self, connection: Connection, act: Callable[[], None], *, at_server: bool) -> None:
        """Carries a message: `act` is called at the other end."""
        world = self.world
        process, end = connection.client.process, int(at_server)
        when = max(connection.last_arrival[end], world.now + world.network.delay_s())
        connection.last_arrival[end] = when

        def arrive() -> None:
            if process in self._cut:
                self._cut[process].append(arrive)
            elif not at_server:
                world.loop.deliver_at(world.now, process, act)
            elif not connection.dropped and not self.away:
                self._heard(connection.session)
                act()

        world.loop.call_at(when, arrive, context=OUTSIDE)

    def reachable(self, process: SimulatedProcess) -> bool:
        return not self.away and process not in self._cut

    # ---- sessions

    def connect(self, client: Client, session_id: int) -> Connection | None:
        """`session_id`: 0 for a new one. None: that session is over."""
        session = self.sessions.get(session_id)
        if session is None:
            if session_id:
                return None
            number = next(self._session_ids)
            session = Session(number, client.agreed_timeout_s, 0.0)
            self.sessions[number] = session
        self._drop(session)  # what comes on an earlier connection is of a session that has moved
        session.connection = Connection(client, session)
        self._heard(session)
        return session.connection

    def end(self, session: Session) -> None:
        if self.sessions.pop(session.session_id, None) is None:
            return
        self.world.note("zookeeper", f"ends session {session.session_id}")
        self._drop(session)
        for path, node in list(self.nodes.items()):
            if node.ephemeralOwner == session.session_id:
                del self.nodes[path]
                self._changed(path, EventType.DELETED)

    def _heard(self, session: Session) -> None:
        lag_s = self.world.between(0.0, LAG_PART * session.timeout_s)
        session.ends_at = max(session.ends_at, self.world.now + session.timeout_s - lag_s)
        self._expire_later(session)

    def _expire_later(self, session: Session) -> None:
        def look() -> None:
            if not self.away and session.ends_at <= self.world.now:
                self.end(session)

        self.world.after(session.ends_at - self.world.now, look)

    def _drop(self, session: Session) -> None:
        connection, session.connection = session.connection, None
        if connection is not None:
            connection.dropped = True
            self.arrives(
                connection, lambda: connection.client.disconnected(connection), at_server=False
            )

    # ---- nodes

    def read(self, connection: Connection, path: str, watch: Watch | None, *, there: bool) -> Node:
        """Reads a node. If `there`, sets the watch only if the node exists. Raises NoNodeError."""
        node = self.nodes.get(path)
        if watch is not None and (node is not None or not there):
            self._watches.setdefault(path, []).append((connection, watch))
        if node is None:
            raise NoNodeError
        return Node(
            data=node.data,
            version=node.version,
            mzxid=node.mzxid,
            ephemeralOwner=node.ephemeralOwner,
        )

    def commit(self, session: Session, operations: list[tuple[Any, ...]]) -> list[Any]:
        """Applies all operations or none; returns their results as kazoo's transactions do."""
        for number, operation in enumerate(operations):
            if (error := self._refused(operation)) is not None:
                after = len(operations) - number - 1
                return [RolledBackError()] * number + [error] + [RuntimeInconsistency()] * after
        zxid = next(self._zxids)
        for operation in operations:
            match operation:
                case "create", path, data, ephemeral:
                    owner = session.session_id if ephemeral else 0
                    self.nodes[path] = Node(data=data, version=0, mzxid=zxid, ephemeralOwner=owner)
                    self._changed(path, EventType.CREATED)
                case "set", path, data, _:
                    node = self.nodes[path]
                    node.data, node.version, node.mzxid = data, node.version + 1, zxid
                    self._changed(path, EventType.CHANGED)
        return [True] * len(operations)

    def _refused(self, operation: tuple[Any, ...]) -> KazooException | None:
        node = self.nodes.get(operation[1])
        match operation:
            case "create", *_:
                return NodeExistsError() if node is not None else None
            case (("set" | "check"), _, _, version):
                if node is None:
                    return NoNodeError()
                return BadVersionError() if version not in (-1, node.version) else None
        raise AssertionError(operation)

    def _changed(self, path: str, kind: str) -> None:
        for connection, watch in self._watches.pop(path, ()):
            event = WatchedEvent(kind, "CONNECTED", path)
            if not connection.dropped:
                self.arrives(
                    connection,
                    lambda c=connection, w=watch, e=event: c.client.watched(c, w, e),
                    at_server=False,
                )


class Client:
    """The client of one process; see the module's docstring."""

    def __init__(self, zookeeper: ZooKeeper, ensemble: Ensemble) -> None:
        process = CURRENT.get()
        assert isinstance(process, SimulatedProcess), "clients belong to processes"
        self.process = process
        self.requests = OneThread(zookeeper.world.loop)
        self.handler = self  # of the recipe that follows leaders
        self.agreed_timeout_s = ensemble.session_timeout_s
        self._session_id = 0  # 0: none yet, or it is over
        self._zookeeper = zookeeper
        self._ensemble = ensemble
        self._loop = zookeeper.world.loop
        self._callbacks = OneThread(self._loop)
        self._connection: Connection | None = None
        self._listeners: list[Callable[[str], object]] = []
        self._closed = True
        self._heard_at = 0.0
        self._pause_s = RECONNECT_S[0]
        self._unsent: list[tuple[Callable[[Connection], Any], Wake]] = []
        self._in_flight: dict[int, Wake] = {}
        self._watching: list[Watch] = []
        self._numbers = itertools.count(1)
        self._on_connect: list[Wake] = []

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """Returns the id of the session while the client is connected."""
        return (self._session_id, b"") if self.connected else None

    @property
    def connected(self) -> bool:
        return self._connection is not None

    # ---- its life

    def start_async(self) -> None:
        if self._closed:
            self._closed = False
            self._connect()

    def connect(self) -> None:
        """Raises EnsembleUnreachable."""
        self.start_async()
        if self._connection is None:

            def wait_for_it(wake: Wake) -> None:
                self._on_connect.append(wake)
                self._loop.call_later(CONNECT_TIMEOUT_S * 2, give_up, wake)

            def give_up(wake: Wake) -> None:
                if wake in self._on_connect:
                    self._on_connect.remove(wake)
                    wake(None, self._ensemble.unreachable())

            wait(self._loop, wait_for_it)

    def disconnect(self) -> None:
        if self._closed:
            return
        connection, self._connection, self._closed = self._connection, None, True
        if connection is not None:
            self._zookeeper.arrives(
                connection, lambda: self._zookeeper.end(connection.session), at_server=True
            )
        self._fail(ConnectionClosedError("Connection has been closed"))

    def add_listener(self, listener: Callable[[str], object]) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[str], object]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    # ---- what recipes want of kazoo's handler

    def lock_object(self) -> Lock:
        return Lock(self._loop)

    def sleep_func(self, seconds: float) -> None:
        """For a while that this world draws: kazoo's own jitter is not of its seed."""
        pause_s = self._zookeeper.world.between(0.05, 0.5)
        wait(self._loop, lambda wake: self._loop.call_later(pause_s, wake, None, None))

    def spawn(self, work: Callable[[], object]) -> None:
        self._loop.call_soon(Thread, self._loop, work)

    # ---- requests

    def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, Node]:
        """Raises NoNodeError."""
        node = self._request(lambda c: self._zookeeper.read(c, path, watch, there=True), watch)
        return node.data, node

    def exists(self, path: str, watch: Watch | None = None) -> Node | None:
        try:
            found: Node = self._request(
                lambda c: self._zookeeper.read(c, path, watch, there=False), watch
            )
        except NoNodeError:
            if watch is not None:
                self._watching.append(watch)
            return None
        return found

    def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, makepath: bool = False
    ) -> None:
        """Raises NodeExistsError."""
        (result,) = self._commit([("create", path, data, ephemeral)])
        if isinstance(result, KazooException):
            raise result

    def ensure_path(self, path: str) -> None:
        self._commit([("create", path, b"", False)])

    def transaction(self) -> Transaction:
        return Transaction(self._commit)

    def _commit(self, operations: list[tuple[Any, ...]]) -> list[Any]:
        results: list[Any] = self._request(
            lambda connection: self._zookeeper.commit(connection.session, operations)
        )
        return results

    def _request(self, ask: Callable[[Connection], Any], watch: Watch | None = None) -> Any:
        if self._closed:
            raise ConnectionClosedError("Connection has been closed")

        def begin(wake: Wake) -> None:
            if self._connection is None:
                self._unsent.append((ask, wake))
            else:
                self._send(self._connection, ask, wake)

        result = wait(self._loop, begin)
        if watch is not None:
            self._watching.append(watch)
        return result

    def _send(
        self, connection: Connection, ask: Callable[[Connection], Any], wake: Wake | None
    ) -> None:
        """`wake`: None for a ping."""
        number = next(self._numbers)
        if wake is not None:
            self._in_flight[number] = wake

        def asked() -> None:
            try:
                result, error = ask(connection), None
            except KazooException as raised:
                result, error = None, raised
            self._zookeeper.arrives(
                connection,
                lambda: self._answered(connection, number, result, error),
                at_server=False,
            )

        self._zookeeper.arrives(connection, asked, at_server=True)

    def _answered(
        self, connection: Connection, number: int, result: Any, error: KazooException | None
    ) -> None:
        if connection is self._connection:
            self._heard(connection)
            if (wake := self._in_flight.pop(number, None)) is not None:
                wake(result, error)

    def watched(self, connection: Connection, watch: Watch, event: WatchedEvent) -> None:
        if connection is self._connection:
            if watch in self._watching:
                self._watching.remove(watch)
            self._callbacks.submit(watch, event)

    # ---- its connection

    def _connect(self) -> None:
        if self._closed or self._connection is not None:
            return
        zookeeper, world = self._zookeeper, self._zookeeper.world
        session_id = self._session_id
        if not zookeeper.reachable(self.process):
            self._again(world.between(0.01, CONNECT_TIMEOUT_S))
            return

        def at_server() -> None:
            if not zookeeper.reachable(self.process):
                return  # ZooKeeper does not answer
            connection = zookeeper.connect(self, session_id)
            if connection is not None:
                zookeeper.arrives(connection, lambda: established(connection), at_server=False)
            else:
                world.loop.deliver_at(
                    world.now + world.network.delay_s(), self.process, self._expired
                )

        def established(connection: Connection) -> None:
            given_up.cancel()
            if not self._closed and self._connection is None and not connection.dropped:
                self._established(connection)
            elif not self._closed and self._connection is None:
                self._again(0.0)

        given_up = self._loop.call_later(CONNECT_TIMEOUT_S, self._connect)
        world.loop.call_at(world.now + world.network.delay_s(), at_server, context=OUTSIDE)

    def _again(self, after_s: float) -> None:
        self._loop.call_later(after_s + self._pause_s, self._connect)
        self._pause_s = min(self._pause_s * 2, RECONNECT_S[1])

    def _established(self, connection: Connection) -> None:
        self._connection, self._pause_s = connection, RECONNECT_S[0]
        self._session_id = connection.session.session_id
        self._heard(connection)
        self._tell(KazooState.CONNECTED)
        unsent, self._unsent = self._unsent, []
        for ask, wake in unsent:
            self._send(connection, ask, wake)
        waiting, self._on_connect = self._on_connect, []
        for wake in waiting:
            wake(None, None)
        self._ping(connection)

    def _ping(self, connection: Connection) -> None:
        """Every third of the session."""
        if connection is self._connection:
            self._send(connection, lambda _: None, None)
            self._loop.call_later(self.agreed_timeout_s / 3, self._ping, connection)

    def _heard(self, connection: Connection) -> None:
        """Something; if nothing follows, the connection is given up."""
        heard_at = self._heard_at = self._loop.time()

        def look() -> None:
            if self._heard_at == heard_at:
                self.disconnected(connection)

        self._loop.call_later(self.agreed_timeout_s * 2 / 3, look)

    def disconnected(self, connection: Connection) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self._fail(ConnectionLoss())
        self._tell(KazooState.SUSPENDED)
        watching, self._watching = self._watching, []
        for watch in watching:
            self._callbacks.submit(watch, WatchedEvent(EventType.NONE, "CONNECTING", None))
        self._again(0.0)

    def _expired(self) -> None:
        if self._closed or self._connection is not None:
            return
        self._session_id = 0
        self._tell(KazooState.LOST)
        self._fail(SessionExpiredError())
        self._again(0.0)

    def _fail(self, error: KazooException) -> None:
        wakes = [*self._in_flight.values(), *(wake for _, wake in self._unsent)]
        self._in_flight.clear()
        self._unsent.clear()
        for wake in wakes:
            wake(None, error)

    def _tell(self, state: str) -> None:
        self._zookeeper.world.note(self.process.name, f"ZooKeeper: {state}")
        for listener in list(self._listeners):
            listener(state)


class Transaction:
    def __init__(self, commit: Callable[[list[tuple[Any, ...]]], list[Any]]) -> None:
        self._commit = commit
        self._operations: list[tuple[Any, ...]] = []

    def check(self, path: str, version: int) -> None:
        self._operations.append(("check", path, None, version))

    def set_data(self, path: str, data: bytes, version: int = -1) -> None:
        self._operations.append(("set", path, data, version))

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        self._operations.append(("create", path, data, ephemeral))

    def commit(self) -> list[Any]:
        return self._commit(self._operations)
