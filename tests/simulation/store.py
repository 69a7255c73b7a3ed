"""The real job store on a disk that fails as the seed decides, with a checker of its writes:
terminal jobs do not change, and epochs only rise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from dispatcher.core.records import (
    JobAdded,
    JobAssigned,
    JobCancelRequested,
    JobEnded,
    JobForgotten,
    JobStatusChanged,
    Record,
)
from dispatcher.job_store import JobStore, NotWritten
from firesteel._proto import job_master_pb2
from firesteel.common.checkpoints.state import CompleteCheckpoint
from firesteel.common.ids import JobId, JobMasterId, VertexId
from firesteel.common.job_graph import JobGraph
from firesteel.common.states import JobStatus
from tests.simulation.world import SimulatedProcess, World


@dataclass(slots=True, kw_only=True)
class StoredJob:
    status: JobStatus = JobStatus.INITIALIZING
    epoch: int = 0
    job_master_id: JobMasterId | None = None
    job_master_address: str = ""
    ended_at: float = 0.0  # virtual seconds


class Disk:
    """The data that outlives every Dispatcher, with a record of the writes."""

    def __init__(self, world: World, directory: Path) -> None:
        self.world = world
        self.url = JobStore.sqlite_url(directory)
        self.epoch = 0  # of the latest Dispatcher that has taken it over
        self.by_id: dict[JobId, StoredJob] = {}
        self.checkpoints: dict[JobId, list[int]] = {}  # complete ones, oldest first, by job
        # All parallelisms that jobs were given, oldest first.
        self.parallelism: dict[JobId, list[job_master_pb2.JobParallelism]] = {}
        self.on_checkpoint: list[Callable[[JobId], None]] = []  # one is complete
        self.failing_writes = 0.0  # probability that a write fails and nothing is written
        self.lost_answers = 0.0  # probability that a write succeeds and seems to have failed

    def rescales(self, graph: JobGraph) -> list[JobGraph]:
        """The graph with each parallelism that was stored, the last one last."""
        return [
            graph.with_parallelism({VertexId(v): n for v, n in stored.by_vertex.items()})
            for stored in self.parallelism.get(graph.job_id, [])
        ]

    def ended(self, job_id: JobId) -> bool:
        return job_id in self.by_id and self.by_id[job_id].status.globally_terminal

    def written(self, record: Record) -> None:
        """Raises if it should not have been."""
        job = self.by_id.get(record.job_id)
        if job is None:
            if not isinstance(record, JobAdded):
                raise self.world.failed(f"job {record.job_id} is not there, but: {record}")
            self.by_id[record.job_id] = StoredJob()
            return
        if job.status.globally_terminal and not _repeats(job, record):
            raise self.world.failed(f"job {record.job_id} is {job.status.name}, but then: {record}")
        match record:
            case JobAssigned():
                if record.epoch < job.epoch:
                    raise self.world.failed(
                        f"job {record.job_id}: epoch {record.epoch} follows {job.epoch}"
                    )
                job.epoch, job.job_master_id = record.epoch, record.job_master_id
                job.job_master_address = record.address
            case JobStatusChanged():
                job.status = record.status
            case JobEnded():
                job.status = record.status
                job.ended_at = self.world.now
            case JobAdded() | JobCancelRequested() | JobForgotten():
                pass


def _repeats(job: StoredJob, record: Record) -> bool:
    """Returns whether a record may be written twice: the first answer may have been lost."""
    match record:
        case JobForgotten():
            return True
        case JobEnded():
            return record.status is job.status
        case _:
            return False


class JudgedJobStore(JobStore):
    def __init__(self, disk: Disk, process: SimulatedProcess, epoch: int | None = None) -> None:
        super().__init__(disk.url, epoch)
        disk.epoch = max(disk.epoch, self.epoch)
        self._disk = disk
        self._process = process
        self._unanswered: Sequence[Record] = ()  # written, but the answer was lost
        process.on_end.append(self.close)

    def persist(self, records: Sequence[Record]) -> None:
        disk = self._disk
        world = disk.world
        if disk.failing_writes and world.chance(disk.failing_writes):
            world.note(self._process.name, "the disk: a write fails")
            raise _problem("disk I/O error")
        super().persist(records)
        self._judge("records")
        if records != self._unanswered:
            for record in records:
                disk.written(record)
        self._unanswered = records  # if its answer is lost
        self._answer()
        self._unanswered = ()

    def commit_checkpoint(
        self, job_id: JobId, epoch: int, checkpoint: CompleteCheckpoint, subsumed: Sequence[int]
    ) -> None:
        disk = self._disk
        if disk.failing_writes and disk.world.chance(disk.failing_writes):
            disk.world.note(self._process.name, "the disk: a checkpoint's row is not written")
            raise NotWritten("disk I/O error")
        super().commit_checkpoint(job_id, epoch, checkpoint, subsumed)
        self._judge("a checkpoint")
        if epoch < disk.by_id[job_id].epoch:
            raise disk.world.failed(
                f"job {job_id}: a JobMaster with epoch {epoch} has stored checkpoint"
                f" {checkpoint.checkpoint_id}, after one with {disk.by_id[job_id].epoch} was started"
            )
        committed = disk.checkpoints.setdefault(job_id, [])
        if checkpoint.checkpoint_id not in committed:
            if committed and checkpoint.checkpoint_id < committed[-1]:
                raise disk.world.failed(
                    f"job {job_id}: checkpoint {checkpoint.checkpoint_id} follows {committed[-1]}"
                )
            committed.append(checkpoint.checkpoint_id)
            for heard in disk.on_checkpoint:
                heard(job_id)
        self._answer()

    def commit_parallelism(self, job_id: JobId, epoch: int, parallelism: bytes) -> None:
        disk = self._disk
        if disk.failing_writes and disk.world.chance(disk.failing_writes):
            disk.world.note(self._process.name, "the disk: a parallelism is not written")
            raise NotWritten("disk I/O error")
        super().commit_parallelism(job_id, epoch, parallelism)
        self._judge("a parallelism")
        stored = job_master_pb2.JobParallelism.FromString(parallelism)
        earlier = disk.parallelism.setdefault(job_id, [])
        if epoch < disk.by_id[job_id].epoch or (earlier and stored.version < earlier[-1].version):
            raise disk.world.failed(
                f"job {job_id}: a JobMaster with epoch {epoch} has stored {stored} after {earlier}"
            )
        if not earlier or stored != earlier[-1]:
            earlier.append(stored)
        self._answer()

    def put_graph(self, graph: bytes, blob_hashes: Iterable[str] = ()) -> str:
        graph_id = super().put_graph(graph, blob_hashes)
        self._judge("a graph")
        return graph_id

    def _judge(self, what: str) -> None:
        """No write of a lower epoch (invariant 20)."""
        if self.epoch < self._disk.epoch:
            raise self._disk.world.failed(
                f"{self._process.name} (epoch {self.epoch}) has written {what}, after epoch"
                f" {self._disk.epoch} took the store over (invariant 20)"
            )

    def _answer(self) -> None:
        disk = self._disk
        if disk.lost_answers and disk.world.chance(disk.lost_answers):
            disk.world.note(self._process.name, "the disk: a write succeeds without an answer")
            raise _problem("the server closed the connection unexpectedly")


def _problem(reason: str) -> sa.exc.OperationalError:
    return sa.exc.OperationalError("COMMIT", {}, Exception(reason))
