"""Runs many random cases, on a cluster that it starts, beside Spark.

    python -m tests.fuzz.run --seed 17 --count 100

Prints each case whose results differ, and ends with an error if there was one.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click
import pyarrow as pa
from pyspark.sql import SparkSession

from firesteel import DataStream
from firesteel.client.cluster import LocalCluster
from firesteel.client.execution_context import ExecutionContext, active
from firesteel.common.config import Configuration

from .case import Case, draw

SLOTS_WARM_S = 600.0
HARMLESS = ("equal", "refused", "both fail")


def reference_spark() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # of Spark's workers
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.driver.memory", "1g")
        # Spark's pushed-down filters on Parquet take 0.0 and -0.0 for different values.
        .config("spark.sql.parquet.filterPushdown", False)
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def collect(stream: DataStream) -> pa.Table:
    return stream.execute_and_collect("fuzz")


@click.command()
@click.option("--seed", default=lambda: random.randrange(10**6), type=int, help="The first seed.")
@click.option("--count", default=100, show_default=True, help="The number of seeds.")
@click.option("--show", is_flag=True, help="Print each case before it runs.")
@click.option("--address", help="The Dispatcher of a running cluster; by default, one is started.")
def main(seed: int, count: int, show: bool, address: str | None) -> None:
    """Compares random programs on random tables with Spark's batch engine."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fs-fuzz-")))
        spark = reference_spark()
        stack.callback(spark.stop)
        if address is None:
            conf = Configuration.load(overrides={"metrics.reporter.prom.port": "0"})
            cluster = LocalCluster(conf, task_executors=2, slots=2, directory=folder / "cluster")
            stack.enter_context(cluster)
            cluster.wait_for_slots(timeout_s=SLOTS_WARM_S)
            address = cluster.address
        stack.enter_context(active(ExecutionContext(mode="remote", address=address)))
        outcomes = Counter(
            outcome(draw(number), spark, folder, show) for number in range(seed, seed + count)
        )
    click.echo(", ".join(f"{n} {kind}" for kind, n in outcomes.most_common()))
    sys.exit(any(kind not in HARMLESS for kind in outcomes))


def outcome(case: Case, spark: SparkSession, folder: Path, show: bool) -> str:
    """Runs one case and returns the kind of its outcome; prints the case if the results differ."""
    if show:
        click.echo(str(case))
    files = folder / str(case.seed)
    files.mkdir()
    said = case.check(spark, files, collect)
    shutil.rmtree(files)
    if said:
        click.echo(f"{case}\n  -> {said}")
    return said.split(":")[0] if said else "equal"


if __name__ == "__main__":
    main()
