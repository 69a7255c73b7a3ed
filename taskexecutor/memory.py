"""Measures the memory of process trees from /proc. A slot's tree is its Python process, its JVM and
Spark's Python workers.

Pages of files (code, Spark's classes, state in files) do not count, because the operating system
can reclaim them. Python and its JVM exchange rows in shared memory, which is resident in both
processes but occupies its pages once. Therefore only the process of a tree that maps the most
shared memory counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def resident_bytes(roots: Sequence[int], *, with_files: bool = False) -> dict[int, int]:
    """Returns the resident memory of each root and its descendants, without roots that have died.
    `with_files` also counts file pages, in each process that maps them.
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
    """Returns the bytes of the process's resident anonymous, file and shared memory pages."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            status = file.read()
        own, files, shared = (
            1024 * int(status.partition(name)[2].split(maxsplit=1)[0])
            for name in (b"RssAnon:", b"RssFile:", b"RssShmem:")
        )
    except (OSError, IndexError, ValueError):  # the process has just ended
        return 0, 0, 0
    return own, files, shared


def _parents() -> dict[int, int]:
    """Returns the parent of every process on this machine."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/stat", "rb") as file:
                # The name, in parentheses, may contain spaces and parentheses.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # the process has just ended
        parents[int(entry.name)] = int(fields[1])
    return parents
