"""The subtasks of a vertex, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aiohttp import web

from dispatcher.rest.firesteel.shown import Json, error, shares, totals, watermark_ms
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler, Refusal, choice_of, count_of
from firesteel.client.job_details import Attempt, JobDetails, Vertex, metrics_of
from firesteel.common.task_metrics import TaskMetrics, TopicProgress

MAX_LIMIT = 1_000
_SORTS: Mapping[str, Callable[[TaskMetrics], float]] = {
    "busy": lambda metrics: _share(metrics, metrics.busy_ms),
    "back_pressured": lambda metrics: _share(metrics, metrics.back_pressured_ms),
    "records_in": lambda metrics: metrics.records_in,
}


class VertexRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {"GET /firesteel/v1/jobs/{job}/vertices/{vertex}": self._vertex}

    async def _vertex(self, request: web.Request) -> web.Response:
        offset, limit = count_of(request, "offset", 0), count_of(request, "limit", 100)
        sort = choice_of(request, "sort", ("index", *_SORTS))
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
    places = _order(vertex, sort, descending)
    return {
        "id": vertex.vertex_id,
        "name": vertex.name,
        "total": len(places),
        "plans": {each.operator_id: each.plan for each in vertex.operators if each.plan},
        "topics": {
            operator_id: _topics(progress)
            for operator_id, progress in vertex.metrics.topics.items()
        },
        "subtasks": [
            {"index": each.index, "attempts": list(map(_attempt, each.attempts))}
            for each in (vertex.subtasks[place] for place in places[offset : offset + limit])
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


def _order(vertex: Vertex, sort: str, descending: bool) -> Sequence[int]:
    """Returns the places of the vertex's subtasks in this order."""
    places = range(len(vertex.subtasks))
    if sort == "index":
        return places[::-1] if descending else places
    key, metrics = _SORTS[sort], metrics_of(vertex.subtasks)
    values = [-1.0 if each is None else key(each) for each in metrics]
    return sorted(places, key=values.__getitem__, reverse=descending)


def _share(metrics: TaskMetrics, part_ms: float) -> float:
    """Returns the share of the time that the metrics cover; -1 without any."""
    all_ms = metrics.busy_ms + metrics.back_pressured_ms + metrics.idle_ms
    return part_ms / all_ms if all_ms > 0 else -1.0
