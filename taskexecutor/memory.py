"""Measures the memory of process trees from /proc. A slot's tree is its Python process, its JVM and
Spark's Python workers.

Pages of files (code, Spark's classes, state in files) do not count, because the operating system
can reclaim them. Python and its JVM exchange rows in shared memory, which is resident in both
processes but occupies its pages once. Therefore only the process of a tree that maps the most
shared memory counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from firesteel.common.metrics import Sample
from taskexecutor.executor import JVM_STATUS, MANAGED_MEMORY

_SLOT = "flink_taskmanager_Status_Slot_Memory_"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_JVM = b"java"  # the name of a JVM's process


class TreeMemory(NamedTuple):
    """The resident memory of a process and its descendants, in bytes, and what else they use."""

    python: int  # the Python process and all other processes except JVMs
    jvm: int
    shared: int
    files: int  # file pages, in each process that maps them; not part of the total
    threads: int = 0
    cpu_s: float = 0.0  # CPU time of the processes that are alive

    @property
    def total(self) -> int:
        return self.python + self.jvm + self.shared


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMemory:
    """The memory of a slot by part, in bytes. None: not known yet, or the JVM does not respond.

    `resident` divides what counts against the limit. The heap and the other memory that the JVM
    reports are within its resident memory; reserved pages that it has not touched are not resident.
    """

    limit: int
    resident: TreeMemory | None
    jvm_heap_used: int | None
    jvm_heap_committed: int | None
    jvm_heap_max: int | None
    jvm_non_heap_used: int | None  # metaspace and compiled code
    jvm_non_heap_committed: int | None
    jvm_direct_used: int | None  # direct buffers
    managed_used: int | None = None  # for state, within `resident.python`
    managed_total: int | None = None

    def samples(self, labels: Mapping[str, str]) -> list[Sample]:
        """Returns the parts that its process does not report itself."""
        parts = {"Limit": self.limit}
        if self.resident is not None:
            parts |= {
                "Total": self.resident.total,
                "JVM": self.resident.jvm,
                "Python": self.resident.python,
                "Shared": self.resident.shared,
            }
        return [Sample(_SLOT + name, labels, value) for name, value in parts.items()]


def slot_memory(
    *, limit: int, resident: TreeMemory | None, reported: Iterable[Sample]
) -> SlotMemory:
    """Combines a measured tree with the samples that the slot's process reports of its JVM."""
    values = {
        name.removeprefix(JVM_STATUS): int(value)
        for name, _, value in reported
        if name.startswith((JVM_STATUS, MANAGED_MEMORY))
    }
    return SlotMemory(
        limit=limit,
        resident=resident,
        jvm_heap_used=values.get("Memory_Heap_Used"),
        jvm_heap_committed=values.get("Memory_Heap_Committed"),
        jvm_heap_max=values.get("Memory_Heap_Max"),
        jvm_non_heap_used=values.get("Memory_NonHeap_Used"),
        jvm_non_heap_committed=values.get("Memory_NonHeap_Committed"),
        jvm_direct_used=values.get("Memory_Direct_MemoryUsed"),
        managed_used=values.get(f"{MANAGED_MEMORY}Used"),
        managed_total=values.get(f"{MANAGED_MEMORY}Total"),
    )


def tree_memory(roots: Sequence[int]) -> dict[int, TreeMemory]:
    """Returns the resident memory of each root and its descendants, without roots that have
    died.
    """
    children: dict[int, list[int]] = {}
    stats = _stats()
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    used: dict[int, TreeMemory] = {}
    for root in roots:
        if root not in stats:
            continue
        waiting, python, jvm, shared, files = [root], 0, 0, 0, 0
        threads, cpu_s = 0, 0.0
        while waiting:
            pid = waiting.pop()
            process = _process_memory(pid)
            if process.is_jvm:
                jvm += process.own
            else:
                python += process.own
            shared = max(shared, process.shared)
            files += process.files
            threads += stats[pid].threads
            cpu_s += stats[pid].cpu_s
            waiting += children.get(pid, ())
        used[root] = TreeMemory(python, jvm, shared, files, threads, cpu_s)
    return used


class _ProcessMemory(NamedTuple):
    """The bytes of a process's resident anonymous, file and shared memory pages."""

    own: int = 0
    files: int = 0
    shared: int = 0
    is_jvm: bool = False


def _process_memory(pid: int) -> _ProcessMemory:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            status = file.read()
        own, files, shared = (
            1024 * int(status.partition(name)[2].split(maxsplit=1)[0])
            for name in (b"RssAnon:", b"RssFile:", b"RssShmem:")
        )
    except (OSError, IndexError, ValueError):  # the process has just ended
        return _ProcessMemory()
    return _ProcessMemory(own, files, shared, is_jvm=status.startswith(b"Name:\t" + _JVM + b"\n"))


class _Stat(NamedTuple):
    parent: int
    cpu_s: float
    threads: int


def _stats() -> dict[int, _Stat]:
    """Returns the parent, the CPU time and the number of threads of every process on this
    machine.
    """
    stats: dict[int, _Stat] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/stat", "rb") as file:
                # The name, in parentheses, may contain spaces and parentheses.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # the process has just ended
        ticks = int(fields[11]) + int(fields[12])
        stats[int(entry.name)] = _Stat(int(fields[1]), ticks / _TICKS_PER_S, int(fields[17]))
    return stats
