"""The routes of Flink 2.3 that its command line, exporters and scripts use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from aiohttp import web

import firesteel
from dispatcher.rest.flink import views
from dispatcher.rest.gateway import CALL_TIMEOUT_S, Gateway
from dispatcher.rest.requests import Handler, Refusal, count_of, json_body, text_of
from firesteel._proto import dispatcher_pb2, job_master_pb2
from firesteel.common.rpc.status import Reason, reason_of

_DEFAULT_EXCEPTIONS = 20


class FlinkRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        """The handlers of the routes of the table of access."""
        return {
            "GET /config": self._config,
            "GET /overview": self._overview,
            "GET /jobs": self._job_ids,
            "GET /jobs/overview": self._jobs_overview,
            "GET /jobs/{job}": self._job,
            "GET /jobs/{job}/status": self._job_status,
            "GET /jobs/{job}/plan": self._plan,
            "GET /jobs/{job}/config": self._job_config,
            "GET /jobs/{job}/accumulators": self._accumulators,
            "GET /jobs/{job}/exceptions": self._exceptions,
            "GET /jobs/{job}/checkpoints": self._checkpoints,
            "GET /jobs/{job}/execution-result": self._execution_result,
            "PATCH /jobs/{job}": self._terminate,
            "GET /jobs/{job}/yarn-cancel": self._cancel,
            "POST /jobs/{job}/stop": self._stop,
            "POST /jobs/{job}/savepoints": self._take_savepoint,
            "GET /jobs/{job}/savepoints/{trigger}": self._triggered_savepoint,
            "POST /jobs/{job}/checkpoints": self._take_checkpoint,
            "GET /jobs/{job}/checkpoints/{trigger}": self._triggered_checkpoint,
            "POST /savepoint-disposal": self._dispose,
            "GET /savepoint-disposal/{trigger}": self._disposed,
            "GET /taskmanagers": self._task_managers,
        }

    # ---- the cluster

    async def _config(self, request: web.Request) -> web.Response:
        return web.json_response(views.configuration(firesteel.__version__))

    async def _overview(self, request: web.Request) -> web.Response:
        return web.json_response(views.overview(await self._gateway.cluster(request)))

    async def _task_managers(self, request: web.Request) -> web.Response:
        return web.json_response(
            views.task_managers(await self._gateway.cluster(request), _now_ms())
        )

    # ---- jobs

    async def _job_ids(self, request: web.Request) -> web.Response:
        return web.json_response(views.job_ids(await self._gateway.jobs(request)))

    async def _jobs_overview(self, request: web.Request) -> web.Response:
        return web.json_response(views.jobs_overview(await self._gateway.jobs(request), _now_ms()))

    async def _job(self, request: web.Request) -> web.Response:
        return web.json_response(views.job(await self._gateway.details(request), _now_ms()))

    async def _job_status(self, request: web.Request) -> web.Response:
        return web.json_response({"status": (await self._gateway.details(request)).status.name})

    async def _plan(self, request: web.Request) -> web.Response:
        return web.json_response({"plan": views.plan(await self._gateway.details(request))})

    async def _job_config(self, request: web.Request) -> web.Response:
        details = await self._gateway.details(request)
        return web.json_response(views.job_config(details))

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
        return web.json_response(views.exceptions(await self._gateway.details(request), limit))

    async def _checkpoints(self, request: web.Request) -> web.Response:
        return web.json_response(views.checkpoints(await self._gateway.details(request)))

    async def _execution_result(self, request: web.Request) -> web.Response:
        return web.json_response(
            views.execution_result(await self._gateway.details(request), _now_ms())
        )

    # ---- actions

    async def _terminate(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "cancel")
        if mode != "cancel":
            raise Refusal(400, f"mode={mode!r} is not allowed; expected cancel")
        return await self._cancel(request)

    async def _cancel(self, request: web.Request) -> web.Response:
        try:
            await self._gateway.dispatcher.CancelJob(
                job_master_pb2.CancelJobRequest(job_id=request.match_info["job"]),
                timeout=CALL_TIMEOUT_S,
                metadata=self._gateway.metadata(request),
            )
        except grpc.aio.AioRpcError as error:
            if reason_of(error) is Reason.JOB_IN_WRONG_STATE:
                raise Refusal(409, error.details() or "the job has ended") from None
            raise
        return web.json_response({}, status=202)

    async def _stop(self, request: web.Request) -> web.Response:
        body = await json_body(request)
        return await self._checkpoint(
            request,
            body,
            job_master_pb2.TakeCheckpointRequest(
                savepoint=True,
                directory=text_of(body, "targetDirectory"),
                stop=True,
                drain=bool(body.get("drain")),
            ),
        )

    async def _take_savepoint(self, request: web.Request) -> web.Response:
        body = await json_body(request)
        return await self._checkpoint(
            request,
            body,
            job_master_pb2.TakeCheckpointRequest(
                savepoint=True,
                directory=text_of(body, "target-directory"),
                stop=bool(body.get("cancel-job")),
            ),
        )

    async def _take_checkpoint(self, request: web.Request) -> web.Response:
        body = await json_body(request)
        full = text_of(body, "checkpointType") == "FULL"
        return await self._checkpoint(
            request, body, job_master_pb2.TakeCheckpointRequest(full=full)
        )

    async def _checkpoint(
        self,
        request: web.Request,
        body: Mapping[str, Any],
        message: job_master_pb2.TakeCheckpointRequest,
    ) -> web.Response:
        """Starts a checkpoint or savepoint, whose outcome the client polls."""
        message.job_id = request.match_info["job"]
        await self._gateway.details(request)  # an unknown job is refused now
        metadata = self._gateway.metadata(request)

        async def take() -> tuple[int, str]:
            taken = await self._gateway.dispatcher.TakeCheckpoint(message, metadata=metadata)
            return taken.checkpoint_id, taken.path

        trigger = self._gateway.operations.start(take(), text_of(body, "triggerId"))
        return web.json_response({"request-id": trigger}, status=202)

    async def _triggered_savepoint(self, request: web.Request) -> web.Response:
        return await self._polled(request, lambda taken: {"location": taken[1]})

    async def _triggered_checkpoint(self, request: web.Request) -> web.Response:
        return await self._polled(request, lambda taken: {"checkpointId": taken[0]})

    async def _dispose(self, request: web.Request) -> web.Response:
        body = await json_body(request)
        message = dispatcher_pb2.DisposeSavepointRequest(path=text_of(body, "savepoint-path"))
        metadata = self._gateway.metadata(request)

        async def dispose() -> None:
            await self._gateway.dispatcher.DisposeSavepoint(message, metadata=metadata)

        trigger = self._gateway.operations.start(dispose(), text_of(body, "triggerId"))
        return web.json_response({"request-id": trigger}, status=202)

    async def _disposed(self, request: web.Request) -> web.Response:
        return await self._polled(request, lambda _: {})

    async def _polled(
        self, request: web.Request, shown: Callable[[Any], views.Json]
    ) -> web.Response:
        operation = self._gateway.operations.find(request.match_info["trigger"])
        if operation is None:
            raise Refusal(404, f"there is no operation {request.match_info['trigger']!r}")
        if not operation.done():
            return web.json_response({"status": {"id": "IN_PROGRESS"}})
        try:
            outcome = operation.result()
        except grpc.aio.AioRpcError as error:
            raise Refusal(409, error.details() or error.code().name) from None
        return web.json_response({"status": {"id": "COMPLETED"}, "operation": shown(outcome)})


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
