"""What every core is made of; `firesteel.common.service.driver` runs one.

A core is plain synchronous Python that decides; it does no I/O, reads no clock, draws no
randomness:

    effects = core.handle(event, now)      # `now`: seconds on a monotonic clock
    core.next_deadline()                   # when it next wants a Tick, or None
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
    """Time has passed: the deadline a core asked for is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects(Generic[Record, Command]):
    """What a core wants done about one event."""

    records: Sequence[Record] = ()  # saved in one fenced transaction BEFORE any command is run
    commands: Sequence[Command] = ()  # run in this order


class Core(Protocol[Event, Record, Command]):
    def handle(self, event: Event | Tick, now: float) -> Effects[Record, Command]: ...

    def next_deadline(self) -> float | None: ...
