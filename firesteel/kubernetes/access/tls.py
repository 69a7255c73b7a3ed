"""TLS contexts, which are created again when one of their files has changed."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from firesteel.kubernetes.errors import KubernetesConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pem:
    """A certificate or a key, in a file or as data."""

    origin: str  # where the configuration names it, for errors
    path: Path | None = None
    data: bytes = b""

    def stamp(self) -> Hashable:
        """Returns a value that changes with the content."""
        if self.path is None:
            return self.data
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise self._unreadable(error) from None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def read(self) -> bytes:
        if self.path is None:
            return self.data
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> KubernetesConfigurationError:
        return KubernetesConfigurationError(
            f"{self.origin} names {self.path}, which cannot be read: {error.strerror}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificate:
    certificate: Pem
    key: Pem

    def stamp(self) -> Hashable:
        return self.certificate.stamp(), self.key.stamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How the client verifies the API server. Without `authority`, the machine's certificates
    count.
    """

    authority: Pem | None = None
    insecure: bool = False  # trusts every server
    server_name: str | None = None  # instead of the host of the URL


class Contexts:
    """Caches the latest context."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._stamp: Hashable = None
        self._context: ssl.SSLContext | None = None

    def context(self, certificate: ClientCertificate | None) -> ssl.SSLContext:
        """Raises KubernetesConfigurationError."""
        authority = self._tls.authority
        stamp = (
            authority.stamp() if authority else "",
            certificate.stamp() if certificate else "",
        )
        if self._context is None or stamp != self._stamp:
            self._context, self._stamp = _context(self._tls, certificate), stamp
        return self._context


def _context(tls: Tls, certificate: ClientCertificate | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if tls.authority is not None and not tls.insecure:
        # Only the cluster's authority counts, not those of the machine.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=tls.authority.read().decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise KubernetesConfigurationError(
                f"{tls.authority.origin} has no certificates in PEM format: {error}"
            ) from None
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        _load(context, certificate)
    return context


def _load(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    # Python's ssl reads certificates of clients from files only.
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(certificate.certificate.read() + b"\n" + certificate.key.read())
        file.flush()
        try:
            context.load_cert_chain(file.name, password=_refuse_encrypted)
        except (ssl.SSLError, _Encrypted) as error:
            raise KubernetesConfigurationError(
                f"{certificate.certificate.origin} and {certificate.key.origin} are not a"
                f" certificate and its key in PEM format: {error}"
            ) from None


class _Encrypted(Exception):
    pass


def _refuse_encrypted() -> NoReturn:
    raise _Encrypted("the key is encrypted")
