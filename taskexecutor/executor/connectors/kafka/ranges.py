"""The ranges of offsets that a bounded source reads (pure).

The analysis of a job fixes the start and the end of each partition once. The plan is part of the
source's schema, which every deployment carries, so that all subtasks and their later attempts agree
on the same ranges: see docs/decisions/0066.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka.partitions import Available, Partition, Progress


class Range(NamedTuple):
    """The records of a partition from offset `start` to before `end`."""

    topic: str
    partition: int
    topic_id: str  # empty: the broker has none
    start: int
    end: int

    @property
    def key(self) -> Partition:
        return Partition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All ranges of a source, in the order of topics, partitions and offsets."""

    ranges: tuple[Range, ...] = ()
    problem: str = ""  # why there are none; a job that is restored from a state does not need them

    @classmethod
    def decoded(cls, text: bytes) -> Self:
        found = json.loads(text)
        return cls(ranges=tuple(Range(*each) for each in found["ranges"]), problem=found["problem"])

    @property
    def encoded(self) -> bytes:
        return json.dumps({"ranges": self.ranges, "problem": self.problem}).encode()

    @property
    def divided(self) -> list[Partition]:
        """The partitions that have several ranges."""
        counts = Counter(each.key for each in self.ranges)
        return [partition for partition, count in counts.items() if count > 1]

    def share(self, subtask: int, parallelism: int) -> list[Progress]:
        """Returns the ranges of a subtask. The ranges of a partition go to the subtasks in turn, so
        that its earlier records are read before later ones.
        """
        return [
            Progress(
                topic=each.topic,
                partition=each.partition,
                topic_id=each.topic_id,
                next=each.start,
                end=each.end,
            )
            for each in self.ranges[subtask::parallelism]
        ]


def divided(
    partitions: Sequence[Range], at_least: int, log_ends: Mapping[Partition, int]
) -> list[Range]:
    """Divides the largest partitions until there are at least this many ranges, or each has one
    record. `log_ends` are the present ends of logs: an end may be later, and the last range of
    a partition contains what is written until then.
    """
    sizes = [
        max(0, min(each.end, log_ends.get(each.key, each.end)) - each.start) for each in partitions
    ]
    parts = [1] * len(partitions)
    # By the size of a part, the largest first.
    largest: list[tuple[float, int]] = [(-n, index) for index, n in enumerate(sizes) if n > 1]
    heapq.heapify(largest)
    for _ in range(at_least - len(partitions)):
        if not largest:
            break
        _, index = heapq.heappop(largest)
        parts[index] += 1
        if parts[index] < sizes[index]:
            heapq.heappush(largest, (-sizes[index] / parts[index], index))
    return [
        part
        for each, size, count in zip(partitions, sizes, parts, strict=True)
        for part in _parts(each, size, count)
    ]


def _parts(whole: Range, size: int, count: int) -> Iterable[Range]:
    starts = [whole.start + size * number // count for number in range(count)]
    for start, end in itertools.pairwise([*starts, whole.end]):
        yield whole._replace(start=start, end=end)


def existing(each: Range, log: Available, *, fail_on_data_loss: bool) -> Range:
    """Returns the part of a range whose records the log has, for a read that does not wait for
    more. Raises FiresteelError if it lacks some, unless they may be lost.
    """
    if each.start > each.end:
        raise FiresteelError(
            f"{each.key}: the read starts at offset {each.start}, after its end at offset"
            f" {each.end}; start at or before the end"
        )
    if fail_on_data_loss and each.start < log.first:
        raise FiresteelError(
            f"{each.key}: the read starts at offset {each.start}, and the first available record"
            f" has offset {log.first}; set failOnDataLoss=false to start there"
        )
    if fail_on_data_loss and each.end > log.end:
        raise FiresteelError(
            f"{each.key}: the read ends at offset {each.end}, and the partition at offset"
            f" {log.end}; set failOnDataLoss=false to end there"
        )
    end = min(each.end, log.end)
    return each._replace(start=min(max(each.start, log.first), end), end=end)


def in_order(progress: Iterable[Progress]) -> dict[Partition, list[Progress]]:
    """Returns the unfinished ranges of each partition in the order in which to read them, with
    adjacent ones joined; its last range if all have ended.
    """
    found: dict[Partition, list[Progress]] = {}
    for each in sorted(progress, key=lambda each: (each.key, each.end or 0, each.next)):
        of = found.setdefault(each.key, [])
        if of and of[-1].ended:
            of.pop()
        if each.ended and of:
            continue
        if of and of[-1].end == each.next:
            of[-1] = replace(of[-1], end=each.end)
        else:
            of.append(each)
    return found
