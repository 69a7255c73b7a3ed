"""A query that Spark's own engine has started, and that continues on Firesteel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset

from tests.e2e.conftest import WARM_S, Session, firesteel
from tests.e2e.spark_connect.test_programs import write

PROGRAM = """
    import sys

    from pyspark.sql import SparkSession

    folder, location = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    rows = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(f"{folder}/in")
    writer = rows.selectExpr("n", "n * 2 AS twice").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{folder}/{location}").trigger(availableNow=True)
    query = writer.start(f"{folder}/out")
    query.awaitTermination()
    print("id", query.id)
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

    arguments = ("run", "-m", session.address, str(program), str(tmp_path))
    refused = firesteel(*arguments, "old", cwd=tmp_path)
    assert refused.returncode == 1
    assert "firesteel import-spark-checkpoint" in refused.stderr
    imported = firesteel(
        *("import-spark-checkpoint", "--output", str(tmp_path / "out")),
        *(str(tmp_path / "old"), str(tmp_path / "new")),
    )
    assert imported.returncode == 0, imported.stderr
    assert "2 incomplete files removed" in imported.stdout
    assert "source 0: 2 files read" in imported.stdout
    assert "Batch 2 was planned and is not complete: it is repeated." in imported.stdout
    assert _rows(tmp_path / "out") == [0, 1]

    # The second of these runs continues from Firesteel's own savepoint.
    for number in (3, 4):
        write(tmp_path, f"in/{number}.json", f'{{"n": {number}}}\n')
        done = firesteel(*arguments, "new", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == by_spark.stdout.splitlines()[-1]  # the id
        assert _rows(tmp_path / "out") == list(range(number + 1))


def _rows(folder: Path) -> list[int]:
    files = pyarrow.dataset.dataset(folder, format="parquet")
    return sorted(row["n"] for row in files.to_table().to_pylist())
