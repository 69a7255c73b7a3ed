"""Compares the state that tasks put into checkpoints with the state that they restore: a job
restarts from exactly the latest complete checkpoint (invariant 6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firesteel.common.ids import JobId

if TYPE_CHECKING:
    from tests.simulation.checkpoints import Restored
    from tests.simulation.cluster import Cluster
    from tests.simulation.executor import SimulatedTask

Subtask = tuple[str, int]  # vertex, subtask


def subtask_of(task: SimulatedTask) -> Subtask:
    return task.vertex.vertex.vertex_id, task.subtask


class Snapshots:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # By job and checkpoint: who has a part in it.
        self._taken: dict[tuple[str, int], dict[Subtask, int]] = {}
        # By job, checkpoint and vertex.
        self._parallelism: dict[tuple[str, int, str], int] = {}
        self.rescaled = 0  # tasks that have restored the state of another parallelism
        self.begun_from: dict[str, int] = {}  # the checkpoint that each job has restored last

    def taken(self, task: SimulatedTask, checkpoint_id: int) -> None:
        parts = self._taken.setdefault((task.job_id, checkpoint_id), {})
        parts[subtask_of(task)] = task.attempt
        vertex = task.vertex.vertex
        self._parallelism[task.job_id, checkpoint_id, vertex.vertex_id] = vertex.parallelism

    def has_part(self, task: SimulatedTask, checkpoint_id: int) -> bool:
        """Whether this attempt has."""
        parts = self._taken.get((task.job_id, checkpoint_id), {})
        return parts.get(subtask_of(task)) == task.attempt

    def restored(
        self, task: SimulatedTask, job_master_epoch: int, restored: Restored | None
    ) -> str:
        """A task is deployed with this; returns what is wrong."""
        job_id = JobId(task.job_id)
        store = self._cluster.store
        if job_master_epoch < store.by_id[job_id].epoch:
            return ""  # the JobMaster has been replaced: its actions have no effect
        stored = store.checkpoints.get(job_id, [])
        latest = stored[-1] if stored else 0
        if (restored is not None) != bool(latest):
            return (
                f"task {task.attempt_id} starts {'without' if restored is None else 'with'} state;"
                f" the latest checkpoint is {latest or 'none'}"
            )
        if restored is None:
            return ""
        self.begun_from[job_id] = latest
        has_part = subtask_of(task) in self._taken.get((job_id, latest), {})
        if restored.finished:
            return ""
        if gone := self._cluster.shared.gone(task.job_id, restored.databases):
            return (
                f"task {task.attempt_id} starts with files of checkpoint {latest} that are gone:"
                f" {gone}"
            )
        vertex = task.vertex.vertex
        before = self._parallelism.get((job_id, latest, vertex.vertex_id), vertex.parallelism)
        if before != vertex.parallelism:
            self.rescaled += 1
            if restored.checkpoint_id in (0, latest):
                return ""  # the parts of all subtasks are dealt
        if restored.checkpoint_id != (latest if has_part else 0):
            return (
                f"task {task.attempt_id} starts with its state of checkpoint"
                f" {restored.checkpoint_id}; the latest is {latest}, in which it has"
                f" {'a' if has_part else 'no'} part"
            )
        return ""
