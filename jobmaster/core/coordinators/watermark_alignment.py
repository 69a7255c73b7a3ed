"""Watermark alignment: no source of a group runs more than its `max_drift` ahead of the group's
slowest source.

        readers --WatermarkReported--> group: the lowest watermark of the readers that count
    --WatermarkLimit--> readers

A reader is a subtask of an operator that determines event time. All readers of a job whose
operators name the same group form one group, whichever vertex they belong to. The limit of a reader
is the lowest watermark plus the drift of its own operator; the reader pauses when it is past the
limit. Idle and ended readers do not count; a reader without event time yet does, and holds the
others at their first watermark.

A paused reader that may continue gets its limit immediately, as does a reader whose limit falls.
All others get it at most once per `update_interval`, so the interval bounds the number of messages
and not the throughput.

No reader is paused forever: of those that count, the slowest is within its own limit; if none
counts, there is no limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from firesteel.common.ids import AttemptId, OperatorId
from firesteel.common.job_graph import JobGraph, Operator
from firesteel.common.operator_messages import WatermarkLimit, WatermarkReported
from jobmaster.core.coordinators.base import BadOptions, UnexpectedMessage

NO_EVENT_TIME_US = -(2**63)
END_OF_EVENT_TIME_US = 2**63 - 1  # also: no limit


class Announcement(NamedTuple):
    operator_id: OperatorId
    attempt_id: AttemptId
    limit: WatermarkLimit


@dataclass(slots=True)
class _Reader:
    attempt_id: AttemptId | None = None  # None: it has not reported yet, or has ended
    watermark_us: int = NO_EVENT_TIME_US
    idle: bool = False
    sent_us: int | None = None  # the last limit sent; None: one is due immediately

    @property
    def counts(self) -> bool:
        return not self.idle and self.watermark_us < END_OF_EVENT_TIME_US

    def is_urgent(self, limit_us: int) -> bool:
        sent_us = self.sent_us
        return sent_us is None or limit_us < sent_us or sent_us < self.watermark_us <= limit_us


@dataclass(slots=True, kw_only=True)
class _Source:
    operator_id: OperatorId
    group: str
    max_drift_us: int
    update_interval_s: float
    readers: list[_Reader]  # by subtask
    update_at: float = 0.0  # before this time, only urgent limits are sent
    pending: bool = False  # a limit has changed and waits for `update_at`

    def limit_us(self, lowest_us: int) -> int:
        if lowest_us in (NO_EVENT_TIME_US, END_OF_EVENT_TIME_US):
            return lowest_us
        return min(lowest_us + self.max_drift_us, END_OF_EVENT_TIME_US)

    def announce(
        self, lowest_us: int, now: float, readers: Iterable[_Reader]
    ) -> Iterable[Announcement]:
        limit_us, due = self.limit_us(lowest_us), now >= self.update_at
        for reader in readers:
            if reader.attempt_id is None or reader.sent_us == limit_us:
                continue
            if not due and not reader.is_urgent(limit_us):
                self.pending = True
                continue
            reader.sent_us = limit_us
            self.update_at = now + self.update_interval_s
            yield Announcement(
                self.operator_id, reader.attempt_id, WatermarkLimit(limit_us=limit_us)
            )


@dataclass(slots=True)
class _Group:
    sources: list[_Source] = field(default_factory=list)
    lowest_us: int | None = None  # of the readers that count; None: not known

    def announce(self, now: float) -> list[Announcement]:
        counting = (
            reader.watermark_us
            for source in self.sources
            for reader in source.readers
            if reader.counts
        )
        self.lowest_us = lowest_us = min(counting, default=END_OF_EVENT_TIME_US)
        announcements: list[Announcement] = []
        for source in self.sources:
            source.pending = False
            announcements += source.announce(lowest_us, now, source.readers)
        return announcements


@dataclass(slots=True)
class WatermarkAlignment:
    """The alignment groups of a job."""

    _sources: dict[OperatorId, _Source] = field(default_factory=dict)
    _groups: dict[str, _Group] = field(default_factory=dict)

    @classmethod
    def of(cls, job_graph: JobGraph) -> WatermarkAlignment:
        """Creates the alignment groups. Raises BadOptions, naming the operator."""
        alignment = cls()
        for vertex in job_graph.vertices:
            for operator in vertex.operators:
                source = _source(operator, vertex.parallelism)
                if source is not None:
                    alignment._sources[source.operator_id] = source
                    alignment._groups.setdefault(source.group, _Group()).sources.append(source)
        return alignment

    def __contains__(self, operator_id: OperatorId) -> bool:
        return operator_id in self._sources

    def __bool__(self) -> bool:
        return bool(self._sources)

    def reported(
        self,
        operator_id: OperatorId,
        subtask: int,
        attempt_id: AttemptId,
        report: WatermarkReported,
        now: float,
    ) -> list[Announcement]:
        """Handles a live attempt's report. Raises UnexpectedMessage."""
        source = self._sources.get(operator_id)
        if source is None:
            raise UnexpectedMessage(
                f"operator {operator_id} reports a watermark but is in no alignment group"
            )
        reader = source.readers[subtask]
        if reader.attempt_id != attempt_id:
            reader = source.readers[subtask] = _Reader(attempt_id)
        group = self._groups[source.group]
        lowest_us = group.lowest_us
        if reader.counts and reader.watermark_us == lowest_us:
            lowest_us = None  # this reader may have been the slowest
        reader.watermark_us, reader.idle = report.watermark_us, report.idle
        if lowest_us is None or (reader.counts and reader.watermark_us < lowest_us):
            return group.announce(now)
        return list(source.announce(lowest_us, now, [reader]))  # nothing changes for the others

    def reconnected(self, operator_id: OperatorId, subtask: int) -> None:
        """Resends the limit after the reader's next report, because the limit may be lost."""
        self._sources[operator_id].readers[subtask].sent_us = None

    def finished(self, operator_id: OperatorId, subtask: int, now: float) -> list[Announcement]:
        source = self._sources[operator_id]
        source.readers[subtask] = _Reader(watermark_us=END_OF_EVENT_TIME_US)
        return self._groups[source.group].announce(now)

    def attempt_ended(self, operator_id: OperatorId, subtask: int) -> None:
        """Resets a reader that failed or was cancelled: its successor has no event time yet."""
        source = self._sources[operator_id]
        source.readers[subtask] = _Reader()
        self._groups[source.group].lowest_us = None

    def start_over(self, operator_id: OperatorId) -> None:
        for subtask in range(len(self._sources[operator_id].readers)):
            self.attempt_ended(operator_id, subtask)

    def next_deadline(self) -> float | None:
        return min(
            (source.update_at for source in self._sources.values() if source.pending), default=None
        )

    def tick(self, now: float) -> list[Announcement]:
        due = {
            source.group: None
            for source in self._sources.values()
            if source.pending and source.update_at <= now
        }
        return [announcement for group in due for announcement in self._groups[group].announce(now)]


def _source(operator: Operator, parallelism: int) -> _Source | None:
    """Reads the coordinator's options: {"alignment": {"group": "g", "max_drift_us": 60000000,
    "update_interval_us": 1000000}}.
    """
    try:
        options = json.loads(operator.coordinator_options_json or "{}")
        alignment: Mapping[str, Any] | None = options.get("alignment")
        if alignment is None:
            return None
        group, drift_us, interval_us = (
            alignment[key] for key in ("group", "max_drift_us", "update_interval_us")
        )
        if not isinstance(group, str) or not group:
            raise BadOptions('"group" must be a name')
        if drift_us < 1 or interval_us < 1:
            raise BadOptions('"max_drift_us" and "update_interval_us" must be at least 1')
    except KeyError as error:
        raise BadOptions(f"operator {operator.name!r}: its alignment has no {error}") from error
    except (BadOptions, ValueError, TypeError, AttributeError) as error:
        raise BadOptions(
            f"operator {operator.name!r}: its alignment is not valid: {error}"
        ) from error
    return _Source(
        operator_id=operator.operator_id,
        group=group,
        max_drift_us=drift_us,
        update_interval_s=interval_us / 1_000_000,
        readers=[_Reader() for _ in range(parallelism)],
    )
