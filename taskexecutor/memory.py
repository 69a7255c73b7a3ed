"""How much memory process trees hold, read from /proc. A slot's tree is its Python, its JVM and
Spark's Python workers.

Pages of files (code, Spark's classes, state in files) do not count: the operating system takes them
back when it needs memory. Python and its JVM hand rows over in shared memory, which counts as
resident in both of them. It takes its pages only once, so of a tree only the process that has most
of it mapped counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def resident_bytes(roots: Sequence[int], *, with_files: bool = False) -> dict[int, int]:
    """Resident memory of each root with all its descendants; roots that have died are left out.
    `with_files`: pages of files count, too, in each process that has them mapped.
    """
    children: dict[int, list[int]] = {}
    parents = _parents()
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    used: dict[int, int] = {}
    for root in roots:
        if root not in parents:
            continue
        waiting, total, most_shared = [root], 0, 0
        while waiting:
            pid = waiting.pop()
            own, files, shared = _memory_bytes(pid)
            total += own + files if with_files else own
            most_shared = max(most_shared, shared)
            waiting += children.get(pid, ())
        used[root] = total + most_shared
    return used


def _memory_bytes(pid: int) -> tuple[int, int, int]:
    """Resident pages of a process's own, those of files, and those of shared memory."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            status = file.read()
        own, files, shared = (
            1024 * int(status.partition(name)[2].split(maxsplit=1)[0])
            for name in (b"RssAnon:", b"RssFile:", b"RssShmem:")
        )
    except (OSError, IndexError, ValueError):  # it has just ended
        return 0, 0, 0
    return own, files, shared


def _parents() -> dict[int, int]:
    """The parent of every process on this machine."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/stat", "rb") as file:
                # The name, in parentheses, may contain spaces and parentheses.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it has just ended
        parents[int(entry.name)] = int(fields[1])
    return parents
