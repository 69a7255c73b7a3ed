"""How an engine runs the queries: each first on the small data, as a warm-up and to check the whole
result, and then timed on the large data.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.nexmark.oracle import check, expected, expected_of_join, is_join

QUERIES = (
    "q0", "q1", "q2", "q5", "q7", "q11", "q12", "q14", "q15", "q16", "q17", "q21", "q22",
)  # fmt: skip
# Queries that join streams, or have changes.
JOINS = ("q3", "q4", "q6", "q8", "q9", "q13", "q18", "q19", "q20")
# Spark's streams cannot aggregate or rank changes, or return the last row of a key.
SPARK_JOINS = ("q3", "q8", "q13", "q20")
# Flink has no OVER on changes (q6), and no lookup of a file (q13).
FLINK_JOINS = ("q3", "q4", "q8", "q9", "q18", "q19", "q20")
ROW_BY_ROW = ("q0", "q1", "q2", "q14", "q21", "q22")
PARQUET, CSV, GENERATED = "parquet", "csv", "generated"
# Folders of the data. The bids in LAST are an hour later than all others, to close Spark's windows.
# The oracle ignores them.
CHECK, TIMED, LAST = "check", "timed", "last"


def writes_parquet(query: str, kind: str) -> bool:
    """Returns whether the timed run writes its result as Parquet, instead of discarding it."""
    return kind == PARQUET and query in ROW_BY_ROW


def bids_in(data: Path) -> int:
    """Returns the number of bids for timing."""
    files = (data / TIMED / PARQUET / "bid").glob("*.parquet")
    return sum(pq.read_metadata(path).num_rows for path in files)


def run_all(
    data: Path,
    queries: Sequence[str],
    collect: Callable[[str], pa.Table],
    run: Callable[[str], object],
) -> None:
    """`collect` runs a query on the small data, `run` on the large data."""
    tables = [pq.read_table(data / CHECK / PARQUET / name) for name in ("bid", "auction", "person")]

    def checked(query: str) -> None:
        joins = is_join(query)
        right = expected_of_join(query, *tables) if joins else expected(query, tables[0])
        check(query, collect(query), right)

    run_each(queries, checked, run, bids_in(data))


def run_each(
    queries: Sequence[str],
    checked: Callable[[str], object],
    run: Callable[[str], object],
    count: int,
) -> None:
    """`checked` runs a query and checks its result, `run` runs it on `count` rows."""
    for query in queries:
        try:
            checked(query)
            print(f"begin {query}", flush=True)
            run(query)
            print(f"end {count}", flush=True)
        except Exception as error:  # the other queries are still measured
            traceback.print_exc()
            sys.stderr.flush()
            print(f"failed {query} {_reason(error)}", flush=True)


def _reason(error: Exception) -> str:
    """Returns one line; of Java's errors, the innermost cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]  # text only: what to print
    return (causes or lines[:1] or [type(error).__name__])[-1]
