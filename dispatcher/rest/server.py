"""The REST server: routes over HTTP, those of Flink with and without /v1, and the dashboard.

Each request proves its caller's identity, and may not come from a page of another site.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Mapping

import grpc
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from dispatcher.rest.firesteel.programs import ProgramRoutes
from dispatcher.rest.firesteel.routes import FiresteelRoutes
from dispatcher.rest.firesteel.session import Sessions
from dispatcher.rest.flink.jars import JarRoutes
from dispatcher.rest.flink.routes import FlinkRoutes
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.limits import Limits
from dispatcher.rest.oidc import OpenIdConnect
from dispatcher.rest.openapi.serving import OpenApiRoutes
from dispatcher.rest.pages import HEADERS, Pages
from dispatcher.rest.programs import Programs
from dispatcher.rest.proxy import TrustedProxy
from dispatcher.rest.requests import IDENTITY, TOKEN, Handler, Refusal
from firesteel.common.config.redaction import hidden
from firesteel.common.logs import get_logger
from firesteel.common.rpc.status import Reason, reason_of
from firesteel.common.security.access import ROUTES, Access
from firesteel.common.security.security import Security
from firesteel.errors import FiresteelError

log = get_logger(__name__)

MAX_BODY_BYTES = 2**20
RENEW_S = 3600.0  # how often the certificate is looked at
_SAFE_METHODS = ("GET", "HEAD")
_STATUS = {
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
# Reasons that are more specific than their gRPC status.
_STATUS_OF_REASON: Mapping[Reason | None, int] = {
    Reason.PAYLOAD_TOO_LARGE: 413,
    Reason.TOO_MANY_CALLS: 429,
}


class RestServer:
    """Serves from `start` to `stop`. Without `security`, it answers every caller."""

    def __init__(
        self,
        gateway: Gateway,
        security: Security | None,
        programs: Programs,
        *,
        hosts: frozenset[str] = frozenset(),
        limits: Limits | None = None,
        proxy: TrustedProxy | None = None,
        oidc: OpenIdConnect | None = None,
    ) -> None:
        """`hosts`: the host names by which clients may name this server, besides `localhost` and
        IP addresses. `limits`: None: the default ones. `proxy`, `oidc`: who else
        authenticates people; None: tokens of the cluster alone.
        """
        self._limits = limits or Limits()
        self._proxy, self._oidc = proxy, oidc
        self._security = security
        self._sessions = Sessions(security)
        self._pages = Pages()
        self._programs = programs
        self._hosts = hosts | {"localhost"}
        self._gateway = gateway
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._renewing: asyncio.Task[None] | None = None
        self.address = ""  # host:port, once it serves

    async def start(self, listener: socket.socket) -> None:
        """Serves the connections of a socket that listens, at `address`, from now on."""
        app = web.Application(
            client_max_size=MAX_BODY_BYTES, middlewares=[self._limits.guard, self._guard]
        )
        app.on_response_prepare.append(_add_headers)
        for prefixes, handlers in ((("", "/v1"), self.flink_handlers()), (("",), self.handlers())):
            for route, handler in handlers.items():
                method, path = route.replace("{file}", "{file:.+}").split(" ", 1)
                for prefix in prefixes:
                    app.router.add_route(method, prefix + path, handler)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        context = self._security.http_context() if self._security else None
        self._server = await self._limits.serve(self._runner, listener, context)
        if context is not None and self._security is not None:
            self._renewing = asyncio.create_task(_renew(self._security, context))
        host, port = listener.getsockname()[:2]
        self.address = f"{host}:{port}"

    async def stop(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        if self._server is not None:
            self._server.close()
        self._limits.close()
        if self._runner is not None:
            await self._runner.cleanup()
        await self._gateway.close()

    def flink_handlers(self) -> Mapping[str, Handler]:
        """The handlers of Flink's routes, with and without /v1."""
        jars = JarRoutes(self._gateway, self._programs)
        return {**FlinkRoutes(self._gateway).handlers(), **jars.handlers()}

    def handlers(self) -> Mapping[str, Handler]:
        """The handlers of the other routes of the table of access."""
        return {
            **self._pages.handlers(),
            **self._sessions.handlers(),
            **FiresteelRoutes(self._gateway).handlers(),
            **OpenApiRoutes().handlers(),
            **ProgramRoutes(self._gateway, self._programs).handlers(),
        }

    # ---- every request

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses requests that the caller may not make, and answers failures with errors."""
        try:
            access = _access_of(request)
            self._check_host(request)
            if not (access.public and request.method == "GET"):  # a link on another site
                _check_origin(request)
            await self._check_role(request, access)
            answer = await handler(request)
            if request.method not in _SAFE_METHODS:
                self._gateway.forget()  # the caller sees what it changed
            return answer
        except Refusal as refusal:
            return _errors(refusal.status, str(refusal))
        except web.HTTPRequestEntityTooLarge as error:
            return _errors(413, error.text or error.reason)
        except HttpProcessingError as error:  # within a form
            return _errors(400, f"the request cannot be read: {error.message}")
        except web.HTTPException as error:
            return _errors(error.status, f"{request.method} {request.path}: {error.reason}")
        except grpc.aio.AioRpcError as error:
            message = error.details() or error.code().name
            status = _STATUS_OF_REASON.get(reason_of(error)) or _STATUS.get(error.code(), 500)
            return _errors(status, message)
        except FiresteelError as error:
            return _errors(400, str(error))
        except Exception as error:
            log.error("a request failed unexpectedly", path=request.path, exc_info=error)
            return _errors(500, f"{type(error).__name__}: {error}")

    def _check_host(self, request: web.Request) -> None:
        """Refuses requests of a page whose host name leads to this machine (DNS rebinding)."""
        host = (request.url.host or "").lower()
        if host not in self._hosts and not _is_address(host):
            raise Refusal(403, f"this server is not {request.host!r}; use its own address")

    async def _check_role(self, request: web.Request, access: Access) -> None:
        if self._security is None or access.public:
            return
        await self._gateway.learn_revoked()
        token = await self._token(request)
        identity = self._sessions.identity(token)
        if request.match_info.http_exception is None and not access.allows(identity):
            raise Refusal(403, f"{identity} may not do this, which is for: {access}")
        request[TOKEN], request[IDENTITY] = token, identity

    async def _token(self, request: web.Request) -> str:
        """Returns a token of this cluster. Raises Refusal."""
        if self._proxy and (token := self._proxy.token(request)):
            return token
        presented = self._sessions.token(request)
        return (self._oidc and await self._oidc.token(presented)) or presented


def _access_of(request: web.Request) -> Access:
    resource = request.match_info.route.resource
    path = resource.canonical if resource is not None else ""
    return ROUTES.get(f"{request.method} {path.removeprefix('/v1')}", Access())


def _check_origin(request: web.Request) -> None:
    """Refuses requests that a page of another site makes in somebody's browser."""
    site = request.headers.get("Sec-Fetch-Site", "none")
    origin = request.headers.get("Origin")
    if site not in ("none", "same-origin"):
        raise Refusal(403, f"a page of another site made this request (Sec-Fetch-Site: {site})")
    if origin is not None and origin.partition("://")[2] != request.host:
        raise Refusal(403, f"a page of another site made this request (Origin: {origin})")


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.setdefault("Cache-Control", "no-store")
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


async def _renew(security: Security, context: ssl.SSLContext) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        security.renew_http_context(context)


def _errors(status: int, message: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.json_response({"errors": [hidden(message)]}, status=status, headers=headers)


def _is_address(host: str) -> bool:
    """Whether a host is an IP address, which no other site's name can stand for."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
