"""Checks what a failure restarts: no region without a reason, and one failover per cause, however
many tasks report it (invariants 18 and 21).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from firesteel.common.job_graph import ResultType
from firesteel.common.states import ExecutionState
from jobmaster.core import events
from jobmaster.core.execution_graph import Execution, ExecutionVertex
from jobmaster.shell import RunningJob

_S = ExecutionState


@dataclass(frozen=True, slots=True)
class _Seen:
    """After an event."""

    used: int  # attempts of the restart strategy
    full_restarts: int
    executions: dict[ExecutionVertex, tuple[Execution, ExecutionState]]
    awaited: frozenset[ExecutionVertex]  # which are restarted already
    lost: frozenset[ExecutionVertex]  # those with a partition that cannot be read
    reconciles: bool
    refused: frozenset[ExecutionVertex]  # by adoption, with all that this restarts


class Failovers:
    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], _Seen] = {}  # by job and epoch

    def check(self, job: RunningJob, event: Any) -> str:
        """Returns what is wrong."""
        key = job.job_id, job.epoch
        before = self._seen.get(key)
        now = self._seen[key] = _seen(job, before)
        if before is None or now.reconciles:
            return ""  # a later attempt than the one that was heard of first may be adopted
        lost = before.lost | _lost_in(job, event, before)
        if problem := _attempts_used(before, now, lost - before.lost - before.awaited):
            return problem
        if before.reconciles:
            return ""  # tasks that cannot be adopted may restart immediately
        replaced = [
            v for v, (execution, _) in before.executions.items() if v.current is not execution
        ]
        # One that was looked for is adopted, or was not found and has failed.
        restarted = [v for v in replaced if before.executions[v][1] is not _S.RECONCILING]
        if not restarted or now.full_restarts > before.full_restarts:
            return ""
        roots = {v for v in replaced if before.executions[v][0].state is _S.FAILED} | now.refused
        without_reason = [v for v in restarted if v not in _reached(job, roots, lost)]
        names = ", ".join(vertex.current.name for vertex in without_reason)
        return f"restarted without a reason: {names}" if names else ""


def _seen(job: RunningJob, before: _Seen | None) -> _Seen:
    core = job.core
    phase = core.phase
    awaited = phase.restarting
    reconciles = phase.adoption is not None
    refused = frozenset[ExecutionVertex]() if before is None else before.refused
    if before is not None and before.reconciles and not reconciles:
        refused = awaited
    return _Seen(
        used=core.job.restart_strategy.history.used,
        full_restarts=core.job.full_restarts,
        executions={v: (v.current, v.current.state) for v in core.graph.execution_vertices()},
        awaited=awaited,
        lost=frozenset(r.producer.vertices[n] for r in core.graph.results for n in r.lost),
        reconciles=reconciles,
        refused=refused,
    )


def _attempts_used(before: _Seen, now: _Seen, lost: Collection[ExecutionVertex]) -> str:
    """`lost`: producers of partitions that cannot be read, who were not to start again: a cause of
    its own.
    """
    used = now.used - before.used
    if used > 1:
        return f"{used} attempts are used up by one event"
    failed = [
        vertex
        for vertex, (execution, state) in before.executions.items()
        if execution.state is _S.FAILED and state is not _S.FAILED
    ]
    if used and failed and not lost and before.awaited.issuperset(failed):
        names = ", ".join(vertex.current.name for vertex in failed)
        return f"tasks that are already restarting use up an attempt: {names}"
    return ""


def _lost_in(job: RunningJob, event: Any, before: _Seen) -> set[ExecutionVertex]:
    """The producers of whose partitions the event says that they may be lost."""
    core = job.core
    came_back = event.task_executor_id if isinstance(event, events.TaskExecutorConnected) else None
    lost = {
        vertex
        for vertex, (execution, state) in before.executions.items()
        if state is _S.FINISHED
        and (slot := execution.slot) is not None
        and (slot.task_executor_id not in core.task_executors or slot.task_executor_id == came_back)
    }
    if isinstance(event, events.TaskStatesReported):
        for update in event.updates:
            if (partition := update.unreadable) is not None:
                result = core.graph.result(partition.result_id)
                lost.add(result.producer.vertices[partition.producer])
    return lost


def _reached(
    job: RunningJob, failed: Iterable[ExecutionVertex], lost: Collection[ExecutionVertex]
) -> set[ExecutionVertex]:
    """Returns the tasks to restart after these failures and losses, by edge: along PIPELINED ones both
    ways, along BLOCKING ones to consumers, and to producers that are lost. In a stream, subtasks
    of a vertex are restarted together.
    """
    graph = job.core.graph
    found = {*failed, *lost}
    to_follow = list(found)
    while to_follow:
        vertex = to_follow.pop()
        vertex_id = vertex.job_vertex.vertex.vertex_id
        reached: list[ExecutionVertex] = []
        if not graph.job_graph.batch:
            reached += vertex.job_vertex.vertices
        for result in graph.outputs_of(vertex_id):
            consumers = result.consumers_of(vertex.subtask)
            reached += (result.consumer.vertices[n] for n in consumers)
        for result in graph.inputs_of(vertex_id):
            producers = (result.producer.vertices[n] for n in result.producers_of(vertex.subtask))
            pipelined = result.edge.result_type is ResultType.PIPELINED
            reached += (p for p in producers if pipelined or p in lost)
        new = set(reached) - found
        found |= new
        to_follow += new
    return found
