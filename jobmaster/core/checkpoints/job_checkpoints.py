"""A job's checkpoints between its coordinator and the rest of the core: commands by TaskExecutor,
the metadata of complete checkpoints, and the state that tasks restore.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import assert_never

from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.common.checkpoints.evolution import kept_states
from firesteel.common.checkpoints.metadata import CheckpointedOperator, CheckpointMetadata
from firesteel.common.checkpoints.state import OperatorSnapshot
from firesteel.common.ids import AttemptId, OperatorId, TaskExecutorId, VertexId
from firesteel.common.states import JobStatus
from jobmaster.core import commands
from jobmaster.core.checkpoints import commands as wanted
from jobmaster.core.checkpoints.changed_operators import changed_operators
from jobmaster.core.checkpoints.checkpoint import Checkpoint, Kind, Snapshot
from jobmaster.core.checkpoints.coordinator import CheckpointCoordinator, Request
from jobmaster.core.checkpoints.key_types import changed_key, key_types
from jobmaster.core.checkpoints.recovery import Recovery
from jobmaster.core.checkpoints.restore import assign
from jobmaster.core.checkpoints.settings import (
    NO_CHECKPOINTS,
    CheckpointSettings,
    Retention,
)
from jobmaster.core.coordinators.registry import Coordinators
from jobmaster.core.execution_graph import Execution, ExecutionGraph


class JobCheckpoints:
    """Without settings, the job takes no checkpoints."""

    def __init__(
        self,
        settings: CheckpointSettings | None,
        graph: ExecutionGraph,
        coordinators: Coordinators,
        now_ms: Callable[[float], int],
        recovery: Recovery,
    ) -> None:
        settings = settings or NO_CHECKPOINTS
        latest = recovery.latest
        self.enabled = settings.enabled
        self.coordinator = CheckpointCoordinator(
            settings,
            graph,
            snapshot_coordinators=coordinators.snapshot,
            next_id=recovery.first_checkpoint_id,
            retained=recovery.retained,
            latest=None if latest is None else latest.checkpoint_id,
            shared_files=recovery.shared_files,
        )
        self.failure = ""  # why the job must fail: too many checkpoints have failed
        self._graph = graph
        self._assigned = coordinators.assigned
        self._now_ms = now_ms
        # Metadata of checkpoints that this master has stored or is storing, and of the latest one.
        self._metadata: dict[int, CheckpointMetadata] = {}
        if latest is not None:
            self._metadata[latest.checkpoint_id] = latest
        # The base directories of paths in their metadata; others are in the job's directory.
        self._directories: dict[int, str] = {}
        if latest is not None and recovery.restored_from:
            self._directories[latest.checkpoint_id] = recovery.restored_from
        self._claimed = recovery.claimed
        self._key_types: dict[OperatorId, str] = {}
        self._states: dict[OperatorId, StateDescriptions] = {}
        self._retention = settings.retention
        self._running = False

    @property
    def settled(self) -> bool:
        """Whether the latest checkpoint is known."""
        return self.coordinator.settled

    @property
    def latest(self) -> CheckpointMetadata | None:
        """The checkpoint that a restarting job restores."""
        latest = self.coordinator.latest
        return None if latest is None else self._metadata[latest]

    def next_deadline(self) -> float | None:
        return self.coordinator.next_deadline()

    def analyzed(
        self,
        schemas: Mapping[commands.OutputOf, bytes],
        states: Mapping[OperatorId, StateDescriptions],
    ) -> str:
        """Returns why the job cannot resume from its restored checkpoint; empty if it can. `states`
        has the operators whose states are known.
        """
        if not self.enabled:
            return ""
        job = self._graph.job_graph
        self._key_types = key_types(job, schemas)
        restored = () if self.latest is None else self.latest.operators
        before = {operator.operator_id: operator.states for operator in restored}
        self._states = {
            operator.operator_id: kept_states(
                before.get(operator.operator_id, {}), states.get(operator.operator_id, {})
            )
            for vertex in job.vertices
            for operator in vertex.operators
        }
        return changed_key(job, self._key_types, restored) or changed_operators(job, before, states)

    @property
    def ends_the_job(self) -> bool:
        """Whether the job is or was being stopped with a savepoint."""
        return self.coordinator.ends_the_job

    def follow(self, running: bool, now: float, *, otherwise: str) -> list[commands.Command]:
        """Called after every event. `running` is true if all tasks run or have finished;
        `otherwise` says why they do not.
        """
        if running == self._running:
            return []
        self._running = running
        if running:
            return self._converted(self.coordinator.started(now), now)
        return self._converted(self.coordinator.stopped(otherwise, now), now)

    def tick(self, now: float) -> list[commands.Command]:
        return self._converted(self.coordinator.tick(now), now)

    def finished(self, execution: Execution, now: float) -> list[commands.Command]:
        return self._converted(self.coordinator.finished(execution, now), now)

    def data_ended(self, execution: Execution, now: float) -> list[commands.Command]:
        return self._converted(self.coordinator.data_ended(execution, now), now)

    def acknowledged(
        self, attempt_id: AttemptId, checkpoint_id: int, snapshot: Snapshot, now: float
    ) -> list[commands.Command]:
        return self._converted(
            self.coordinator.acknowledged(attempt_id, checkpoint_id, snapshot, now), now
        )

    def declined(
        self, attempt_id: AttemptId, checkpoint_id: int, cause: str, now: float
    ) -> list[commands.Command]:
        return self._converted(
            self.coordinator.declined(attempt_id, checkpoint_id, cause, now), now
        )

    def reconnected(self, now: float) -> list[commands.Command]:
        """A TaskExecutor's stream broke and is open again: triggers and notices may be lost."""
        return self._converted(self.coordinator.lost_messages(now), now)

    def adopted(
        self,
        open_checkpoints: Mapping[AttemptId, Collection[int]],
        stops_with: Collection[int],
        now: float,
        *,
        asked: Request | None,
        stopped: bool,
    ) -> list[commands.Command]:
        """Takes over running tasks; see CheckpointCoordinator.adopted."""
        latest = self.latest
        adopted = self.coordinator.adopted(
            open_checkpoints,
            stops_with,
            asked,
            now,
            stopped=stopped,
            since_latest_s=(
                math.inf if latest is None else (self._now_ms(now) - latest.timestamp_ms) / 1000
            ),
        )
        return self._converted(adopted, now)

    def latest_is_at(self, path: str) -> bool:
        latest = self.latest
        return latest is not None and self._directories.get(latest.checkpoint_id) == path

    def kept_after(self, status: JobStatus) -> bool:
        """Whether complete checkpoints are kept after the job ended with this status."""
        if status is JobStatus.FAILED:
            return self._retention is not Retention.NEVER
        return status is JobStatus.CANCELED and self._retention is Retention.FAILED_OR_CANCELED

    def ended(self, status: JobStatus) -> list[commands.Command]:
        """Deletes the job's checkpoints unless they are kept, once the end of the job is stored."""
        if not self.enabled or self.kept_after(status):
            return []
        dropped: list[commands.Command] = [commands.DropAllCheckpoints()]
        if self._claimed is not None and self._claimed.checkpoint_id in self.coordinator.retained:
            dropped.append(commands.DropCheckpoint(checkpoint_id=self._claimed.checkpoint_id))
        return dropped

    def requested(self, asked: Request, now: float) -> list[commands.Command]:
        return self._converted(self.coordinator.request(asked, now), now)

    def late_answer(self, checkpoint_id: int, problem: str = "") -> list[commands.Command]:
        """Answers for a checkpoint that was being stored when the job ended."""
        return [
            commands.AnswerRequest(
                request=checkpoint.request, checkpoint_id=checkpoint_id, problem=problem
            )
            for checkpoint in self.coordinator.pending
            if checkpoint.checkpoint_id == checkpoint_id and checkpoint.request
        ]

    def stored(self, checkpoint_id: int, now: float) -> list[commands.Command]:
        coordinator = self.coordinator
        converted = self._converted(coordinator.stored(checkpoint_id, now), now)
        needed = {coordinator.latest, *(c.checkpoint_id for c in coordinator.pending)}
        for other in self._metadata.keys() - needed:
            del self._metadata[other]
            self._directories.pop(other, None)
        return converted

    def not_stored(
        self, checkpoint_id: int, problem: str, now: float, *, counts: bool
    ) -> list[commands.Command]:
        self._metadata.pop(checkpoint_id, None)
        return self._converted(
            self.coordinator.not_stored(checkpoint_id, problem, now, counts=counts), now
        )

    def restored(self) -> dict[OperatorId, list[OperatorSnapshot]] | None:
        """Returns the state that each subtask of each operator restores; None: all start empty."""
        latest = self.latest
        if latest is None:
            return None
        parallelism = {
            operator.operator_id: vertex.vertex.parallelism
            for vertex in self._graph.vertices
            for operator in vertex.vertex.operators
        }
        return {
            operator.operator_id: assign(operator, parallelism[operator.operator_id])
            for operator in latest.operators
            if operator.operator_id in parallelism  # otherwise its state is discarded, as requested
        }

    def finished_vertices(self, among: Collection[VertexId]) -> frozenset[VertexId]:
        """Returns the vertices, among those that restart, that have nothing to do when the latest
        checkpoint is restored: they and all their producers had finished in it. Empty if that
        applies to all vertices.
        """
        latest = self.latest
        if latest is None:
            return frozenset()
        operators = {o.operator_id for o in latest.operators if o.finished}
        finished: set[VertexId] = set()
        for vertex in self._graph.vertices:  # producers come first
            if vertex.vertex.vertex_id not in among:
                continue
            feeding = self._graph.inputs_of(vertex.vertex.vertex_id)
            if all(o.operator_id in operators for o in vertex.vertex.operators) and all(
                result.producer.vertex.vertex_id in finished for result in feeding
            ):
                finished.add(vertex.vertex.vertex_id)
        return frozenset(finished) if len(finished) < len(among) else frozenset()

    @property
    def restored_from(self) -> str:
        """The base directory of paths in `restored`; empty: the job's directory."""
        latest = self.latest
        return "" if latest is None else self._directories.get(latest.checkpoint_id, "")

    # -- inside

    def _converted(self, found: Iterable[wanted.Command], now: float) -> list[commands.Command]:
        converted: list[commands.Command] = []
        for command in found:
            converted += self._convert(command, now)
        return converted

    def _convert(self, command: wanted.Command, now: float) -> list[commands.Command]:
        match command:
            case wanted.TriggerCheckpoint():
                splits = {e.attempt_id: self._assigned(e) for e in command.executions}
                return [
                    commands.TriggerCheckpoint(
                        task_executor_id=task_executor_id,
                        checkpoint_id=command.checkpoint_id,
                        timestamp_ms=self._now_ms(now),
                        savepoint=command.kind is Kind.SAVEPOINT,
                        unaligned=command.unaligned,
                        aligned_timeout_ms=command.aligned_timeout_ms,
                        at_least_once=command.at_least_once,
                        attempt_ids=attempts,
                        splits={a: splits[a] for a in attempts if splits.get(a)},
                        stops=command.stops,
                        savepoint_path=command.savepoint_path if command.stops else "",
                        base=command.base,
                    )
                    for task_executor_id, attempts in _by_task_executor(command.executions)
                ]
            case wanted.DrainTasks():
                return [
                    commands.DrainTasks(
                        task_executor_id=task_executor_id,
                        attempt_ids=attempts,
                        savepoint_path=command.savepoint_path,
                    )
                    for task_executor_id, attempts in _by_task_executor(command.executions)
                ]
            case wanted.NotifyCheckpoint():
                return [
                    commands.NotifyCheckpoint(
                        task_executor_id=task_executor_id,
                        checkpoint_id=command.checkpoint_id,
                        completed=command.completed,
                        attempt_ids=attempts,
                        stops=command.stops,
                    )
                    for task_executor_id, attempts in _by_task_executor(command.executions)
                ]
            case wanted.StoreCheckpoint():
                metadata = self._describe(command.checkpoint)
                self._metadata[metadata.checkpoint_id] = metadata
                if command.checkpoint.savepoint_path:
                    self._directories[metadata.checkpoint_id] = command.checkpoint.savepoint_path
                return [
                    commands.StoreCheckpoint(
                        metadata=metadata,
                        size_bytes=command.checkpoint.size_bytes,
                        subsumed=command.subsumed,
                        savepoint_path=command.checkpoint.savepoint_path,
                        unsettled=command.unsettled,
                    )
                ]
            case wanted.DropCheckpoint():
                return [commands.DropCheckpoint(checkpoint_id=command.checkpoint_id)]
            case wanted.DropSnapshots():
                found = (path for snapshot in command.snapshots for path in snapshot.files)
                paths = tuple(self.coordinator.shared.unreachable(found))
                return [commands.DropCheckpointFiles(paths=paths)] if paths else []
            case wanted.DropFiles(paths=paths):
                return [commands.DropCheckpointFiles(paths=paths)]
            case wanted.SweepSharedFiles(before=before, kept=kept):
                return [commands.SweepSharedFiles(before=before, kept=kept)]
            case wanted.AnswerRequest(request=request, checkpoint=checkpoint, failure=failure):
                checkpoint_id = checkpoint.checkpoint_id if checkpoint is not None else 0
                return [
                    commands.AnswerRequest(
                        request=request, checkpoint_id=checkpoint_id, problem=failure
                    )
                ]
            case wanted.TooManyFailures():
                self.failure = command.cause
                return []
            case _:
                assert_never(command)

    def _describe(self, checkpoint: Checkpoint) -> CheckpointMetadata:
        plan = checkpoint.plan
        subtasks: dict[OperatorId, dict[int, OperatorSnapshot]] = {}
        for attempt_id, snapshot in checkpoint.snapshots.items():
            subtask = plan.to_acknowledge[attempt_id].vertex.subtask
            for operator in snapshot.operators:
                subtasks.setdefault(operator.operator_id, {})[subtask] = operator
        job = self._graph.job_graph
        return CheckpointMetadata(
            checkpoint_id=checkpoint.checkpoint_id,
            job_id=job.job_id,
            job_name=job.name,
            timestamp_ms=self._now_ms(checkpoint.triggered_at),
            savepoint=checkpoint.kind is Kind.SAVEPOINT,
            operators=tuple(
                CheckpointedOperator(
                    operator_id=operator.operator_id,
                    uid=operator.uid,
                    name=operator.name,
                    parallelism=vertex.parallelism,
                    max_parallelism=vertex.max_parallelism,
                    finished=(
                        vertex.vertex_id in plan.finished
                        or vertex.vertex_id in checkpoint.finished_before
                    ),
                    coordinator=checkpoint.coordinators.get(operator.operator_id),
                    subtasks=subtasks.get(operator.operator_id, {}),
                    key_type=self._key_types.get(operator.operator_id, ""),
                    states=self._states.get(operator.operator_id, {}),
                )
                for vertex in job.vertices
                for operator in vertex.operators
            ),
        )


def _by_task_executor(
    executions: Iterable[Execution],
) -> Iterable[tuple[TaskExecutorId, tuple[AttemptId, ...]]]:
    found: dict[TaskExecutorId, list[AttemptId]] = {}
    for execution in executions:
        if execution.slot is not None:
            found.setdefault(execution.slot.task_executor_id, []).append(execution.attempt_id)
    return [(task_executor_id, tuple(attempts)) for task_executor_id, attempts in found.items()]
