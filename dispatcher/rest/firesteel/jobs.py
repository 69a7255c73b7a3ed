"""Jobs: their list, their graphs and their exceptions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from aiohttp import web

from dispatcher.rest.firesteel.bottleneck import UNEVEN, diagnose
from dispatcher.rest.firesteel.shown import (
    Json,
    by_name,
    error,
    rates,
    recent_shares,
    shares,
    totals,
    watermark_ms,
)
from dispatcher.rest.flink.shown import duration_ms, now_ms
from dispatcher.rest.flink.vertices import status_of
from dispatcher.rest.gateway import CALL_TIMEOUT_S, Gateway
from dispatcher.rest.requests import Handler, count_of, time_of
from firesteel._proto import job_master_pb2
from firesteel.client.job_details import (
    JobDetails,
    JobOverview,
    OperatorDetails,
    Vertex,
)
from firesteel.common.rescales import Rescale
from firesteel.common.states import JobStatus

SERIES_KEPT_S = 1.0


class JobRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /firesteel/v1/jobs": self._jobs,
            "GET /firesteel/v1/jobs/{job}": self._job,
            "GET /firesteel/v1/jobs/{job}/series": self._series,
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

    async def _series(self, request: web.Request) -> web.Response:
        message = job_master_pb2.JobSeriesRequest(
            job_id=request.match_info["job"],
            vertex_id=request.query.get("vertex", ""),
            since_ms=time_of(request, "since_ms"),
            points=count_of(request, "points", 200),
        )

        async def load() -> Json:
            answer = await self._gateway.dispatcher.GetJobSeries(
                message, timeout=CALL_TIMEOUT_S, metadata=self._gateway.metadata(request)
            )
            return series(answer)

        return await self._gateway.answer(request, load, kept_s=SERIES_KEPT_S)

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
    by_id = {vertex.vertex_id: vertex for vertex in details.vertices}
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
        "autoscaler": details.scaling or None,
        "spark_ui": details.spark_ui or None,
        "rescales": [rescale(each) for each in details.rescales],
        "configuration": dict(details.configuration),
        "bottleneck": _bottleneck(details),
        "vertices": [
            _vertex(vertex, now_ms if details.status is JobStatus.RUNNING else None)
            for vertex in details.vertices
        ],
        "edges": [
            {
                "source": source,
                "target": vertex.vertex_id,
                "records_per_s": edge_rate(by_id, source, vertex),
            }
            for vertex in details.vertices
            for source in vertex.input_vertex_ids
        ],
    }


def rescale(each: Rescale) -> Json:
    return {
        "id": each.rescale_id,
        "trigger": each.trigger.name,
        "state": each.outcome.terminal_state or each.stages[-1].name,
        "start_ms": each.start_ms,
        "end_ms": each.end_ms or None,
        "before": dict(each.before),
        "after": dict(each.after),
        "reason": each.reason or None,
        "problem": each.problem or None,
    }


def _bottleneck(details: JobDetails) -> Json | None:
    bottleneck = diagnose(details)
    return asdict(bottleneck) if bottleneck is not None else None


def edge_rate(by_id: Mapping[str, Vertex], source_id: str, target: Vertex) -> float | None:
    """The records per second that the target receives from a source. With several sources, what
    that source sends, which is exact if it has one target.
    """
    if len(target.input_vertex_ids) == 1:
        return rates(target.activity)["records_in"]
    source = by_id.get(source_id)
    return rates(source.activity)["records_out"] if source else None


def _skew(vertex: Vertex) -> Json | None:
    """The subtask that receives many more records than the others, and its share of them."""
    activity = vertex.activity
    if activity is None or activity.largest is None or vertex.parallelism < 2:
        return None
    if activity.largest < UNEVEN / vertex.parallelism:
        return None
    return {"subtask": activity.largest_subtask, "share": round(activity.largest, 4)}


def _vertex(vertex: Vertex, running_ms: int | None) -> Json:
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
        "rates": rates(vertex.activity),
        "totals": totals(metrics),
        "time": recent_shares(vertex.activity) or shares(metrics),
        "skew": _skew(vertex),
        "watermark_ms": reached_ms,
        "watermark_lag_ms": lag_ms,
        "late_dropped": metrics.late_records_dropped,
        "state_bytes": vertex.state_bytes,
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
        "state_bytes": operator.state_bytes,
    }


def series(answer: job_master_pb2.JobSeries) -> Json:
    return {
        "step_ms": answer.step_ms,
        "times": list(answer.times_ms),
        "vertices": {
            vertex_id: {
                name: [None if math.isnan(value) else round(value, 4) for value in row.values]
                for name, row in vertex.rows.items()
            }
            for vertex_id, vertex in answer.vertices.items()
        },
    }


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
