"""Jobs as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiohttp import web

from dispatcher.rest.flink.shown import NOT_ENDED, Json, counts, duration_ms, now_ms
from dispatcher.rest.flink.vertices import vertex_overview
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler, count_of
from firesteel.client.job_details import JobDetails, JobOverview
from firesteel.common.states import ExecutionState, JobStatus

_DEFAULT_EXCEPTIONS = 20


class JobRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /jobs": self._job_ids,
            "GET /jobs/overview": self._jobs_overview,
            "GET /jobs/{job}": self._job,
            "GET /jobs/{job}/status": self._job_status,
            "GET /jobs/{job}/plan": self._plan,
            "GET /jobs/{job}/config": self._job_config,
            "GET /jobs/{job}/accumulators": self._accumulators,
            "GET /jobs/{job}/exceptions": self._exceptions,
            "GET /jobs/{job}/execution-result": self._execution_result,
        }

    async def _job_ids(self, request: web.Request) -> web.Response:
        return web.json_response(job_ids(await self._gateway.jobs(request)))

    async def _jobs_overview(self, request: web.Request) -> web.Response:
        async def load() -> Json:
            return jobs_overview(await self._gateway.jobs(request), now_ms())

        return await self._gateway.answer(request, load)

    async def _job(self, request: web.Request) -> web.Response:
        async def load() -> Json:
            return job(await self._gateway.details(request), now_ms())

        return await self._gateway.answer(request, load)

    async def _job_status(self, request: web.Request) -> web.Response:
        return web.json_response({"status": (await self._gateway.details(request)).status.name})

    async def _plan(self, request: web.Request) -> web.Response:
        return web.json_response({"plan": plan(await self._gateway.details(request))})

    async def _job_config(self, request: web.Request) -> web.Response:
        details = await self._gateway.details(request)
        return web.json_response(job_config(details))

    async def _accumulators(self, request: web.Request) -> web.Response:
        await self._gateway.details(request)
        return web.json_response(
            {
                "job-accumulators": [],
                "user-task-accumulators": [],
                "serialized-user-task-accumulators": {},
            }
        )

    async def _exceptions(self, request: web.Request) -> web.Response:
        limit = count_of(request, "maxExceptions", _DEFAULT_EXCEPTIONS)
        return web.json_response(exceptions(await self._gateway.details(request), limit))

    async def _execution_result(self, request: web.Request) -> web.Response:
        return web.json_response(execution_result(await self._gateway.details(request), now_ms()))


def job_ids(jobs: Sequence[JobOverview]) -> Json:
    return {"jobs": [{"id": job.job_id, "status": job.status.name} for job in jobs]}


def jobs_overview(jobs: Sequence[JobOverview], now_ms: int) -> Json:
    return {"jobs": [_job_overview(job, now_ms) for job in jobs]}


def _job_overview(job: JobOverview, now_ms: int) -> Json:
    return {
        "jid": job.job_id,
        "name": job.name,
        "state": job.status.name,
        "start-time": job.start_ms,
        "end-time": job.end_ms or NOT_ENDED,
        "duration": duration_ms(job.start_ms, job.end_ms, now_ms),
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
        "end-time": details.end_ms or NOT_ENDED,
        "duration": duration_ms(details.start_ms, details.end_ms, now_ms),
        "maxParallelism": max((v.max_parallelism for v in details.vertices), default=-1),
        "now": now_ms,
        "job-type": "STREAMING",
        "timestamps": entered,
        "pending-operators": 0,
        "vertices": [vertex_overview(vertex, now_ms) for vertex in details.vertices],
        "status-counts": counts(details.states),
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
            "net-runtime": duration_ms(details.start_ms, details.end_ms, now_ms),
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


def _task_counts(counts: Mapping[str, int], *, total: bool) -> Json:
    shown = dict.fromkeys((state.name.lower() for state in ExecutionState), 0)
    shown |= {name.lower(): count for name, count in counts.items()}
    return {"total": sum(counts.values()), **shown} if total else shown
