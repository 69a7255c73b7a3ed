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
    revoked         the ids of revoked tokens, for metrics endpoints on this machine

The first process that needs the folder creates it. Only its user can read it. To run services on
several machines, copy the folder to each of them before they start.

A Secret of Kubernetes that is mounted as the folder has a part of the files, and `holder`: the
processes for which it is. They create and renew no file. For `masters`, it has no `admin.token`.
For `taskexecutors`, it has the public keys, `jobs.key`, and the intermediate authority
`taskexecutors.pem` and `taskexecutors.key`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from firesteel.common.config import Configuration, options
from firesteel.common.security.credentials import Certificate
from firesteel.errors import FiresteelError

_PRIVATE_MODE = 0o600
_OTHERS = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
MASTERS = "masters"
TASK_EXECUTORS = "taskexecutors"


class UnusableSecurityFolder(FiresteelError):
    """The folder is incomplete, damaged, or open to other users."""


class SecurityFolder:
    """Reads the files. `firesteel.common.security.keys.Keys` creates and uses the keys in them."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser()
        self._prefix = f"{self.path}{os.sep}"
        self._revoked: tuple[int, frozenset[str]] = 0, frozenset()  # as of a time

    @property
    def is_clients(self) -> bool:
        """Whether an administrator has made it for a client: `firesteel token create --out`."""
        return (self.path / "client.token").exists()

    @property
    def holder(self) -> str:
        """The processes for which somebody else fills the folder; empty: this user fills it."""
        try:
            return (self.path / "holder").read_text().strip()
        except OSError:
            return ""

    def stamp(self, *names: str) -> tuple[tuple[int, int], ...]:
        """Differs after one of the files was replaced."""
        found = []
        for name in names:
            try:
                status = os.stat(f"{self._prefix}{name}")  # for each call, so without a Path
            except OSError:
                found.append((0, 0))
            else:
                found.append((status.st_mtime_ns, status.st_ino))
        return tuple(found)

    def token(self, name: str = "admin.token") -> str:
        """Returns the token in a file of the folder."""
        return self.read(name).decode().strip()

    def client_certificate(self) -> Certificate:
        """Returns the certificate of the client, if the folder is one of a client."""
        return Certificate(
            certificate=self.read("client.pem"),
            key=self.read("client.key"),
            authority=self.read("authority.pem"),
        )

    def write(self, name: str, content: bytes) -> None:
        """Replaces the file atomically. It is unreadable for other users from the start."""
        unfinished = self.path / f"{name}.{os.getpid()}.part"
        with open(
            os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE_MODE), "wb"
        ) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.path / name)

    def write_revoked(self, token_ids: Iterable[str]) -> None:
        self.write("revoked", "\n".join(sorted(token_ids)).encode())

    def revoked(self) -> frozenset[str]:
        """Returns the ids of the tokens that were revoked on this machine."""
        try:
            changed_ns = (self.path / "revoked").stat().st_mtime_ns
        except OSError:
            return frozenset()
        if changed_ns != self._revoked[0]:
            self._revoked = changed_ns, frozenset(self.read("revoked").decode().split())
        return self._revoked[1]

    def read(self, name: str) -> bytes:
        path = self.path / name
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if name.endswith((".key", ".token")) and _is_open(status.st_mode):
                    mode = stat.filemode(status.st_mode)
                    raise self.unusable(
                        name,
                        f"can be read by other users ({mode}); `chmod 600 {path}`, and if"
                        " somebody may have read it, remove the folder: new keys are created",
                    )
                return file.read()
        except FileNotFoundError:
            raise self.unusable(name, "is missing") from None
        except OSError as error:
            raise self.unusable(name, f"cannot be read: {error.strerror or error}") from None

    def unusable(self, name: str, why: str) -> UnusableSecurityFolder:
        return UnusableSecurityFolder(f"{self.path / name} {why}")


def _is_open(mode: int) -> bool:
    """Whether other users can read or change the file. A pod reads the files of a Secret as their
    group, and they are read-only: they have the mode 0440.
    """
    own_group_reads = mode & stat.S_IRGRP and mode & stat.S_IWUSR
    return bool(mode & _OTHERS or own_group_reads)


def security_directory(conf: Configuration) -> Path:
    """Returns the folder of keys: as configured, or in the user's home."""
    if configured := conf.get(options.SECURITY_DIRECTORY):
        return Path(configured)
    try:
        return Path.home() / ".firesteel" / "security"
    except RuntimeError:  # a user id that the system does not know, as containers may have
        raise FiresteelError(
            "this user has no home directory, which would hold the keys of the cluster; name a"
            f" folder with {options.SECURITY_DIRECTORY.key}"
        ) from None
