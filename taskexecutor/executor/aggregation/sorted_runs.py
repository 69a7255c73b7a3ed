"""Which numbers a key has, for keys that get more and more of them."""

from __future__ import annotations

import numpy as np

from taskexecutor.executor.aggregation.grouping import Ints
from taskexecutor.executor.aggregation.ranked_rows import ranges


class SortedRuns:
    """Pairs of a key and a number, in runs that are sorted by key. A bundle is a new run, and runs
    are merged when they are of like size: each pair a few times.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Ints, Ints]] = []

    def add(self, keys: Ints, numbers: Ints) -> None:
        order = np.argsort(keys, kind="stable")
        run = keys[order], numbers[order]
        while self._runs and len(self._runs[-1][0]) <= 2 * len(run[0]):
            run = _merged(self._runs.pop(), run)
        self._runs.append(run)

    def find(self, keys: Ints) -> tuple[Ints, Ints]:
        """All pairs of these keys, which are different ones, in no particular order."""
        owners, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for of_run, its in self._runs:
            first = np.searchsorted(of_run, keys, "left")
            counts = np.searchsorted(of_run, keys, "right") - first
            owners.append(np.repeat(keys, counts))
            numbers.append(its[ranges(first, counts)])
        return np.concatenate(owners), np.concatenate(numbers)


def _merged(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    keys, numbers = (np.concatenate(both) for both in zip(one, other, strict=True))
    order = np.argsort(keys, kind="stable")
    return keys[order], numbers[order]
