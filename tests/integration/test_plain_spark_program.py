"""`firesteel run` of a program of Firesteel that uses Spark itself and executes no job."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from firesteel.client.cli import main

from .conftest import Slot


def test_run_says_where_a_spark_program_ran_and_ends_as_it_does(slot: Slot, tmp_path: Path) -> None:
    slot.spark()  # the session that the program gets
    program = tmp_path / "plain.py"
    program.write_text(
        "import sys\n"
        "import firesteel\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "print(spark.range(7).count(), 'rows')\n"
        "sys.exit(5)\n"
    )
    result = CliRunner().invoke(main, ["run", "-t", "local", str(program)])
    assert result.exit_code == 5
    assert "7 rows" in result.stdout
    assert (
        "plain.py ran as an ordinary Python program in this process on its own Spark (local[1])."
        " It submitted no job to Firesteel"
    ) in result.stderr


DESCRIBED = """
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.sql("CREATE OR REPLACE TEMP VIEW described AS SELECT * FROM range(9)")
df = spark.sql("SELECT id, id % 3 AS k FROM described").groupBy("k").count()
rdd = spark.sparkContext.parallelize([(2, "b"), (1, "a")]).sortByKey()
rows = spark.createDataFrame(rdd, ["n", "letter"])
"""


def test_info_shows_the_plan_of_a_program_with_its_own_session(slot: Slot, tmp_path: Path) -> None:
    slot.spark()
    program = tmp_path / "job.py"
    program.write_text(
        DESCRIBED + "from firesteel import Environment\n"
        "env = Environment()\n"
        "env.from_sequence(0, len(rows.columns)).print()\n"
        "env.execute('numbers')\n"
        "df.count()\n"
    )
    result = CliRunner().invoke(main, ["info", str(program)])
    assert result.exit_code == 0, result.output
    assert "numbers" in result.output


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("df.collect()", "DataFrame.collect()"),
        ("df.count()", "DataFrame.count()"),
        ("df.show()", "DataFrame.show()"),
        ("df.toPandas()", "DataFrame.toPandas()"),
        ("df.foreach(print)", "DataFrame.foreach()"),
        ("df.write.mode('overwrite').parquet(effect)", "DataFrameWriter.parquet()"),
        ("df.write.save(effect)", "DataFrameWriter.save()"),
        ("df.writeTo('t').create()", "DataFrameWriterV2.create()"),
        ("spark.sql('CREATE TABLE t AS SELECT 1')", "SparkSession.sql() with a statement"),
        ("rdd.map(str).saveAsTextFile(effect)", "RDD.saveAsTextFile()"),
        ("rows.rdd.count()", "RDD.count()"),
        (
            "spark.readStream.format('rate').load().writeStream.format('console').start()",
            "DataStreamWriter.start()",
        ),
    ],
)
@pytest.mark.parametrize("guard", ["except Exception: pass", "finally: unknown.stop()"])
def test_info_refuses_an_action_before_it_runs(
    slot: Slot, tmp_path: Path, line: str, action: str, guard: str
) -> None:
    session = slot.spark().session
    program = tmp_path / "job.py"
    effect = tmp_path / "effect"
    program.write_text(
        f"{DESCRIBED}effect = {str(effect)!r}\n"
        f"try:\n    {line}\n    Path(effect).mkdir()\n{guard}\n"
    )
    result = CliRunner().invoke(main, ["info", str(program)])
    assert result.exit_code == 1
    assert action in result.output
    assert f"in job.py, line 12:\n    {line}" in result.output
    assert "NameError" not in result.output
    assert not effect.exists()
    assert not session.streams.active
