"""The watermark of a query in the state of operators that forget keys by it.

It is state, because forgotten keys must stay late after a restore. A subtask that continues keeps
its watermark. If the parallelism has changed, all continue at the latest one: keys up to it may
have been forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.operator import TaskInfo

FIRST_WATERMARK_US = 0  # Spark's watermark before any row


def kept_watermark(watermark_us: int, task: TaskInfo) -> list[tuple[int, int, int]]:
    """Returns the items of union list state that `restored_watermark` reads."""
    return [(task.subtask, task.parallelism, watermark_us)]


def restored_watermark(items: Sequence[tuple[int, int, int]], task: TaskInfo) -> int:
    """Returns the watermark at which the subtask continues."""
    mine = (task.subtask, task.parallelism)
    own = [watermark_us for *of, watermark_us in items if tuple(of) == mine]
    every = [watermark_us for *_, watermark_us in items]
    return max(own or every, default=FIRST_WATERMARK_US)
