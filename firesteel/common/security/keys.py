"""The keys of a cluster, in their folder: creates them, and uses them."""

from __future__ import annotations

import fcntl
import re
import secrets
import time
from collections.abc import Callable, Iterator
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
from firesteel.common.security.folder import (
    TASK_EXECUTORS,
    SecurityFolder,
    UnusableSecurityFolder,
)
from firesteel.common.security.job_keys import JobKeys
from firesteel.common.security.roles import Role
from firesteel.common.security.tokens import ExpiredToken, InvalidToken, TokenIssuer, TokenVerifier

TOKENS_VALID_S = 90 * 86_400.0
CLIENT_VALID_S = 86_400.0
_TOKENS = {"admin.token": Role.ADMIN, "metrics.token": Role.VIEWER}
_PAIRS = (("authority.pem", "authority.key"), ("tokens.pem", "tokens.key"))
_PUBLIC_KEY = re.compile(rb"-----BEGIN PUBLIC KEY-----.+?-----END PUBLIC KEY-----\n?", re.DOTALL)
_CREATED = (*_PAIRS[0], *_PAIRS[1], "jobs.key", *_TOKENS, "metrics.pem", "metrics.key")


class Keys(SecurityFolder):
    """`open` creates what is missing, unless the folder is one of a client, or has a holder."""

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
        """Returns the authority that signs for the process that has this folder."""
        root = self.read("authority.pem")
        if self.holder != TASK_EXECUTORS:
            return CertificateAuthority(root, self.read("authority.key"), now_s=self._now_s)
        return CertificateAuthority(
            self.read("taskexecutors.pem"),
            self.read("taskexecutors.key"),
            root=root,
            now_s=self._now_s,
        )

    @property
    def authority_stamp(self) -> object:
        """Differs after the keys of `authority` were replaced."""
        return self.stamp("authority.pem", "authority.key", "taskexecutors.key")

    @property
    def signs_tokens(self) -> bool:
        """Whether the processes of this folder prove who they are with tokens of the cluster.
        TaskExecutors in pods have certificates only.
        """
        return self.holder != TASK_EXECUTORS

    def signing_key(self) -> Ed25519PrivateKey:
        key = load_pem_private_key(self.read("tokens.key"), password=None)
        if not isinstance(key, Ed25519PrivateKey):
            raise self.unusable("tokens.key", "is not an Ed25519 key")
        return key

    def issuer(self) -> TokenIssuer:
        return TokenIssuer(self.signing_key(), now_s=self._now_s)

    def verifier(
        self,
        is_revoked: Callable[[str], bool] = lambda token_id: False,
        further: tuple[Ed25519PublicKey, ...] = (),
    ) -> TokenVerifier:
        """Returns a verifier of the cluster's tokens, and of those signed with `further` keys."""
        public = _PublicKeys(self, further)
        public()
        return TokenVerifier(public, now_s=self._now_s, is_revoked=is_revoked)

    def renew(self) -> None:
        """Replaces the tokens of the folder of which more than half of the time is over."""
        for name in () if self.holder else _TOKENS:
            if not self.is_fresh(self.token(name)):
                if name == "metrics.token":
                    self.write_metrics(valid_s=TOKENS_VALID_S)
                else:
                    self._write_token(name)

    def is_fresh(self, token: str, valid_s: float = TOKENS_VALID_S) -> bool:
        """Whether the token is one of the cluster, and valid for more than half of the time."""
        try:
            expires_s = self.verifier().verify(token).expires_s
        except (InvalidToken, ExpiredToken):
            return False
        return expires_s - self._now_s() >= valid_s / 2

    def write_metrics(self, *, valid_s: float) -> None:
        """Replaces the credentials of Prometheus."""
        for name, content in self.metrics_files(valid_s=valid_s).items():
            self.write(name, content)

    def metrics_files(self, *, valid_s: float) -> dict[str, bytes]:
        """Returns new credentials of Prometheus."""
        made = self.authority().certify("metrics", Role.VIEWER, hosts=(), valid_s=valid_s)
        return {
            "metrics.token": self._new_token("metrics.token", valid_s),
            "metrics.key": made.key,
            "metrics.pem": made.certificate,
        }

    def job_keys(self, job_id: str, epoch: int) -> JobKeys:
        return job_keys.issue(self.read("jobs.key"), job_id, epoch, now_s=self._now_s())

    def find_job_key(self, job_id: str, epoch: int, expiry_s: int) -> bytes:
        return job_keys.derive(self.read("jobs.key"), job_id, epoch, expiry_s)

    def certificate_of_client(self) -> Certificate:
        """Returns a new certificate for a client that has these keys."""
        return self.authority().certify("client", Role.VIEWER, hosts=(), valid_s=CLIENT_VALID_S)

    def _create(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.is_clients or self.holder or not self._missing():
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
            self.write_metrics(valid_s=TOKENS_VALID_S)

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
        self.write(name, self._new_token(name, TOKENS_VALID_S))

    def _new_token(self, name: str, valid_s: float) -> bytes:
        subject = name.removesuffix(".token")
        return f"{self.issuer().issue(subject, _TOKENS[name], valid_s=valid_s)}\n".encode()


class _PublicKeys:
    """The keys that verify tokens: those in `tokens.pem`, which may be replaced, and further ones.
    While keys are replaced, the file has both.
    """

    def __init__(self, folder: Keys, further: tuple[Ed25519PublicKey, ...]) -> None:
        self._folder = folder
        self._further = further
        self._stamp: object = None
        self._keys: tuple[Ed25519PublicKey, ...] = ()

    def __call__(self) -> tuple[Ed25519PublicKey, ...]:
        if (stamp := self._folder.stamp("tokens.pem")) != self._stamp:
            self._keys = (*self._read(), *self._further)
            self._stamp = stamp
        return self._keys

    def _read(self) -> Iterator[Ed25519PublicKey]:
        for pem in _PUBLIC_KEY.findall(self._folder.read("tokens.pem")):
            key = load_pem_public_key(pem)
            if not isinstance(key, Ed25519PublicKey):
                raise self._folder.unusable("tokens.pem", "has a key that is not an Ed25519 key")
            yield key
