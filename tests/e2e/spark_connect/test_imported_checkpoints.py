"""A query that Spark's own engine has started, and that continues on Firesteel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pytest

from tests.e2e.conftest import WARM_S, Session, firesteel
from tests.e2e.spark_connect.test_programs import write
from tests.kafka.broker import Kafka
from tests.kafka.records import Record, create_topic, produce

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

# Spark 4.3 writes these files for a query that reads the topics A and B. Its batch 0 is complete.
OF_KAFKA = {
    "metadata": '{"id":"fe38e723-0cfe-404b-bb40-9af25170fd57"}',
    "sources/0/0": '\0v1\n{"A":{"0":0,"1":0},"B":{"0":0}}',
    "offsets/0": 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1795904233880,"conf":{}}\n'
    '{"A":{"0":3,"1":0},"B":{"0":5}}',
    "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
}
READS_KAFKA = """
    import sys

    from pyspark.sql import SparkSession

    servers, topics, folder = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    rows = rows.option("subscribe", topics).option("startingOffsets", "latest").load()
    rows = rows.selectExpr("CAST(CAST(value AS STRING) AS LONG) AS n")
    writer = rows.writeStream.option("checkpointLocation", f"{folder}/new")
    query = writer.trigger(availableNow=True).start(f"{folder}/out")
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


@pytest.mark.long  # unit tests import positions of topics
def test_topics_continue_after_the_last_complete_batch(
    session: Session, kafka: Kafka, tmp_path: Path
) -> None:
    """Whatever the program says about where a new query starts."""
    one, other = create_topic(kafka, partitions=2), create_topic(kafka)
    for name, text in OF_KAFKA.items():
        (tmp_path / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path, f"old/{name}", text.replace('"A"', f'"{one}"').replace('"B"', f'"{other}"'))
    imported = firesteel("import-spark-checkpoint", str(tmp_path / "old"), str(tmp_path / "new"))
    assert imported.returncode == 0, imported.stderr
    program = write(tmp_path, "program.py", READS_KAFKA)
    arguments = (str(program), kafka.bootstrap, f"{one},{other}", str(tmp_path))
    for first in (0, 12):  # the second run continues from Firesteel's own savepoint
        for topic, partition, numbers in (
            (one, 0, range(first, first + 4)),
            (one, 1, range(first + 4, first + 6)),
            (other, 0, range(first + 6, first + 12)),
        ):
            values = (str(number).encode() for number in numbers)
            produce(kafka, topic, [Record(value=value, partition=partition) for value in values])
        done = firesteel("run", "-m", session.address, *arguments)
        assert done.returncode == 0, done.stderr
        assert "id fe38e723-0cfe-404b-bb40-9af25170fd57" in done.stdout
        assert _rows(tmp_path / "out") == [3, 4, 5, 11, *range(12, first + 12)]


def _rows(folder: Path) -> list[int]:
    files = pyarrow.dataset.dataset(folder, format="parquet")
    return sorted(row["n"] for row in files.to_table().to_pylist())
