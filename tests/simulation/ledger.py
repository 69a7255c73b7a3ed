"""The committed output of jobs with checkpoints. Each source writes the splits that it reads to a
separate sink, in transactions: one ends with each snapshot, is part of it until it is committed,
and is committed once the checkpoint is complete, or by the task that restores it. So each split is
committed once, whatever happens (invariants 9 and 23).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.executor import SimulatedTask

Transaction = tuple[str, int, int]  # vertex, subtask, the checkpoint whose barrier ended it


class Ledger:
    def __init__(self) -> None:
        self._committed: dict[str, dict[Transaction, tuple[str, ...]]] = {}  # by job

    def commit(
        self, task: SimulatedTask, subtask: int, checkpoint_id: int, splits: Sequence[str]
    ) -> str:
        """`subtask`: that has read the splits. Returns what is wrong. A transaction that is
        committed already stays as it is.
        """
        committed = self._committed.setdefault(task.job_id, {})
        transaction = (task.vertex.vertex.vertex_id, subtask, checkpoint_id)
        if transaction not in committed:
            committed[transaction] = tuple(splits)
            count = Counter(split for splits in committed.values() for split in splits)
            doubled = [split for split in splits if count[split] > 1]
            return f"task {task.attempt_id} commits {doubled} again" if doubled else ""
        if committed[transaction] != tuple(splits):
            return (
                f"task {task.attempt_id} commits {splits} in checkpoint {checkpoint_id};"
                f" committed was {committed[transaction]}"
            )
        return ""

    def total(self) -> int:
        return sum(len(splits) for job in self._committed.values() for splits in job.values())

    def splits(self, job_id: str) -> Counter[str]:
        """How often each was committed."""
        return Counter(
            split for splits in self._committed.get(job_id, {}).values() for split in splits
        )
