"""`firesteel run` of a program that uses Spark itself and executes no job."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from firesteel.client.cli import main

from .conftest import Slot


def test_run_says_where_a_spark_program_ran_and_ends_as_it_does(slot: Slot, tmp_path: Path) -> None:
    slot.spark()  # the session that the program gets
    program = tmp_path / "plain.py"
    program.write_text(
        "import sys\n"
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
