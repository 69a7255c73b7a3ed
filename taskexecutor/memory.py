"""How much memory process trees hold, read from /proc. A slot's tree is its Python, its JVM and
Spark's Python workers.

Python and its JVM hand rows over in shared memory, which counts as resident in both of them. It
takes its pages only once, so of a tree only the process that has most of it mapped counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(roots: Sequence[int]) -> dict[int, int]:
    """Resident memory of each root with all its descendants; roots that have died are left out."""
    parents, resident = _processes()
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    used: dict[int, int] = {}
    for root in roots:
        if root not in parents:
            continue
        waiting, total, most_shared = [root], 0, 0
        while waiting:
            pid = waiting.pop()
            shared = _shared_memory_bytes(pid)
            total += max(0, resident[pid] - shared)
            most_shared = max(most_shared, shared)
            waiting += children.get(pid, ())
        used[root] = total + most_shared
    return used


def _shared_memory_bytes(pid: int) -> int:
    """Resident pages of shared memory; those of files (code, Spark's classes) are not among
    them.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return 1024 * int(file.read().partition(b"RssShmem:")[2].split(maxsplit=1)[0])
    except (OSError, IndexError, ValueError):  # it has just ended
        return 0


def _processes() -> tuple[dict[int, int], dict[int, int]]:
    """Parent and resident bytes of every process on this machine, in one pass."""
    parents: dict[int, int] = {}
    resident: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/stat", "rb") as file:
                # The name, in parentheses, may contain spaces and parentheses.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it has just ended
        pid = int(entry.name)
        parents[pid] = int(fields[1])
        resident[pid] = int(fields[21]) * PAGE_BYTES
    return parents, resident
