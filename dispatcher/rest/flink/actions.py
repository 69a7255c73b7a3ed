"""Actions on jobs: cancellation, checkpoints, savepoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from aiohttp import web

from dispatcher.rest import triggers
from dispatcher.rest.flink.shown import Json, answer
from dispatcher.rest.flink.throwables import failure_cause
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.operations import reason_for_failure
from dispatcher.rest.requests import (
    Handler,
    Refusal,
    flag_of,
    json_body,
    one_of,
    path_of,
    required_path_of,
    text_of,
)
from firesteel._proto import dispatcher_pb2, job_master_pb2
from firesteel.common.ids import random_id
from firesteel.common.rpc.status import Reason, reason_of

_OF_SAVEPOINTS = ("formatType", "triggerId")  # fields
_MOST = 2**15  # the highest maximum parallelism
_ACCEPTED_S = 2.0  # a job that has not refused a change until then works on it


def _bounds(body: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the upper and the lower bounds by vertex. Raises Refusal."""
    upper, lower = {}, {}
    for vertex_id, required in body.items():
        parallelism = required.get("parallelism") if isinstance(required, dict) else None
        if not isinstance(parallelism, dict):
            raise Refusal(400, f'{vertex_id[:80]!r} must be {{"parallelism": {{...}}}}')
        low, high = (parallelism.get(name) for name in ("lowerBound", "upperBound"))
        if type(low) is not int or type(high) is not int or not 1 <= low <= high <= _MOST:
            raise Refusal(
                400,
                f"vertex {vertex_id[:80]!r} requests the parallelism range [{low!r}, {high!r}];"
                " expected 1 <= lowerBound <= upperBound <= its maximum parallelism",
            )
        upper[vertex_id], lower[vertex_id] = high, low
    if not upper:
        raise Refusal(400, "the body names no vertex")
    return upper, lower


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
            "PUT /jobs/{job}/resource-requirements": self._require,
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
        body = await json_body(request, "targetDirectory", "drain", *_OF_SAVEPOINTS)
        return await self._checkpoint(
            request,
            body,
            job_master_pb2.TakeCheckpointRequest(
                savepoint=True,
                directory=path_of(body, "targetDirectory"),
                stop=True,
                drain=flag_of(body, "drain"),
            ),
        )

    async def _take_savepoint(self, request: web.Request) -> web.Response:
        body = await json_body(request, "target-directory", "cancel-job", *_OF_SAVEPOINTS)
        return await self._checkpoint(
            request,
            body,
            job_master_pb2.TakeCheckpointRequest(
                savepoint=True,
                directory=path_of(body, "target-directory"),
                stop=flag_of(body, "cancel-job"),
            ),
        )

    async def _take_checkpoint(self, request: web.Request) -> web.Response:
        body = await json_body(request, "checkpointType", "triggerId")
        kind = one_of(body, "checkpointType", "CONFIGURED", "FULL", "INCREMENTAL")
        return await self._checkpoint(
            request, body, job_master_pb2.TakeCheckpointRequest(full=kind == "FULL")
        )

    async def _checkpoint(
        self,
        request: web.Request,
        body: Mapping[str, Any],
        message: job_master_pb2.TakeCheckpointRequest,
    ) -> web.Response:
        """Starts a checkpoint or savepoint, whose outcome the client polls."""
        one_of(body, "formatType", "CANONICAL", "NATIVE")
        message.job_id = request.match_info["job"]
        message.trigger_id = text_of(body, "triggerId") or random_id()
        await triggers.check(self._gateway, request, message)
        taking = triggers.taken(self._gateway, message, self._gateway.metadata(request))
        trigger = self._gateway.operations.start(taking, message.trigger_id)
        return answer({"request-id": trigger}, status=202)

    async def _triggered_savepoint(self, request: web.Request) -> web.Response:
        await triggers.adopt(self._gateway, request)
        return await self._polled(request, lambda taken: {"location": taken.path})

    async def _triggered_checkpoint(self, request: web.Request) -> web.Response:
        await triggers.adopt(self._gateway, request)
        return await self._polled(request, lambda taken: {"checkpointId": taken.checkpoint_id})

    async def _require(self, request: web.Request) -> web.Response:
        """Sets the bounds of the parallelism of vertices. Answers once the job accepts them; it may
        still wait for slots then.
        """
        upper, lower = _bounds(await json_body(request))
        job_id, metadata = request.match_info["job"], self._gateway.metadata(request)
        details = await self._gateway.details(request)  # an unknown job is refused now
        known = {vertex.vertex_id for vertex in details.vertices}
        if unknown := sorted(upper.keys() - known):
            raise Refusal(400, f"job {job_id} has no vertex {unknown[0][:80]!r}")
        message = job_master_pb2.RescaleJobRequest(
            job_id=job_id, by_vertex=upper, lower_bounds=lower
        )

        async def rescale() -> None:
            await self._gateway.dispatcher.RescaleJob(message, metadata=metadata)
            self._gateway.forget()

        operation = self._gateway.operations.find(
            self._gateway.operations.start(rescale(), random_id())
        )
        assert operation is not None, "it was just started"
        done, _ = await asyncio.wait((operation,), timeout=_ACCEPTED_S)
        for ended in done:
            try:
                ended.result()
            except grpc.aio.AioRpcError as error:
                if reason_of(error) is Reason.JOB_NOT_RESCALED:
                    raise Refusal(409, error.details() or "the job was not rescaled") from None
                raise
        return answer({})

    async def _dispose(self, request: web.Request) -> web.Response:
        body = await json_body(request, "savepoint-path", "triggerId")
        message = dispatcher_pb2.DisposeSavepointRequest(
            path=required_path_of(body, "savepoint-path")
        )
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
