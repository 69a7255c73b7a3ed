"""The keys of a cluster, in their folder: creates them, and uses them."""

from __future__ import annotations

import fcntl
import secrets
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
from firesteel.common.security.folder import SecurityFolder, UnusableSecurityFolder
from firesteel.common.security.job_keys import JobKeys
from firesteel.common.security.roles import Role
from firesteel.common.security.tokens import ExpiredToken, InvalidToken, TokenIssuer, TokenVerifier

TOKENS_VALID_S = 90 * 86_400.0
CLIENT_VALID_S = 86_400.0
_TOKENS = {"admin.token": Role.ADMIN, "metrics.token": Role.VIEWER}
_PAIRS = (("authority.pem", "authority.key"), ("tokens.pem", "tokens.key"))
_CREATED = (*_PAIRS[0], *_PAIRS[1], "jobs.key", *_TOKENS, "metrics.pem", "metrics.key")


class Keys(SecurityFolder):
    """`open` creates what is missing, unless the folder is one of a client."""

    def __init__(self, path: Path, *, now_s: Callable[[], float] = time.time) -> None:
        super().__init__(path)
        self._now_s = now_s

    @classmethod
    def open(cls, path: Path, *, now_s: Callable[[], float] = time.time) -> Keys:
        """Raises UnusableSecurityFolder."""
        keys = cls(path, now_s=now_s)
        try:
            keys._create()
        except OSError as error:
            raise UnusableSecurityFolder(
                f"the folder of keys {keys.path} cannot be used: {error.strerror or error}; name"
                " another one with security.directory"
            ) from None
        return keys

    def authority(self) -> CertificateAuthority:
        return CertificateAuthority(
            self.read("authority.pem"), self.read("authority.key"), now_s=self._now_s
        )

    def signing_key(self) -> Ed25519PrivateKey:
        key = load_pem_private_key(self.read("tokens.key"), password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise self.unusable("tokens.key", "is not an Ed25519 key")
        return key

    def issuer(self) -> TokenIssuer:
        return TokenIssuer(self.signing_key(), now_s=self._now_s)

    def verifier(self, is_revoked: Callable[[str], bool] = lambda token_id: False) -> TokenVerifier:
        key = load_pem_public_key(self.read("tokens.pem"))
        if not isinstance(key, Ed25519PublicKey):
            raise self.unusable("tokens.pem", "is not an Ed25519 key")
        return TokenVerifier(key, now_s=self._now_s, is_revoked=is_revoked)

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

    def job_keys(self, job_id: str, epoch: int) -> JobKeys:
        return job_keys.issue(self.read("jobs.key"), job_id, epoch, now_s=self._now_s())

    def find_job_key(self, job_id: str, epoch: int, expiry_s: int) -> bytes:
        return job_keys.derive(self.read("jobs.key"), job_id, epoch, expiry_s)

    def certificate_of_client(self) -> Certificate:
        """Returns a new certificate for a client that has these keys."""
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
            self.write("authority.key", key)
            self.write("authority.pem", authority.certificate)
        if not self._has_pair("tokens.pem", "tokens.key"):
            signing = Ed25519PrivateKey.generate()
            public = signing.public_key()
            self.write(
                "tokens.key",
                signing.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            )
            self.write(
                "tokens.pem",
                public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            )
        if not (self.path / "jobs.key").exists():
            self.write("jobs.key", secrets.token_bytes(32))
        for name in _TOKENS:
            if not (self.path / name).exists():
                self._write_token(name)
        if not self._has_pair("metrics.pem", "metrics.key"):
            self._write_metrics_certificate()

    def _has_pair(self, public: str, private: str) -> bool:
        """Whether both files exist. Raises UnusableSecurityFolder if the private key is missing:
        it is written first, so it was removed.
        """
        if not (self.path / public).exists():
            return False
        if not (self.path / private).exists():
            raise self.unusable(private, "is missing")
        return True

    def _write_token(self, name: str) -> None:
        subject = name.removesuffix(".token")
        token = self.issuer().issue(subject, _TOKENS[name], valid_s=TOKENS_VALID_S)
        self.write(name, f"{token}\n".encode())

    def _write_metrics_certificate(self) -> None:
        made = self.authority().certify("metrics", Role.VIEWER, hosts=(), valid_s=TOKENS_VALID_S)
        self.write("metrics.key", made.key)
        self.write("metrics.pem", made.certificate)
