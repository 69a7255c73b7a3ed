"""What a TaskExecutor's core is configured with."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.ids import TaskExecutorId
from firesteel.common.resources import MINIMUM_HEAP_BYTES, ResourceProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    task_executor_id: TaskExecutorId
    slots: int
    total: ResourceProfile
    default_slot: ResourceProfile
    cancellation_timeout_s: float  # 0: never
    heartbeat_timeout_s: float  # a silent JobMaster is given up, a silent process killed
    reconnect_grace_s: float = 5.0  # a JobMaster whose stream broke is given up after this long
    # The same of a job that takes checkpoints: its next JobMaster adopts its tasks.
    adoption_grace_s: float = 30.0
    offer_retry_s: float = 3.0
    clean_timeout_s: float = 10.0
    max_starting: int = 2  # processes that come up at once: more would only slow each other
    max_warming: int = 2  # as many of them may be for free slots
    # When a process that a job waited for is ready, or one that a job used has died and another is
    # there, free slots' processes wait that long: a job's first seconds, in which Spark's code is
    # compiled, are its dearest.
    quiet_s: float = 10.0
    start_backoff_s: float = 1.0  # doubled with each failure in a row
    max_start_backoff_s: float = 30.0
    minimum_heap_bytes: int = MINIMUM_HEAP_BYTES
