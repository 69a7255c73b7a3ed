"""All coordinators of a job: receives their messages and returns their answers as commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from firesteel.common.file_parts import ListedFile
from firesteel.common.ids import AttemptId, OperatorId
from firesteel.common.job_graph import JobGraph, JobVertex
from firesteel.common.operator_messages import (
    HeldSplit,
    OperatorMessage,
    Resend,
    SparkMasterAwaited,
    SparkMasterStarted,
    WatermarkReported,
)
from firesteel.common.states import ExecutionState
from jobmaster.core.commands import Command, ListPaths, Log, SendOperatorMessage, SpoolChunk
from jobmaster.core.coordinators import CollectCoordinator, Coordinator, create
from jobmaster.core.coordinators.base import Json, Spool, UnexpectedMessage
from jobmaster.core.coordinators.spark_program import SparkProgram, ToExecutor
from jobmaster.core.coordinators.splits import SplitEnumerator
from jobmaster.core.coordinators.watermark_alignment import Announcement, WatermarkAlignment
from jobmaster.core.execution_graph import Execution

Attempts: TypeAlias = Mapping[AttemptId, Execution]  # current attempts


class Coordinators:
    def __init__(
        self,
        by_operator: dict[OperatorId, Coordinator] | None = None,
        alignment: WatermarkAlignment | None = None,
        spark_program: SparkProgram | None = None,
    ) -> None:
        self.by_operator = by_operator or {}
        self.alignment = alignment or WatermarkAlignment()
        self.spark_program = spark_program or SparkProgram()

    @classmethod
    def of(cls, job_graph: JobGraph) -> Coordinators:
        """Creates the coordinators of a job. Raises BadOptions, naming the operator."""
        created = (
            (o.operator_id, create(o)) for vertex in job_graph.vertices for o in vertex.operators
        )
        by_operator = {
            operator_id: coordinator
            for operator_id, coordinator in created
            if coordinator is not None
        }
        return cls(by_operator, WatermarkAlignment.of(job_graph), SparkProgram.of(job_graph))

    def rescale(self, job_graph: JobGraph) -> None:
        """Follows the parallelism of the graph. All tasks have ended."""
        self.alignment = WatermarkAlignment.of(job_graph)

    @property
    def ready(self) -> bool:
        """Whether all coordinators let the job start."""
        return all(coordinator.ready for coordinator in self.by_operator.values())

    def listings(self) -> list[Command]:
        """Returns commands that list paths before the coordinators are ready, or from now on."""
        return [
            _listing(operator_id, coordinator)
            for operator_id, coordinator in self.by_operator.items()
            if coordinator.paths_to_list and (coordinator.watched or not coordinator.ready)
        ]

    def paths_listed(
        self, operator_id: OperatorId, files: Sequence[ListedFile], now: float, attempts: Attempts
    ) -> list[Command]:
        answers = self.by_operator[operator_id].paths_listed(files, now)
        return [
            self._command(execution, operator_id, answer)
            for attempt_id, answer in answers
            if (execution := attempts.get(attempt_id)) is not None
        ]

    def next_deadline(self) -> float | None:
        deadlines = [coordinator.next_deadline() for coordinator in self.by_operator.values()]
        deadlines.append(self.alignment.next_deadline())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def tick(self, now: float, attempts: Attempts) -> list[Command]:
        listings = [
            _listing(operator_id, coordinator)
            for operator_id, coordinator in self.by_operator.items()
            if coordinator.tick(now)
        ]
        return [*listings, *self._announced(self.alignment.tick(now), attempts)]

    def receive(
        self,
        execution: Execution,
        operator_id: OperatorId,
        message: OperatorMessage,
        now: float,
        attempts: Attempts,
    ) -> list[Command]:
        """Handles a message from a live attempt."""
        coordinator = self.by_operator.get(operator_id)
        attempt_id, subtask = execution.attempt_id, execution.vertex.subtask
        try:
            if isinstance(message, SparkMasterStarted) and operator_id in self.spark_program:
                return self._to_executors(self.spark_program.started(message), attempts)
            if isinstance(message, SparkMasterAwaited) and operator_id in self.spark_program:
                answer = self.spark_program.awaited(operator_id, attempt_id)
                return self._to_executors(answer, attempts)
            if isinstance(message, WatermarkReported):
                return self._announced(
                    self.alignment.reported(operator_id, subtask, attempt_id, message, now),
                    attempts,
                )
            if coordinator is None:
                raise UnexpectedMessage(f"operator {operator_id} has no coordinator")
            answers = coordinator.receive(attempt_id, subtask, message)
        except UnexpectedMessage as error:
            return [
                Log(
                    level="warning",
                    text="message to a coordinator dropped",
                    fields={"cause": str(error)},
                )
            ]
        return [self._command(execution, operator_id, answer) for answer in answers]

    def spooled(
        self, execution: Execution, operator_id: OperatorId, sequence: int, problem: str
    ) -> list[Command]:
        answers = self.by_operator[operator_id].spooled(execution.attempt_id, sequence, problem)
        return [self._command(execution, operator_id, answer) for answer in answers]

    @property
    def found_version(self) -> int:
        """Increases with what `found` returns."""
        return sum(coordinator.found_version for coordinator in self.by_operator.values())

    def found(self, snapshots: Mapping[OperatorId, Json]) -> dict[OperatorId, Json]:
        """Returns the listings that are not in these snapshots, for another master."""
        found = {o: c.found(snapshots.get(o)) for o, c in self.by_operator.items()}
        return {operator_id: json for operator_id, json in found.items() if json is not None}

    def take_found(self, found: Mapping[OperatorId, Json]) -> None:
        for operator_id, json in found.items():
            if (coordinator := self.by_operator.get(operator_id)) is not None:
                coordinator.take_found(json)

    def adopt(
        self, execution: Execution, operator_id: OperatorId, held: Sequence[HeldSplit]
    ) -> str:
        """Returns why the task, which an earlier master started, cannot continue with these splits;
        empty if it can.
        """
        coordinator = self.by_operator.get(operator_id)
        if coordinator is None:
            return f"its operator {operator_id} has no split enumerator"
        return coordinator.adopt(execution.attempt_id, execution.vertex.subtask, held)

    def adopt_finished(
        self, execution: Execution, splits: Mapping[OperatorId, Sequence[int]]
    ) -> str:
        """Returns why a finished task must run again; empty if it need not."""
        subtask = execution.vertex.subtask
        for operator in self._of(execution):
            self.spark_program.finished(operator)
        for operator_id, places in splits.items():
            if (coordinator := self.by_operator.get(operator_id)) is None:
                return f"its operator {operator_id} has no split enumerator"
            if problem := coordinator.adopt_finished(execution.attempt_id, subtask, places):
                return problem
        return ""

    def owned(self, execution: Execution) -> dict[OperatorId, Sequence[int]]:
        """Returns the places of the splits that were assigned to the task's sources."""
        return {
            operator_id: places
            for operator_id, coordinator in self._coordinators_of(execution)
            if (places := coordinator.owned(execution.attempt_id)) is not None
        }

    def reads_splits(self, execution: Execution) -> bool:
        return any(isinstance(c, SplitEnumerator) for _, c in self._coordinators_of(execution))

    def reads_anew(self, execution: Execution) -> bool:
        """Whether the task's consumers may read something different from what it produced
        before.
        """
        subtask = execution.vertex.subtask
        return any(c.reads_anew(subtask) for _, c in self._coordinators_of(execution))

    def take_kept(self, collected: Mapping[OperatorId, Mapping[AttemptId, int]]) -> None:
        for operator_id, by_attempt in collected.items():
            if (coordinator := self.by_operator.get(operator_id)) is not None:
                coordinator.take_kept(by_attempt)

    def reconnected(self, executions: Iterable[Execution]) -> list[Command]:
        """The stream to these tasks broke and is open again: messages in both directions may be
        lost.
        """
        commands = []
        for execution in executions:
            for operator_id in self._of(execution):
                if operator_id in self.alignment:
                    self.alignment.reconnected(operator_id, execution.vertex.subtask)
                commands.append(self._resend(execution, operator_id))
        return commands

    def collects(self, operator_id: OperatorId) -> bool:
        return isinstance(self.by_operator.get(operator_id), CollectCoordinator)

    def resume_collecting(self, executions: Iterable[Execution]) -> list[Command]:
        """Requests the tasks that collect rows to resend unanswered chunks."""
        return [
            self._resend(execution, operator_id)
            for execution in executions
            for operator_id in self._of(execution)
            if self.collects(operator_id)
        ]

    def _resend(self, execution: Execution, operator_id: OperatorId) -> Command:
        if (coordinator := self.by_operator.get(operator_id)) is not None:
            coordinator.resent(execution.attempt_id)
        return self._command(execution, operator_id, Resend())

    def attempt_finished(
        self, execution: Execution, now: float, attempts: Attempts
    ) -> list[Command]:
        """Lets the other readers of its alignment group proceed without it, and the executors of a
        Spark program end with its driver.
        """
        commands: list[Command] = []
        for operator_id in self._of(execution):
            if operator_id in self.alignment:
                limits = self.alignment.finished(operator_id, execution.vertex.subtask, now)
                commands += self._announced(limits, attempts)
            commands += self._to_executors(self.spark_program.finished(operator_id), attempts)
        return commands

    def attempt_ended(self, execution: Execution) -> None:
        """Handles the failure or cancellation of an attempt."""
        for operator_id in self._of(execution):
            if operator_id in self.by_operator:
                self.by_operator[operator_id].attempt_ended(execution.attempt_id)
            if operator_id in self.alignment:
                self.alignment.attempt_ended(operator_id, execution.vertex.subtask)
            self.spark_program.attempt_ended(operator_id, execution.attempt_id)

    def subtask_starts_over(self, execution: Execution) -> None:
        """A new attempt follows this one from the beginning; other subtasks continue."""
        attempt_id, subtask = execution.attempt_id, execution.vertex.subtask
        finished = execution.state is ExecutionState.FINISHED
        for operator_id in self._of(execution):
            if operator_id in self.by_operator:
                self.by_operator[operator_id].subtask_starts_over(
                    attempt_id, subtask, finished=finished
                )
            if operator_id in self.alignment:
                self.alignment.attempt_ended(operator_id, subtask)
            self.spark_program.attempt_ended(operator_id, attempt_id)

    def start_over(
        self,
        operators: Iterable[OperatorId],
        snapshots: Mapping[OperatorId, Json] | None = None,
    ) -> None:
        """Restarts all subtasks of these operators from a checkpoint's snapshots, or from the
        beginning.
        """
        for operator_id in operators:
            if (coordinator := self.by_operator.get(operator_id)) is not None:
                snapshot = None if snapshots is None else snapshots.get(operator_id)
                if snapshot is None:
                    coordinator.start_over()
                else:
                    coordinator.restore(snapshot)
            if operator_id in self.alignment:
                self.alignment.start_over(operator_id)
            if operator_id in self.spark_program:
                self.spark_program.start_over()

    def mismatch(self, snapshots: Mapping[OperatorId, Json]) -> tuple[OperatorId, str] | None:
        """Returns the first operator that cannot resume from its snapshot, and why."""
        for operator_id, coordinator in self.by_operator.items():
            snapshot = snapshots.get(operator_id)
            if snapshot is not None and (why := coordinator.mismatch(snapshot)):
                return operator_id, why
        return None

    def assigned(self, execution: Execution) -> int:
        """Returns the number of splits assigned to the task, whether they have arrived or not."""
        return sum(
            self.by_operator[operator_id].assigned(execution.attempt_id)
            for operator_id in self._of(execution)
            if operator_id in self.by_operator
        )

    def of_source(self, vertex: JobVertex) -> Coordinator | None:
        found = (self.by_operator.get(o.operator_id) for o in vertex.operators)
        return next((coordinator for coordinator in found if coordinator is not None), None)

    def snapshot(self) -> dict[OperatorId, Json]:
        """Returns the snapshots of coordinators that have one, for a checkpoint."""
        found = {o: coordinator.snapshot() for o, coordinator in self.by_operator.items()}
        return {operator_id: json for operator_id, json in found.items() if json is not None}

    def _coordinators_of(self, execution: Execution) -> list[tuple[OperatorId, Coordinator]]:
        by_operator = self.by_operator
        return [(o, by_operator[o]) for o in self._of(execution) if o in by_operator]

    def _of(self, execution: Execution) -> list[OperatorId]:
        """Returns operators of the task that have a coordinator or an alignment group."""
        if not self.by_operator and not self.alignment and not self.spark_program:
            return []
        operators = execution.vertex.job_vertex.vertex.operators
        coordinated = (self.by_operator, self.alignment, self.spark_program)
        return [o.operator_id for o in operators if any(o.operator_id in of for of in coordinated)]

    def _announced(
        self, announcements: Iterable[Announcement], attempts: Attempts
    ) -> list[Command]:
        return [
            self._command(execution, operator_id, limit)
            for operator_id, attempt_id, limit in announcements
            if (execution := attempts.get(attempt_id)) is not None
        ]

    def _to_executors(self, messages: Iterable[ToExecutor], attempts: Attempts) -> list[Command]:
        return [
            self._command(execution, operator_id, message)
            for operator_id, attempt_id, message in messages
            if (execution := attempts.get(attempt_id)) is not None
        ]

    def _command(
        self, execution: Execution, operator_id: OperatorId, answer: OperatorMessage | Spool
    ) -> Command:
        if isinstance(answer, Spool):
            return SpoolChunk(
                operator_id=operator_id,
                attempt_id=execution.attempt_id,
                sequence=answer.sequence,
                ipc_stream=answer.ipc_stream,
                group=answer.group,
            )
        if execution.slot is None:
            return Log(
                level="warning", text="answer of a coordinator dropped: its task has no slot"
            )
        return SendOperatorMessage(
            task_executor_id=execution.slot.task_executor_id,
            operator_id=operator_id,
            subtask=execution.vertex.subtask,
            attempt_id=execution.attempt_id,
            message=answer,
        )


def _listing(operator_id: OperatorId, coordinator: Coordinator) -> ListPaths:
    return ListPaths(
        operator_id=operator_id, paths=tuple(coordinator.paths_to_list), watched=coordinator.watched
    )
