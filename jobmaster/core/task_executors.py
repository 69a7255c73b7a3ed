"""Tracks which TaskExecutors are connected, and which are dead (design, "Control messages")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from firesteel.common.ids import TaskExecutorId

PROCESS_ENDED = "its process has ended: its address no longer has a listener"
# The ResourceManager's verdict has the reason of the end, if its driver knows it.
REASON_PATIENCE_S = 1.0


class DeadTaskExecutor(NamedTuple):
    task_executor_id: TaskExecutorId
    cause: str


@dataclass(slots=True)
class _Peer:
    connection: int
    last_seen: float
    address: str
    broken_at: float | None = None  # when its stream broke; None while it is open
    gone_at: float | None = None  # when its process was found to have ended


class TaskExecutors:
    """A TaskExecutor is dead if its stream breaks and its machine reports that its process has
    ended, unless the ResourceManager reports the loss first; if the stream is not re-established in
    time; or if it is silent for the heartbeat timeout.
    """

    def __init__(
        self, *, heartbeat_interval_s: float, heartbeat_timeout_s: float, reconnect_grace_s: float
    ) -> None:
        self._check_interval_s = heartbeat_interval_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._reconnect_grace_s = reconnect_grace_s
        self._peers: dict[TaskExecutorId, _Peer] = {}
        self._broken: set[TaskExecutorId] = set()
        # All peers are checked for silence once per interval, so that next_deadline, which is
        # called after every event, need not examine each of them.
        self._next_check = 0.0

    def __contains__(self, task_executor_id: TaskExecutorId) -> bool:
        return task_executor_id in self._peers

    def all(self) -> list[TaskExecutorId]:
        return list(self._peers)

    @property
    def any_broken(self) -> bool:
        return bool(self._broken)

    def connect(
        self, task_executor_id: TaskExecutorId, connection: int, address: str, now: float
    ) -> bool:
        """Records an open stream. Returns False if a newer one is known."""
        known = self._peers.get(task_executor_id)
        if known is not None and known.connection > connection:
            return False
        if not self._peers:
            self._next_check = now + self._check_interval_s
        self._peers[task_executor_id] = _Peer(connection, now, address)
        self._broken.discard(task_executor_id)
        return True

    def disconnect(self, task_executor_id: TaskExecutorId, connection: int, now: float) -> str:
        """Records a broken stream. Returns the address at which to check its process; empty if the
        address is unknown or there is a newer stream.
        """
        known = self._peers.get(task_executor_id)
        if known is None or known.connection != connection:
            return ""
        known.broken_at = now
        self._broken.add(task_executor_id)
        return known.address

    def is_broken(self, task_executor_id: TaskExecutorId, connection: int) -> bool:
        """Whether this is its last stream and is broken."""
        return (
            task_executor_id in self._broken
            and self._peers[task_executor_id].connection == connection
        )

    def gone(self, task_executor_id: TaskExecutorId, now: float) -> None:
        """Records that the process of a TaskExecutor with a broken stream has ended."""
        self._peers[task_executor_id].gone_at = now

    def seen(self, task_executor_id: TaskExecutorId, now: float) -> None:
        known = self._peers.get(task_executor_id)
        if known is not None:
            known.last_seen = now

    def remove(self, task_executor_id: TaskExecutorId) -> None:
        self._peers.pop(task_executor_id, None)
        self._broken.discard(task_executor_id)

    def dead(self, now: float) -> list[DeadTaskExecutor]:
        """Returns the TaskExecutors that are dead by now, with the cause. The caller removes
        them.
        """
        dead: list[DeadTaskExecutor] = []
        for task_executor_id in sorted(self._broken):
            peer = self._peers[task_executor_id]
            assert peer.broken_at is not None
            if peer.gone_at is not None and peer.gone_at + REASON_PATIENCE_S <= now:
                dead.append(DeadTaskExecutor(task_executor_id, PROCESS_ENDED))
            elif peer.broken_at + self._reconnect_grace_s <= now:
                cause = (
                    "its connection broke and was not re-established within "
                    f"{self._reconnect_grace_s:g} s"
                )
                dead.append(DeadTaskExecutor(task_executor_id, cause))
        if self._peers and self._next_check <= now:
            self._next_check = now + self._check_interval_s
            for task_executor_id, peer in self._peers.items():
                if peer.broken_at is None and peer.last_seen + self._heartbeat_timeout_s <= now:
                    cause = f"no heartbeat for {self._heartbeat_timeout_s:g} s"
                    dead.append(DeadTaskExecutor(task_executor_id, cause))
        return dead

    def next_deadline(self) -> float | None:
        if not self._peers:
            return None
        deadline = self._next_check
        for task_executor_id in self._broken:
            peer = self._peers[task_executor_id]
            assert peer.broken_at is not None
            deadline = min(deadline, peer.broken_at + self._reconnect_grace_s)
            if peer.gone_at is not None:
                deadline = min(deadline, peer.gone_at + REASON_PATIENCE_S)
        return deadline
