"""Sends single requests to the API server, and raises errors by the kind of their answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp
from aiohttp.connector import NEEDS_CLEANUP_CLOSED
from yarl import URL

from firesteel import __version__
from firesteel.kubernetes.access.cluster_access import ClusterAccess
from firesteel.kubernetes.access.credentials import Credential
from firesteel.kubernetes.access.proxies import without_password
from firesteel.kubernetes.access.tls import Contexts
from firesteel.kubernetes.errors import KubernetesError, Unauthorized, Unavailable, error_of
from firesteel.kubernetes.resources import Target

CONNECT_TIMEOUT_S = 5.0
JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    target: Target
    method: str = "GET"
    path: str = ""  # instead of the target's
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = JSON


class Transport:
    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._contexts = Contexts(access.tls)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def send(
        self, request: Request, *, timeout_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields the answer if it is a success. `timeout_s` limits the time until its headers
        arrive, from when there are credentials. Raises KubernetesError and
        KubernetesConfigurationError.
        """
        response, _ = await self._opened(request, timeout_s)
        try:
            yield response
        except (aiohttp.ClientError, OSError) as error:  # while the caller reads the body
            raise self._broken(request.target, error) from None
        finally:
            _abort(response)

    @asynccontextmanager
    async def websocket(
        self, request: Request, *, protocol: str, timeout_s: float
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Yields a WebSocket, whose `protocol` the API server has accepted within `timeout_s`."""
        target = request.target
        credential = await self._access.credentials.current()
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with self._limit(target, deadline, timeout_s):
                url, options = self._arguments(request, credential)
                socket = await self._opened_session().ws_connect(
                    url, protocols=(protocol,), max_msg_size=0, **options
                )
        except aiohttp.WSServerHandshakeError as error:
            # The answer of a refused handshake cannot be read.
            status = {"message": f"the caller cannot {target}"} if error.status == 403 else {}
            raise error_of(target, error.status, status) from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(target, error) from None
        try:
            yield socket
        finally:
            await socket.close()

    async def read(self, request: Request, *, timeout_s: float) -> bytes:
        """Returns the body of the answer, for which `timeout_s` counts as well."""
        response, deadline = await self._opened(request, timeout_s)
        try:
            async with self._limit(request.target, deadline, timeout_s):
                body = await response.read()
                response.release()  # keeps the connection
                return body
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(request.target, error) from None
        finally:
            _abort(response)

    async def _opened(
        self, request: Request, timeout_s: float
    ) -> tuple[aiohttp.ClientResponse, float]:
        """Returns the answer and its deadline. If the credential is refused, renews it and repeats
        the request.
        """
        credentials = self._access.credentials
        credential = await credentials.current()
        try:
            return await self._answered(request, credential, timeout_s)
        except Unauthorized:
            renewed = await credentials.current(credential)
            if renewed == credential:
                raise
            return await self._answered(request, renewed, timeout_s)

    async def _answered(
        self, request: Request, credential: Credential, timeout_s: float
    ) -> tuple[aiohttp.ClientResponse, float]:
        deadline = asyncio.get_running_loop().time() + timeout_s
        async with self._limit(request.target, deadline, timeout_s):
            return await self._accepted(request, credential), deadline

    @asynccontextmanager
    async def _limit(
        self, target: Target, deadline: float, timeout_s: float
    ) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(deadline):
                yield
        except TimeoutError:
            message = f"{self._access.server} has not answered within {timeout_s:g} s"
            raise Unavailable(target, message) from None

    async def _accepted(self, request: Request, credential: Credential) -> aiohttp.ClientResponse:
        target = request.target
        try:
            response = await self._sent(request, credential)
            if response.status < 400:
                return response
            try:
                body = await response.read()
            finally:
                response.release()
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(target, error) from None
        raise error_of(target, response.status, _status(body), retry_after_s=_retry_after(response))

    async def _sent(self, request: Request, credential: Credential) -> aiohttp.ClientResponse:
        url, options = self._arguments(request, credential)
        data = None
        if request.body is not None:
            data = json.dumps(request.body).encode()
            options["headers"]["Content-Type"] = request.content_type
        return await self._opened_session().request(
            request.method, url, data=data, allow_redirects=False, **options
        )

    def _opened_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # Some Pythons never end a TLS connection whose peer does not answer.
                connector=aiohttp.TCPConnector(limit=0, enable_cleanup_closed=NEEDS_CLEANUP_CLOSED),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                headers={"User-Agent": f"firesteel/{__version__}", "Accept": JSON},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _arguments(self, request: Request, credential: Credential) -> tuple[URL, dict[str, Any]]:
        """Returns the URL, and how to connect to it."""
        query = f"?{urlencode(request.query)}" if request.query else ""
        path = request.path or request.target.path
        secure = self._access.server.startswith("https:")
        return URL(f"{self._access.server}{path}{query}", encoded=True), {
            "headers": dict(credential.headers),
            "ssl": self._contexts.context(credential.certificate) if secure else True,
            "server_hostname": self._access.tls.server_name,
            "proxy": self._access.proxy,
        }

    def _failure(self, target: Target, error: Exception) -> KubernetesError:
        """Returns the error of a request that got no answer."""
        match error:
            case aiohttp.ClientConnectorCertificateError():
                return KubernetesError(
                    target,
                    f"the certificate of {self._access.server} cannot be verified"
                    f" ({error.certificate_error}); the authority is that of {self._access.origin}",
                )
            case aiohttp.ClientHttpProxyError():  # its text has the password of the proxy
                message = f"{self._proxy} answered HTTP {error.status} ({error.message})"
            case aiohttp.ClientConnectorError():
                through = isinstance(error, aiohttp.ClientProxyConnectionError)
                to = self._proxy if through else self._access.server
                reason = error.os_error.strerror or str(error.os_error)
                message = f"no connection to {to}: {reason}"
            case aiohttp.ConnectionTimeoutError():
                message = f"no connection to {self._access.server} within {CONNECT_TIMEOUT_S:g} s"
            case _:
                return self._broken(target, error)
        return Unavailable(target, message, executed=False)

    @property
    def _proxy(self) -> str:
        return f"the proxy {without_password(self._access.proxy or '')}"

    def _broken(self, target: Target, error: Exception) -> Unavailable:
        reason = str(error) or type(error).__name__
        return Unavailable(target, f"the connection to {self._access.server} broke: {reason}")


def _abort(response: aiohttp.ClientResponse) -> None:
    """Ends the connection of an answer that was not read to its end. To close it politely takes a
    while over TLS.
    """
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


def _status(body: bytes) -> Mapping[str, Any]:
    """Returns the Status of an answer. Proxies answer with other content."""
    try:
        status = json.loads(body)
    except ValueError:
        return {"message": body[:500].decode(errors="replace").strip()}
    return status if isinstance(status, dict) else {}


def _retry_after(response: aiohttp.ClientResponse) -> float:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else 0.0
