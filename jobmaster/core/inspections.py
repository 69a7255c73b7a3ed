"""Inspections of running tasks: at most one per slot, each answered by its deadline at the latest.

The inspected task does not take part: its slot samples it from another thread. An answer that is
lost with a connection is missed at the deadline.
"""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.states import ExecutionState
from jobmaster.core.commands import AnswerInspection, Command, InspectionRefusal, InspectTask
from jobmaster.core.events import InspectionEnded, InspectionRequested
from jobmaster.core.execution_graph import Execution, ExecutionGraph

GRACE_S = 5.0  # for the request and its answer on their way


@dataclass(frozen=True, slots=True)
class _Open:
    execution: Execution
    deadline: float


class Inspections:
    def __init__(self, graph: ExecutionGraph) -> None:
        self._graph = graph
        self._open: dict[str, _Open] = {}

    def request(self, event: InspectionRequested, now: float) -> list[Command]:
        vertex = self._graph.subtask(event.vertex_id, event.subtask)
        if vertex is None:
            problem = self._unknown(event)
            return [_refuse(event.inspection_id, InspectionRefusal.NOT_FOUND, problem)]
        execution = vertex.current
        if execution.state is not ExecutionState.RUNNING or execution.slot is None:
            problem = f"task {execution.name} is {execution.state.name}, not RUNNING"
            return [_refuse(event.inspection_id, InspectionRefusal.NOT_RUNNING, problem)]
        for inspected in self._open.values():
            if inspected.execution.slot is execution.slot:
                problem = (
                    f"the slot of task {execution.name} is busy with an inspection of"
                    f" {inspected.execution.name}; try again in a moment"
                )
                return [_refuse(event.inspection_id, InspectionRefusal.BUSY, problem)]
        deadline = now + event.inspection.seconds + GRACE_S
        self._open[event.inspection_id] = _Open(execution, deadline)
        return [
            InspectTask(
                task_executor_id=execution.slot.task_executor_id,
                attempt_ids=(execution.attempt_id,),
                inspection_id=event.inspection_id,
                inspection=event.inspection,
            )
        ]

    def ended(self, event: InspectionEnded) -> list[Command]:
        if self._open.pop(event.inspection_id, None) is None:
            return []  # it was answered already
        if event.problem:
            refusal = InspectionRefusal.BUSY if event.busy else InspectionRefusal.FAILED
            return [_refuse(event.inspection_id, refusal, event.problem)]
        return [AnswerInspection(inspection_id=event.inspection_id, result=event.result)]

    def advance(self, now: float) -> list[Command]:
        """Answers inspections of tasks that no longer run, and overdue ones."""
        answers: list[Command] = []
        for inspection_id, inspected in list(self._open.items()):
            execution = inspected.execution
            if execution.state is not ExecutionState.RUNNING:
                refusal = InspectionRefusal.NOT_RUNNING
                problem = f"task {execution.name} became {execution.state.name} first"
            elif now >= inspected.deadline:
                refusal = InspectionRefusal.LOST
                problem = f"task {execution.name} has not answered the inspection in time"
            else:
                continue
            del self._open[inspection_id]
            answers.append(_refuse(inspection_id, refusal, problem))
        return answers

    def next_deadline(self) -> float | None:
        return min((inspected.deadline for inspected in self._open.values()), default=None)

    def _unknown(self, event: InspectionRequested) -> str:
        job_vertex = self._graph.by_id.get(event.vertex_id)
        if job_vertex is None:
            return f"the job has no vertex {event.vertex_id[:80]!r}"
        name, last = job_vertex.vertex.name, len(job_vertex.vertices) - 1
        return f"vertex {name!r} has no subtask {event.subtask}: expected 0 to {last}"


def _refuse(inspection_id: str, refusal: InspectionRefusal, problem: str) -> AnswerInspection:
    return AnswerInspection(inspection_id=inspection_id, refusal=refusal, problem=problem)
