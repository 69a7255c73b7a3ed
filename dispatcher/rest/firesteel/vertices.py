"""The subtasks of a vertex, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from dispatcher.rest.firesteel.shown import Json, error, shares, totals, watermark_ms
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler, Refusal, choice_of, count_of
from firesteel.client.job_details import Attempt, JobDetails, Subtask, Vertex
from firesteel.common.task_metrics import TopicProgress

MAX_LIMIT = 1_000
_SORTS: Mapping[str, Callable[[Subtask], Any]] = {
    "index": lambda subtask: subtask.index,
    "busy": lambda subtask: _share(subtask, "busy"),
    "back_pressured": lambda subtask: _share(subtask, "back_pressured"),
    "records_in": lambda subtask: subtask.current.metrics.records_in if subtask.current else -1,
}


class VertexRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {"GET /firesteel/v1/jobs/{job}/vertices/{vertex}": self._vertex}

    async def _vertex(self, request: web.Request) -> web.Response:
        offset, limit = count_of(request, "offset", 0), count_of(request, "limit", 100)
        sort = choice_of(request, "sort", tuple(_SORTS))
        descending = choice_of(request, "order", ("asc", "desc")) == "desc"

        async def load() -> Json:
            details = await self._gateway.details(request)
            vertex = vertex_of(details, request.match_info["vertex"])
            return page(vertex, offset, min(limit, MAX_LIMIT), sort, descending)

        return await self._gateway.answer(request, load)


def vertex_of(details: JobDetails, vertex_id: str) -> Vertex:
    """Raises Refusal if the job does not have it."""
    for vertex in details.vertices:
        if vertex.vertex_id == vertex_id:
            return vertex
    raise Refusal(404, f"job {details.job_id} has no vertex {vertex_id[:80]!r}")


def page(vertex: Vertex, offset: int, limit: int, sort: str, descending: bool) -> Json:
    subtasks = sorted(vertex.subtasks, key=_SORTS[sort], reverse=descending)
    return {
        "id": vertex.vertex_id,
        "name": vertex.name,
        "total": len(subtasks),
        "plans": {each.operator_id: each.plan for each in vertex.operators if each.plan},
        "topics": {
            operator_id: _topics(progress)
            for operator_id, progress in vertex.metrics.topics.items()
        },
        "subtasks": [
            {"index": each.index, "attempts": list(map(_attempt, each.attempts))}
            for each in subtasks[offset : offset + limit]
        ],
    }


def _topics(progress: TopicProgress) -> Json:
    return {
        "assigned_partitions": progress.assigned_partitions,
        "paused_partitions": progress.paused_partitions,
        "pending_records": progress.pending_records,
        "largest_lag": progress.largest_lag,
        "failed_commits": progress.failed_commits,
        "throttle_ms": progress.throttle_ms,
        "partitions": [{**each._asdict(), "lag": each.lag} for each in progress.partitions],
    }


def _attempt(attempt: Attempt) -> Json:
    return {
        "id": attempt.attempt_id,
        "number": attempt.number,
        "state": attempt.state.name,
        "host": attempt.host or None,
        "task_executor_id": attempt.task_executor_id or None,
        "slot": attempt.slot_index if attempt.task_executor_id else None,
        "entered": {state.name: at_ms for state, at_ms in attempt.entered_ms.items()},
        "metrics": {
            **totals(attempt.metrics),
            **shares(attempt.metrics),
            "watermark_ms": watermark_ms(attempt.metrics),
        },
        "error": error(attempt.error) if attempt.error else None,
    }


def _share(subtask: Subtask, part: str) -> float:
    share = shares(subtask.current.metrics)[part] if subtask.current else None
    return -1.0 if share is None else share
