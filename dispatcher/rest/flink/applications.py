"""Applications of Flink 2.3. Each job is a separate application with the same id."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from dispatcher.rest.flink.jobs import exceptions, job_overview
from dispatcher.rest.flink.shown import NOT_ENDED, Json, answer, duration_ms, now_ms
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler, Refusal
from firesteel.client.job_details import JobOverview
from firesteel.common.states import JobStatus

# The others are running.
_STATUSES = {
    JobStatus.INITIALIZING: "CREATED",
    JobStatus.CREATED: "CREATED",
    JobStatus.FAILING: "FAILING",
    JobStatus.FAILED: "FAILED",
    JobStatus.CANCELLING: "CANCELING",
    JobStatus.CANCELED: "CANCELED",
    JobStatus.FINISHED: "FINISHED",
}


class ApplicationRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /applications/overview": self._overview,
            "GET /applications/{job}": self._application,
            "GET /applications/{job}/exceptions": self._exceptions,
            "POST /applications/{job}/cancel": self._cancel,
        }

    async def _overview(self, request: web.Request) -> web.Response:
        jobs = await self._gateway.jobs(request)
        return answer({"applications": [_application(job, now_ms()) for job in jobs]})

    async def _application(self, request: web.Request) -> web.Response:
        wanted = request.match_info["job"]
        for job in await self._gateway.jobs(request):
            if job.job_id == wanted:
                overview = job_overview(job, now_ms())
                return answer({**_application(job, now_ms()), "jobs": [overview]})
        raise Refusal(404, f"there is no application {wanted[:80]!r}")

    async def _exceptions(self, request: web.Request) -> web.Response:
        details = await self._gateway.details(request)
        history = exceptions(details, limit=1)["exceptionHistory"]
        for entry in history["entries"]:
            entry["jobId"] = details.job_id
        return answer({"exceptionHistory": history})

    async def _cancel(self, request: web.Request) -> web.Response:
        await self._gateway.cancel(request)
        return answer({})


def _application(job: JobOverview, now_ms: int) -> Json:
    return {
        "id": job.job_id,
        "name": job.name,
        "status": _STATUSES.get(job.status, "RUNNING"),
        "start-time": job.start_ms,
        "end-time": job.end_ms or NOT_ENDED,
        "duration": duration_ms(job.start_ms, job.end_ms, now_ms),
        "jobs": {job.status.name: 1},
    }
