"""Decides for a contender for an office: when to request it, and until when it may act.

Pure: see firesteel.common.service.core. The shell connects to ZooKeeper and carries requests there.

    STANDBY ──Granted──▶ LEADING ◀──Confirmed── PAUSED
       ▲                  │   │                   │
       └──(asks again)    │   └──lease runs out──▶│
                          ▼                       ▼
                        ENDED ◀───────────────────┘
                   the session is over, or the office is another's

A leader acts only during its lease, which it renews by writing to its node. Such a write proves
that ZooKeeper heard from the session no earlier than when it was sent, and ZooKeeper gives the
office to no other contender before the session's timeout has passed since then. The lease is
shorter by a margin, because ZooKeeper's servers exchange information about sessions only once per
tick. So the lease ends before another contender can lead, whatever this process knows about its
connection, and also if the process was stopped in between. When the lease ends, the leader stops
acting but keeps its leadership: if ZooKeeper was unavailable to everybody, the session survives,
and with it the leadership, under the same epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from firesteel.common.ids import Epoch
from firesteel.common.leader import Leader
from firesteel.common.service.core import Effects, Tick

LEASE_PART = 5 / 6  # of the session's timeout
CONFIRM_PART = 1 / 6
RETRY_S = 0.5  # after a failed request on an intact connection

# ---- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """A session is connected, either a new one or the previous one again."""

    session_id: int
    session_timeout_s: float  # as agreed with ZooKeeper


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended:
    """The connection broke; the session may continue over another connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLost:
    """ZooKeeper has ended the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """This contender has the office, in this session."""

    session_id: int
    epoch: Epoch
    asked_at: float  # when the answered request was sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupied:
    """Another contender has the office; `Vacant` follows."""

    leader: Leader


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacant:
    """The contender that had the office has left it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    asked_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Displaced:
    """The office no longer belongs to this contender, although its session lives."""

    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resigned:
    """This contender is about to resign from the office, if it has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """The last request failed, or its outcome is unknown."""

    reason: str


Event = (
    Connected
    | Suspended
    | SessionLost
    | Granted
    | Occupied
    | Vacant
    | Confirmed
    | Displaced
    | Resigned
    | RequestFailed
)

# ---- commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Contend:
    """Request the office. Answered by Granted, Occupied or RequestFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm:
    """Write to the leader's node. Answered by Confirmed, Displaced or RequestFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """The lease was renewed: those that wait for it may act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The lease has run out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The lease has been renewed after it had run out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    reason: str


Command = Contend | Confirm | Lead | Renewed | Pause | Resume | End


class ElectionState(Enum):
    STANDBY = "another contender leads, or none"
    LEADING = "leads, and acts"
    PAUSED = "may still be the leader, and does not act"
    ENDED = "led, and never will again"


TRANSITIONS: dict[ElectionState, frozenset[ElectionState]] = {
    # the office was granted
    ElectionState.STANDBY: frozenset({ElectionState.LEADING}),
    # the lease ran out; the session ended, somebody else has the office, or it resigns
    ElectionState.LEADING: frozenset({ElectionState.PAUSED, ElectionState.ENDED}),
    # the lease was renewed in the same session; the same as above
    ElectionState.PAUSED: frozenset({ElectionState.LEADING, ElectionState.ENDED}),
    ElectionState.ENDED: frozenset(),
}


class ElectionCore:
    """Handles one event at a time; see the module's docstring."""

    def __init__(self) -> None:
        self.state = ElectionState.STANDBY
        self.epoch = Epoch(0)  # once it leads
        self.other: Leader | None = None  # who leads instead, as far as this contender knows
        self._session_id: int | None = None
        self._timeout_s = 0.0
        self._lease_until = float("-inf")
        self._connected = False
        self._asking = False  # a request was sent and not answered
        self._ask_at: float | None = None
        self._commands: list[Command] = []

    # ---- the driver's interface

    def handle(self, event: Event | Tick, now: float) -> Effects[None, Command]:
        if self.state is not ElectionState.ENDED:
            self._handle(event, now)
            self._look_at_lease(now)
            self._ask(now)
        effects: Effects[None, Command] = Effects(commands=tuple(self._commands))
        self._commands.clear()
        return effects

    def next_deadline(self) -> float | None:
        deadlines = []
        if self._ask_at is not None and self._connected and not self._asking:
            deadlines.append(self._ask_at)
        if self.state is ElectionState.LEADING:
            deadlines.append(self._lease_until)
        return min(deadlines, default=None)

    # ---- what the shell may read

    def acts(self, now: float) -> bool:
        return self.state is ElectionState.LEADING and now < self._lease_until

    # ---- inside

    def _handle(self, event: Event | Tick, now: float) -> None:
        match event:
            case Connected():
                self._session(event, now)
            case Suspended():
                self._connected = False
            case SessionLost():
                self._connected, self._session_id = False, None
                self._end("its session with ZooKeeper has ended")
            case Granted():
                self._granted(event)
            case Occupied():
                self._asking, self.other = False, event.leader
            case Vacant():
                self._ask_at, self.other = now, None
            case Confirmed():
                self._asking = False
                self._renew(event.asked_at)
            case Displaced():
                self._asking = False
                self._end(f"{event.by} has its office")
            case Resigned():
                self._end("it has been stopped")
            case RequestFailed():
                self._asking, self._ask_at = False, now + RETRY_S
            case Tick():
                pass
            case _:
                assert_never(event)

    def _session(self, event: Connected, now: float) -> None:
        if self._session_id != event.session_id:
            self._end("its session with ZooKeeper has ended")
            if self.state is ElectionState.ENDED:
                return
        self._session_id, self._timeout_s = event.session_id, event.session_timeout_s
        self._connected, self._ask_at = True, now

    def _granted(self, event: Granted) -> None:
        self._asking = False
        if event.session_id != self._session_id:
            return  # that session is over; the next answer is of this one
        if self.state is ElectionState.STANDBY:
            self._go(ElectionState.LEADING)
            self.epoch, self.other = event.epoch, None
            self._commands.append(Lead(epoch=event.epoch))
        self._renew(event.asked_at)

    def _renew(self, asked_at: float) -> None:
        self._lease_until = max(self._lease_until, asked_at + self._timeout_s * LEASE_PART)
        self._ask_at = asked_at + self._timeout_s * CONFIRM_PART
        self._commands.append(Renewed())

    def _look_at_lease(self, now: float) -> None:
        if self.state is ElectionState.LEADING and now >= self._lease_until:
            self._go(ElectionState.PAUSED)
            self._commands.append(Pause())
        elif self.state is ElectionState.PAUSED and now < self._lease_until:
            self._go(ElectionState.LEADING)
            self._commands.append(Resume())

    def _ask(self, now: float) -> None:
        """Sends the request that is due, one at a time and only while connected."""
        if self.state is ElectionState.ENDED or self._asking or not self._connected:
            return
        if self._ask_at is None or now < self._ask_at:
            return
        self._asking, self._ask_at = True, None
        self._commands.append(Contend() if self.state is ElectionState.STANDBY else Confirm())

    def _end(self, reason: str) -> None:
        if self.state is ElectionState.STANDBY:
            return
        self._go(ElectionState.ENDED)
        self._ask_at = None
        self._commands.append(End(reason=reason))

    def _go(self, to: ElectionState) -> None:
        assert to in TRANSITIONS[self.state], f"{self.state.name} -> {to.name}"
        self.state = to
