"""The connection to ZooKeeper: its configuration, and a client."""

from __future__ import annotations

import logging
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.leader import Office
from firesteel.errors import FiresteelError
from firesteel.high_availability import ZOOKEEPER
from firesteel.high_availability.incumbent import LeadersUnreachable

CONNECT_TIMEOUT_S = 5.0
_RETRY_FIRST_S = 0.05  # between attempts to connect
_RETRY_MAX_S = 1.0

# kazoo logs every attempt to connect; Firesteel logs once that the ensemble is unavailable.
_silent = logging.getLogger("firesteel.zookeeper")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class EnsembleUnreachable(LeadersUnreachable):
    """No server of the ensemble responds, or none that has a quorum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    servers: tuple[str, ...]  # HOST:PORT
    root: str  # of this cluster
    session_timeout_s: float  # the requested timeout
    authorization: tuple[str, str] | None  # scheme, credentials
    creator_only: bool

    @staticmethod
    def of(conf: Configuration) -> Ensemble:
        """Reads the configuration. Raises ConfigurationError."""
        servers = tuple(_server(text) for text in conf.get(options.ZOOKEEPER_QUORUM))
        if not servers:
            raise ConfigurationError(
                f"{options.HA_TYPE.key}: zookeeper needs {options.ZOOKEEPER_QUORUM.key}, the"
                " HOST:PORT of each ZooKeeper server"
            )
        authorization = _authorization(conf.get(options.ZOOKEEPER_AUTHORIZATION))
        creator_only = conf.get(options.ZOOKEEPER_ACL) == "creator"
        if creator_only and authorization is None:
            raise ConfigurationError(
                f"{options.ZOOKEEPER_ACL.key}: creator needs"
                f" {options.ZOOKEEPER_AUTHORIZATION.key}, as digest:USER:PASSWORD"
            )
        return Ensemble(
            servers=servers,
            root=_root(conf),
            session_timeout_s=conf.get(options.ZOOKEEPER_SESSION_TIMEOUT),
            authorization=authorization,
            creator_only=creator_only,
        )

    @staticmethod
    def at(address: str, conf: Configuration) -> Ensemble:
        """Returns the ensemble of a zookeeper:// address. Raises ConfigurationError."""
        servers, _, path = address.removeprefix(ZOOKEEPER).partition("/")
        root, _, cluster_id = path.rpartition("/")
        keys = {
            options.ZOOKEEPER_QUORUM.key: servers,
            options.ZOOKEEPER_ROOT.key: f"/{root}",
            options.HA_CLUSTER_ID.key: cluster_id,
        }
        return Ensemble.of(conf.with_overrides(keys))

    def __str__(self) -> str:
        return ", ".join(self.servers)

    @property
    def job_store(self) -> str:
        return f"{self.root}/job_store"

    def epoch(self, office: Office) -> str:
        return f"{self.root}/epoch/{office.value}"

    def leader(self, office: Office) -> str:
        return f"{self.root}/leader/{office.value}/connection_info"

    def standbys(self, office: Office) -> str:
        return f"{self.root}/standby/{office.value}"

    def unreachable(self) -> EnsembleUnreachable:
        return EnsembleUnreachable(
            f"ZooKeeper cannot be reached: no quorum of {self} has answered within"
            f" {CONNECT_TIMEOUT_S:g} s; check {options.ZOOKEEPER_QUORUM.key}"
        )

    def refused(self, error: KazooException) -> FiresteelError:
        """Returns the error to report for a failure that a retry cannot fix."""
        if isinstance(error, (NoAuthError, AuthFailedError)):
            who = "these credentials" if self.authorization else "anybody"
            return FiresteelError(
                f"ZooKeeper ({self}) does not permit {who} to change {self.root}; check"
                f" {options.ZOOKEEPER_ROOT.key} and {options.ZOOKEEPER_AUTHORIZATION.key}"
            )
        if isinstance(error, (ConnectionLoss, SessionExpiredError)):
            return EnsembleUnreachable(
                f"ZooKeeper ({self}) has answered, and then no longer"
                f" ({type(error).__name__}); start again when it does"
            )
        return FiresteelError(f"ZooKeeper ({self}) fails: {type(error).__name__}: {error}")


class Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """A client that reconnects for ever. Its methods block, and any thread may call them.

    `requests` is a thread for calls, one request after another.
    """

    requests: Executor

    def __init__(self, ensemble: Ensemble) -> None:
        def retry() -> KazooRetry:
            return KazooRetry(max_tries=-1, delay=_RETRY_FIRST_S, max_delay=_RETRY_MAX_S)

        super().__init__(
            hosts=",".join(ensemble.servers),
            timeout=ensemble.session_timeout_s,
            auth_data=[ensemble.authorization] if ensemble.authorization else None,
            default_acl=CREATOR_ALL_ACL if ensemble.creator_only else OPEN_ACL_UNSAFE,
            connection_retry=retry(),
            command_retry=retry(),
            logger=_silent,
        )
        self.requests = ThreadPoolExecutor(1, "zookeeper")
        self._ensemble = ensemble
        self.agreed_timeout_s = ensemble.session_timeout_s
        # ZooKeeper limits the requested timeout, and kazoo does not expose the result.
        connect = self._connection._connect

        def connected(*server: Any) -> tuple[float, float]:
            read_timeout_ms, connect_timeout_ms = connect(*server)
            self.agreed_timeout_s = read_timeout_ms * 1.5 / 1000
            return read_timeout_ms, connect_timeout_ms

        self._connection._connect = connected

    def connect(self) -> None:
        """Connects, and returns when connected. Raises EnsembleUnreachable."""
        try:
            self.start(timeout=CONNECT_TIMEOUT_S)
        except KazooTimeoutError:
            raise self._ensemble.unreachable() from None
        except KazooException as error:
            raise self._ensemble.refused(error) from None

    def disconnect(self) -> None:
        """Ends the session, and with it the leadership that depends on it."""
        self.stop()
        self.close()
        self.requests.shutdown()


def _server(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigurationError(
            f"{options.ZOOKEEPER_QUORUM.key}: {text!r} is not allowed; expected HOST:PORT"
        )
    return text


def _root(conf: Configuration) -> str:
    root, cluster_id = conf.get(options.ZOOKEEPER_ROOT), conf.get(options.HA_CLUSTER_ID)
    parts = [part for part in root.split("/") if part]
    if not root.startswith("/") or {".", ".."} & set(parts):
        raise ConfigurationError(
            f"{options.ZOOKEEPER_ROOT.key}: {root!r} is not allowed; expected a path such as"
            f" {options.ZOOKEEPER_ROOT.default}"
        )
    cluster_id = cluster_id.strip("/")
    if not cluster_id or "/" in cluster_id or cluster_id in (".", ".."):
        raise ConfigurationError(
            f"{options.HA_CLUSTER_ID.key}: {cluster_id!r} is not allowed; expected a name"
            " without '/'"
        )
    return "/" + "/".join([*parts, cluster_id])


def _authorization(text: str) -> tuple[str, str] | None:
    if not text:
        return None
    scheme, colon, credentials = text.partition(":")
    if not colon or not scheme or ":" not in credentials:
        raise ConfigurationError(  # without its value, which is a secret
            f"{options.ZOOKEEPER_AUTHORIZATION.key} is not allowed; expected digest:USER:PASSWORD"
        )
    return scheme, credentials
