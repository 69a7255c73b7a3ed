"""Partitions of BLOCKING results that finished tasks left here.

Partitions outlive their slots and keep the connection to the JobMaster open. They are deleted when
the JobMaster releases them, disconnects or is given up.
"""

from __future__ import annotations

from collections.abc import Collection

from firesteel.common.job_graph import ResultPartitionId, StoredPartition
from taskexecutor.core import commands
from taskexecutor.core.hosted_jobs import HostedJob
from taskexecutor.core.slot_table import SlotTable


def keep(table: SlotTable, job: HostedJob, partitions: tuple[StoredPartition, ...]) -> None:
    new = {each.id: each for each in partitions if each.id not in job.partitions}
    if new:
        job.partitions.update(new)
        _count(table, new.values(), +1)
        taken = tuple(new.values())
        table.command(commands.TakePartitionsOver(job_id=job.job_id, partitions=taken))


def release(table: SlotTable, job: HostedJob, partitions: tuple[ResultPartitionId, ...]) -> None:
    known = [job.partitions.pop(each) for each in partitions if each in job.partitions]
    if known:
        _count(table, known, -1)
        ids = tuple(partition.id for partition in known)
        table.command(commands.DeletePartitions(job_id=job.job_id, partitions=ids))


def release_all(table: SlotTable, job: HostedJob) -> None:
    if job.partitions:
        _count(table, job.partitions.values(), -1)
        job.partitions.clear()
        table.command(commands.DeleteResults(job_id=job.job_id))


def _count(table: SlotTable, partitions: Collection[StoredPartition], sign: int) -> None:
    table.stored = commands.Stored(
        table.stored.partitions + sign * len(partitions),
        table.stored.size_bytes + sign * sum(partition.size_bytes for partition in partitions),
    )
