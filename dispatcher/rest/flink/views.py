"""Jobs and clusters as Flink 2.3's REST API shows them. Times are milliseconds since 1970.

Flink's clients repeat a call for a minute if a number is missing, so every number is present.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from firesteel.client.job_details import (
    CheckpointDetails,
    ClusterOverview,
    JobDetails,
    JobOverview,
    Vertex,
)
from firesteel.common.states import ExecutionState, JobStatus

Json: TypeAlias = dict[str, Any]

FLINK_VERSION = "2.3.0"  # whose REST API this is
_NOT_ENDED = -1


def configuration(version: str) -> Json:
    return {
        "refresh-interval": 3000,
        "timezone-name": "UTC",
        "timezone-offset": 0,
        "flink-version": FLINK_VERSION,
        "flink-revision": f"firesteel {version}",
        "features": {
            "web-submit": False,
            "web-cancel": True,
            "web-rescale": False,
            "web-history": False,
        },
    }


def overview(cluster: ClusterOverview) -> Json:
    return {
        "taskmanagers": len(cluster.task_executors),
        "slots-total": cluster.slots_total,
        "slots-available": cluster.slots_free,
        "jobs-running": cluster.jobs_running,
        "jobs-finished": cluster.jobs_finished,
        "jobs-cancelled": cluster.jobs_canceled,
        "jobs-failed": cluster.jobs_failed,
        "flink-version": FLINK_VERSION,
        "flink-commit": f"firesteel {cluster.version}",
    }


def jobs_overview(jobs: Sequence[JobOverview], now_ms: int) -> Json:
    return {"jobs": [_job_overview(job, now_ms) for job in jobs]}


def job_ids(jobs: Sequence[JobOverview]) -> Json:
    return {"jobs": [{"id": job.job_id, "status": job.status.name} for job in jobs]}


def _job_overview(job: JobOverview, now_ms: int) -> Json:
    return {
        "jid": job.job_id,
        "name": job.name,
        "state": job.status.name,
        "start-time": job.start_ms,
        "end-time": job.end_ms or _NOT_ENDED,
        "duration": _duration(job.start_ms, job.end_ms, now_ms),
        "last-modification": job.end_ms or now_ms,
        "tasks": _task_counts(job.tasks_by_state, total=True),
        "pending-operators": 0,
    }


def job(details: JobDetails, now_ms: int) -> Json:
    entered = dict.fromkeys((status.name for status in JobStatus), 0)
    entered |= {change.status.name: change.timestamp_ms for change in details.entered_ms}
    return {
        "jid": details.job_id,
        "name": details.name,
        "isStoppable": False,
        "state": details.status.name,
        "start-time": details.start_ms,
        "end-time": details.end_ms or _NOT_ENDED,
        "duration": _duration(details.start_ms, details.end_ms, now_ms),
        "maxParallelism": max((v.max_parallelism for v in details.vertices), default=-1),
        "now": now_ms,
        "job-type": "STREAMING",
        "timestamps": entered,
        "pending-operators": 0,
        "vertices": [_vertex(vertex, now_ms) for vertex in details.vertices],
        "status-counts": _counts(details.states),
        "plan": plan(details),
    }


def plan(details: JobDetails) -> Json:
    return {
        "jid": details.job_id,
        "name": details.name,
        "type": "STREAMING",
        "nodes": [
            {
                "id": vertex.vertex_id,
                "parallelism": vertex.parallelism,
                "operator": "",
                "operator_strategy": "",
                "description": vertex.name,
                "optimizer_properties": {},
                "inputs": [
                    {"num": number, "id": source, "ship_strategy": "", "exchange": ""}
                    for number, source in enumerate(vertex.input_vertex_ids)
                ],
            }
            for vertex in details.vertices
        ],
    }


def _vertex(vertex: Vertex, now_ms: int) -> Json:
    attempts = [s.current for s in vertex.subtasks if s.current is not None]
    begun = [min(a.entered_ms.values()) for a in attempts if a.entered_ms]
    ended = [max(a.entered_ms.values()) for a in attempts if a.state.terminal and a.entered_ms]
    start_ms = min(begun, default=_NOT_ENDED)
    end_ms = max(ended) if attempts and len(ended) == len(attempts) else 0
    counts = _counts(vertex.states)
    return {
        "id": vertex.vertex_id,
        "slotSharingGroupId": vertex.slot_sharing_group,
        "name": vertex.name,
        "maxParallelism": vertex.max_parallelism,
        "parallelism": vertex.parallelism,
        "status": _status_of(vertex),
        "start-time": start_ms,
        "end-time": end_ms or _NOT_ENDED,
        "duration": _duration(start_ms, end_ms, now_ms) if begun else _NOT_ENDED,
        "tasks": counts,
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


def _status_of(vertex: Vertex) -> str:
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


def job_config(details: JobDetails) -> Json:
    parallelism = max((vertex.parallelism for vertex in details.vertices), default=1)
    return {
        "jid": details.job_id,
        "name": details.name,
        "execution-config": {
            "restart-strategy": "",
            "job-parallelism": parallelism,
            "object-reuse-mode": False,
            "user-config": {},
        },
    }


def execution_result(details: JobDetails, now_ms: int) -> Json:
    """`application-status` is that of Flink's applications."""
    if not details.status.globally_terminal:
        return {"status": {"id": "IN_PROGRESS"}}
    statuses = {JobStatus.FINISHED: "SUCCEEDED", JobStatus.CANCELED: "CANCELED"}
    return {
        "status": {"id": "COMPLETED"},
        "job-execution-result": {
            "id": details.job_id,
            "application-status": statuses.get(details.status, "FAILED"),
            "accumulator-results": {},
            "net-runtime": _duration(details.start_ms, details.end_ms, now_ms),
        },
    }


def exceptions(details: JobDetails, limit: int) -> Json:
    shown = details.exceptions[:limit]
    newest = shown[0] if shown else None
    return {
        "root-exception": _stack(newest.traceback, newest.summary) if newest else None,
        "timestamp": newest.timestamp_ms if newest else None,
        "all-exceptions": [],
        "truncated": len(details.exceptions) > limit,
        "exceptionHistory": {
            "entries": [
                {
                    "exceptionName": error.summary.partition(":")[0],
                    "stacktrace": _stack(error.user_traceback or error.traceback, error.summary),
                    "timestamp": error.timestamp_ms,
                    "taskName": error.task_name or None,
                    "endpoint": error.location or None,
                    "taskManagerId": None,
                    "failureLabels": {},
                    "concurrentExceptions": [],
                }
                for error in shown
            ],
            "truncated": len(details.exceptions) > limit,
        },
    }


def _stack(traceback: str, summary: str) -> str:
    return traceback or summary


def checkpoints(details: JobDetails) -> Json:
    """The counts are those of the checkpoints that are still shown."""
    all_of_them = details.checkpoints
    completed = [c for c in all_of_them if c.state == "COMPLETED"]
    failed = [c for c in all_of_them if c.state == "FAILED"]
    pending = len(all_of_them) - len(completed) - len(failed)
    savepoints = [c for c in completed if c.savepoint]
    plain = [c for c in completed if not c.savepoint]
    return {
        "counts": {
            "restored": 0,
            "total": len(all_of_them),
            "in_progress": pending,
            "completed": len(completed),
            "failed": len(failed),
        },
        "summary": {
            "checkpointed_size": _summary([c.size_bytes for c in completed]),
            "state_size": _summary([c.size_bytes for c in completed]),
            "end_to_end_duration": _summary([c.duration_ms for c in completed]),
            "alignment_buffered": _summary([]),
            "processed_data": _summary([]),
            "persisted_data": _summary([]),
        },
        "latest": {
            "completed": _checkpoint(plain[0]) if plain else None,
            "savepoint": _checkpoint(savepoints[0]) if savepoints else None,
            "failed": _checkpoint(failed[0]) if failed else None,
            "restored": None,
        },
        "history": [_checkpoint(each) for each in all_of_them],
    }


def _checkpoint(checkpoint: CheckpointDetails) -> Json:
    states = {"COMPLETED": "COMPLETED", "FAILED": "FAILED"}
    ended_ms = checkpoint.triggered_ms + checkpoint.duration_ms
    shown = {
        "id": checkpoint.checkpoint_id,
        "status": states.get(checkpoint.state, "IN_PROGRESS"),
        "className": checkpoint.state.lower(),
        "is_savepoint": checkpoint.savepoint,
        "savepointFormat": "CANONICAL" if checkpoint.savepoint else None,
        "trigger_timestamp": checkpoint.triggered_ms,
        "latest_ack_timestamp": ended_ms,
        "checkpointed_size": checkpoint.size_bytes,
        "state_size": checkpoint.size_bytes,
        "end_to_end_duration": checkpoint.duration_ms,
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": 0,
        "num_subtasks": checkpoint.tasks,
        "num_acknowledged_subtasks": checkpoint.acknowledged,
        "checkpoint_type": "SAVEPOINT" if checkpoint.savepoint else "CHECKPOINT",
        "tasks": {},
    }
    if checkpoint.state == "FAILED":
        shown |= {"failure_timestamp": ended_ms, "failure_message": checkpoint.failure}
    return shown


def _summary(values: Sequence[float]) -> Json:
    ordered = sorted(values) or [0]
    ranks = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
    quantiles = {
        name: ordered[min(len(ordered) - 1, int(rank * len(ordered)))]
        for name, rank in ranks.items()
    }
    average = sum(ordered) // len(ordered)
    return {"min": ordered[0], "max": ordered[-1], "avg": average, **quantiles}


def task_managers(cluster: ClusterOverview, now_ms: int) -> Json:
    return {
        "taskmanagers": [
            {
                "id": each.task_executor_id,
                "path": each.address,
                "dataPort": 0,
                "jmxPort": -1,
                "timeSinceLastHeartbeat": now_ms,
                "slotsNumber": each.slots,
                "freeSlots": each.slots_free,
                "totalResource": _no_resources(),
                "freeResource": _no_resources(),
                "hardware": {
                    "cpuCores": 0,
                    "physicalMemory": 0,
                    "freeMemory": 0,
                    "managedMemory": 0,
                },
                "memoryConfiguration": {},
                "blocked": False,
            }
            for each in cluster.task_executors
        ]
    }


def _no_resources() -> Json:
    return {
        "cpuCores": 0.0,
        "taskHeapMemory": 0,
        "taskOffHeapMemory": 0,
        "managedMemory": 0,
        "networkMemory": 0,
        "extendedResources": {},
    }


def _task_counts(counts: Mapping[str, int], *, total: bool) -> Json:
    shown = dict.fromkeys((state.name.lower() for state in ExecutionState), 0)
    shown |= {name.lower(): count for name, count in counts.items()}
    return {"total": sum(counts.values()), **shown} if total else shown


def _counts(states: Mapping[ExecutionState, int]) -> Json:
    return {state.name: states.get(state, 0) for state in ExecutionState}


def _duration(start_ms: int, end_ms: int, now_ms: int) -> int:
    return max(0, (end_ms or now_ms) - start_ms)
