"""The folder with the cluster's keys: the certificate authority, the key that signs tokens, and an
administrator's token for the command line.

    authority.pem   the certificate of the authority, which every process trusts
    authority.key   its private key
    tokens.pem      the public key that verifies tokens
    tokens.key      the private key that signs them
    jobs.key        the secret from which the keys of jobs are derived
    admin.token     a token of an administrator, for the command line
    metrics.token   a token of a viewer, for Prometheus
    metrics.pem     a certificate of a viewer, for Prometheus, where connections use TLS
    metrics.key     its key

The first process that needs the folder creates it. Only its user can read it. To run services on
several machines, copy the folder to each of them before they start.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from firesteel.common.security import job_keys
from firesteel.common.security.authority import CertificateAuthority
from firesteel.common.security.credentials import Certificate
from firesteel.common.security.roles import Role
from firesteel.common.security.tokens import ExpiredToken, InvalidToken, TokenIssuer, TokenVerifier
from firesteel.errors import FiresteelError

TOKENS_VALID_S = 90 * 86_400.0
CLIENT_VALID_S = 86_400.0
_CREATED = (
    "authority.pem",
    "authority.key",
    "tokens.pem",
    "tokens.key",
    "jobs.key",
    "admin.token",
    "metrics.token",
    "metrics.pem",
    "metrics.key",
)
_TOKENS = {"admin.token": Role.ADMIN, "metrics.token": Role.VIEWER}
_PRIVATE_MODE = 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class UnusableSecurityFolder(FiresteelError):
    """The folder is incomplete, damaged, or open to other users."""


class SecurityFolder:
    """`open` creates what is missing, unless the folder is a client's, which an administrator has
    made (`firesteel token create --out`).
    """

    def __init__(self, path: Path, *, now_s: Callable[[], float] = time.time) -> None:
        self.path = path
        self._now_s = now_s

    @classmethod
    def open(cls, path: Path, *, now_s: Callable[[], float] = time.time) -> SecurityFolder:
        """Raises UnusableSecurityFolder."""
        folder = cls(path.expanduser(), now_s=now_s)
        try:
            folder._create()
        except OSError as error:
            raise UnusableSecurityFolder(
                f"the folder of keys {folder.path} cannot be used: {error.strerror or error}; name"
                " another one with security.directory"
            ) from None
        return folder

    @property
    def is_clients(self) -> bool:
        return (self.path / "client.token").exists()

    def authority(self) -> CertificateAuthority:
        return CertificateAuthority(
            self._read("authority.pem"), self._read("authority.key"), now_s=self._now_s
        )

    def issuer(self) -> TokenIssuer:
        key = load_pem_private_key(self._read("tokens.key"), password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise self._unusable("tokens.key", "is not an Ed25519 key")
        return TokenIssuer(key, now_s=self._now_s)

    def verifier(self, is_revoked: Callable[[str], bool] = lambda token_id: False) -> TokenVerifier:
        key = load_pem_public_key(self._read("tokens.pem"))
        if not isinstance(key, Ed25519PublicKey):
            raise self._unusable("tokens.pem", "is not an Ed25519 key")
        return TokenVerifier(key, now_s=self._now_s, is_revoked=is_revoked)

    def job_key(self, job_id: str) -> bytes:
        return job_keys.derive(self._read("jobs.key"), job_id)

    def token(self, name: str = "admin.token") -> str:
        """Returns the token in a file of the folder."""
        return self._read(name).decode().strip()

    def renew(self) -> None:
        """Replaces the tokens of the folder of which more than half of the time is over."""
        for name in _TOKENS:
            try:
                expires_s = self.verifier().verify(self.token(name)).expires_s
            except (InvalidToken, ExpiredToken):
                expires_s = 0.0
            if expires_s - self._now_s() < TOKENS_VALID_S / 2:
                self._write_token(name)
                if name == "metrics.token":
                    self._write_metrics_certificate()

    def client_certificate(self) -> Certificate:
        """Returns the certificate of a client: the one in the folder that an administrator has
        made for it (`firesteel token create --out`), or a new one.
        """
        if self.is_clients:
            return Certificate(
                certificate=self._read("client.pem"),
                key=self._read("client.key"),
                authority=self._read("authority.pem"),
                expires_s=0.0,
            )
        return self.authority().certify("client", Role.VIEWER, hosts=(), valid_s=CLIENT_VALID_S)

    def _create(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.is_clients or not self._missing():
            return
        with (self.path / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
            if self._missing():
                self._write_missing()

    def _missing(self) -> bool:
        return not all((self.path / name).exists() for name in _CREATED)

    def _write_missing(self) -> None:
        """Writes what is missing: of a pair, both files or none. Tokens end with their key."""
        if not self._has_pair("authority.pem", "authority.key"):
            authority, key = CertificateAuthority.create(now_s=self._now_s)
            self._write("authority.key", key)
            self._write("authority.pem", authority.certificate)
        if not self._has_pair("tokens.pem", "tokens.key"):
            signing = Ed25519PrivateKey.generate()
            public = signing.public_key()
            self._write(
                "tokens.key",
                signing.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            )
            self._write(
                "tokens.pem",
                public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            )
        if not (self.path / "jobs.key").exists():
            self._write("jobs.key", secrets.token_bytes(32))
        for name in _TOKENS:
            if not (self.path / name).exists():
                self._write_token(name)
        if not self._has_pair("metrics.pem", "metrics.key"):
            self._write_metrics_certificate()

    def _has_pair(self, public: str, private: str) -> bool:
        """Whether both files exist. Without its private key, a public one is of no use here."""
        return (self.path / public).exists() and (self.path / private).exists()

    def _write_token(self, name: str) -> None:
        subject = name.removesuffix(".token")
        token = self.issuer().issue(subject, _TOKENS[name], valid_s=TOKENS_VALID_S)
        self._write(name, f"{token}\n".encode())

    def _write_metrics_certificate(self) -> None:
        made = self.authority().certify("metrics", Role.VIEWER, hosts=(), valid_s=TOKENS_VALID_S)
        self._write("metrics.key", made.key)
        self._write("metrics.pem", made.certificate)

    def _write(self, name: str, content: bytes) -> None:
        """Replaces the file atomically. It is unreadable for other users from the start."""
        unfinished = self.path / f"{name}.{os.getpid()}.part"
        with open(
            os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE_MODE), "wb"
        ) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.path / name)

    def _read(self, name: str) -> bytes:
        path = self.path / name
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if name.endswith((".key", ".token")) and status.st_mode & _OTHERS:
                    mode = stat.filemode(status.st_mode)
                    raise self._unusable(
                        name,
                        f"can be read by other users ({mode}); `chmod 600 {path}`, and if"
                        " somebody may have read it, remove the folder: new keys are created",
                    )
                return file.read()
        except FileNotFoundError:
            raise self._unusable(name, "is missing") from None
        except OSError as error:
            raise self._unusable(name, f"cannot be read: {error.strerror or error}") from None

    def _unusable(self, name: str, why: str) -> UnusableSecurityFolder:
        return UnusableSecurityFolder(f"{self.path / name} {why}")
