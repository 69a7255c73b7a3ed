"""The partitions of this process, and the consumers that wait for one.

Consumers may be deployed before their producers: an early request waits here, at most `timeout_s`.
An aborted partition is remembered until its job is released, so that a late consumer fails
immediately. One thread watches the deadlines, and only while there are any.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from taskexecutor.executor.exchange.errors import LocalProtocolError
from taskexecutor.executor.exchange.partition import AttachedPartition, PartitionId


class Asker(Protocol):
    """Receives the answer to a request. Exactly one method is called, once, from any thread, with
    no lock held; after `forget`, only if the call is already under way.
    """

    def found(self, partition: AttachedPartition) -> None: ...

    def not_found(self, reason: str) -> None: ...


@dataclass(slots=True, eq=False)
class _Waiting:
    partition_id: PartitionId
    asker: Asker
    deadline: float


class PartitionRegistry:
    def __init__(self, *, timeout_s: float | None) -> None:
        """`timeout_s` is None if the consumers' deployer decides how long they wait."""
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._partitions: dict[PartitionId, AttachedPartition] = {}
        self._aborted: dict[PartitionId, str] = {}  # maps to the reason
        self._waiting: deque[_Waiting] = deque()  # by deadline: all have the same timeout
        self._timer: threading.Thread | None = None
        self._closed = False

    def add(self, partition: AttachedPartition) -> None:
        """Registers a partition and answers the requests that wait for it."""
        with self._changed:
            if self._closed:
                raise LocalProtocolError("the exchange is closed")
            if partition.id in self._partitions:
                raise LocalProtocolError(f"there is already a {partition.id}")
            self._partitions[partition.id] = partition
            askers = self._remove_waiting(lambda waiting: waiting.partition_id == partition.id)
        for asker in askers:
            asker.found(partition)

    def ask(self, partition_id: PartitionId, asker: Asker) -> None:
        """Answers immediately, when the partition appears, or when it has not appeared in time."""
        with self._changed:
            partition = self._partitions.get(partition_id)
            reason = (
                "the process is shutting down" if self._closed else self._aborted.get(partition_id)
            )
            if partition is None and reason is None:
                timeout_s = math.inf if self._timeout_s is None else self._timeout_s
                self._waiting.append(_Waiting(partition_id, asker, time.monotonic() + timeout_s))
                if self._timer is None and self._timeout_s is not None:
                    self._timer = threading.Thread(
                        target=self._watch_deadlines, name="exchange-timer", daemon=True
                    )
                    self._timer.start()
                return
        if partition is not None:
            asker.found(partition)
        elif reason is not None:
            asker.not_found(reason)

    def forget(self, asker: Asker) -> None:
        """Cancels the requests of an asker."""
        with self._changed:
            self._remove_waiting(lambda waiting: waiting.asker is asker)

    def remove(self, partition: AttachedPartition) -> None:
        reason = partition.aborted_because
        with self._changed:
            if self._partitions.get(partition.id) is partition:
                del self._partitions[partition.id]
                if reason is not None and not self._closed:
                    self._aborted[partition.id] = reason

    @property
    def waiting(self) -> int:
        with self._changed:
            return len(self._waiting)

    def partitions(self, job_id: str | None = None) -> list[AttachedPartition]:
        with self._changed:
            return [p for p in self._partitions.values() if job_id is None or p.id.job_id == job_id]

    def refuse(self, partition_id: PartitionId, reason: str) -> AttachedPartition | None:
        """Fails current and later requests for the partition. Returns the partition if it
        existed.
        """
        with self._changed:
            known = self._partitions.pop(partition_id, None)
            self._aborted[partition_id] = reason
            askers = self._remove_waiting(lambda waiting: waiting.partition_id == partition_id)
        for asker in askers:
            asker.not_found(reason)
        return known

    def forget_job(self, job_id: str) -> None:
        """Answers the waiting requests for a released job, and forgets its aborted partitions."""
        with self._changed:
            askers = self._remove_waiting(lambda waiting: waiting.partition_id.job_id == job_id)
            for partition_id in [p for p in self._aborted if p.job_id == job_id]:
                del self._aborted[partition_id]
        for asker in askers:
            asker.not_found("the job was released in the producer's process")

    def close(self) -> None:
        with self._changed:
            self._closed = True
            askers = self._remove_waiting(lambda waiting: True)
            timer = self._timer
        for asker in askers:
            asker.not_found("the process is shutting down")
        if timer is not None:
            timer.join()

    def _remove_waiting(self, condition: Callable[[_Waiting], bool]) -> list[Asker]:
        removed = [waiting for waiting in self._waiting if condition(waiting)]
        if removed:
            self._waiting = deque(waiting for waiting in self._waiting if not condition(waiting))
            self._changed.notify_all()
        return [waiting.asker for waiting in removed]

    def _watch_deadlines(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._timer = None  # the next request starts a new one
                    return
                left_s = self._waiting[0].deadline - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                    continue
                late = self._waiting.popleft()
            late.asker.not_found(f"it did not appear within {self._timeout_s or 0:g} s")
