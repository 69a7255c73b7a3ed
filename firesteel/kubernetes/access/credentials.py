"""How a caller proves its identity: certificates, tokens, token files, passwords."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from firesteel.kubernetes.access.tls import ClientCertificate
from firesteel.kubernetes.errors import KubernetesConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    certificate: ClientCertificate | None = None


class Credentials(Protocol):
    async def current(self, refused: Credential | None = None) -> Credential:
        """Returns what to send with the next request. `refused` was answered with HTTP 401; a
        source that can renew it does so, else returns an equal one.

        Raises KubernetesConfigurationError.
        """


class FixedCredentials:
    """A certificate, a token or a password that the configuration contains, or nothing."""

    def __init__(
        self,
        *,
        token: str = "",
        user: str = "",
        password: str = "",
        certificate: ClientCertificate | None = None,
    ) -> None:
        headers = bearer(token) if token else {}
        if user and not token:
            basic = base64.b64encode(f"{user}:{password}".encode()).decode()
            headers = {"Authorization": f"Basic {basic}"}
        self._credential = Credential(headers=headers, certificate=certificate)

    async def current(self, refused: Credential | None = None) -> Credential:
        return self._credential


class TokenFile:
    """A token in a file that is replaced from time to time, such as a ServiceAccount's."""

    def __init__(self, path: Path, *, origin: str, certificate: ClientCertificate | None = None):
        self._path = path
        self._origin = origin
        self._certificate = certificate
        self._stamp = (0, 0)
        self._credential = Credential()

    async def current(self, refused: Credential | None = None) -> Credential:
        try:
            found = os.stat(self._path)
            stamp = (found.st_ino, found.st_mtime_ns)
            if stamp != self._stamp or refused is not None:
                token = self._path.read_text().strip()
                self._credential = Credential(headers=bearer(token), certificate=self._certificate)
                self._stamp = stamp
        except (OSError, ValueError) as error:
            raise KubernetesConfigurationError(
                f"{self._origin} names the token file {self._path}, which cannot be read: {error}"
            ) from None
        if not self._credential.headers:
            raise KubernetesConfigurationError(
                f"{self._origin} names the token file {self._path}, which is empty"
            )
        return self._credential


class Impersonating:
    """Acts as another user, with the credentials of the caller."""

    def __init__(self, credentials: Credentials, headers: Mapping[str, str]) -> None:
        self._credentials = credentials
        self._headers = headers

    async def current(self, refused: Credential | None = None) -> Credential:
        own = await self._credentials.current(refused)
        return Credential(headers={**own.headers, **self._headers}, certificate=own.certificate)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}
