"""The REST server: routes over HTTP, those of Flink with and without /v1.

Each request proves its caller's identity, and may not come from a page of another site.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Mapping

import grpc
import structlog
from aiohttp import web

from dispatcher.rest.flink.routes import FlinkRoutes
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.requests import Handler, Refusal
from firesteel.common.security.access import ROUTES, Access
from firesteel.common.security.credentials import BEARER
from firesteel.common.security.security import Security
from firesteel.common.security.tokens import TokenVerifier
from firesteel.errors import FiresteelError

log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 2**20
RENEW_S = 3600.0  # how often the certificate is looked at
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
        self._gateway = Gateway(dispatcher_address, security)
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
        await self._gateway.close()

    def handlers(self) -> Mapping[str, Handler]:
        """The handlers of the routes of the table of access."""
        return FlinkRoutes(self._gateway).handlers()

    # ---- every request

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses requests that the caller may not make, and answers failures with errors."""
        try:
            self._check_origin(request)
            self._check_role(request)
            return await handler(request)
        except Refusal as refusal:
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
            raise Refusal(403, f"this server is not {request.host!r}; use its own address")
        site = request.headers.get("Sec-Fetch-Site", "none")
        origin = request.headers.get("Origin")
        if site not in ("none", "same-origin"):
            raise Refusal(403, f"a page of another site made this request (Sec-Fetch-Site: {site})")
        if origin is not None and origin.partition("://")[2] != request.host:
            raise Refusal(403, f"a page of another site made this request (Origin: {origin})")

    def _check_role(self, request: web.Request) -> None:
        if self._verifier is None:
            return
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else ""
        access = ROUTES.get(f"{request.method} {path.removeprefix('/v1')}", Access())
        token = request.headers.get("Authorization", "")
        if not token.startswith(BEARER):
            raise Refusal(
                401, "the request carries no token: send the header `Authorization: Bearer TOKEN`"
            )
        try:
            identity = self._verifier.verify(token.removeprefix(BEARER))
        except FiresteelError as error:
            raise Refusal(401, str(error)) from None
        if request.match_info.http_exception is None and not access.allows(identity):
            raise Refusal(403, f"{identity} may not do this, which is for: {access}")


async def _renew(security: Security, context: ssl.SSLContext) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        security.renew_http_context(context)


def _errors(status: int, message: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.json_response({"errors": [message]}, status=status, headers=headers)


def _is_address(host: str) -> bool:
    """Whether a host is an IP address, which no other site's name can stand for."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
