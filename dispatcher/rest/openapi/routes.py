"""Declares what the routes of /firesteel/v1 answer and take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dispatcher.rest.openapi.shapes import Shape, maybe

JSON, EVENTS, HTML = "application/json", "text/event-stream", "text/html"
TEXT = "text/plain"

_ID = str
_AMOUNTS = {"records_in": int, "records_out": int, "bytes_in": int, "bytes_out": int}
_RATES = dict.fromkeys(_AMOUNTS, maybe(float))
_SHARES = dict.fromkeys(
    ("busy", "back_pressured", "idle", "spark", "python", "exchange"), maybe(float)
)
_ERROR = {
    "timestamp_ms": int,
    "task": maybe(str),
    "location": maybe(str),
    "summary": str,
    "user_traceback": maybe(str),
    "traceback": maybe(str),
}
_TIMES = dict.fromkeys(("start_delay_ms", "alignment_ms", "sync_ms", "async_ms"), float)
_CHECKPOINT = {
    "id": _ID,
    "savepoint": bool,
    "state": str,
    "triggered_ms": int,
    "duration_ms": int,
    "size_bytes": int,
    "acknowledged": int,
    "tasks": int,
    "failure": maybe(str),
    "path": maybe(str),
    **_TIMES,
}
_OPERATOR = {
    "id": _ID,
    "uid": str,
    "name": str,
    "kind": str,
    "runs_on_spark": bool,
    "group": int,
    "reads": maybe(str),
    "computes": maybe(str),
    "reason": maybe(str),
    "state_bytes": maybe(int),
}
_VERTEX = {
    "id": _ID,
    "name": str,
    "parallelism": int,
    "max_parallelism": int,
    "slot_sharing_group": str,
    "status": str,
    "tasks": {str: int},
    "inputs": [_ID],
    "rates": _RATES,
    "totals": _AMOUNTS,
    "time": _SHARES,
    "skew": maybe({"subtask": int, "share": float}),
    "watermark_ms": maybe(int),
    "watermark_lag_ms": maybe(int),
    "late_dropped": int,
    "state_bytes": maybe(int),
    "operators": [_OPERATOR],
}
_RESCALE = {
    "id": _ID,
    "trigger": str,
    "state": str,
    "start_ms": int,
    "end_ms": maybe(int),
    "before": {str: int},
    "after": {str: int},
    "reason": maybe(str),
    "problem": maybe(str),
}
_JOB = {
    "id": _ID,
    "name": str,
    "status": str,
    "owner": maybe(str),
    "now_ms": int,
    "start_ms": int,
    "end_ms": maybe(int),
    "entered": [{"status": str, "timestamp_ms": int}],
    "waiting_for": maybe(str),
    "warnings": [str],
    "autoscaler": maybe(str),
    "spark_ui": maybe(str),
    "rescales": [_RESCALE],
    "configuration": {str: str},
    "bottleneck": maybe(
        {"vertex_id": _ID, "sentence": str, "evidence": [str], "advice": str, "page": str}
    ),
    "vertices": [_VERTEX],
    "edges": [{"source": _ID, "target": _ID, "records_per_s": maybe(float)}],
}
_TOPICS = {
    "assigned_partitions": int,
    "paused_partitions": int,
    "pending_records": int,
    "largest_lag": int,
    "failed_commits": int,
    "throttle_ms": float,
    "partitions": [
        {
            "topic": str,
            "partition": int,
            "current_offset": int,
            "committed_offset": maybe(int),
            "end_offset": maybe(int),
            "lag": maybe(int),
            "paused": bool,
        }
    ],
}
_ATTEMPT = {
    "id": _ID,
    "number": int,
    "state": str,
    "host": maybe(str),
    "task_executor_id": maybe(str),
    "slot": maybe(int),
    "entered": {str: int},
    "metrics": {**_AMOUNTS, **_SHARES, "watermark_ms": maybe(int)},
    "error": maybe(_ERROR),
}
_OPERATION = {"operation": _ID}
_VERTEX_OF = {"vertex": str, "subtask": int}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """`query` and `body` name what the route takes; `form` is a body with files."""

    summary: str
    answer: Shape = None  # None: no content
    status: int | str = 200  # 2XX: any of these
    media: str = JSON
    query: Mapping[str, type] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    form: Mapping[str, Any] | None = None


DESCRIBED: Final[Mapping[str, Route]] = {
    f"{verb} /firesteel/v1/{path}": route
    for (verb, path), route in {
        ("GET", "me"): Route(
            summary="Describes the caller and what it may do.",
            answer={
                "name": maybe(str),
                "role": str,
                "expires_ms": maybe(int),
                "cluster": str,
                "version": str,
                "may": dict.fromkeys(("cancel", "savepoint", "rows", "submit", "admin"), bool),
            },
        ),
        ("POST", "session"): Route(
            summary="Logs a browser in: sets a cookie.",
            status=204,
            body={"token": str, "code": str},
        ),
        ("DELETE", "session"): Route(summary="Logs a browser out.", status=204),
        ("POST", "session/codes"): Route(
            summary="Makes a code that logs a browser in, once.",
            answer={"code": str, "valid_s": float},
        ),
        ("GET", "cluster"): Route(
            summary="Shows masters, slots, TaskExecutors, waiting jobs and recent failures.",
            answer={
                "version": str,
                "cluster": str,
                "now_ms": int,
                "masters": [
                    {
                        "office": str,
                        "address": maybe(str),
                        "epoch": maybe(int),
                        "leads": bool,
                        "job_id": maybe(str),
                        "job_name": maybe(str),
                        "problem": maybe(str),
                    }
                ],
                "slots": dict.fromkeys(("total", "free", "warm", "missing"), int),
                "jobs": dict.fromkeys(("running", "finished", "canceled", "failed"), int),
                "waiting": [{"job_id": _ID, "name": str, "explanation": str}],
                "failures": [
                    {
                        "job_id": _ID,
                        "name": str,
                        "timestamp_ms": int,
                        "task": maybe(str),
                        "summary": str,
                    }
                ],
                "task_executors": [
                    {
                        "id": _ID,
                        "address": str,
                        "host": str,
                        "pid": int,
                        "slots": int,
                        "slots_free": int,
                        "slots_warm": int,
                        "stored_bytes": int,
                        "problem": maybe(str),
                        "stops": bool,
                    }
                ],
            },
        ),
        ("GET", "machines"): Route(
            summary="Shows what TaskExecutors, slots and machines use.",
            answer={"task_executors": [{"id": _ID, "host": str}]},
        ),
        ("GET", "jobs"): Route(
            summary="Lists all jobs.",
            answer={
                "now_ms": int,
                "jobs": [
                    {
                        "id": _ID,
                        "name": str,
                        "status": str,
                        "start_ms": int,
                        "end_ms": maybe(int),
                        "duration_ms": int,
                        "tasks": {str: int},
                        "owner": maybe(str),
                    }
                ],
            },
        ),
        ("POST", "jobs"): Route(
            summary="Runs a program and submits its job. To submit is to run code.",
            answer={"job_id": _ID, "job_ids": [_ID], "name": str, "output": str},
            form={
                "program": bytes,
                **dict.fromkeys(("entry", "arguments", "options", "savepoint", "job_id"), str),
            },
        ),
        ("GET", "jobs/{job}"): Route(
            summary="Shows a job with its graph, rates and bottleneck.", answer=_JOB
        ),
        ("DELETE", "jobs/{job}"): Route(summary="Removes a job that has ended.", status=204),
        ("GET", "jobs/{job}/vertices/{vertex}"): Route(
            summary="Shows a page of the subtasks of a vertex, with all attempts.",
            answer={
                "id": _ID,
                "name": str,
                "total": int,
                "plans": {str: str},
                "topics": {str: _TOPICS},
                "subtasks": [{"index": int, "attempts": [_ATTEMPT]}],
            },
            query={"offset": int, "limit": int, "sort": str, "order": str},
        ),
        ("GET", "jobs/{job}/series"): Route(
            summary="Shows the last hour of a running job.",
            answer={
                "step_ms": int,
                "times": [int],
                "vertices": {str: {str: [maybe(float)]}},
            },
            query={"vertex": str, "since_ms": int, "points": int},
        ),
        ("GET", "jobs/{job}/checkpoints"): Route(
            summary="Lists the last checkpoints and savepoints.",
            answer={
                "interval_ms": maybe(int),
                "counts": dict.fromkeys(
                    ("completed", "failed", "in_progress", "restored", "total"), int
                ),
                "checkpoints": [_CHECKPOINT],
            },
        ),
        ("GET", "jobs/{job}/checkpoints/{checkpoint}"): Route(
            summary="Shows a checkpoint with the parts of its subtasks.",
            answer={**_CHECKPOINT, "subtasks": [{"task": str, "size_bytes": int, **_TIMES}]},
        ),
        ("GET", "jobs/{job}/exceptions"): Route(
            summary="Lists the job's errors, the newest first.",
            answer={"exceptions": [{**_ERROR, "restarted": maybe(bool)}]},
        ),
        ("GET", "jobs/{job}/logs"): Route(
            summary="Streams log lines, each as an event with time_ms, level, source and text.",
            answer=object,
            media=EVENTS,
            query={"follow": bool, "level": str, "text": str, "task": str, "lines": int},
        ),
        ("POST", "jobs/{job}/cancel"): Route(summary="Cancels a job.", status=202),
        ("POST", "jobs/{job}/stop"): Route(
            summary="Takes a savepoint and ends the job.",
            answer=_OPERATION,
            status=202,
            body={"directory": str, "drain": bool},
        ),
        ("POST", "jobs/{job}/savepoints"): Route(
            summary="Takes a savepoint.", answer=_OPERATION, status=202, body={"directory": str}
        ),
        ("POST", "jobs/{job}/flamegraph"): Route(
            summary="Samples the stacks of a subtask.",
            answer={"samples": int, "seconds": float, "root": {"name": str, "value": int}},
            body={**_VERTEX_OF, "seconds": float},
        ),
        ("POST", "jobs/{job}/rows"): Route(
            summary="Copies rows that a subtask sends.",
            answer={"columns": [{"name": str, "type": str}], "note": str},
            body={**_VERTEX_OF, "count": int},
        ),
        ("GET", "operations/{operation}"): Route(
            summary="Shows the outcome of a savepoint or a disposal.",
            answer={"done": bool, "error": maybe(str)},
        ),
        ("GET", "savepoints"): Route(
            summary="Lists the last savepoints of all jobs.",
            answer={
                "savepoints": [
                    {
                        **_CHECKPOINT,
                        "job_id": _ID,
                        "job_name": str,
                        "disposed": maybe(bool),
                        "restored_by": [{"job_id": _ID, "job_name": str}],
                    }
                ]
            },
        ),
        ("POST", "savepoints/dispose"): Route(
            summary="Deletes a savepoint.", answer=_OPERATION, status=202, body={"path": str}
        ),
        ("GET", "audit"): Route(
            summary="Lists the audit log, the newest entry first.",
            answer={
                "records": [
                    {
                        "time_ms": int,
                        "subject": str,
                        "role": str,
                        "address": str,
                        "action": str,
                        "job_id": str,
                        "outcome": str,
                    }
                ]
            },
            query={"limit": int, "job": str},
        ),
        ("GET", "openapi.json"): Route(summary="Describes all routes.", answer={"openapi": str}),
        ("GET", "docs"): Route(summary="Shows this description as a page.", answer=str, media=HTML),
    }.items()
}
