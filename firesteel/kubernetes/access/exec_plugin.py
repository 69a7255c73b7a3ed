"""Programs that issue credentials, `client.authentication.k8s.io/v1`, as managed clusters use
them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from firesteel.kubernetes.access.credentials import Credential, bearer
from firesteel.kubernetes.access.tls import ClientCertificate, Pem
from firesteel.kubernetes.errors import KubernetesConfigurationError

API_VERSIONS = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1"))
TIMEOUT_S = 60.0
INTERACTIVE_TIMEOUT_S = 600.0  # a user logs in
EARLY_S = 10.0  # a credential that expires within this time is renewed


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    origin: str  # the file and the user that name it
    command: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    api_version: str = API_VERSIONS[0]
    install_hint: str = ""
    interactive: str = "IfAvailable"
    cluster: Mapping[str, Any] | None = None  # `provideClusterInfo`


class ExecPlugin:
    """Runs the plugin when there is no valid credential. Concurrent requests share one run."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._credential: Credential | None = None
        self._expires: datetime | None = None
        self._running = asyncio.Lock()

    async def current(self, refused: Credential | None = None) -> Credential:
        async with self._running:
            if self._credential is None or self._expired() or self._same(refused):
                self._credential = await self._run()
            return self._credential

    def _same(self, refused: Credential | None) -> bool:
        """Whether the latest credential was refused, not one before it."""
        latest = self._credential
        if refused is None or latest is None:
            return False
        return refused.headers.get("Authorization") == latest.headers.get("Authorization")

    def _expired(self) -> bool:
        if self._expires is None:
            return False
        return (self._expires - datetime.now(UTC)).total_seconds() < EARLY_S

    async def _run(self) -> Credential:
        plugin = self._plugin
        interactive = plugin.interactive != "Never" and sys.stdin is not None and _terminal()
        if plugin.interactive == "Always" and not interactive:
            raise self._failed("needs a terminal (interactiveMode: Always), and there is none")
        spec: dict[str, Any] = {"interactive": interactive}
        if plugin.cluster is not None:
            spec["cluster"] = plugin.cluster
        info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
        environment = {
            **os.environ,
            **plugin.environment,
            "KUBERNETES_EXEC_INFO": json.dumps(info),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *plugin.arguments,
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if interactive else asyncio.subprocess.PIPE,
                env=environment,
            )
        except OSError as error:
            hint = f"\n{plugin.install_hint.strip()}" if plugin.install_hint else ""
            raise self._failed(f"cannot be started: {error.strerror}{hint}") from None
        timeout_s = INTERACTIVE_TIMEOUT_S if interactive else TIMEOUT_S
        try:
            async with asyncio.timeout(timeout_s):
                output, errors = await process.communicate()
        except TimeoutError:
            raise self._failed(f"has not answered within {timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            detail = (errors or b"").decode(errors="replace").strip()
            raise self._failed(f"ended with exit code {process.returncode}: {detail}")
        return self._decoded(output)

    def _decoded(self, output: bytes) -> Credential:
        try:
            answer = json.loads(output)
            version, status = answer["apiVersion"], answer["status"]
            token, expires = status.get("token", ""), status.get("expirationTimestamp")
            certificate = status.get("clientCertificateData", "")
            key = status.get("clientKeyData", "")
            self._expires = datetime.fromisoformat(expires) if expires else None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._failed("did not print an ExecCredential with a status") from None
        if version != self._plugin.api_version:
            raise self._failed(f"answered with {version}, not {self._plugin.api_version}")
        if not token and not (certificate and key):
            raise self._failed("returned neither a token nor a certificate with its key")
        return Credential(headers=bearer(token), certificate=self._certificate(certificate, key))

    def _certificate(self, certificate: str, key: str) -> ClientCertificate | None:
        if not certificate or not key:
            return None
        origin = f"the credential of {self._plugin.command}"
        return ClientCertificate(
            certificate=Pem(origin=origin, data=certificate.encode()),
            key=Pem(origin=origin, data=key.encode()),
        )

    def _failed(self, problem: str) -> KubernetesConfigurationError:
        return KubernetesConfigurationError(
            f"{self._plugin.origin} names the exec plugin {self._plugin.command}, which {problem}"
        )


def _terminal() -> bool:
    try:
        return sys.stdin.isatty()
    except ValueError:  # closed
        return False
