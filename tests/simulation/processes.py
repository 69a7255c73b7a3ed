"""What all simulated processes have in common: life and death, the driver of a core, a link that
connects again.

`SimulatedDriver` and `Link` are what `firesteel.common.driver.Driver` and
`firesteel.common.rpc.link.Link` are in real time; the processes' own modules carry commands to
their peers through the real convert modules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from firesteel.common.core import Core, Tick
from tests.simulation.network import End, Network
from tests.simulation.world import World

HEARTBEAT_INTERVAL_S = 2.0
HEARTBEAT_TIMEOUT_S = 8.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
TICKS_MAX = 50  # in a row at one instant: then a deadline does not move


class Process:
    """One operating system process. What it has planned is void once it is dead."""

    def __init__(self, world: World, network: Network, name: str, address: str = "") -> None:
        self.world = world
        self.network = network
        self.name = name
        self.address = address
        self.alive = True
        self.frozen = False
        self.on_exit: list[Callable[[int], None]] = []  # told the exit code, soon after
        if address:
            network.listening[address] = self
        self.note("started")

    def note(self, what: object) -> None:
        self.world.note(self.name, what)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.world.after(delay_s, lambda: action() if self.alive else None)

    def accept(self, method: str, end: End) -> None:
        raise NotImplementedError

    def die(self, code: int = -9, *, silently: bool = False) -> None:
        if not self.alive:
            return
        self.note(f"dies ({'with its machine' if silently else code})")
        self.alive = False
        if self.address:
            self.network.listening.pop(self.address, None)
        self.network.died(self, silently=silently)
        self.on_death(silently)
        for tell in self.on_exit:
            self.world.after(self.world.between(0.001, 0.02), lambda tell=tell: tell(code))

    def on_death(self, silently: bool) -> None:
        """What dies with it."""


class SimulatedDriver:
    """Runs one core; checks it after every event."""

    def __init__(
        self,
        process: Process,
        core: Core[Any, Any, Any],
        *,
        execute: Callable[[Any], None],
        validate: Callable[[], None],
        persist: Callable[[Sequence[Any]], None] | None = None,
    ) -> None:
        self.core = core
        self._process = process
        self._world = process.world
        self._execute = execute
        self._validate = validate
        self._persist = persist
        self._mailbox: deque[Any] = deque()
        self._busy = False  # handling, or waiting for records to be stored
        self._alarm = 0  # the tick that is planned; others are void
        self._ticks = 0

    def post(self, event: Any) -> None:
        self._mailbox.append(event)
        self._go_on()

    def begin(self, commands: Sequence[Any]) -> None:
        """What the core wanted before its first event; from now on its deadlines are kept."""
        self._carry_out(commands)

    def probe(self, stale: Any) -> None:
        """Hands over what a master of the past says; fails if anything comes of it."""
        if self._busy:
            return
        self._busy = True
        self._handle(Tick())  # what is due anyway is not its doing
        if self._busy:
            return
        effects = self.core.handle(stale, self._world.now)
        self._validate()
        if effects.records or effects.commands:
            raise self._world.failed(f"{self._process.name}: stale {stale} led to {effects}")

    def _go_on(self) -> None:
        if not self._busy and self._mailbox:
            self._busy = True
            self._process.after(0.0, lambda: self._handle(self._mailbox.popleft()))

    def _handle(self, event: Any) -> None:
        world = self._world
        if not isinstance(event, Tick):
            self._process.note(event)
            self._ticks = 0
        try:
            effects = self.core.handle(event, world.now)
            self._validate()
        except Exception as error:
            raise world.failed(
                f"{self._process.name} failed at {event}: {type(error).__name__}: {error}"
            ) from error
        if effects.records and self._persist is not None:
            delay_s = world.between(0.001, 0.03)
            self._process.after(delay_s, lambda: self._stored(effects.records, effects.commands))
        else:
            self._carry_out(effects.commands)

    def _stored(self, records: Sequence[Any], commands: Sequence[Any]) -> None:
        assert self._persist is not None
        self._persist(records)
        self._carry_out(commands)

    def _carry_out(self, commands: Sequence[Any]) -> None:
        for command in commands:
            if not self._process.alive:
                return
            self._process.note(_Said(command))
            self._execute(command)
        self._busy = False
        self._alarm += 1
        if self._mailbox:
            self._go_on()
        elif (deadline := self.core.next_deadline()) is not None:
            alarm = self._alarm
            self._process.after(max(0.0, deadline - self._world.now), lambda: self._tick(alarm))

    def _tick(self, alarm: int) -> None:
        if alarm != self._alarm or self._busy:
            return
        self._ticks += 1
        if self._ticks > TICKS_MAX and self.core.next_deadline() == self._world.now:
            raise self._world.failed(f"{self._process.name}: its deadline does not move")
        self._busy = True
        self._handle(Tick())


@dataclass(frozen=True, slots=True)
class _Said:
    command: object

    def __str__(self) -> str:
        return f"-> {self.command}"


class Link:
    """A client's stream that is opened again whenever it ends, for as long as it is wanted."""

    def __init__(
        self,
        owner: Process,
        address: str,
        method: str,
        *,
        on_up: Callable[[], None],
        on_message: Callable[[Any], None],
        beat: Callable[[], None],
        on_down: Callable[[float], None] = lambda for_s: None,
        eager: bool = False,
    ) -> None:
        """`on_up`: the stream stands, or (`eager`) is about to. `on_down`: with the seconds since
        it was last heard.
        """
        self.wanted = True
        self._owner = owner
        self._address = address
        self._method = method
        self._on_up = on_up
        self._on_message = on_message
        self._on_down = on_down
        self._beat = beat
        self._eager = eager
        self._end: End | None = None
        self._up = False
        self._heard = False
        self._heard_at = self._last_up = owner.world.now
        self._pause_s = FIRST_PAUSE_S

    def start(self) -> None:
        if not self.wanted:
            return
        end = self._owner.network.connect(
            self._owner, self._address, self._method, lambda: self._opened(end)
        )
        end.on_message = lambda message: self._received(end, message)
        end.on_end = lambda in_order, cause: self._down(end)
        self._end, self._up, self._heard = end, self._eager, False
        if self._eager:
            self._on_up()

    def send(self, message: Any) -> None:
        if self._end is not None and self._up:
            self._end.send(message)

    def close(self, *, in_order: bool = False) -> None:
        self.wanted = False
        self._up = False
        if self._end is not None:
            if in_order:
                self._end.close()
            else:
                self._end.cancel()

    def _opened(self, end: End) -> None:
        if end is not self._end or not self.wanted or not end.open:
            return
        self._heard_at = self._owner.world.now
        self._watch(end)
        self._owner.after(HEARTBEAT_INTERVAL_S, lambda: self._beating(end))
        if not self._eager:
            self._up = True
            self._on_up()

    def _received(self, end: End, message: Any) -> None:
        if end is self._end and self.wanted:
            self._heard = True
            self._heard_at = self._owner.world.now
            self._on_message(message)

    def _beating(self, end: End) -> None:
        if end is self._end and end.open and self.wanted:
            self._beat()
            self._owner.after(HEARTBEAT_INTERVAL_S, lambda: self._beating(end))

    def _watch(self, end: End) -> None:
        if end is not self._end or not end.open or not self.wanted:
            return
        silent_s = self._owner.world.now - self._heard_at
        if silent_s >= HEARTBEAT_TIMEOUT_S:
            end.cancel()
            self._down(end)
        else:
            self._owner.after(HEARTBEAT_TIMEOUT_S - silent_s + 1e-6, lambda: self._watch(end))

    def _down(self, end: End) -> None:
        if end is not self._end or not self.wanted:
            return
        self._end, self._up = None, False
        if self._heard:
            self._last_up, self._pause_s = self._owner.world.now, FIRST_PAUSE_S
        self._on_down(self._owner.world.now - self._last_up)
        self._owner.after(self._pause_s, self.start)
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)
