"""Renders how far a vertex has read its topics."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from firesteel.client.job_details import Vertex
from firesteel.client.render.tables import new_table
from firesteel.common.task_metrics import PartitionProgress, TopicProgress
from firesteel.common.units import count, counted, duration

# Without --full, only the partitions with the largest lags are shown.
FEW_PARTITIONS = 8


def topics(vertex: Vertex, *, full: bool) -> Iterator[RenderableType]:
    names = {operator.operator_id: operator.name for operator in vertex.operators}
    for operator_id, progress in vertex.metrics.topics.items():
        name = names.get(operator_id, operator_id)
        yield Text(f"{name}: {_summary(progress)}")
        for problem in _problems(progress):
            yield Text(problem, style="yellow")
        if progress.partitions:
            yield _partitions(progress, full=full)


def _summary(progress: TopicProgress) -> str:
    if not progress.assigned_partitions:
        pending = progress.pending_records
        return f"{counted(pending, 'record')} pending" if pending else "no partitions"
    parts = [_assigned(progress)]
    parts.append(f"lag {counted(progress.pending_records, 'record')}")
    if progress.assigned_partitions > 1:
        parts.append(f"at most {count(progress.largest_lag)} in a partition")
    return ", ".join(parts)


def _assigned(progress: TopicProgress) -> str:
    """Several tasks may read ranges of the same partition."""
    assigned = progress.assigned_partitions
    distinct = len({(each.topic, each.partition) for each in progress.partitions})
    if distinct < assigned == len(progress.partitions):
        return f"{counted(assigned, 'range')} of {counted(distinct, 'partition')}"
    return counted(assigned, "partition")


def _problems(progress: TopicProgress) -> Iterator[str]:
    if progress.throttle_ms:
        yield (
            "Throttled: because of a quota, brokers delay requests by"
            f" {duration(progress.throttle_ms / 1000)}."
        )
    if progress.paused_partitions:
        yield (
            f"Paused: {counted(progress.paused_partitions, 'partition')}, until the downstream"
            " operators have caught up."
        )
    if progress.failed_commits:
        yield (
            f"{counted(progress.failed_commits, 'commit')} of offsets to the consumer group failed."
            " The job does not depend on them."
        )


def _partitions(progress: TopicProgress, *, full: bool) -> RenderableType:
    by_lag = sorted(progress.partitions, key=lambda each: -(each.lag or 0))
    rows = sorted(by_lag if full else by_lag[:FEW_PARTITIONS])
    numbers = ("Partition", "Next offset", "Committed", "End", "Lag")
    state = ("",) if any(each.paused for each in rows) else ()
    table = new_table("Topic", *numbers, *state, right=numbers, gives_way=("Topic",))
    for each in rows:
        table.add_row(Text(each.topic), *_numbers(each), *(["paused"] if each.paused else []))
    left_out = progress.assigned_partitions - len(rows)
    if left_out > 0:
        more = "" if full else " (see --full)"
        table.add_row(Text(f"and {left_out} with smaller lags{more}", style="dim"))
    return table


def _numbers(progress: PartitionProgress) -> Iterator[str]:
    yield str(progress.partition)
    yield count(progress.current_offset)
    for value in (progress.committed_offset, progress.end_offset, progress.lag):
        yield "-" if value is None else count(value)
