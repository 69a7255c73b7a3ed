"""The vertices of a job and their subtasks."""

from __future__ import annotations

from dispatcher.rest.flink.shown import NOT_ENDED, Json, counts, duration_ms
from firesteel.client.job_details import Vertex
from firesteel.common.states import ExecutionState


def vertex_overview(vertex: Vertex, now_ms: int) -> Json:
    attempts = [s.current for s in vertex.subtasks if s.current is not None]
    begun = [min(a.entered_ms.values()) for a in attempts if a.entered_ms]
    ended = [max(a.entered_ms.values()) for a in attempts if a.state.terminal and a.entered_ms]
    start_ms = min(begun, default=NOT_ENDED)
    end_ms = max(ended) if attempts and len(ended) == len(attempts) else 0
    tasks = counts(vertex.states)
    return {
        "id": vertex.vertex_id,
        "slotSharingGroupId": vertex.slot_sharing_group,
        "name": vertex.name,
        "maxParallelism": vertex.max_parallelism,
        "parallelism": vertex.parallelism,
        "status": status_of(vertex),
        "start-time": start_ms,
        "end-time": end_ms or NOT_ENDED,
        "duration": duration_ms(start_ms, end_ms, now_ms) if begun else NOT_ENDED,
        "tasks": tasks,
        "metrics": _io_metrics(vertex),
    }


def _io_metrics(vertex: Vertex) -> Json:
    metrics = vertex.metrics
    return {
        "read-bytes": metrics.bytes_in,
        "read-bytes-complete": True,
        "write-bytes": metrics.bytes_out,
        "write-bytes-complete": True,
        "read-records": metrics.records_in,
        "read-records-complete": True,
        "write-records": metrics.records_out,
        "write-records-complete": True,
        "accumulated-backpressured-time": int(metrics.back_pressured_ms),
        "accumulated-idle-time": int(metrics.idle_ms),
        "accumulated-busy-time": metrics.busy_ms,
    }


def status_of(vertex: Vertex) -> str:
    """Flink's rule: the most advanced state that is not reached by all tasks decides."""
    states = vertex.states
    for state in (ExecutionState.FAILED, ExecutionState.CANCELING, ExecutionState.CANCELED):
        if states[state]:
            return state.name
    if states and states[ExecutionState.FINISHED] == sum(states.values()):
        return ExecutionState.FINISHED.name
    if states[ExecutionState.RUNNING] or states[ExecutionState.FINISHED]:
        return ExecutionState.RUNNING.name
    return max(states, key=lambda state: state.value, default=ExecutionState.CREATED).name
