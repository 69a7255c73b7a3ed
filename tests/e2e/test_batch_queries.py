"""The batch benchmark's programs have the results of the same queries in Spark's SQL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.batch import data, protocol
from benchmarks.batch.programs import PROGRAMS, tables
from firesteel import Environment
from firesteel.connectors import FileSink

from .conftest import Session


@pytest.mark.long  # test_nexmark.py and spark_connect compare other queries
def test_programs_have_the_results_of_sql(session: Session, tmp_path: Path) -> None:
    given = tmp_path / "tables"
    for size, scale in ((protocol.SMALL, 0.02), (protocol.TIMED, 0.001)):  # the second unread
        data.write(given / size, scale)
    spark = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.batch.run_spark", given, tmp_path / "sql", *PROGRAMS],
        stdout=subprocess.PIPE,
        text=True,
    )
    with spark:
        env = Environment(mode="batch", parallelism=2)
        source = tables(env, given / protocol.SMALL)
        for name, program in PROGRAMS.items():
            sink = FileSink(str(tmp_path / "ours" / protocol.SMALL / name), "parquet")
            program(source).sink_to(sink)
        session.run(env, "queries")
        said, _ = spark.communicate()
    assert said.count("end ") == len(PROGRAMS), said
    for name in PROGRAMS:
        ours, sql = (
            protocol.result(tmp_path / engine, protocol.SMALL, name) for engine in ("ours", "sql")
        )
        assert sql and ours == sql, name
