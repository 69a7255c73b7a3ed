"""Drawn queries on Spark's own engine and on Firesteel: results and refusals are equal, over the
first rows and after a restart with more of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Session, firesteel
from tests.e2e.spark_connect.drawn_queries import SIDES, query
from tests.long import long_after

PROGRAM = Path(__file__).with_name("drawn_program.py")
QUERIES = 8  # of one start of both engines
# Seeds of rows, and of queries over them.
DRAWN = [
    (0, range(QUERIES // 2)),
    (0, range(QUERIES // 2, QUERIES)),
    *((first, range(first, first + QUERIES)) for first in range(QUERIES, 20 * QUERIES, QUERIES)),
    *(
        (first, range(first, first + QUERIES))
        for first in range(SIDES, SIDES + 10 * QUERIES, QUERIES)
    ),
]
AT_A_TIME = 2
RUN_S = 1_500.0
# The reference does not compile each of its small plans.
INTERPRETED = (
    "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN"
    " pyspark-shell"
)


@pytest.mark.long  # test_same_results.py compares queries of each kind
@pytest.mark.parametrize("drawn", long_after(1, DRAWN), ids=lambda drawn: f"{drawn[1][0]}")
def test_drawn_queries_have_the_results_of_spark(
    session: Session, drawn: tuple[int, range], tmp_path: Path
) -> None:
    rows, seeds = drawn
    numbers = [str(number) for number in (rows, AT_A_TIME, *seeds)]
    spark, ours = tmp_path / "spark", tmp_path / "firesteel"
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), str(spark), *numbers],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": INTERPRETED},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    run = firesteel(
        *("run", "-m", session.address, "-p", "1", str(PROGRAM), str(ours), *numbers),
        timeout_s=RUN_S,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    expected, found = ({seed: _results(folder, seed) for seed in seeds} for folder in (spark, ours))
    different = [
        f"seed {seed}, {query(seed).mode}: {query(seed).text}\n"
        f"  Spark: {expected[seed]}\n  Firesteel: {found[seed]}"
        for seed in expected
        if _outcomes(found[seed]) != _outcomes(expected[seed])
    ]
    assert not different, "\n".join(different)
    assert any("rows" in each and each["rows"] for runs in found.values() for each in runs)


def _results(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Returns the results of both runs of a query."""
    return [json.loads((folder / f"result-{seed}-{run}.json").read_text()) for run in range(2)]


def _outcomes(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in run.items() if name != "why"} for run in runs]
