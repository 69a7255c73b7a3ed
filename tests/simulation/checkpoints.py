"""Checkpoints of simulated tasks: barriers that follow the tasks of a job, snapshots that say what
they hold, and the last checkpoint at the end.

A barrier has passed a partition when its producer has taken its snapshot; a consumer takes its own
once that is so for all producers that have not finished.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from firesteel._proto import executor_pb2, tasks_pb2
from firesteel.common.checkpoints.metadata import decode_snapshots, encode_snapshots
from firesteel.common.checkpoints.state import DatabaseHandle, OperatorSnapshot
from firesteel.common.ids import OperatorId
from firesteel.common.states import ExecutionState
from taskexecutor.executor.connectors.splits import merged
from tests.simulation.tables import Tables

if TYPE_CHECKING:
    from tests.simulation.executor import SimulatedTask, SlotProcess

_STATE = "simulated"
Partition = tuple[str, str, int, int]  # job, result, producer subtask, attempt
# Splits, by the subtask that has read them and the checkpoint whose barrier ended the transaction.
Transactions = dict[tuple[int, int], list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The state in a deployment; `checkpoint_id` is 0 if it contains no state of the task."""

    checkpoint_id: int = 0
    splits: tuple[Any, ...] = ()  # read
    uncommitted: Transactions = field(default_factory=dict)  # some of those
    waiting: dict[str, Any] = field(default_factory=dict)  # the position: assigned and not read
    databases: tuple[DatabaseHandle, ...] = ()
    finished: bool = False  # all subtasks had


def restored_from(deployment: tasks_pb2.TaskDeployment) -> Restored | None:
    if not deployment.HasField("restored"):
        return None
    (snapshot,) = decode_snapshots(deployment.restored)
    if not (found := _states_in(snapshot)):
        return Restored(finished=snapshot.finished)
    (checkpoint_id,) = {state["checkpoint"] for state in found}
    return Restored(
        checkpoint_id=checkpoint_id,
        splits=tuple(split for state in found for split in state["splits"]),
        uncommitted={
            (subtask, number): splits
            for state in found
            for subtask, number, splits in state["uncommitted"]
        },
        waiting=merged([state["waiting"] for state in found]),
        databases=snapshot.databases,
        finished=snapshot.finished,
    )


def held_in(snapshot: OperatorSnapshot) -> list[Any]:
    """The splits of a source's subtask: those that it has read, and those that it will."""
    return [
        split
        for state in _states_in(snapshot)
        for split in (*state["splits"], *(waiting for waiting, *_ in state["waiting"]["splits"]))
    ]


def _states_in(snapshot: OperatorSnapshot) -> list[dict[str, Any]]:
    """Returns the states of several subtasks, or none, if the parallelism has changed."""
    return [json.loads(state) for state in snapshot.lists.get(_STATE, ())]


class TaskCheckpoints:
    """The checkpoints of one task of a job that takes checkpoints."""

    def __init__(
        self, process: SlotProcess, task: SimulatedTask, restored: Restored | None
    ) -> None:
        self.restored = restored
        self.data_ended = False
        self._process = process
        self._task = task
        self._triggered: list[tuple[int, int]] = []  # with the splits to be received
        self._latest = 0  # taken
        self._open: set[int] = set()  # taken, and not known to have ended
        self._final: int | None = None  # the first that was taken after the data had ended
        self._complete = False
        self._uncommitted: Transactions = dict(restored.uncommitted) if restored else {}
        self._begun_at = len(restored.splits) if restored else 0  # the transaction, in all splits
        self._tables = Tables(process.cluster, task)
        if restored is not None:
            self._tables.restore(restored.databases)

    def begin(self) -> None:
        """The task runs."""
        if self.restored is not None:
            self._commit(self.restored.checkpoint_id)
        self._look()

    def trigger(self, checkpoint_id: int, splits: int) -> None:
        self._triggered.append((checkpoint_id, splits))
        self.look_at_triggers()

    def look_at_triggers(self) -> None:
        """Splits that were assigned before the trigger belong to the snapshot."""
        task = self._task
        while self._triggered and task.state is ExecutionState.RUNNING:
            checkpoint_id, splits = self._triggered[0]
            if task.reader.received < splits or not self._all_finished(task.sources):
                return
            self._triggered.pop(0)
            self._take(checkpoint_id)

    def notice(self, checkpoint_id: int, *, completed: bool) -> None:
        process, task = self._process, self._task
        self._open = {n for n in self._open if n > checkpoint_id}
        if not completed:
            self._triggered = [(n, splits) for n, splits in self._triggered if n != checkpoint_id]
            return
        process.cluster.checkers.told_complete(task, checkpoint_id)
        self._commit(checkpoint_id)
        if self._final is not None and checkpoint_id >= self._final:
            self._complete = True

    def end_data(self) -> None:
        """The task has processed everything: it ends with a checkpoint that holds that."""
        if self.data_ended:
            return
        process, task = self._process, self._task
        self.data_ended = True
        process.cluster.data_ended.update(process.partitions_of(task))
        ended = tasks_pb2.DataEnded(job_id=task.job_id, attempt_id=task.attempt_id)
        process.say(executor_pb2.ExecutorToTaskExecutor(data_ended=ended))

    @property
    def open(self) -> list[int]:
        """Returns the task's checkpoints whose outcome it does not know."""
        return sorted({n for n, _ in self._triggered} | self._open)

    # ---- inside

    def _look(self) -> None:
        """Barriers are looked for in turn, until the task has ended."""
        process, task = self._process, self._task
        if not process.goes_on(task):
            return
        if task.sources:
            self._look_at_barriers()
        self.look_at_triggers()
        if self._complete and self._all_finished(task.sources):
            process.report_finished(task)
            return
        process.after(process.world.between(0.2, 0.6), self._look)

    def _look_at_barriers(self) -> None:
        """A producer that has finished counts as one that has passed every barrier; those that it
        has passed before come all the same.
        """
        cluster, sources = self._process.cluster, self._task.sources
        passed = {partition: cluster.barriers.get(partition, set()) for partition in sources}
        finished = ExecutionState.FINISHED
        for checkpoint_id in sorted(set.union(*passed.values())):
            if all(
                checkpoint_id in passed[partition] or cluster.partitions.get(partition) is finished
                for partition in sources
            ):
                self._take(checkpoint_id)

    def _all_finished(self, sources: list[Partition]) -> bool:
        states = self._process.cluster.partitions
        return all(states.get(partition) is ExecutionState.FINISHED for partition in sources)

    def _take(self, checkpoint_id: int) -> None:
        if checkpoint_id <= self._latest:
            return
        process, task = self._process, self._task
        self._latest = checkpoint_id
        self._open.add(checkpoint_id)
        if self.data_ended and self._final is None:
            self._final = checkpoint_id
        for partition in process.partitions_of(task):
            process.cluster.barriers.setdefault(partition, set()).add(checkpoint_id)
        answer = {
            "job_id": task.job_id,
            "attempt_id": task.attempt_id,
            "checkpoint_id": checkpoint_id,
        }
        snapshot = self._snapshot(checkpoint_id)
        declines = process.cluster.shape.declined_snapshots
        if process.cluster.faults_on and process.world.chance(declines):
            declined = tasks_pb2.CheckpointDeclined(**answer, cause="the disk is full")
            message = executor_pb2.ExecutorToTaskExecutor(checkpoint_declined=declined)
            for handle in snapshot.databases:
                self._tables.give_up(handle)
        else:
            written = tasks_pb2.Snapshot(
                operators=encode_snapshots((snapshot,)), operators_finished=self.data_ended
            )
            acknowledged = tasks_pb2.CheckpointAcknowledged(**answer, snapshot=written)
            message = executor_pb2.ExecutorToTaskExecutor(checkpoint_acknowledged=acknowledged)
            process.cluster.checkers.snapshot_taken(task, checkpoint_id)
        process.after(process.world.between(0.001, 0.5), lambda: self._answer(message))

    def _answer(self, message: executor_pb2.ExecutorToTaskExecutor) -> None:
        if self._process.goes_on(self._task):
            self._process.say(message)

    def _snapshot(self, checkpoint_id: int) -> OperatorSnapshot:
        task = self._task
        operator_id = OperatorId(task.vertex.vertex.operators[0].operator_id)
        if self.restored is not None and self.restored.finished:
            return OperatorSnapshot(operator_id=operator_id, finished=True)
        if read := task.splits[self._begun_at :]:
            self._uncommitted[task.subtask, checkpoint_id] = read
            self._begun_at = len(task.splits)
        state = {
            "checkpoint": checkpoint_id,
            "splits": task.splits,
            "uncommitted": [[*key, splits] for key, splits in self._uncommitted.items()],
            "waiting": task.reader.position(None),
        }
        base = self._process.cluster.bases.get((task.job_id, checkpoint_id))
        return OperatorSnapshot(
            operator_id=operator_id,
            databases=() if base is None else (self._tables.write(checkpoint_id, base),),
            lists={_STATE: (json.dumps(state).encode(),)},
        )

    def _commit(self, up_to: int) -> None:
        """Commits this complete checkpoint and the transactions of earlier ones in it."""
        for subtask, checkpoint_id in [key for key in self._uncommitted if key[1] <= up_to]:
            splits = self._uncommitted.pop((subtask, checkpoint_id))
            self._process.cluster.checkers.committed(self._task, subtask, checkpoint_id, splits)
