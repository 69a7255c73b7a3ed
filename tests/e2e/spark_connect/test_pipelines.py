"""A declarative pipeline, run by Firesteel and by Spark's own engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from tests.e2e.conftest import ROOT, WARM_S, Session, firesteel
from tests.e2e.spark_connect.test_programs import write
from tests.long import long_after

SPEC = """
    name: shop
    storage: {storage}
    libraries:
      - glob:
          include: definitions/**
"""
TABLES = """
    from pyspark import pipelines as dp
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    from prices import is_cheap
    from pyspark.sql.types import BooleanType

    spark = SparkSession.active()
    cheap_price = F.udf(is_cheap, BooleanType())

    @dp.table
    def orders():
        schema = "id long, product string, price double"
        return spark.readStream.schema(schema).json("{folder}/in")

    @dp.temporary_view
    def priced():
        return spark.readStream.table("orders").withColumn("price", F.col("price").cast("double"))

    @dp.table
    def cheap():
        return spark.readStream.table("priced").where(cheap_price("price"))

    dp.create_streaming_table("ids")

    @dp.append_flow(target="ids")
    def ids_of_orders():
        return spark.readStream.table("orders").select("id", F.lit("all").alias("of"))

    @dp.append_flow(target="ids")
    def ids_of_cheap():
        return spark.readStream.table("cheap").select("id", F.lit("cheap").alias("of"))

    @dp.temporary_view
    def sold():
        return spark.read.table("cheap").groupBy("product").agg(F.sum("price").alias("total"))

    @dp.materialized_view
    def labels():
        return spark.read.table("cheap").withColumn("label", F.lit("cheap"))

    @dp.materialized_view
    def totals():
        return spark.read.table("sold").withColumn("currency", F.lit("EUR"))
"""
SQL = """
    CREATE STREAMING TABLE dear AS SELECT id, product FROM STREAM orders WHERE price >= 10;
    CREATE MATERIALIZED VIEW counts AS SELECT product, count(*) AS n FROM orders GROUP BY product;
"""
BROKEN = """
    from pyspark import pipelines as dp
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType

    spark = SparkSession.active()

    @F.udf(LongType())
    def breaks(id):
        raise ValueError("no such order")

    @dp.table
    def broken():
        return spark.readStream.table("orders").select(breaks("id").alias("id"))

    @dp.materialized_view
    def after_broken():
        return spark.read.table("broken")
"""
ORDERS = [
    {"id": 1, "product": "a", "price": 3.5},
    {"id": 2, "product": "b", "price": 20.0},
    {"id": 3, "product": "a", "price": 4.5},
]
TABLES_OF_ORDERS = {
    "orders": ORDERS,
    "cheap": [ORDERS[0], ORDERS[2]],
    "labels": [ORDERS[0] | {"label": "cheap"}, ORDERS[2] | {"label": "cheap"}],
    "totals": [{"product": "a", "total": 8.0, "currency": "EUR"}],
    "dear": [{"id": 2, "product": "b"}],
    "counts": [{"product": "a", "n": 2}, {"product": "b", "n": 1}],
}


@pytest.mark.parametrize("compared", long_after(1, [False, True]), ids=["alone", "with Spark's"])
def test_a_pipeline_has_the_tables_that_spark_computes(
    session: Session, tmp_path: Path, compared: bool
) -> None:
    project, inputs = tmp_path / "project", tmp_path / "in"
    for folder in (project / "definitions", inputs, tmp_path / "ours", tmp_path / "sparks"):
        folder.mkdir(parents=True)
    write(project, "prices.py", "def is_cheap(price):\n    return price < 10\n")
    write(project, "definitions/tables.py", TABLES.format(folder=tmp_path))
    write(project, "definitions/views.sql", SQL)
    broken = write(project, "definitions/broken.py", BROKEN)
    spec = write(project, "spark-pipeline.yml", SPEC.format(storage=f"file://{tmp_path}/storage"))
    arguments = [
        *("-m", session.address, "--spec", str(spec)),
        *("-D", "spark.sql.catalogImplementation=hive"),
    ]

    write(inputs, "1.json", '{"id": 1, "product": "a", "price": 3.5}\n')
    failed = firesteel("pipelines", "run", *arguments, cwd=tmp_path / "ours")
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert 'raise ValueError("no such order")' in failed.stderr
    assert "broken.py" in failed.stderr
    assert "after_broken' SKIPPED due to upstream failure(s)" in failed.stdout
    assert "Flow spark_catalog.default.totals has COMPLETED." in failed.stdout
    assert "Run is FAILED." in failed.stdout

    broken.unlink()
    rows = ('{"id": 2, "product": "b", "price": 20}', '{"id": 3, "product": "a", "price": 4.5}')
    write(inputs, "2.json", "\n".join(rows) + "\n")
    completed = firesteel("pipelines", "run", *arguments, cwd=tmp_path / "ours")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "Run is COMPLETED." in completed.stdout

    for name, rows in TABLES_OF_ORDERS.items():
        assert _rows(tmp_path / "ours/spark-warehouse" / name) == sorted(map(str, rows)), name
    if compared:
        shutil.rmtree(tmp_path / "storage")  # Spark starts over
        _run_by_spark(spec, tmp_path / "sparks")
        for name, rows in TABLES_OF_ORDERS.items():
            assert _rows(tmp_path / "sparks/spark-warehouse" / name) == sorted(map(str, rows)), name
    # Spark drops the rows of the second flow: both write batch 0 to one log of files.
    found = {(row["id"], row["of"]) for row in _table(tmp_path / "ours/spark-warehouse/ids")}
    assert found == {(1, "all"), (2, "all"), (3, "all"), (1, "cheap"), (3, "cheap")}


@pytest.mark.long
def test_only_tables_of_the_pipeline_are_refreshed(session: Session, tmp_path: Path) -> None:
    (tmp_path / "definitions").mkdir()
    write(tmp_path, "definitions/views.sql", "CREATE MATERIALIZED VIEW one AS SELECT 1 AS n;")
    spec = write(tmp_path, "spark-pipeline.yml", SPEC.format(storage=f"file://{tmp_path}/storage"))
    arguments = ("-m", session.address, "--spec", str(spec), "--refresh", "one,two")
    typo = firesteel("pipelines", "run", *arguments, cwd=tmp_path)
    assert typo.returncode == 1, typo.stdout + typo.stderr
    assert "the pipeline has no table two to refresh: its tables are" in typo.stderr
    assert "spark_catalog.default.one" in typo.stderr


def _run_by_spark(spec: Path, folder: Path) -> None:
    program = "import sys; from pyspark.pipelines import cli; sys.argv[0] = 'x'; cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "--spec", str(spec)],
        cwd=folder,
        env={
            **os.environ,
            "SPARK_REMOTE": "local[2]",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": f"{ROOT}:{spec.parent}",
        },
        capture_output=True,
        text=True,
        timeout=WARM_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _rows(folder: Path) -> list[str]:
    return sorted(map(str, _table(folder)))


def _table(folder: Path) -> list[dict[str, Any]]:
    return pyarrow.dataset.dataset(folder, format="parquet").to_table().to_pylist()
