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
from yarl import URL

from firesteel import __version__
from firesteel.kubernetes.access.cluster_access import ClusterAccess
from firesteel.kubernetes.access.credentials import Credential
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
        self, request: Request, *, timeout_s: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields the answer if it is a success. `timeout_s` limits the time until its headers
        arrive. Raises KubernetesError and KubernetesConfigurationError.
        """
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._authenticated(request)
        except TimeoutError:
            raise Unavailable(
                request.target, f"{self._access.server} has not answered within {timeout_s:g} s"
            ) from None
        try:
            yield response
        except (aiohttp.ClientError, OSError) as error:  # while the caller reads the body
            raise self._broken(request.target, error) from None
        finally:
            # A stream that is left early would close its connection politely, over TLS in a while.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
            response.close()

    async def read(self, request: Request, *, timeout_s: float) -> bytes:
        """Returns the body of the answer."""
        try:
            async with asyncio.timeout(timeout_s), self.send(request, timeout_s=None) as response:
                body = await response.read()
                response.release()  # keeps the connection
                return body
        except TimeoutError:
            raise Unavailable(
                request.target, f"{self._access.server} has not answered within {timeout_s:g} s"
            ) from None

    async def _authenticated(self, request: Request) -> aiohttp.ClientResponse:
        """Renews the credential and repeats the request if the credential is refused."""
        credentials = self._access.credentials
        credential = await credentials.current()
        try:
            return await self._accepted(request, credential)
        except Unauthorized:
            renewed = await credentials.current(credential)
            if renewed == credential:
                raise
            return await self._accepted(request, renewed)

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
        except aiohttp.ClientConnectorCertificateError as error:
            raise KubernetesError(
                target,
                f"the certificate of {self._access.server} cannot be verified"
                f" ({error.certificate_error}); the authority is that of {self._access.origin}",
            ) from None
        except aiohttp.ClientConnectorError as error:
            raise Unavailable(
                target, f"no connection to {self._access.server}: {error}", executed=False
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(target, error) from None
        raise error_of(target, response.status, _status(body), retry_after_s=_retry_after(response))

    async def _sent(self, request: Request, credential: Credential) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                headers={"User-Agent": f"firesteel/{__version__}", "Accept": JSON},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        headers = dict(credential.headers)
        data = None
        if request.body is not None:
            data = json.dumps(request.body).encode()
            headers["Content-Type"] = request.content_type
        query = f"?{urlencode(request.query)}" if request.query else ""
        path = request.path or request.target.path
        secure = self._access.server.startswith("https:")
        return await self._session.request(
            request.method,
            URL(f"{self._access.server}{path}{query}", encoded=True),
            data=data,
            headers=headers,
            ssl=self._contexts.context(credential.certificate) if secure else True,
            server_hostname=self._access.tls.server_name,
            proxy=self._access.proxy,
            allow_redirects=False,
        )

    def _broken(self, target: Target, error: Exception) -> Unavailable:
        reason = str(error) or type(error).__name__
        return Unavailable(target, f"the connection to {self._access.server} broke: {reason}")


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
