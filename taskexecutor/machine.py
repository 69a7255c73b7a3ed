"""Measures what the TaskExecutor, its slots and its machine use, for the ResourceManager."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from firesteel.common.machines import DiskUsage, MachineUsage, SlotUsage
from taskexecutor.executor_process import Measured
from taskexecutor.memory import SlotMemory

INTERVAL_S = 5.0


def slot_usage(
    index: int, executor_id: str, job_id: str | None, memory: SlotMemory, measured: Measured | None
) -> SlotUsage:
    resident, committed = memory.resident, memory.jvm_heap_committed
    other = None
    if resident is not None and committed is not None:
        other = max(0, resident.jvm - committed)
    return SlotUsage(
        slot_index=index,
        executor_id=executor_id,
        job_id=job_id,
        cpu_load=measured.cpu_load if measured else None,
        threads=resident.threads if resident else None,
        limit_bytes=memory.limit,
        total_bytes=resident.total if resident else None,
        jvm_heap_used_bytes=memory.jvm_heap_used,
        jvm_heap_committed_bytes=committed,
        jvm_heap_max_bytes=memory.jvm_heap_max,
        jvm_other_bytes=other,
        python_bytes=resident.python if resident else None,
        shared_bytes=resident.shared if resident else None,
        managed_used_bytes=memory.managed_used,
        managed_total_bytes=memory.managed_total,
    )


def machine_usage(
    task_executor_id: str,
    directories: Iterable[Path],
    slots: Sequence[SlotUsage],
    memory_peak_bytes: int | None,
) -> MachineUsage:
    """The CPU's load is that since the last call."""
    memory = psutil.virtual_memory()
    return MachineUsage(
        task_executor_id=task_executor_id,
        cpu_cores=psutil.cpu_count() or 1,
        cpu_load=psutil.cpu_percent(None) / 100,
        memory_total_bytes=memory.total,
        memory_used_bytes=memory.total - memory.available,
        threads=psutil.Process().num_threads(),
        disks=_disks(directories),
        slots=slots,
        memory_peak_bytes=memory_peak_bytes,
    )


def _disks(directories: Iterable[Path]) -> list[DiskUsage]:
    """Returns each disk once, under the first directory on it."""
    disks: dict[int, DiskUsage] = {}
    for directory in directories:
        with contextlib.suppress(OSError):  # it does not exist yet
            device = directory.stat().st_dev
            if device not in disks:
                usage = psutil.disk_usage(str(directory))
                disks[device] = DiskUsage(str(directory), usage.total, usage.free)
    return list(disks.values())
