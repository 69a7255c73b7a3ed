"""Jobs: their list, their graphs and their exceptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiohttp import web

from dispatcher.rest.firesteel.shown import Json, by_name, error, shares, totals, watermark_ms
from dispatcher.rest.flink.shown import duration_ms, now_ms
from dispatcher.rest.flink.vertices import status_of
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler
from firesteel.client.job_details import (
    CheckpointDetails,
    JobDetails,
    JobOverview,
    OperatorDetails,
    Vertex,
)
from firesteel.common.states import JobStatus


class JobRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /firesteel/v1/jobs": self._jobs,
            "GET /firesteel/v1/jobs/{job}": self._job,
            "GET /firesteel/v1/jobs/{job}/exceptions": self._exceptions,
        }

    async def _jobs(self, request: web.Request) -> web.Response:
        async def load() -> Json:
            return jobs(await self._gateway.jobs(request), now_ms())

        return await self._gateway.answer(request, load)

    async def _job(self, request: web.Request) -> web.Response:
        async def load() -> Json:
            return job(await self._gateway.details(request), now_ms())

        return await self._gateway.answer(request, load)

    async def _exceptions(self, request: web.Request) -> web.Response:
        async def load() -> Json:
            return exceptions(await self._gateway.details(request))

        return await self._gateway.answer(request, load)


def jobs(overviews: Sequence[JobOverview], now_ms: int) -> Json:
    return {
        "now_ms": now_ms,
        "jobs": [
            {
                "id": each.job_id,
                "name": each.name,
                "status": each.status.name,
                "start_ms": each.start_ms,
                "end_ms": each.end_ms or None,
                "duration_ms": duration_ms(each.start_ms, each.end_ms, now_ms),
                "tasks": by_name(each.tasks_by_state),
                "owner": each.owner or None,
            }
            for each in overviews
        ],
    }


def job(details: JobDetails, now_ms: int) -> Json:
    state_bytes = _state_bytes(details.checkpoints)
    return {
        "id": details.job_id,
        "name": details.name,
        "status": details.status.name,
        "owner": details.owner or None,
        "now_ms": now_ms,
        "start_ms": details.start_ms,
        "end_ms": details.end_ms or None,
        "entered": [
            {"status": change.status.name, "timestamp_ms": change.timestamp_ms}
            for change in details.entered_ms
        ],
        "waiting_for": details.waiting_for or None,
        "warnings": list(details.warnings),
        "configuration": dict(details.configuration),
        "bottleneck": None,
        "vertices": [
            _vertex(
                vertex,
                state_bytes.get(vertex.vertex_id),
                now_ms if details.status is JobStatus.RUNNING else None,
            )
            for vertex in details.vertices
        ],
        "edges": [
            {"source": source, "target": vertex.vertex_id, "records_per_s": None}
            for vertex in details.vertices
            for source in vertex.input_vertex_ids
        ],
    }


def _vertex(vertex: Vertex, state_bytes: int | None, running_ms: int | None) -> Json:
    """`running_ms`: the current time if the job runs."""
    metrics = vertex.metrics
    reached_ms = watermark_ms(metrics)
    lag_ms = max(0, running_ms - reached_ms) if running_ms and reached_ms is not None else None
    return {
        "id": vertex.vertex_id,
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "max_parallelism": vertex.max_parallelism,
        "slot_sharing_group": vertex.slot_sharing_group,
        "status": status_of(vertex.states),
        "tasks": by_name(vertex.states),
        "inputs": list(vertex.input_vertex_ids),
        "rates": dict.fromkeys(totals(metrics)),
        "totals": totals(metrics),
        "time": shares(metrics),
        "skew": None,
        "watermark_ms": reached_ms,
        "watermark_lag_ms": lag_ms,
        "late_dropped": metrics.late_records_dropped,
        "state_bytes": state_bytes,
        "operators": [_operator(operator) for operator in vertex.operators],
    }


def _operator(operator: OperatorDetails) -> Json:
    choice = operator.choice
    return {
        "id": operator.operator_id,
        "uid": operator.uid,
        "name": operator.name,
        "kind": operator.kind,
        "runs_on_spark": operator.runs_on_spark,
        "group": operator.group,
        "reads": choice.reads or None if choice else None,
        "computes": choice.computes or None if choice else None,
        "reason": choice.reason or None if choice else None,
    }


def _state_bytes(checkpoints: Sequence[CheckpointDetails]) -> dict[str, int]:
    """The size of each vertex's part of the last complete checkpoint."""
    last = next((c for c in checkpoints if c.state == "COMPLETED" and c.subtasks), None)
    sizes: dict[str, int] = {}
    for subtask in last.subtasks if last else ():
        sizes[subtask.vertex_id] = sizes.get(subtask.vertex_id, 0) + subtask.size_bytes
    return sizes


def exceptions(details: JobDetails) -> Json:
    """`restarted`: whether the job ran again after it; null while that is open."""
    return {
        "exceptions": [
            {**error(each), "restarted": _restarted(details, each.timestamp_ms)}
            for each in details.exceptions
        ]
    }


def _restarted(details: JobDetails, failed_ms: int) -> bool | None:
    later = {change.status for change in details.entered_ms if change.timestamp_ms >= failed_ms}
    if JobStatus.RESTARTING in later or JobStatus.RUNNING in later:
        return True
    return False if JobStatus.FAILED in later else None
