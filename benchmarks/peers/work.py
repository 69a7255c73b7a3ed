"""The work of all engines: the numbers 0 <= n < rows, and the expected results.

No engine's modules are imported here, because each peer's environment only has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

TIMER_MS = 1_000  # keyed_process: number n has time n ms; its timer fires this much later
WINDOW_ROWS = 1_000_000  # per second of event time: number n has time n us
KEEP_ONE_IN = 100  # filter_project

Columns = Mapping[str, Any]  # arrays or lists of integers, by name


@dataclass(frozen=True)
class Work:
    name: str
    rows: int  # of the timed run
    check_rows: (
        int  # of the run before it, whose whole result is checked; it warms the engine up, too
    )
    keys: int = 0
    updates: bool = False  # the result is a stream of updates by key, of which the last is valid


WORKS = {
    work.name: work
    for work in (
        Work("filter_project", rows=200_000_000, check_rows=5_000_000),
        Work(
            "keyed_aggregate_1k", rows=200_000_000, check_rows=2_000_000, keys=1_000, updates=True
        ),
        Work(
            "keyed_aggregate_1m",
            rows=40_000_000,
            check_rows=3_000_000,
            keys=1_000_000,
            updates=True,
        ),
        Work("window_aggregate", rows=200_000_000, check_rows=5_000_000, keys=1_000),
        Work("stateful_processor", rows=1_000_000, check_rows=20_000, keys=1_000, updates=True),
        Work("keyed_process", rows=1_000_000, check_rows=120_000, keys=100_000, updates=True),
    )
}


def expected(work: Work, rows: int) -> dict[str, np.ndarray]:
    """Returns the whole result, in any order. filter_project: the number and twice the number; the
    others: key, count and sum per key, or per key and window.
    """
    if work.name == "filter_project":
        kept = np.arange(0, rows, KEEP_ONE_IN)
        return {"v": kept, "d": 2 * kept}
    size = WINDOW_ROWS if work.name == "window_aggregate" else rows
    windows = [_groups(work.keys, start, min(start + size, rows)) for start in range(0, rows, size)]
    return {name: np.concatenate([window[name] for window in windows]) for name in "kcs"}


def _groups(keys: int, start: int, end: int) -> dict[str, np.ndarray]:
    """Aggregates the numbers start <= n < end by n modulo keys."""
    first = np.arange(
        start, min(start + keys, end)
    )  # of each group; the others follow at a distance of keys
    count = (end - 1 - first) // keys + 1
    return {"k": first % keys, "c": count, "s": count * first + keys * (count * (count - 1) // 2)}


def check(work: Work, columns: Columns, rows: int) -> None:
    """Exits unless the columns are, row by row, the expected result. Of updates, the last one of
    each key is compared.
    """
    right = expected(work, rows)
    found, wanted = (_table({name: source[name] for name in right}) for source in (columns, right))
    if work.updates:  # sorted by key and count; counts only grow
        found = found[np.flatnonzero(np.diff(found[:, 0], append=-1))]
    wrong = f"{work.name}: wrong result of {rows:,} numbers:"
    if len(found) != len(wanted):
        raise SystemExit(f"{wrong} {len(found):,} rows instead of {len(wanted):,}")
    if different := np.flatnonzero((found != wanted).any(axis=1)).tolist():
        at = different[0]
        raise SystemExit(
            f"{wrong} ({', '.join(right)}) is {tuple(found[at].tolist())}"
            f" instead of {tuple(wanted[at].tolist())}"
        )


def _table(columns: Columns) -> np.ndarray:
    """Returns the rows, sorted."""
    rows = np.stack([np.asarray(column, dtype=np.int64) for column in columns.values()], axis=1)
    return rows[np.lexsort(rows.T[::-1])]


def begin() -> None:
    """Reports the start of the timed run."""
    print("begin", flush=True)


def end(rows: int) -> None:
    """Reports its end, and the number of rows it has read."""
    print(f"end {rows}", flush=True)
