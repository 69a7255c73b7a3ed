"""How an engine runs the queries: first on small data as a warm-up, then timed. Both results are
written as Parquet; the results of all engines must be equal.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from benchmarks.batch.data import rows
from benchmarks.batch.programs import TABLES

SMALL, TIMED = "small", "timed"
ORDERED = ("q1", "q3", "q13", "q18")  # queries with ordered results


def run_all(arguments: Sequence[str], run: Callable[[str, Path, Path], object]) -> None:
    """`arguments` are DATA RESULTS QUERY...; `run(query, data, result)` runs a query."""
    data, results, queries = Path(arguments[0]), Path(arguments[1]), arguments[2:]
    count = sum(rows(data / TIMED, table) for table in TABLES)
    for query in queries:
        try:
            run(query, data / SMALL, results / SMALL / query)
            print(f"begin {query}", flush=True)
            run(query, data / TIMED, results / TIMED / query)
            print(f"end {count}", flush=True)
        except Exception as error:  # the others are still measured
            traceback.print_exc()
            sys.stderr.flush()
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            print(f"failed {query} {reason}", flush=True)


def result(results: Path, size: str, query: str) -> list[tuple[Any, ...]]:
    """Returns the rows, in their order if the query defines one."""
    table = ds.dataset(results / size / query, format="parquet").to_table()
    found = [tuple(row.values()) for row in table.to_pylist()]
    return found if query in ORDERED else sorted(found)
