"""Actions on jobs: cancellation, checkpoints, savepoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
from aiohttp import web

from dispatcher.rest import triggers
from dispatcher.rest.flink.shown import Json, answer
from dispatcher.rest.flink.throwables import failure_cause
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.operations import reason_for_failure
from dispatcher.rest.requests import Handler, Refusal, flag_of, json_body, text_of
from firesteel._proto import dispatcher_pb2, job_master_pb2
from firesteel.common.ids import random_id


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
                drain=flag_of(body, "drain"),
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
                stop=flag_of(body, "cancel-job"),
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
        message.trigger_id = text_of(body, "triggerId") or random_id()
        await self._gateway.details(request)  # an unknown job is refused now
        taking = triggers.taken(self._gateway, message, self._gateway.metadata(request))
        trigger = self._gateway.operations.start(taking, message.trigger_id)
        return answer({"request-id": trigger}, status=202)

    async def _triggered_savepoint(self, request: web.Request) -> web.Response:
        await triggers.adopt(self._gateway, request)
        return await self._polled(request, lambda taken: {"location": taken.path})

    async def _triggered_checkpoint(self, request: web.Request) -> web.Response:
        await triggers.adopt(self._gateway, request)
        return await self._polled(request, lambda taken: {"checkpointId": taken.checkpoint_id})

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
            raise Refusal(
                404,
                f"there is no operation {request.match_info['trigger'][:80]!r}: it may have been"
                " forgotten, or started before this server; start it again",
            )
        if not operation.done():
            return answer({"status": {"id": "IN_PROGRESS"}})
        try:
            outcome = shown(operation.result())
        except (grpc.aio.AioRpcError, Refusal) as error:
            outcome = {"failure-cause": failure_cause(reason_for_failure(error))}
        return answer({"status": {"id": "COMPLETED"}, "operation": outcome})
