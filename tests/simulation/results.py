"""Partitions of BLOCKING results, simulated: which TaskExecutor keeps what, and who reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from firesteel.common.ids import JobId
from firesteel.common.job_graph import ResultPartitionId, StoredPartition

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedProcess


class SimulatedResults:
    """`taskexecutor.results.Results` of one TaskExecutor."""

    memory = None

    def __init__(self, process: SimulatedProcess, kept: KeptResults) -> None:
        self.address = ""
        self._process = process
        self._kept, self._on_kept = kept.by_address, kept.on_kept
        self._own: dict[JobId, set[ResultPartitionId]] = {}

    def prepare(self) -> None:
        pass

    async def serve(self, host: str) -> None:
        self.address = f"results-{self._process.name}:1"
        self._kept[self.address] = self._process, self._own

    async def stop(self) -> None:
        self._kept.pop(self.address, None)

    def take_over(self, job_id: JobId, partitions: Sequence[StoredPartition]) -> None:
        self._own.setdefault(job_id, set()).update(partition.id for partition in partitions)
        for heard in self._on_kept:
            heard(job_id)

    def delete(self, job_id: JobId, partitions: Sequence[ResultPartitionId]) -> None:
        self._own.get(job_id, set()).difference_update(partitions)

    def delete_job(self, job_id: JobId) -> None:
        self._own.pop(job_id, None)


class KeptResults:
    """The kept results of all TaskExecutors."""

    def __init__(self) -> None:
        self.on_kept: list[Callable[[JobId], None]] = []  # a task has left some
        # By where they are served.
        self.by_address: dict[
            str, tuple[SimulatedProcess, dict[JobId, set[ResultPartitionId]]]
        ] = {}

    def readable(self, address: str, job_id: str, partition: ResultPartitionId) -> bool:
        process, kept = self.by_address.get(address, (None, {}))
        return process is not None and process.alive and partition in kept.get(JobId(job_id), ())

    def left(self) -> Iterator[tuple[str, JobId, set[ResultPartitionId]]]:
        """Process, job, partitions, where there are any."""
        for process, kept in self.by_address.values():
            for job_id, partitions in kept.items():
                if process.alive and partitions:
                    yield process.name, job_id, partitions
