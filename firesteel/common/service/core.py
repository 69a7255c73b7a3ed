"""The interface of every core; `firesteel.common.service.core_loop` runs one.

A core is plain synchronous Python that makes decisions. It does no I/O, reads no clock and uses no
randomness:

    effects = core.handle(event, now)      # `now`: seconds on a monotonic clock
        core.next_deadline()                   # when it needs the next Tick, or None
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Event = TypeVar("Event", contravariant=True)
Record = TypeVar("Record", covariant=True)
Command = TypeVar("Command", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed: the deadline of a core is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects(Generic[Record, Command]):
    """The actions that a core requests in response to one event."""

    records: Sequence[Record] = ()  # saved in one fenced transaction BEFORE any command is run
    commands: Sequence[Command] = ()  # run in this order


class Core(Protocol[Event, Record, Command]):
    def handle(self, event: Event | Tick, now: float) -> Effects[Record, Command]: ...

    def next_deadline(self) -> float | None: ...
