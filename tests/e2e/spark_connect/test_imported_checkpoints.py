"""A query that Spark's own engine has started, and that continues on Firesteel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset

from tests.e2e.conftest import WARM_S, Session, firesteel
from tests.e2e.spark_connect.test_programs import write

PROGRAM = """
    import json, sys

    import pyarrow.dataset as ds
    from pyspark.sql import SparkSession

    folder, *locations = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    for run, location in enumerate(locations):
        rows = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1)
        rows = rows.json(f"{folder}/in").selectExpr("n", "n * 2 AS twice")
        writer = rows.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", f"{folder}/{location}")
        try:
            query = writer.start(f"{folder}/out")
        except Exception as error:
            print("refused", error)
            continue
        query.awaitTermination()
        print("id", query.id)
        print("rows", sorted(ds.dataset(f"{folder}/out").to_table()["n"].to_pylist()))
        if location == "new":
            with open(f"{folder}/in/{run + 3}.json", "w") as file:
                file.write(json.dumps({"n": run + 3}) + "\\n")
"""


def test_files_continue_after_the_last_complete_batch(session: Session, tmp_path: Path) -> None:
    program = write(tmp_path, "program.py", PROGRAM)
    (tmp_path / "in").mkdir()
    for number in range(3):
        file = write(tmp_path, f"in/{number}.json", f'{{"n": {number}}}\n')
        os.utime(file, (1_700_000_000 + number,) * 2)  # Spark reads the oldest file first
    by_spark = subprocess.run(
        [sys.executable, str(program), str(tmp_path), "old"],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=WARM_S,
        check=False,
    )
    assert by_spark.returncode == 0, by_spark.stderr
    # As a crash leaves it after the sink has committed batch 2: the batch is not complete.
    for name in ("2", ".2.crc"):
        (tmp_path / "old" / "commits" / name).unlink()
    (tmp_path / "out" / "part-of-a-failed-task.parquet").write_bytes(b"PAR1")

    imported = firesteel(
        *("import-spark-checkpoint", "--output", str(tmp_path / "out")),
        *(str(tmp_path / "old"), str(tmp_path / "new")),
    )
    assert imported.returncode == 0, imported.stderr
    assert "2 incomplete files removed" in imported.stdout
    assert "source 0: 2 files read" in imported.stdout
    assert "Batch 2 was planned and is not complete: it is repeated." in imported.stdout
    assert _rows(tmp_path / "out") == [0, 1]

    # The second of the queries that continue does so from Firesteel's own savepoint.
    write(tmp_path, "in/3.json", '{"n": 3}\n')
    locations = ("old", "new", "new")
    arguments = ("run", "-m", session.address, str(program), str(tmp_path), *locations)
    done = firesteel(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    refused, found, continued = done.stdout.partition("id ")
    assert refused.lstrip().startswith("refused ") and found, done.stdout
    assert "firesteel import-spark-checkpoint" in refused
    [query_id] = re.findall("^id (.*)$", by_spark.stdout, re.M)
    assert re.findall("^(id|rows) (.*)$", found + continued, re.M) == [
        ("id", query_id),
        ("rows", "[0, 1, 2, 3]"),
        ("id", query_id),
        ("rows", "[0, 1, 2, 3, 4]"),
    ]
    assert _rows(tmp_path / "out") == list(range(5))


def _rows(folder: Path) -> list[int]:
    files = pyarrow.dataset.dataset(folder, format="parquet")
    return sorted(row["n"] for row in files.to_table().to_pylist())
