"""The resources that a TaskExecutor, its slots and its machine use. None: not known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class DiskUsage(NamedTuple):
    path: str  # a directory of the TaskExecutor on it
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUsage:
    """The Python process of a slot, its JVM and Spark's Python workers."""

    slot_index: int
    executor_id: str
    job_id: str | None = None
    cpu_load: float | None = None  # cores in use
    threads: int | None = None
    limit_bytes: int
    total_bytes: int | None = None  # counts against the limit
    jvm_heap_used_bytes: int | None = None
    jvm_heap_committed_bytes: int | None = None
    jvm_heap_max_bytes: int | None = None
    jvm_other_bytes: int | None = None  # of the JVM, except its heap
    python_bytes: int | None = None
    shared_bytes: int | None = None
    managed_used_bytes: int | None = None  # for state; within `python_bytes`
    managed_total_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineUsage:
    task_executor_id: str
    cpu_cores: int
    cpu_load: float  # share of all cores, 0 to 1
    memory_total_bytes: int
    memory_used_bytes: int
    threads: int  # of the TaskExecutor
    disks: Sequence[DiskUsage] = ()
    slots: Sequence[SlotUsage] = ()
    # The highest memory of all slots together since the TaskExecutor started; None: not measured.
    memory_peak_bytes: int | None = None
