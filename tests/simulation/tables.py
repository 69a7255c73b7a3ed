"""Files that checkpoints of simulated tasks share (`execution.checkpointing.incremental`): a task's
state is a few tables, which a checkpoint refers to if its base has them. Files are real, and the
JobMasters delete them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.common.checkpoints.metadata import decode
from firesteel.common.checkpoints.state import (
    SHARED,
    DatabaseFile,
    DatabaseHandle,
    StateFile,
    is_shared,
    shared_path,
    writer_of,
)
from firesteel.common.checkpoints.storage import METADATA
from firesteel.common.config import options
from firesteel.common.ids import JobId
from firesteel.common.key_groups import KeyGroupRange, key_group_range

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.executor import SimulatedTask

_MERGED = 0.3  # the probability that all tables become one


class Tables:
    """The tables of one task."""

    def __init__(self, cluster: Cluster, task: SimulatedTask) -> None:
        self._cluster = cluster
        self._task = task
        self._by_checkpoint: dict[int, dict[str, StateFile]] = {}
        self._names: list[str] = []
        self._made = 0

    def restore(self, handles: tuple[DatabaseHandle, ...]) -> None:
        """Starts new tables if several subtasks had written these."""
        if len(handles) != 1 or handles[0].key_groups != self._key_groups:
            return
        (handle,) = handles
        self._by_checkpoint[handle.checkpoint_id] = {
            name: file for name, file in handle.tables if is_shared(file.path)
        }
        self._names = [name for name, _ in handle.tables]
        self._made = 1 + max(map(int, self._names), default=-1)

    def write(self, checkpoint_id: int, base: int) -> DatabaseHandle:
        """`base`: 0 for none."""
        task = self._task
        if self._cluster.world.chance(_MERGED):
            self._names = []
        self._names.append(str(self._made))
        self._made += 1
        before = self._by_checkpoint.get(base, {})
        tables = {
            name: before.get(name)
            or self._new(shared_path(checkpoint_id, f"{task.attempt_id}-{name}"))
            for name in self._names
        }
        self._by_checkpoint[checkpoint_id] = tables
        self._cluster.shared.referred(
            task.job_id, checkpoint_id, base, {file.path for file in tables.values()}
        )
        return DatabaseHandle(
            checkpoint_id=checkpoint_id,
            key_groups=self._key_groups,
            tables=tuple(DatabaseFile(*table) for table in tables.items()),
            rest=self._new(f"chk-{checkpoint_id}/{task.attempt_id}-database"),
            new_bytes=1,
        )

    @property
    def _key_groups(self) -> KeyGroupRange:
        vertex = self._task.vertex.vertex
        return key_group_range(self._task.subtask, vertex.parallelism, vertex.max_parallelism)

    def give_up(self, handle: DatabaseHandle) -> None:
        """A task deletes what it has written if its part of the checkpoint fails."""
        for file in handle.files:
            if writer_of(file.path) in (None, handle.checkpoint_id):
                self._path(file.path).unlink(missing_ok=True)

    def _new(self, path: str) -> StateFile:
        at = self._path(path)
        at.parent.mkdir(parents=True, exist_ok=True)
        at.touch()
        return StateFile(path=path, size_bytes=0, checksum="")

    def _path(self, path: str) -> Path:
        return self._cluster.shared.of_job(self._task.job_id) / path


class SharedFiles:
    """Knows what the tasks of all jobs have written, from themselves."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._referred: dict[tuple[str, int], set[str]] = {}  # by job and checkpoint
        self._bases: dict[tuple[str, int], int] = {}

    def of_job(self, job_id: str) -> Path:
        config = self._cluster.jobs[JobId(job_id)].graph.config
        return Path(config[options.CHECKPOINT_DIR.key]) / job_id

    def files(self, job_id: str) -> list[str]:
        config = self._cluster.jobs[JobId(job_id)].graph.config
        if options.CHECKPOINT_DIR.key not in config:
            return []
        return sorted(str(path) for path in self.of_job(job_id).rglob("*") if path.is_file())

    def referred(self, job_id: str, checkpoint_id: int, base: int, paths: set[str]) -> None:
        self._referred.setdefault((job_id, checkpoint_id), set()).update(paths)
        self._bases[job_id, checkpoint_id] = base

    def gone(self, job_id: str, handles: tuple[DatabaseHandle, ...]) -> list[str]:
        """Returns the restored files that do not exist."""
        paths = [file.path for handle in handles for file in handle.files]
        return [path for path in paths if not (self.of_job(job_id) / path).exists()]

    def problems(self, job_id: JobId) -> Iterator[str]:
        """Yields the problems of a running job."""
        if options.CHECKPOINT_DIR.key not in self._cluster.jobs[job_id].graph.config:
            return
        complete = self._cluster.store.checkpoints.get(job_id, [])
        latest = complete[-1] if complete else 0
        folder = self.of_job(job_id)
        found = {f"{SHARED}/{path.name}" for path in folder.glob(f"{SHARED}/*")}
        reachable: set[str] = set()
        if latest:
            metadata = decode((folder / f"chk-{latest}" / METADATA).read_bytes(), str(folder))
            handles = [
                database
                for operator in metadata.operators
                for part in operator.subtasks.values()
                for database in part.databases
            ]
            if lost := self.gone(job_id, tuple(handles)):
                yield f"job {job_id}: checkpoint {latest} refers to {lost}, which are gone"
            reachable = {file.path for handle in handles for file in handle.files}
        for job, newer in self._bases:
            if job == job_id and newer > latest:
                base = self._bases[job, newer]
                reachable |= self._referred[job, newer] | self._referred.get((job, base), set())
        if left := found - reachable:
            yield f"job {job_id}: nothing since checkpoint {latest} refers to {sorted(left)}"
