"""ExecutionGraphs in any state, for the tests of checkpoints."""

from __future__ import annotations

from firesteel.common.ids import AllocationId, ExecutorId, IdSource, TaskExecutorId
from firesteel.common.job_graph import JobGraph
from firesteel.common.resources import UNKNOWN
from firesteel.common.states import ExecutionState, TaskEvent
from jobmaster.core.execution_graph import Execution, ExecutionGraph, build
from jobmaster.core.slots.slot import Slot

_TO_RUNNING = (TaskEvent.SCHEDULE, TaskEvent.DEPLOY, TaskEvent.REPORTED_RUNNING)

_SLOT = Slot(
    allocation_id=AllocationId("slot"),
    slot_index=0,
    profile=UNKNOWN,
    executor_id=ExecutorId("executor"),
    data_address="",
    task_executor_id=TaskExecutorId("te"),
    host="host",
    requirement=UNKNOWN,
)


def running(graph: JobGraph) -> ExecutionGraph:
    """All tasks run."""
    built = build(graph, IdSource(b"test"), 1000)
    _run(built, 1000)
    return built


def _run(graph: ExecutionGraph, now_ms: int) -> None:
    for execution in graph.executions():
        for event in _TO_RUNNING:
            execution.apply(event, now_ms)
        execution.slot = _SLOT


def finish(execution: Execution) -> Execution:
    execution.apply(TaskEvent.REPORTED_FINISHED, 2000)
    assert execution.state is ExecutionState.FINISHED
    return execution


def start_over(graph: ExecutionGraph) -> list[Execution]:
    """New attempts of all tasks, which run."""
    for execution in graph.executions():
        execution.apply(TaskEvent.FAIL, 3000)
    graph.start_over(graph.execution_vertices(), IdSource(b"again"), 3000)
    _run(graph, 3000)
    return list(graph.executions())


def task(graph: ExecutionGraph, name: str, subtask: int = 0) -> Execution:
    (vertex,) = (v for v in graph.vertices if v.vertex.name == name)
    return vertex.vertices[subtask].current
