"""Timers as a part of keyed state: each is written in the key group of its key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from taskexecutor.executor.state.keyed import KeyedStateEntry
from taskexecutor.executor.timing.timers import Timer

_EVENT_TIME, _PROCESSING_TIME = "firesteel.event_time_timers", "firesteel.processing_time_timers"


@dataclass(frozen=True, slots=True)
class KeyedTimers:
    """Pending timers with their numbers, in the order of which equal times fire. Those without a
    key are left out: their operator registers them again in `open`.
    """

    event_time: Mapping[Timer, int] = field(default_factory=dict)
    processing_time: Mapping[Timer, int] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[KeyedStateEntry]) -> KeyedTimers:
        """The timers that `entries` has made entries of."""
        timers: dict[str, list[tuple[int, Timer]]] = {_EVENT_TIME: [], _PROCESSING_TIME: []}
        for entry in entries:
            timestamp, namespace = entry.namespace
            timers[entry.name].append((entry.value, Timer(timestamp, entry.key, namespace)))
        # By number only: of timers from several subtasks, those of one key stay in their order.
        event_time, processing_time = (
            {timer: number for number, timer in sorted(found, key=lambda numbered: numbered[0])}
            for found in timers.values()
        )
        return cls(event_time, processing_time)

    def entries(self) -> Iterator[KeyedStateEntry]:
        for name, timers in (
            (_EVENT_TIME, self.event_time),
            (_PROCESSING_TIME, self.processing_time),
        ):
            for timer, number in timers.items():
                if timer.key is not None:
                    where = timer.timestamp, timer.namespace
                    yield KeyedStateEntry(name, timer.key, where, number)


def is_timer(entry: KeyedStateEntry) -> bool:
    return entry.name in (_EVENT_TIME, _PROCESSING_TIME)
