"""All coordinators of a job, and the way of messages to them and of their answers back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from firesteel.ids import AttemptId, OperatorId
from firesteel.jobgraph import JobGraph
from jobmaster.commands import Command, ListPaths, Say, SendOperatorMessage, SpoolChunk
from jobmaster.coordinators import Coordinator, create
from jobmaster.coordinators.base import Spool, UnexpectedMessage
from jobmaster.coordinators.messages import OperatorMessage, Resend
from jobmaster.execution_graph import Execution


class Coordinators:
    def __init__(self, by_operator: dict[OperatorId, Coordinator] | None = None) -> None:
        self.by_operator = by_operator or {}

    @classmethod
    def of(cls, job_graph: JobGraph) -> Coordinators:
        """Raises BadOptions, naming the operator."""
        created = ((o.operator_id, create(o)) for vertex in job_graph.vertices for o in vertex.operators)
        return cls({operator_id: coordinator for operator_id, coordinator in created if coordinator is not None})

    @property
    def ready(self) -> bool:
        """Whether the job may start, as far as they are concerned."""
        return all(coordinator.ready for coordinator in self.by_operator.values())

    def listings(self) -> list[Command]:
        """What must be listed before they are ready."""
        return [
            _listing(operator_id, coordinator)
            for operator_id, coordinator in self.by_operator.items()
            if coordinator.paths_to_list
        ]

    def paths_listed(
        self, operator_id: OperatorId, files: Sequence[str], now: float, attempts: Mapping[AttemptId, Execution]
    ) -> list[Command]:
        answers = self.by_operator[operator_id].paths_listed(files, now)
        return [
            self._command(execution, operator_id, answer)
            for attempt_id, answer in answers
            if (execution := attempts.get(attempt_id)) is not None
        ]

    def next_deadline(self) -> float | None:
        deadlines = (coordinator.next_deadline() for coordinator in self.by_operator.values())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def tick(self, now: float) -> list[Command]:
        return [
            _listing(operator_id, coordinator) for operator_id, coordinator in self.by_operator.items() if coordinator.tick(now)
        ]

    def receive(self, execution: Execution, operator_id: OperatorId, message: OperatorMessage) -> list[Command]:
        """A message from a live attempt."""
        coordinator = self.by_operator.get(operator_id)
        try:
            if coordinator is None:
                raise UnexpectedMessage(f"operator {operator_id} has no coordinator")
            answers = coordinator.receive(execution.attempt_id, execution.vertex.subtask, message)
        except UnexpectedMessage as error:
            return [Say(level="warning", text="message to a coordinator dropped", fields={"cause": str(error)})]
        return [self._command(execution, operator_id, answer) for answer in answers]

    def spooled(self, execution: Execution, operator_id: OperatorId, sequence: int, problem: str) -> list[Command]:
        answers = self.by_operator[operator_id].spooled(execution.attempt_id, sequence, problem)
        return [self._command(execution, operator_id, answer) for answer in answers]

    def reconnected(self, executions: Iterable[Execution]) -> list[Command]:
        """The stream to these broke and is there again: what was under way, either way, may be lost."""
        if not self.by_operator:
            return []
        return [
            self._command(execution, operator.operator_id, Resend())
            for execution in executions
            for operator in execution.vertex.job_vertex.vertex.operators
            if operator.operator_id in self.by_operator
        ]

    def attempt_ended(self, execution: Execution) -> None:
        """It failed or was cancelled."""
        if not self.by_operator:
            return
        for operator in execution.vertex.job_vertex.vertex.operators:
            coordinator = self.by_operator.get(operator.operator_id)
            if coordinator is not None:
                coordinator.attempt_ended(execution.attempt_id)

    def start_over(self) -> None:
        for coordinator in self.by_operator.values():
            coordinator.start_over()

    def _command(self, execution: Execution, operator_id: OperatorId, answer: OperatorMessage | Spool) -> Command:
        if isinstance(answer, Spool):
            return SpoolChunk(
                operator_id=operator_id,
                attempt_id=execution.attempt_id,
                sequence=answer.sequence,
                ipc_stream=answer.ipc_stream,
            )
        if execution.slot is None:
            return Say(level="warning", text="answer of a coordinator dropped: its task has no slot")
        return SendOperatorMessage(
            task_executor_id=execution.slot.task_executor_id,
            operator_id=operator_id,
            subtask=execution.vertex.subtask,
            attempt_id=execution.attempt_id,
            message=answer,
        )


def _listing(operator_id: OperatorId, coordinator: Coordinator) -> ListPaths:
    return ListPaths(operator_id=operator_id, paths=tuple(coordinator.paths_to_list), watched=coordinator.watched)
