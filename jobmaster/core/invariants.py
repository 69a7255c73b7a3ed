"""The invariants of a job between events. Tests and the simulation check them after each event, in
O(tasks).
"""

from __future__ import annotations

from collections import Counter

from firesteel.common.states import ExecutionState
from jobmaster.core.execution_graph.vertex import DEPLOYED, Execution
from jobmaster.core.job_context import JobContext
from jobmaster.core.phases import Phase
from jobmaster.core.start import Created


def validate(job: JobContext, phase: Phase) -> None:
    graph, pool = job.graph, job.pool
    assert graph.status in phase.statuses, f"{phase} while the job is {graph}"
    states = Counter(execution.state.name for execution in graph.executions())
    assert states == Counter(graph.tasks_by_state()), f"tasks are {states}, counted: {graph}"
    live = sum(not execution.terminal for execution in graph.executions())
    assert live == graph.live, f"{live} live tasks, counted as {graph.live}: {graph}"
    groups = {
        id(vertex.group): vertex.group for vertex in graph.execution_vertices() if vertex.group
    }
    pool.validate(groups.values())
    for execution in graph.executions():
        _validate_execution(job, execution)
    waiting = [vertex.current for unit in job.scheduler.waiting for vertex in unit]
    scheduled = [e for e in graph.executions() if e.state is ExecutionState.SCHEDULED]
    assert Counter(map(id, waiting)) == Counter(map(id, scheduled)), (
        f"the scheduler waits for {len(waiting)} tasks, SCHEDULED are {len(scheduled)}: {graph}"
    )
    if graph.status.terminal or graph.status in Created.statuses:
        assert not pool.slots, f"slots are held: {graph}"
        assert not pool.requirements(), f"slots are required: {graph}"
    if graph.status.terminal:
        assert graph.live == 0, f"tasks outlive their job: {graph}"


def _validate_execution(job: JobContext, execution: Execution) -> None:
    group = execution.vertex.group
    if group is None or execution.terminal:
        return
    if execution.state in (ExecutionState.CREATED, ExecutionState.RECONCILING):
        return
    assert group.wanted, f"no slot is wanted for {execution}"
    if execution.state in DEPLOYED:
        slot = execution.slot
        assert slot is not None, f"deployed without a slot: {execution}"
        assert job.pool.slots.get(slot.allocation_id) is slot, f"its slot is gone: {execution}"
        assert slot.group is group, f"its slot belongs to another group: {execution}"
