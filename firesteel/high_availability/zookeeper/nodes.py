"""Reads and writes the nodes in ZooKeeper. Synchronous; every call may raise kazoo's errors.

A contender that gets an office raises its epoch and creates the leader's node in one transaction.
So an epoch belongs to one leader, and every leader has one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)

from firesteel.common.config import options
from firesteel.common.ids import Epoch
from firesteel.common.leader import Leader, Office
from firesteel.errors import FiresteelError
from firesteel.high_availability.election import Confirmed, Displaced, Granted, Occupied
from firesteel.high_availability.zookeeper.ensemble import Client, Ensemble

_NOT_THE_CAUSE = (RolledBackError, RuntimeInconsistency)


def encode(leader: Leader) -> bytes:
    return json.dumps({"address": leader.address, "epoch": leader.epoch}).encode()


def decode(data: bytes) -> Leader:
    """Decodes the node of a leader. Raises FiresteelError."""
    try:
        content = json.loads(data)
        return Leader(str(content["address"]), Epoch(int(content["epoch"])))
    except (ValueError, KeyError, TypeError):
        raise FiresteelError(
            f"ZooKeeper has a leader that is not from Firesteel: {data[:80]!r}"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficeNodes:
    """The nodes of one office, for one contender."""

    client: Client
    ensemble: Ensemble
    office: Office
    address: str  # the address of the contender
    above: Epoch  # its epoch will be higher
    clock: Callable[[], float]  # the clock of the election's core

    def prepare(self) -> None:
        """Creates the nodes that outlive leaders."""
        self.client.ensure_path(self._leader.rpartition("/")[0])
        self.client.ensure_path(self._epoch)
        self.client.ensure_path(self.ensemble.standbys(self.office))

    def contend(self, vacant: Callable[[Any], None]) -> Granted | Occupied:
        """Takes the office if it is vacant. Otherwise `vacant` is called later."""
        while True:
            try:
                data, stat = self.client.get(self._leader, watch=vacant)
            except NoNodeError:
                if (granted := self._take()) is not None:
                    return granted
                continue
            session_id = _session_of(self.client)
            if stat.ephemeralOwner != session_id:
                self._stand_by(session_id)
                return Occupied(leader=decode(data))
            # The answer to an earlier attempt was lost.
            confirmed = self.confirm()
            if isinstance(confirmed, Confirmed):
                return Granted(
                    session_id=session_id, epoch=decode(data).epoch, asked_at=confirmed.asked_at
                )

    def confirm(self) -> Confirmed | Displaced:
        """Writes, to prove that the session is alive and has the office."""
        while True:
            try:
                data, stat = self.client.get(self._epoch)
                leader, of_leader = self.client.get(self._leader)
            except NoNodeError:
                return Displaced(by="nobody")
            if of_leader.ephemeralOwner != _session_of(self.client):
                return Displaced(by=f"{decode(leader).address} (epoch {decode(leader).epoch})")
            asked_at = self.clock()
            transaction = self.client.transaction()
            transaction.check(self._leader, of_leader.version)
            transaction.set_data(self._epoch, data, version=stat.version)
            if _committed(transaction):
                return Confirmed(asked_at=asked_at)

    def _stand_by(self, session_id: int) -> None:
        """Announces this contender to those that list the masters."""
        with suppress(NodeExistsError):  # by this session, earlier
            self.client.create(
                f"{self.ensemble.standbys(self.office)}/{self.address}@{session_id:x}",
                ephemeral=True,
            )

    def _take(self) -> Granted | None:
        """Takes the office; returns None if another contender was faster."""
        data, stat = self.client.get(self._epoch)
        epoch = Epoch(max(int(data or b"0"), self.above) + 1)
        session_id, asked_at = _session_of(self.client), self.clock()
        transaction = self.client.transaction()
        transaction.set_data(self._epoch, str(epoch).encode(), version=stat.version)
        transaction.create(self._leader, encode(Leader(self.address, epoch)), ephemeral=True)
        if not _committed(transaction):
            return None
        return Granted(session_id=session_id, epoch=epoch, asked_at=asked_at)

    @property
    def _leader(self) -> str:
        return self.ensemble.leader(self.office)

    @property
    def _epoch(self) -> str:
        return self.ensemble.epoch(self.office)


def claim_cluster(client: Client, ensemble: Ensemble, store_id: str) -> None:
    """Assigns the cluster to this job store. Raises FiresteelError if it belongs to another one."""
    try:
        client.create(ensemble.job_store, store_id.encode(), makepath=True)
        return
    except NodeExistsError:
        recorded = client.get(ensemble.job_store)[0].decode(errors="replace")
    if recorded != store_id:
        raise FiresteelError(
            f"another cluster uses {ensemble.root} in ZooKeeper ({ensemble}): its job store is"
            f" {recorded}, that of this Dispatcher {store_id}. All Dispatchers of a cluster need"
            f" one {options.DATABASE_URL.key}; another cluster needs another"
            f" {options.HA_CLUSTER_ID.key}. If that job store is gone for good, delete"
            f" {ensemble.job_store}"
        )


def _session_of(client: Client) -> int:
    """Returns the session's id. Raises SessionExpiredError between two sessions."""
    if client.client_id is None:
        raise SessionExpiredError()
    session_id: int = client.client_id[0]
    return session_id


def _committed(transaction: Any) -> bool:
    """Returns False if the data that it was based on has changed. Raises every other failure."""
    errors = [result for result in transaction.commit() if isinstance(result, KazooException)]
    causes = [error for error in errors if not isinstance(error, _NOT_THE_CAUSE)]
    for cause in causes:
        if not isinstance(cause, (BadVersionError, NodeExistsError, NoNodeError)):
            raise cause
    return not errors
