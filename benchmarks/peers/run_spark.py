"""Runs Spark Structured Streaming, local[2]: `python -m benchmarks.peers.run_spark WORK`.

The source is `rate-micro-batch`, Spark's fastest: it generates consecutive numbers in large
micro-batches. State is in Spark's default store where possible, else in RocksDB. Checkpoints are in
shared memory.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.peers import work as peers
from benchmarks.peers.work import KEEP_ONE_IN, Work

# One or two seconds of work each: larger ones would be faster, but no longer a stream.
BATCH_ROWS = {
    "filter_project": 20_000_000,
    "keyed_aggregate_1k": 20_000_000,
    "keyed_aggregate_1m": 10_000_000,
    "window_aggregate": 20_000_000,
    "stateful_processor": 250_000,
}
CHECK_BATCHES = 5  # with whole windows
SHARED_MEMORY_BYTES = 2 * 2**30
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def session(temp_dir: str, jars: Sequence[str] = ()) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
    )
    builder = builder.config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={temp_dir}")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config(
        "spark.sql.session.timeZone", "UTC"
    )
    if jars:
        builder = builder.config("spark.jars", ",".join(jars))
    return (
        builder.config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def program(numbers: DataFrame, work: Work) -> DataFrame:
    keys = work.keys
    match work.name:
        case "filter_project":
            return numbers.where(f"value % {KEEP_ONE_IN} = 0").selectExpr(
                "value AS v", "value * 2 AS d"
            )
        case "keyed_aggregate_1k" | "keyed_aggregate_1m":
            keyed = numbers.selectExpr(f"value % {keys} AS k", "value")
            return keyed.groupBy("k").agg({"*": "count", "value": "sum"}).toDF("k", "c", "s")
        case "window_aggregate":
            from pyspark.sql import functions as sql

            timed = numbers.selectExpr(
                f"value % {keys} AS k", "value", "timestamp_micros(value) AS t"
            )
            windows = timed.withWatermark("t", "1 second").groupBy("k", sql.window("t", "1 second"))
            return windows.agg(sql.count("*").alias("c"), sql.sum("value").alias("s")).drop(
                "window"
            )
        case "stateful_processor":
            from benchmarks.peers.processors import CountAndSum, with_key

            numbers.sparkSession.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
            mapped = numbers.select("value").mapInArrow(with_key(keys), "k long, value long")
            return mapped.groupBy("k").transformWithState(
                CountAndSum(), "k long, c long, s long", "Update", "None"
            )
        case _:
            raise SystemExit(f"unknown: {work.name}")


class _Progress(StreamingQueryListener):
    """Lets the main thread wait until the latest query has read a number of rows, or has ended."""

    def __init__(self) -> None:
        self.rows = 0
        self.wanted = 0
        self.query: str | None = None  # its run id; events of earlier queries may still arrive
        self.reached = threading.Event()

    def onQueryStarted(
        self, event: Any
    ) -> None:  # within `start`, before any other event of the query
        self.query = str(event.runId)

    def onQueryProgress(self, event: Any) -> None:
        if str(event.progress.runId) == self.query:
            self.rows += event.progress.numInputRows
            if self.rows >= self.wanted:
                self.reached.set()

    def onQueryTerminated(self, event: Any) -> None:
        if str(event.runId) == self.query:
            self.reached.set()

    def expect(self, rows: int) -> None:
        self.rows, self.wanted, self.query = 0, rows, None
        self.reached.clear()


def stream(spark: SparkSession, batch_rows: int) -> DataFrame:
    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", batch_rows)
        .option("numPartitions", 2)
    )
    return source.load()


@contextmanager
def running(work: Work, writer: DataStreamWriter, rows: int, progress: _Progress) -> Iterator[None]:
    """Starts the query, runs the block when it has read this many rows, then stops it."""
    with tempfile.TemporaryDirectory(dir=checkpoints_on(), prefix="bench-spark-") as checkpoints:
        progress.expect(rows)
        query = writer.option("checkpointLocation", checkpoints).start()
        progress.reached.wait()
        if query.exception() is not None:
            raise SystemExit(f"{work.name}: {query.exception()}")
        yield
        query.stop()


def checkpoints_on() -> str | None:
    """Returns shared memory, if there is enough."""
    shared = Path("/dev/shm")
    return (
        str(shared)
        if shared.is_dir() and shutil.disk_usage(shared).free > SHARED_MEMORY_BYTES
        else None
    )


def checked(spark: SparkSession, work: Work, mode: str, progress: _Progress) -> None:
    """Runs a few micro-batches; later ones, which may have started, are ignored."""
    found: list[pa.Table] = []

    def take(batch: DataFrame, number: int) -> None:
        if number < CHECK_BATCHES:
            found.append(batch.toArrow())

    result = program(stream(spark, work.check_rows // CHECK_BATCHES), work)
    with running(
        work, result.writeStream.foreachBatch(take).outputMode(mode), work.check_rows, progress
    ):
        rows = pa.concat_tables(found)
    peers.check(work, {name: rows[name].to_numpy() for name in rows.column_names}, work.check_rows)


def main() -> None:
    work = peers.WORKS[sys.argv[1]]
    mode = "append" if work.name == "filter_project" else "update"
    # Spark leaves folders behind if its JVM is killed.
    with tempfile.TemporaryDirectory(prefix="bench-spark-", ignore_cleanup_errors=True) as temp_dir:
        spark = session(temp_dir)
        progress = _Progress()
        spark.streams.addListener(progress)
        checked(spark, work, mode, progress)
        result = program(stream(spark, BATCH_ROWS[work.name]), work)
        peers.begin()
        with running(work, result.writeStream.format("noop").outputMode(mode), work.rows, progress):
            peers.end(progress.rows)
        spark.stop()


if __name__ == "__main__":
    main()
