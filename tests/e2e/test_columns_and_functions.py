"""PySpark's functions at module level: columns, and user-defined functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Session, firesteel

_PROGRAM = """
import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.functions import pandas_udf, udf
from pyspark.sql.types import LongType, StringType

import shouting  # ships with the job


@F.udf("string")
def parity(n):
    return "even" if n % 2 == 0 else "odd"


@udf(returnType=StringType())
def named(n):
    return f"number {n}"


@pandas_udf("double")
def half(values: pd.Series) -> pd.Series:
    return values / 2


LARGE = F.col("value") >= 10
PARITY = parity("value")


def described(df):
    return (
        df.where(LARGE & (df.value < 90))
        .withColumn("name", shouting.loud(named(df.value)))
        .withColumn("parity", PARITY)
    )


from firesteel import Environment, Tumbling

env = Environment(parallelism=2)
env.add_python_file("shouting.py")
numbers = env.from_sequence(0, 100).transform(described)
numbers = numbers.with_column("half", half("value").cast(LongType())).select("*", named("value").alias("n"))
numbers = numbers.filter((F.col("name") != "NUMBER 10") & (parity("value") == "even"))
rows = (
    numbers.key_by("parity")
    .window(Tumbling("1 day", processing_time=True))
    .aggregate(
        F.sum("value").alias("s"),
        F.count("*").alias("n"),
        (F.max(F.when(F.col("half") > 20, F.col("value"))) + 1).alias("m"),
        F.median("value").alias("middle"),
    )
    .execute_and_collect("columns")
)
totals = rows.to_pandas().groupby("parity")[["s", "n", "m"]].agg({"s": "sum", "n": "sum", "m": "max"})
even = range(12, 90, 2)
assert totals.loc["even"].tolist() == [sum(even), len(even), 89], totals
assert len(totals) == 1
print("as expected")
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("first", ["firesteel", "pyspark"])
def test_functions_and_columns_of_module_level(
    session: Session, tmp_path: Path, first: str
) -> None:
    (tmp_path / "shouting.py").write_text(
        "from pyspark.sql import functions as F\n\n\n"
        '@F.udf("string")\ndef loud(text):\n    return text.upper()\n'
    )
    job = tmp_path / "job.py"
    job.write_text(
        ("from firesteel import Environment\n" if first == "firesteel" else "") + _PROGRAM
    )
    run = firesteel("run", "-m", session.address, str(job), cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "as expected" in run.stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('keyed.aggregate(F.max(loud("value")).alias("m"))', "loud() is a user-defined function"),
        ('F.udf(len, "strin")', "'strin' is not a type"),
        (
            'keyed.aggregate(F.sum("value").withField("a", F.lit(1)).alias("m"))',
            "write the expression as SQL",
        ),
    ],
)
def test_what_cannot_be_done_names_the_line(tmp_path: Path, line: str, message: str) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        "from firesteel import Environment\n"
        "from pyspark.sql import functions as F\n"
        '@F.udf("string")\ndef loud(text): return text\n'
        "keyed = Environment().from_sequence(0, 10).key_by('value')\n" + line + "\n"
    )
    run = firesteel("info", str(job), cwd=tmp_path)
    assert run.returncode == 1
    assert "job.py, line 6" in run.stderr
    assert message in run.stderr
