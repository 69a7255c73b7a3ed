"""The work that all engines do: the same numbers 0 <= n < rows, and what must come out, in closed form.

No engine's modules are imported here: the peers' environments have only their own.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_ROWS = 1_000_000  # per second of event time: number n is from microsecond n
KEEP_ONE_IN = 100  # filter_project


@dataclass(frozen=True)
class Work:
    name: str
    rows: int  # of the run that is timed
    check_rows: int  # of the run before it, whose whole result is checked; it warms the engine up, too
    keys: int = 0


WORKS = {
    work.name: work
    for work in (
        Work("filter_project", rows=200_000_000, check_rows=5_000_000),
        Work("keyed_aggregate_1k", rows=200_000_000, check_rows=5_000_000, keys=1_000),
        Work("keyed_aggregate_1m", rows=40_000_000, check_rows=5_000_000, keys=1_000_000),
        Work("window_aggregate", rows=100_000_000, check_rows=5_000_000, keys=1_000),
        Work("stateful_processor", rows=1_000_000, check_rows=20_000, keys=1_000),
    )
}


def expected(work: Work, rows: int) -> dict[str, int]:
    """What `digest` makes of a right result."""
    if work.name == "filter_project":
        kept = range(0, rows, KEEP_ONE_IN)
        return {"rows": len(kept), "sum": 2 * sum(kept)}
    windows = -(-rows // WINDOW_ROWS) if work.name == "window_aggregate" else 1
    groups = sum(min(work.keys, min(WINDOW_ROWS, rows - w * WINDOW_ROWS) if windows > 1 else rows) for w in range(windows))
    weighted = sum(key * len(range(key, rows, work.keys)) for key in range(min(work.keys, rows)))
    return {"groups": groups, "count": rows, "sum": rows * (rows - 1) // 2, "weighted": weighted}


def digest(work: Work, columns: dict[str, list[int]]) -> dict[str, int]:
    """Of final results. filter_project: `d`, twice the number. Others: `k`, `c` and `s`: key, count, sum, one row per group."""
    if work.name == "filter_project":
        return {"rows": len(columns["d"]), "sum": sum(columns["d"])}
    keys, counts = columns["k"], columns["c"]
    weighted = sum(key * count for key, count in zip(keys, counts, strict=True))
    return {"groups": len(keys), "count": sum(counts), "sum": sum(columns["s"]), "weighted": weighted}


def check(work: Work, columns: dict[str, list[int]], rows: int) -> None:
    """Ends the process if this is not what so many rows make."""
    found, right = digest(work, columns), expected(work, rows)
    if found != right:
        raise SystemExit(f"{work.name}: wrong result: {found} instead of {right}")


def begin() -> None:
    """The timed run begins."""
    print("begin", flush=True)


def end(rows: int) -> None:
    """It has ended, having taken in so many rows."""
    print(f"end {rows}", flush=True)
