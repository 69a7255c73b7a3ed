"""Finds the rows of many keys by key and time.

A run holds row numbers, sorted by key number, time and row number. A bundle of rows becomes a new
run, and runs of similar size are merged, so that each row is merged only a few times. A lookup is a
binary search in a few runs, for all keys of a bundle together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from taskexecutor.executor.columnar.grouping.grouping import Ints

_LEAST = -(2**63)


class Run(NamedTuple):
    """Sorted by key, then time, then row number. Its arrays never change."""

    keys: Ints
    times: Ints
    places: Ints


def with_run(runs: Sequence[Run], last: Run) -> list[Run]:
    """Adds a run. `runs` are in the order of row numbers; `last` holds the row numbers after
    them.
    """
    before, like_size = list(runs), [last]
    while before and len(before[-1].keys) <= 2 * sum(len(run.keys) for run in like_size):
        like_size.insert(0, before.pop())
    return [*before, merged(like_size)]


def merged(runs: Sequence[Run]) -> Run:
    joined = Run(*(np.concatenate(columns) for columns in zip(*runs, strict=True)))
    order = np.lexsort((joined.times, joined.keys))
    return Run(*(column[order] for column in joined))


def between(run: Run, numbers: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Returns for each key the start and the number of its rows with times from `low` to `high` in
    the run.
    """
    first, last = _of_keys(run, numbers)
    first, last = (
        _bisected(run.times, low, first, last, after=False),
        _bisected(run.times, high, first, last, after=True),
    )
    return first, np.maximum(last - first, 0)


def latest(runs: Sequence[Run], numbers: Ints, times: Ints) -> tuple[Ints, Ints]:
    """Returns the row number and the time of each key's latest row that is not after a time; of
    rows with equal times, the last one. The row number is -1 if there is none.
    """
    places = np.full(len(numbers), -1)
    found = np.full(len(numbers), _LEAST)
    for run in runs:
        first, last = _of_keys(run, numbers)
        at = _bisected(run.times, times, first, last, after=True) - 1
        queries = np.flatnonzero(at >= first)
        queries = queries[run.times[at[queries]] >= found[queries]]
        found[queries] = run.times[at[queries]]
        places[queries] = run.places[at[queries]]
    return places, found


def superseded(run: Run, time: int) -> Ints:
    """Returns the rows that are not their key's latest at this time or any later one."""
    next_is_not_after = (run.keys[1:] == run.keys[:-1]) & (run.times[1:] <= time)
    places: Ints = run.places[:-1][next_is_not_after]
    return places


def _of_keys(run: Run, numbers: Ints) -> tuple[Ints, Ints]:
    return (
        np.searchsorted(run.keys, numbers, "left"),
        np.searchsorted(run.keys, numbers, "right"),
    )


def _bisected(times: Ints, wanted: Ints, low: Ints, high: Ints, *, after: bool) -> Ints:
    """Returns the index at which to insert a time into each range of times: before or after equal
    times.
    """
    low, high = low.copy(), high.copy()
    rows = np.flatnonzero(low < high)
    while len(rows):
        middle = (low[rows] + high[rows]) // 2
        found = times[middle]
        below = found <= wanted[rows] if after else found < wanted[rows]
        low[rows[below]] = middle[below] + 1
        high[rows[~below]] = middle[~below]
        rows = rows[low[rows] < high[rows]]
    return low
