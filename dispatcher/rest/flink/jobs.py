"""Jobs as a whole."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from aiohttp import web

from dispatcher.rest.flink.shown import (
    NOT_ENDED,
    Json,
    aggregated_answer,
    answer,
    counts,
    duration_ms,
    metrics_answer,
    now_ms,
    selected,
)
from dispatcher.rest.flink.vertices import endpoint_of, vertex_overview
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler, count_of
from firesteel.client.job_details import Attempt, JobDetails, JobOverview
from firesteel.common.config import Configuration, options, restart_strategy
from firesteel.common.states import ExecutionState, JobStatus, running_since_ms
from firesteel.errors import ErrorInfo

_DEFAULT_EXCEPTIONS = 20


class JobRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /jobs": self._job_ids,
            "GET /jobs/overview": self._jobs_overview,
            "GET /jobs/metrics": self._jobs_metrics,
            "GET /jobs/{job}": self._job,
            "GET /jobs/{job}/status": self._job_status,
            "GET /jobs/{job}/plan": self._plan,
            "GET /jobs/{job}/config": self._job_config,
            "GET /jobs/{job}/accumulators": self._accumulators,
            "GET /jobs/{job}/exceptions": self._exceptions,
            "GET /jobs/{job}/execution-result": self._execution_result,
            "GET /jobs/{job}/metrics": self._metrics,
            "GET /jobs/{job}/resource-requirements": self._resource_requirements,
        }

    async def _job_ids(self, request: web.Request) -> web.Response:
        return answer(job_ids(await self._gateway.jobs(request)))

    async def _jobs_overview(self, request: web.Request) -> web.Response:
        async def load() -> Json:
            return jobs_overview(await self._gateway.jobs(request), now_ms())

        return await self._gateway.answer(request, load, unknown=0)

    async def _job(self, request: web.Request) -> web.Response:
        async def load() -> Json:
            return job(await self._gateway.details(request), now_ms())

        return await self._gateway.answer(request, load, unknown=0)

    async def _job_status(self, request: web.Request) -> web.Response:
        return answer({"status": (await self._gateway.details(request)).status.name})

    async def _plan(self, request: web.Request) -> web.Response:
        return answer({"plan": plan(await self._gateway.details(request))})

    async def _job_config(self, request: web.Request) -> web.Response:
        details = await self._gateway.details(request)
        return answer(job_config(details, await self._gateway.configuration(request, details)))

    async def _accumulators(self, request: web.Request) -> web.Response:
        await self._gateway.details(request)
        return answer(
            {
                "job-accumulators": [],
                "user-task-accumulators": [],
                "serialized-user-task-accumulators": {},
            }
        )

    async def _exceptions(self, request: web.Request) -> web.Response:
        limit = count_of(request, "maxExceptions", _DEFAULT_EXCEPTIONS)
        return answer(exceptions(await self._gateway.details(request), limit))

    async def _execution_result(self, request: web.Request) -> web.Response:
        return answer(execution_result(await self._gateway.details(request), now_ms()))

    async def _metrics(self, request: web.Request) -> web.Response:
        details = await self._gateway.details(request)
        return metrics_answer(request, job_metrics(details, now_ms()))

    async def _jobs_metrics(self, request: web.Request) -> web.Response:
        wanted = selected(request, "jobs")
        running = [
            job.job_id
            for job in await self._gateway.jobs(request)
            if wanted(job.job_id) and not job.status.globally_terminal
        ]
        details = [await self._gateway.details(request, job_id) for job_id in running]
        return aggregated_answer(request, [job_metrics(job, now_ms()) for job in details])

    async def _resource_requirements(self, request: web.Request) -> web.Response:
        details = await self._gateway.details(request)
        return answer(
            {
                vertex.vertex_id: {
                    "parallelism": {
                        "lowerBound": vertex.lower_bound or vertex.parallelism,
                        "upperBound": vertex.upper_bound or vertex.parallelism,
                    }
                }
                for vertex in details.vertices
            }
        )


def job_ids(jobs: Sequence[JobOverview]) -> Json:
    return {"jobs": [{"id": job.job_id, "status": job.status.name} for job in jobs]}


def jobs_overview(jobs: Sequence[JobOverview], now_ms: int) -> Json:
    return {"jobs": [job_overview(job, now_ms) for job in jobs]}


def job_overview(job: JobOverview, now_ms: int) -> Json:
    return {
        "jid": job.job_id,
        "name": job.name,
        "state": job.status.name,
        "start-time": job.start_ms,
        "end-time": job.end_ms or NOT_ENDED,
        "duration": duration_ms(job.start_ms, job.end_ms, now_ms),
        "last-modification": job.end_ms or now_ms,
        "tasks": _task_counts(job.tasks_by_state),
        "pending-operators": 0,
    }


def job(details: JobDetails, now_ms: int) -> Json:
    entered = dict.fromkeys((status.name for status in JobStatus), 0)
    entered |= {change.status.name: change.timestamp_ms for change in details.entered_ms}
    return {
        "jid": details.job_id,
        "name": details.name,
        "isStoppable": False,
        "application-id": details.job_id,
        "state": details.status.name,
        "start-time": details.start_ms,
        "end-time": details.end_ms or NOT_ENDED,
        "duration": duration_ms(details.start_ms, details.end_ms, now_ms),
        "maxParallelism": max((v.max_parallelism for v in details.vertices), default=-1),
        "now": now_ms,
        "job-type": job_type(details),
        "timestamps": entered,
        "pending-operators": 0,
        "vertices": [vertex_overview(vertex, now_ms) for vertex in details.vertices],
        "status-counts": counts(details.states),
        "plan": plan(details),
    }


def job_type(details: JobDetails) -> str:
    mode = details.configuration.get(options.RUNTIME_MODE.key, "")
    return "BATCH" if mode.upper() == "BATCH" else "STREAMING"


def plan(details: JobDetails) -> Json:
    return {
        "jid": details.job_id,
        "name": details.name,
        "type": job_type(details),
        "nodes": [
            {
                "id": vertex.vertex_id,
                "parallelism": vertex.parallelism,
                "operator": "",
                "operator_strategy": "",
                "description": vertex.name,
                "optimizer_properties": {},
                "inputs": [
                    {
                        "num": number,
                        "id": source,
                        "ship_strategy": partitioner,
                        "exchange": "pipelined_bounded",
                    }
                    for number, (source, partitioner) in enumerate(
                        itertools.zip_longest(
                            vertex.input_vertex_ids, vertex.input_partitioners, fillvalue=""
                        )
                    )
                ],
            }
            for vertex in details.vertices
        ],
    }


def job_config(details: JobDetails, configuration: Configuration) -> Json:
    return {
        "jid": details.job_id,
        "name": details.name,
        "execution-config": {
            "restart-strategy": restart_strategy(configuration),
            "job-parallelism": configuration.get(options.PARALLELISM),
            "object-reuse-mode": False,
            "user-config": dict(details.configuration),
        },
    }


def job_metrics(details: JobDetails, now_ms: int) -> dict[str, float]:
    """Returns metrics of the job by Flink's names."""
    spent_ms = dict.fromkeys(JobStatus, 0)
    changes = details.entered_ms
    ends_ms = [change.timestamp_ms for change in changes[1:]] + [details.end_ms or now_ms]
    for change, end_ms in zip(changes, ends_ms, strict=False):
        spent_ms[change.status] += max(0, end_ms - change.timestamp_ms)
    since_ms = now_ms - changes[-1].timestamp_ms if changes else 0
    restarts = sum(change.status is JobStatus.RESTARTING for change in changes)
    down = details.status in (JobStatus.RESTARTING, JobStatus.FAILING)
    checkpoints = details.checkpoints
    completed = [c for c in checkpoints if c.state == "COMPLETED"]
    failed = sum(c.state == "FAILED" for c in checkpoints)
    running_ms = running_since_ms(changes) if details.status is JobStatus.RUNNING else None
    metrics: dict[str, float] = {
        "uptime": now_ms - running_ms if running_ms is not None else 0,
        "downtime": since_ms if down else 0,
        "runningTime": spent_ms[JobStatus.RUNNING],
        "restartingTime": spent_ms[JobStatus.RESTARTING],
        "cancellingTime": spent_ms[JobStatus.CANCELLING],
        "numRestarts": restarts,
        "fullRestarts": restarts,
        "totalNumberOfCheckpoints": len(checkpoints),
        "numberOfCompletedCheckpoints": len(completed),
        "numberOfFailedCheckpoints": failed,
        "numberOfInProgressCheckpoints": len(checkpoints) - len(completed) - failed,
    }
    if completed:
        last = completed[0]
        metrics |= {
            "lastCheckpointDuration": last.duration_ms,
            "lastCheckpointSize": last.size_bytes,
            "lastCheckpointFullSize": last.size_bytes,
            "lastCompletedCheckpointId": last.checkpoint_id,
        }
    return metrics


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
    attempts = _attempts_by_task(details)
    return {
        "root-exception": _stack(newest) if newest else None,
        "timestamp": newest.timestamp_ms if newest else None,
        "all-exceptions": [],
        "truncated": len(details.exceptions) > limit,
        "exceptionHistory": {
            "entries": [_exception(error, attempts.get(error.task_name)) for error in shown],
            "truncated": len(details.exceptions) > limit,
        },
    }


def _exception(error: ErrorInfo, attempt: Attempt | None) -> Json:
    placed = attempt is not None and attempt.task_executor_id
    return {
        "exceptionName": _exception_name(error),
        "stacktrace": _stack(error),
        "timestamp": error.timestamp_ms,
        "taskName": error.task_name or None,
        "endpoint": endpoint_of(attempt) if attempt and placed else error.location or None,
        "taskManagerId": attempt.task_executor_id if attempt and placed else None,
        "failureLabels": {},
        "concurrentExceptions": [],
    }


def _exception_name(error: ErrorInfo) -> str:
    """Returns the exception's class, as the last line of its traceback names it."""
    stack = error.user_traceback or error.traceback
    for line in (stack.rstrip().rpartition("\n")[2], error.summary):
        name = line.partition(":")[0]
        if all(part.isidentifier() for part in name.split(".")):
            return name
    return error.summary.partition(":")[0]


def _attempts_by_task(details: JobDetails) -> dict[str, Attempt]:
    """Returns the attempts by their names in errors, "Map (2/4)#0"."""
    return {
        f"{vertex.name} ({subtask.index + 1}/{vertex.parallelism})#{attempt.number}": attempt
        for vertex in details.vertices
        for subtask in vertex.subtasks
        for attempt in subtask.attempts
    }


def _stack(error: ErrorInfo) -> str:
    return error.user_traceback or error.traceback or error.summary


def _task_counts(counts: Mapping[str, int]) -> Json:
    shown = dict.fromkeys((state.name.lower() for state in ExecutionState), 0)
    return {"total": sum(counts.values()), **shown, **{k.lower(): n for k, n in counts.items()}}
