"""Configuration of the TaskExecutor's core."""

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
    heartbeat_timeout_s: float  # timeout of a silent JobMaster or process
    reconnect_grace_s: float = 5.0  # a JobMaster whose stream broke is given up after this long
    # Like `reconnect_grace_s`, for a job that takes checkpoints: a successor JobMaster adopts its
    # tasks.
    adoption_grace_s: float = 30.0
    offer_retry_s: float = 3.0
    clean_timeout_s: float = 10.0
    max_starting: int = 2  # processes that start at the same time; more would slow each other down
    max_warming: int = 2  # of these, processes for free slots
    # Processes for free slots wait this long after a process that a job waited for is ready, or
    # after one that a job used has died and a spare is ready: a job needs the CPU most in its first
    # seconds, while Spark's code is compiled.
    quiet_s: float = 10.0
    # A free slot's process with another environment than the default stays for this long: the next
    # job of the same program needs the same.
    keep_s: float = 60.0
    start_backoff_s: float = 1.0  # doubled with each consecutive failure
    max_start_backoff_s: float = 30.0
    minimum_heap_bytes: int = MINIMUM_HEAP_BYTES
