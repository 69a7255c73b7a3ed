"""Timers as a part of keyed state: each is written in the key group of its key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from firesteel.common.checkpoints.key_group_content import (
    EVENT_TIME_TIMERS,
    PROCESSING_TIME_TIMERS,
    KeyedStateEntry,
)
from taskexecutor.executor.timing.timers import Timer


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
        timers: dict[str, list[tuple[int, Timer]]] = {
            EVENT_TIME_TIMERS: [],
            PROCESSING_TIME_TIMERS: [],
        }
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
            (EVENT_TIME_TIMERS, self.event_time),
            (PROCESSING_TIME_TIMERS, self.processing_time),
        ):
            for timer, number in timers.items():
                if timer.key is not None:
                    where = timer.timestamp, timer.namespace
                    yield KeyedStateEntry(name, timer.key, where, number)


def is_timer(entry: KeyedStateEntry) -> bool:
    return entry.name in (EVENT_TIME_TIMERS, PROCESSING_TIME_TIMERS)
