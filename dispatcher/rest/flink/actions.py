"""Actions on jobs: cancellation, checkpoints, savepoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
from aiohttp import web

from dispatcher.rest.flink.shown import Json, answer
from dispatcher.rest.flink.throwables import failure_cause
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler, Refusal, json_body, text_of
from firesteel._proto import dispatcher_pb2, job_master_pb2


class ActionRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "PATCH /jobs/{job}": self._terminate,
            "GET /jobs/{job}/yarn-cancel": self._cancel,
            "POST /jobs/{job}/stop": self._stop,
            "POST /jobs/{job}/savepoints": self._take_savepoint,
            "GET /jobs/{job}/savepoints/{trigger}": self._triggered_savepoint,
            "POST /jobs/{job}/checkpoints": self._take_checkpoint,
            "GET /jobs/{job}/checkpoints/{trigger}": self._triggered_checkpoint,
            "POST /savepoint-disposal": self._dispose,
            "GET /savepoint-disposal/{trigger}": self._disposed,
        }

    async def _terminate(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "cancel")
        if mode != "cancel":
            raise Refusal(400, f"mode={mode!r} is not allowed; expected cancel")
        return await self._cancel(request)

    async def _cancel(self, request: web.Request) -> web.Response:
        await self._gateway.cancel(request)
        return answer({}, status=202)

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
        return answer({"request-id": trigger}, status=202)

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
        return answer({"request-id": trigger}, status=202)

    async def _disposed(self, request: web.Request) -> web.Response:
        return await self._polled(request, lambda _: {})

    async def _polled(self, request: web.Request, shown: Callable[[Any], Json]) -> web.Response:
        operation = self._gateway.operations.find(request.match_info["trigger"])
        if operation is None:
            raise Refusal(404, f"there is no operation {request.match_info['trigger']!r}")
        if not operation.done():
            return answer({"status": {"id": "IN_PROGRESS"}})
        try:
            outcome = shown(operation.result())
        except grpc.aio.AioRpcError as error:
            outcome = {"failure-cause": failure_cause(error.details() or error.code().name)}
        return answer({"status": {"id": "COMPLETED"}, "operation": outcome})
