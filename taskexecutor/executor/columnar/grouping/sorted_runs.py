"""Maps keys to growing sets of numbers."""

from __future__ import annotations

from typing import Literal

import numpy as np

from firesteel.operator import ColumnMemory
from taskexecutor.executor.column_memory import IN_MEMORY
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.columnar.grouping.ranked_rows import ranges

_AT_ONCE = 262_144  # pairs of a run


class SortedRuns:
    """Pairs of a key and a number, in runs sorted by key. A bundle becomes a new run, and runs of
    similar size are merged, so that each pair is merged only a few times.
    """

    def __init__(self, memory: ColumnMemory = IN_MEMORY) -> None:
        self._memory = memory
        self._runs: list[tuple[Ints, Ints]] = []

    def add(self, keys: Ints, numbers: Ints) -> None:
        order = np.argsort(keys, kind="stable")
        run = keys[order], numbers[order]
        while self._runs and len(self._runs[-1][0]) <= 2 * len(run[0]):
            run = _merged(self._runs.pop(), run, self._memory)
        self._runs.append(run)

    def find(self, keys: Ints) -> tuple[Ints, Ints]:
        """Returns all pairs of these distinct keys, in no particular order."""
        owners, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for of_run, its in self._runs:
            first = np.searchsorted(of_run, keys, "left")
            counts = np.searchsorted(of_run, keys, "right") - first
            owners.append(np.repeat(keys, counts))
            numbers.append(its[ranges(first, counts)])
        return np.concatenate(owners), np.concatenate(numbers)


def _merged(
    one: tuple[Ints, Ints], other: tuple[Ints, Ints], memory: ColumnMemory
) -> tuple[Ints, Ints]:
    count = len(one[0]) + len(other[0])
    keys, numbers = memory.empty(count, np.int64), memory.empty(count, np.int64)

    def write(run: tuple[Ints, Ints], beside: Ints, side: Literal["left", "right"]) -> None:
        for begin in range(0, len(run[0]), _AT_ONCE):
            some, its = (column[begin : begin + _AT_ONCE] for column in run)
            places = np.searchsorted(beside, some, side) + np.arange(begin, begin + len(some))
            keys[places], numbers[places] = some, its

    write(one, other[0], "left")
    write(other, one[0], "right")
    return keys, numbers
