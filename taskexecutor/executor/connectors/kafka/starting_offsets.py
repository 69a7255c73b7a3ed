"""Where a source starts and ends: from its restored state, or from the program's offsets."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence

from firesteel.connectors.kafka.offsets import KafkaOffsets
from firesteel.connectors.kafka.source import KafkaSource
from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.kafka.clients import KafkaUnavailable, retried
from taskexecutor.executor.connectors.kafka.discovery import listing, open_metadata
from taskexecutor.executor.connectors.kafka.metadata import Metadata
from taskexecutor.executor.connectors.kafka.partitions import (
    Available,
    Listing,
    Missing,
    Partition,
    Progress,
    lookups,
    missing,
    owned,
    unknown_partitions,
)
from taskexecutor.executor.connectors.kafka.ranges import Plan, Range, divided, existing

PATIENCE_S = 10.0  # how long the analysis waits for a topic that has just been created


def check_and_plan(source: KafkaSource) -> Plan | None:
    """Checks what the program names, and returns the ranges of a bounded source. Raises
    FiresteelError.
    """
    topics = open_metadata(source)

    def found() -> Plan | None:
        listed = listing(source, topics)
        check(source, topics, listed)
        return None if source.end is None else planned(source, topics, listed)

    try:
        return retried(found, PATIENCE_S, waiting=lambda _, pause_s: time.sleep(pause_s))
    except FiresteelError as error:
        raise error from None  # users know the client's error by its words


def existing_records(source: KafkaSource) -> list[Range]:
    """Returns the ranges of a bounded source whose records exist now. Raises FiresteelError if
    some do not, unless they may be lost.
    """
    plan = check_and_plan(source)
    assert plan is not None, "the source is bounded"
    if plan.problem:
        raise FiresteelError(plan.problem)
    logs = open_metadata(source).available(list({each.key for each in plan.ranges}))
    return [
        existing(
            each,
            logs.get(each.key, Available(0, 0)),
            fail_on_data_loss=source.fail_on_data_loss,
        )
        for each in plan.ranges
    ]


def check(source: KafkaSource, topics: Metadata, listed: Listing) -> None:
    """Raises FiresteelError if topics or partitions that the program names do not exist, or the
    group may not be read.
    """
    if source.topic_pattern is not None and source.end is not None and not listed.topics:
        topics.warn_of_unmatched(source.topic_pattern)
    for name in source.topics or tuple(source.partitions or ()):
        if name not in listed.topics:
            raise topics.unknown(name)
        missing_numbers = [
            number
            for number in (source.partitions or {}).get(name, ())
            if number not in listed.topics[name].partitions
        ]
        if missing_numbers:
            count = len(listed.topics[name].partitions)
            raise FiresteelError(
                f"topic {name} at {source.connection.bootstrap_servers} has no partition"
                f" {missing_numbers[0]}; it has {count}, from 0 to {count - 1}"
            )
    existing = listed.partitions(source.partitions)
    for what, offsets in (("start", source.start), ("end", source.end)):
        if offsets is None:
            continue
        if unknown := unknown_partitions(offsets, existing):
            raise FiresteelError(
                f"KafkaSource: {what} has an offset for {unknown[0]}, which is not read or does not"
                " exist"
            )
        lookups(f"KafkaSource: {what}", offsets, existing)
    if source.group_id is not None and existing:
        topics.committed(source.group_id, existing[:1])


def first_start(
    source: KafkaSource, topics: Metadata, listed: Listing, subtask: int, parallelism: int
) -> list[Progress]:
    """Returns the partitions of an unbounded source's subtask at the program's offsets. Raises
    FiresteelError.
    """
    partitions = owned(listed.partitions(source.partitions), subtask, parallelism)
    starts = _resolved("start", source.start, source, topics, partitions)
    return [
        Progress(
            topic=each.topic,
            partition=each.partition,
            topic_id=listed.topics[each.topic].topic_id,
            next=starts[each],
        )
        for each in partitions
    ]


def planned(source: KafkaSource, topics: Metadata, listed: Listing) -> Plan:
    """Returns the ranges of a bounded source at the program's offsets. Raises KafkaUnavailable."""
    assert source.end is not None
    partitions = listed.partitions(source.partitions)
    try:
        starts = _resolved("start", source.start, source, topics, partitions)
        ends = _resolved("end", source.end, source, topics, partitions)
    except KafkaUnavailable:
        raise
    except FiresteelError as error:
        return Plan(problem=str(error))
    ranges = [
        Range(*each, listed.topics[each.topic].topic_id, starts[each], ends[each])
        for each in partitions
    ]
    if source.min_partitions is not None and len(ranges) < source.min_partitions:
        logs = topics.available(partitions)
        log_ends = {each: log.end for each, log in logs.items()}
        ranges = divided(ranges, source.min_partitions, log_ends)
    return Plan(ranges=tuple(ranges))


def restart(
    source: KafkaSource,
    topics: Metadata,
    listed: Listing,
    restored: Sequence[Progress],
    subtask: int,
    parallelism: int,
) -> list[Progress]:
    """Returns the subtask's partitions of the state of all subtasks, and new ones at their first
    records. Partitions that the program no longer reads are left out.
    """
    known = {each.key: each for each in restored if wanted(source, each.key)}
    mine = owned(known, subtask, parallelism)
    existing = owned(listed.partitions(source.partitions), subtask, parallelism)
    new = [each for each in existing if each not in known]
    first = topics.available(new)
    return [
        *(known[each] for each in mine),
        *(
            Progress(
                topic=each.topic,
                partition=each.partition,
                topic_id=listed.topics[each.topic].topic_id,
                next=first[each].first,
            )
            for each in new
        ),
    ]


def wanted(source: KafkaSource, each: Partition) -> bool:
    """Whether the program reads the partition."""
    if source.partitions is not None:
        return each.partition in source.partitions.get(each.topic, ())
    if source.topic_pattern is not None:
        return re.fullmatch(source.topic_pattern, each.topic) is not None
    return each.topic in source.topics


def missing_of(
    topics: Metadata, listed: Listing, progress: Iterable[Progress]
) -> list[tuple[Progress, Missing]]:
    """Returns what is missing of the restored partitions."""
    progress = list(progress)
    existing = set(listed.partitions())
    available = topics.available(list({each.key for each in progress if each.key in existing}))
    found = (
        (each, missing(each, listed.topic_id(each.topic), available.get(each.key)))
        for each in progress
    )
    return [(each, lost) for each, lost in found if lost is not None]


def _resolved(
    which: str,
    offsets: KafkaOffsets,
    source: KafkaSource,
    topics: Metadata,
    partitions: Sequence[Partition],
) -> dict[Partition, int]:
    what = f"KafkaSource: {which}"
    return topics.resolved(
        what, lookups(what, offsets, partitions), offsets.otherwise, source.group_id
    )
