"""The REST server: Flink's routes over HTTP, with and without /v1.

It is a gateway to the Dispatcher's gRPC service on the same machine. Each request carries the
caller's token on, so that the Dispatcher decides what the caller may do, and audits it. Answers
that all viewers share are kept for a moment: a thousand viewers cost as much as one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc
import structlog
from aiohttp import web

import firesteel
from dispatcher.rest import flink
from dispatcher.rest.operations import Operations
from firesteel._proto import (
    dispatcher_pb2,
    dispatcher_pb2_grpc,
    job_master_pb2,
    resource_manager_pb2,
)
from firesteel.client.job_details import (
    CLUSTER_OVERVIEW,
    JOB_DETAILS,
    JOB_OVERVIEW,
    ClusterOverview,
    JobDetails,
    JobOverview,
)
from firesteel.common.rpc.bearer import AUTHORIZATION
from firesteel.common.rpc.server import aio_channel
from firesteel.common.rpc.status import Reason, reason_of
from firesteel.common.security.access import ROUTES, Access
from firesteel.common.security.credentials import BEARER
from firesteel.common.security.security import Security
from firesteel.common.security.tokens import TokenVerifier
from firesteel.errors import FiresteelError

log = structlog.get_logger(__name__)

KEPT_S = 0.25  # answers that all viewers share
MAX_BODY_BYTES = 2**20
RENEW_S = 3600.0  # how often the certificate is looked at
CALL_TIMEOUT_S = 10.0
_DEFAULT_EXCEPTIONS = 20

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
_STATUS = {
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class RestServer:
    """Serves from `start` to `stop`. Without `security`, it answers every caller."""

    def __init__(
        self,
        dispatcher_address: str,
        security: Security | None,
        *,
        hosts: frozenset[str] = frozenset(),
    ) -> None:
        """`hosts`: the host names by which clients may name this server, besides `localhost` and
        IP addresses.
        """
        self._verifier: TokenVerifier | None = security.verifier if security else None
        self._security = security
        self._hosts = hosts | {"localhost"}
        credentials = security.channel_credentials() if security else None
        self._channel = aio_channel(dispatcher_address, credentials)
        self._dispatcher: Any = dispatcher_pb2_grpc.DispatcherStub(self._channel)  # type: ignore[no-untyped-call]
        self._operations = Operations()
        self._kept: dict[str, tuple[float, asyncio.Future[Any]]] = {}
        self._runner: web.AppRunner | None = None
        self._renewing: asyncio.Task[None] | None = None
        self.address = ""  # host:port, once it serves

    async def start(self, host: str, port: int) -> None:
        """Serves at `address` from now on. Raises OSError if the port is taken."""
        if self._runner is not None:  # another port was taken
            await self._runner.cleanup()
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        for route, handler in self.handlers().items():
            method, path = route.split(" ", 1)
            for prefix in ("", "/v1"):
                app.router.add_route(method, prefix + path, handler, name=None)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        context = self._security.http_context() if self._security else None
        site = web.TCPSite(self._runner, host, port, ssl_context=context)
        await site.start()
        if context is not None and self._security is not None:
            self._renewing = asyncio.create_task(_renew(self._security, context))
        self.address = f"{host}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        await self._operations.stop()
        await self._channel.close(grace=None)

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

    # ---- every request

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses requests that the caller may not make, and answers failures with errors."""
        try:
            self._check_origin(request)
            self._check_role(request)
            return await handler(request)
        except _Refusal as refusal:
            return _errors(refusal.status, str(refusal))
        except web.HTTPException as error:
            return _errors(error.status, f"{request.method} {request.path}: {error.reason}")
        except grpc.aio.AioRpcError as error:
            message = error.details() or error.code().name
            return _errors(_STATUS.get(error.code(), 500), message)
        except FiresteelError as error:
            return _errors(400, str(error))
        except Exception as error:
            log.error("a request failed unexpectedly", path=request.path, exc_info=error)
            return _errors(500, f"{type(error).__name__}: {error}")

    def _check_origin(self, request: web.Request) -> None:
        """Refuses requests that a page of another site makes in somebody's browser, also if the
        page's host name leads to this machine (DNS rebinding).
        """
        host = (request.url.host or "").lower()
        if host not in self._hosts and not _is_address(host):
            raise _Refusal(403, f"this server is not {request.host!r}; use its own address")
        site = request.headers.get("Sec-Fetch-Site", "none")
        origin = request.headers.get("Origin")
        if site not in ("none", "same-origin"):
            raise _Refusal(
                403, f"a page of another site made this request (Sec-Fetch-Site: {site})"
            )
        if origin is not None and origin.partition("://")[2] != request.host:
            raise _Refusal(403, f"a page of another site made this request (Origin: {origin})")

    def _check_role(self, request: web.Request) -> None:
        if self._verifier is None:
            return
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else ""
        access = ROUTES.get(f"{request.method} {path.removeprefix('/v1')}", Access())
        token = request.headers.get("Authorization", "")
        if not token.startswith(BEARER):
            raise _Refusal(
                401, "the request carries no token: send the header `Authorization: Bearer TOKEN`"
            )
        try:
            identity = self._verifier.verify(token.removeprefix(BEARER))
        except FiresteelError as error:
            raise _Refusal(401, str(error)) from None
        if request.match_info.http_exception is None and not access.allows(identity):
            raise _Refusal(403, f"{identity} may not do this, which is for: {access}")

    def _metadata(self, request: web.Request) -> tuple[tuple[str, str], ...]:
        token = request.headers.get("Authorization")
        return ((AUTHORIZATION, token),) if token else ()

    async def _shared(self, key: str, load: Callable[[], Awaitable[Any]]) -> Any:
        """Returns what `load` returns, at most `KEPT_S` old: one call for all who wait."""
        now_s = time.monotonic()
        since_s, kept = self._kept.get(key, (0.0, None))
        if kept is None or now_s - since_s > KEPT_S or kept.cancelled():
            kept = asyncio.ensure_future(load())
            self._kept[key] = (now_s, kept)
            self._kept = {k: v for k, v in self._kept.items() if k == key or now_s - v[0] <= KEPT_S}
        return await asyncio.shield(kept)

    async def _jobs(self, request: web.Request) -> list[JobOverview]:
        async def load() -> list[JobOverview]:
            answer = await self._dispatcher.ListJobs(
                dispatcher_pb2.ListJobsRequest(),
                timeout=CALL_TIMEOUT_S,
                metadata=self._metadata(request),
            )
            return list(map(JOB_OVERVIEW.decode, answer.jobs))

        jobs: list[JobOverview] = await self._shared("jobs", load)
        return jobs

    async def _details(self, request: web.Request) -> JobDetails:
        job_id = request.match_info["job"]

        async def load() -> JobDetails:
            answer = await self._dispatcher.GetJobDetails(
                job_master_pb2.JobDetailsRequest(job_id=job_id),
                timeout=CALL_TIMEOUT_S,
                metadata=self._metadata(request),
            )
            return JOB_DETAILS.decode(answer)

        details: JobDetails = await self._shared(f"job {job_id}", load)
        return details

    async def _cluster(self, request: web.Request) -> ClusterOverview:
        async def load() -> ClusterOverview:
            answer = await self._dispatcher.GetClusterOverview(
                resource_manager_pb2.ClusterOverviewRequest(),
                timeout=CALL_TIMEOUT_S,
                metadata=self._metadata(request),
            )
            return CLUSTER_OVERVIEW.decode(answer)

        cluster: ClusterOverview = await self._shared("cluster", load)
        return cluster

    # ---- the cluster

    async def _config(self, request: web.Request) -> web.Response:
        return web.json_response(flink.configuration(firesteel.__version__))

    async def _overview(self, request: web.Request) -> web.Response:
        return web.json_response(flink.overview(await self._cluster(request)))

    async def _task_managers(self, request: web.Request) -> web.Response:
        return web.json_response(flink.task_managers(await self._cluster(request), _now_ms()))

    # ---- jobs

    async def _job_ids(self, request: web.Request) -> web.Response:
        return web.json_response(flink.job_ids(await self._jobs(request)))

    async def _jobs_overview(self, request: web.Request) -> web.Response:
        return web.json_response(flink.jobs_overview(await self._jobs(request), _now_ms()))

    async def _job(self, request: web.Request) -> web.Response:
        return web.json_response(flink.job(await self._details(request), _now_ms()))

    async def _job_status(self, request: web.Request) -> web.Response:
        return web.json_response({"status": (await self._details(request)).status.name})

    async def _plan(self, request: web.Request) -> web.Response:
        return web.json_response({"plan": flink.plan(await self._details(request))})

    async def _job_config(self, request: web.Request) -> web.Response:
        details = await self._details(request)
        return web.json_response(flink.job_config(details))

    async def _accumulators(self, request: web.Request) -> web.Response:
        await self._details(request)
        return web.json_response(
            {
                "job-accumulators": [],
                "user-task-accumulators": [],
                "serialized-user-task-accumulators": {},
            }
        )

    async def _exceptions(self, request: web.Request) -> web.Response:
        limit = _count(request, "maxExceptions", _DEFAULT_EXCEPTIONS)
        return web.json_response(flink.exceptions(await self._details(request), limit))

    async def _checkpoints(self, request: web.Request) -> web.Response:
        return web.json_response(flink.checkpoints(await self._details(request)))

    async def _execution_result(self, request: web.Request) -> web.Response:
        return web.json_response(flink.execution_result(await self._details(request), _now_ms()))

    # ---- actions

    async def _terminate(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "cancel")
        if mode != "cancel":
            raise _Refusal(400, f"mode={mode!r} is not allowed; expected cancel")
        return await self._cancel(request)

    async def _cancel(self, request: web.Request) -> web.Response:
        try:
            await self._dispatcher.CancelJob(
                job_master_pb2.CancelJobRequest(job_id=request.match_info["job"]),
                timeout=CALL_TIMEOUT_S,
                metadata=self._metadata(request),
            )
        except grpc.aio.AioRpcError as error:
            if reason_of(error) is Reason.JOB_IN_WRONG_STATE:
                raise _Refusal(409, error.details() or "the job has ended") from None
            raise
        return web.json_response({}, status=202)

    async def _stop(self, request: web.Request) -> web.Response:
        body = await _body(request)
        return await self._checkpoint(
            request,
            body,
            job_master_pb2.TakeCheckpointRequest(
                savepoint=True,
                directory=_text(body, "targetDirectory"),
                stop=True,
                drain=bool(body.get("drain")),
            ),
        )

    async def _take_savepoint(self, request: web.Request) -> web.Response:
        body = await _body(request)
        return await self._checkpoint(
            request,
            body,
            job_master_pb2.TakeCheckpointRequest(
                savepoint=True,
                directory=_text(body, "target-directory"),
                stop=bool(body.get("cancel-job")),
            ),
        )

    async def _take_checkpoint(self, request: web.Request) -> web.Response:
        body = await _body(request)
        full = _text(body, "checkpointType") == "FULL"
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
        await self._details(request)  # an unknown job is refused now
        metadata = self._metadata(request)

        async def take() -> tuple[int, str]:
            taken = await self._dispatcher.TakeCheckpoint(message, metadata=metadata)
            return taken.checkpoint_id, taken.path

        trigger = self._operations.start(take(), _text(body, "triggerId"))
        return web.json_response({"request-id": trigger}, status=202)

    async def _triggered_savepoint(self, request: web.Request) -> web.Response:
        return await self._polled(request, lambda taken: {"location": taken[1]})

    async def _triggered_checkpoint(self, request: web.Request) -> web.Response:
        return await self._polled(request, lambda taken: {"checkpointId": taken[0]})

    async def _dispose(self, request: web.Request) -> web.Response:
        body = await _body(request)
        message = dispatcher_pb2.DisposeSavepointRequest(path=_text(body, "savepoint-path"))
        metadata = self._metadata(request)

        async def dispose() -> None:
            await self._dispatcher.DisposeSavepoint(message, metadata=metadata)

        trigger = self._operations.start(dispose(), _text(body, "triggerId"))
        return web.json_response({"request-id": trigger}, status=202)

    async def _disposed(self, request: web.Request) -> web.Response:
        return await self._polled(request, lambda _: {})

    async def _polled(
        self, request: web.Request, shown: Callable[[Any], flink.Json]
    ) -> web.Response:
        operation = self._operations.find(request.match_info["trigger"])
        if operation is None:
            raise _Refusal(404, f"there is no operation {request.match_info['trigger']!r}")
        if not operation.done():
            return web.json_response({"status": {"id": "IN_PROGRESS"}})
        try:
            outcome = operation.result()
        except grpc.aio.AioRpcError as error:
            raise _Refusal(409, error.details() or error.code().name) from None
        return web.json_response({"status": {"id": "COMPLETED"}, "operation": shown(outcome)})


async def _renew(security: Security, context: ssl.SSLContext) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        security.renew_http_context(context)


class _Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _errors(status: int, message: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.json_response({"errors": [message]}, status=status, headers=headers)


async def _body(request: web.Request) -> Mapping[str, Any]:
    """Returns the JSON object of the body; an empty one if there is none."""
    text = await request.text()
    if not text.strip():
        return {}
    try:
        body = json.loads(text)
    except ValueError as error:
        raise _Refusal(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise _Refusal(400, "the body is not a JSON object")
    return body


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise _Refusal(400, f"{name} must be a string, not {value!r}")
    return value or ""


def _count(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise _Refusal(400, f"{name}={text!r} is not a number")
    return int(text)


def _is_address(host: str) -> bool:
    """Whether a host is an IP address, which no other site's name can stand for."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
