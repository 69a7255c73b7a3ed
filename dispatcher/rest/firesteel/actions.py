"""Actions on jobs. Those that take long answer with an operation, whose outcome clients poll."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from aiohttp import web

from dispatcher.rest import triggers
from dispatcher.rest.firesteel.shown import Json
from dispatcher.rest.gateway import CALL_TIMEOUT_S, Gateway
from dispatcher.rest.operations import reason_for_failure
from dispatcher.rest.requests import (
    Handler,
    Refusal,
    flag_of,
    json_body,
    path_of,
    required_path_of,
)
from firesteel._proto import dispatcher_pb2, job_master_pb2
from firesteel.common.ids import random_id


class ActionRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "POST /firesteel/v1/jobs/{job}/cancel": self._cancel,
            "POST /firesteel/v1/jobs/{job}/stop": self._stop,
            "POST /firesteel/v1/jobs/{job}/savepoints": self._take_savepoint,
            "DELETE /firesteel/v1/jobs/{job}": self._remove,
            "POST /firesteel/v1/savepoints/dispose": self._dispose,
            "GET /firesteel/v1/operations/{operation}": self._operation,
        }

    async def _cancel(self, request: web.Request) -> web.Response:
        await self._gateway.cancel(request)
        return web.Response(status=202)

    async def _stop(self, request: web.Request) -> web.Response:
        body = await json_body(request, "directory", "drain")
        return await self._savepoint(
            request,
            job_master_pb2.TakeCheckpointRequest(
                savepoint=True,
                directory=path_of(body, "directory"),
                stop=True,
                drain=flag_of(body, "drain"),
            ),
        )

    async def _take_savepoint(self, request: web.Request) -> web.Response:
        body = await json_body(request, "directory")
        return await self._savepoint(
            request,
            job_master_pb2.TakeCheckpointRequest(
                savepoint=True, directory=path_of(body, "directory")
            ),
        )

    async def _savepoint(
        self, request: web.Request, message: job_master_pb2.TakeCheckpointRequest
    ) -> web.Response:
        message.job_id, message.trigger_id = request.match_info["job"], random_id()
        await triggers.check(self._gateway, request, message)
        metadata = self._gateway.metadata(request)

        async def take() -> Json:
            taken = await triggers.taken(self._gateway, message, metadata)
            return {"checkpoint_id": str(taken.checkpoint_id), "path": taken.path}

        operation = self._gateway.operations.start(take(), message.trigger_id)
        return web.json_response({"operation": operation}, status=202)

    async def _remove(self, request: web.Request) -> web.Response:
        await self._gateway.dispatcher.RemoveJob(
            dispatcher_pb2.RemoveJobRequest(job_id=request.match_info["job"]),
            timeout=CALL_TIMEOUT_S,
            metadata=self._gateway.metadata(request),
        )
        return web.Response(status=204)

    async def _dispose(self, request: web.Request) -> web.Response:
        path = required_path_of(await json_body(request, "path"), "path")
        metadata = self._gateway.metadata(request)

        async def dispose() -> None:
            message = dispatcher_pb2.DisposeSavepointRequest(path=path)
            await self._gateway.dispatcher.DisposeSavepoint(message, metadata=metadata)

        operation = self._gateway.operations.start(dispose())
        return web.json_response({"operation": operation}, status=202)

    async def _operation(self, request: web.Request) -> web.Response:
        operation_id = request.match_info["operation"]
        operation = self._gateway.operations.find(operation_id)
        if operation is None:
            raise Refusal(404, f"there is no operation {operation_id[:80]!r}")
        result, error = None, None
        if operation.done():
            try:
                result = operation.result()
            except (grpc.aio.AioRpcError, Refusal) as failure:
                error = reason_for_failure(failure)
        return web.json_response({"done": operation.done(), "result": result, "error": error})
