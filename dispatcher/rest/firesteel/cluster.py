"""The cluster as a whole: its caller, its masters, TaskExecutors, failures and audit log."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import grpc
from aiohttp import web

import firesteel
from dispatcher.rest.firesteel.savepoints import SavepointFiles, savepoints, taken
from dispatcher.rest.firesteel.shown import Json
from dispatcher.rest.flink.shown import now_ms
from dispatcher.rest.gateway import CALL_TIMEOUT_S, Gateway
from dispatcher.rest.requests import Handler, count_of
from firesteel._proto import access_pb2
from firesteel.client.job_details import (
    ClusterOverview,
    JobDetails,
    JobOverview,
    MasterOverview,
    TaskExecutorOverview,
)
from firesteel.common.config import options
from firesteel.common.rpc.access_messages import AUDIT_ENTRY
from firesteel.common.security.roles import Role
from firesteel.common.states import JobStatus

KEPT_S = 2.0  # it reads the details of many jobs
SAVEPOINTS_KEPT_S = 5.0  # it also looks for their files
MAX_LIVE = 20  # jobs that are read, the newest ones
MAX_FAILED = 10
MAX_FAILURES = 20
MAX_WITH_SAVEPOINTS = 50  # jobs that are read for their savepoints


class ClusterRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._savepoint_files = SavepointFiles()

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /firesteel/v1/me": self._me,
            "GET /firesteel/v1/cluster": self._cluster,
            "GET /firesteel/v1/savepoints": self._savepoints,
            "GET /firesteel/v1/audit": self._audit,
        }

    async def _me(self, request: web.Request) -> web.Response:
        who, conf = self._gateway.caller(request), self._gateway.conf
        role = who.role if who else Role.ADMIN  # without security, everybody may do everything
        return web.json_response(
            {
                "name": who.subject if who else None,
                "role": role.value,
                "expires_ms": int(who.expires_s * 1000) if who else None,
                "cluster": self._gateway.cluster_name,
                "version": firesteel.__version__,
                "may": {
                    "cancel": role.includes(Role.OPERATOR),
                    "savepoint": role.includes(Role.OPERATOR),
                    "rows": role.includes(Role.OPERATOR) and conf.get(options.SAMPLE_ROWS),
                    "submit": role.includes(Role.SUBMITTER) and conf.get(options.WEB_SUBMIT),
                    "admin": role.includes(Role.ADMIN),
                },
            }
        )

    async def _cluster(self, request: web.Request) -> web.Response:
        async def load() -> Json:
            overview, jobs = await asyncio.gather(
                self._gateway.cluster(request), self._gateway.jobs(request)
            )
            details = await self._details(request, worth_reading(jobs))
            return {
                "cluster": self._gateway.cluster_name,
                "now_ms": now_ms(),
                **cluster(overview, jobs, details),
            }

        return await self._gateway.answer(request, load, kept_s=KEPT_S)

    async def _savepoints(self, request: web.Request) -> web.Response:
        async def load() -> Json:
            jobs = await self._gateway.jobs(request)
            newest = heapq.nlargest(MAX_WITH_SAVEPOINTS, jobs, key=lambda job: job.start_ms)
            details = await self._details(request, newest)
            paths = [each["path"] for each in taken(details)]
            return savepoints(details, await self._savepoint_files.exist(paths))

        return await self._gateway.answer(request, load, kept_s=SAVEPOINTS_KEPT_S)

    async def _details(self, request: web.Request, jobs: Sequence[JobOverview]) -> list[JobDetails]:
        """Reads jobs; leaves out removed jobs, and those that do not answer."""
        read = await asyncio.gather(
            *(self._gateway.details(request, job.job_id) for job in jobs), return_exceptions=True
        )
        details = []
        for each in read:
            if isinstance(each, JobDetails):
                details.append(each)
            elif not isinstance(each, grpc.aio.AioRpcError):
                raise each
        return details

    async def _audit(self, request: web.Request) -> web.Response:
        answer = await self._gateway.access.ReadAudit(
            access_pb2.ReadAuditRequest(
                limit=count_of(request, "limit", 100), job_id=request.query.get("job", "")
            ),
            timeout=CALL_TIMEOUT_S,
            metadata=self._gateway.metadata(request),
        )
        entries = [asdict(AUDIT_ENTRY.decode(entry)) for entry in answer.entries]
        return web.json_response({"records": entries})


def worth_reading(jobs: Sequence[JobOverview]) -> list[JobOverview]:
    """The newest jobs that have not ended, and those that failed last: they may wait, or have
    failures.
    """
    live = (job for job in jobs if not job.status.globally_terminal)
    failed = (job for job in jobs if job.status is JobStatus.FAILED)
    return [
        *heapq.nlargest(MAX_LIVE, live, key=lambda job: job.start_ms),
        *heapq.nlargest(MAX_FAILED, failed, key=lambda job: job.end_ms),
    ]


def cluster(
    overview: ClusterOverview,
    jobs: Sequence[JobOverview],
    details: Sequence[JobDetails],
) -> Json:
    return {
        "version": overview.version,
        "masters": _masters(overview),
        "slots": {
            "total": overview.slots_total,
            "free": overview.slots_free,
            "warm": overview.slots_warm,
            "missing": overview.slots_missing,
        },
        "jobs": {
            "running": overview.jobs_running,
            "finished": overview.jobs_finished,
            "canceled": overview.jobs_canceled,
            "failed": overview.jobs_failed,
            "total": len(jobs),
        },
        "waiting": [
            {"job_id": job.job_id, "name": job.name, "explanation": job.waiting_for}
            for job in details
            if job.waiting_for
        ],
        "failures": _failures(details),
        "task_executors": [_task_executor(each) for each in overview.task_executors],
    }


_OFFICES = ("dispatcher", "resource_manager", "job_master")


def _masters(overview: ClusterOverview) -> list[Json]:
    """Leaders come before standbys. A ResourceManager that does not answer has a problem."""
    problem = overview.resource_manager_problem or None
    masters = [
        _master(each, problem if each.office == "resource_manager" and each.leads else None)
        for each in sorted(
            overview.masters, key=lambda each: (_OFFICES.index(each.office), not each.leads)
        )
    ]
    if problem and not overview.resource_manager_address:  # none leads
        vacant = MasterOverview(office="resource_manager", address="", epoch=0, leads=False)
        masters.append(_master(vacant, problem))
    return masters


def _master(each: MasterOverview, problem: str | None) -> Json:
    return {
        "office": each.office,
        "address": each.address or None,
        "epoch": each.epoch or None,
        "leads": each.leads and problem is None,
        "job_id": each.job_id or None,
        "job_name": each.job_name or None,
        "problem": problem,
    }


def _failures(details: Sequence[JobDetails]) -> list[Json]:
    failures = [
        {
            "job_id": job.job_id,
            "name": job.name,
            "timestamp_ms": each.timestamp_ms,
            "task": each.task_name or None,
            "summary": each.summary,
        }
        for job in details
        for each in job.exceptions
    ]
    return heapq.nlargest(MAX_FAILURES, failures, key=lambda failure: failure["timestamp_ms"])


def _task_executor(each: TaskExecutorOverview) -> Json:
    return {
        "id": each.task_executor_id,
        "address": each.address,
        "host": each.host,
        "pid": each.pid,
        "slots": each.slots,
        "slots_free": each.slots_free,
        "slots_warm": each.slots_warm,
        "stored_bytes": each.stored_bytes,
        "problem": each.slot_problem or None,
        "stops": each.stops,
    }
