"""`python -m benchmarks.peers.run_spark WORK`: Spark Structured Streaming, local[2].

The source is `rate-micro-batch`, the quickest that Spark comes with: it generates consecutive numbers in large micro-batches.
State is in Spark's default store where it can be, in RocksDB where it must. Checkpoints are on shared memory.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from benchmarks.peers import work as peers
from benchmarks.peers.work import KEEP_ONE_IN, Work

BATCH_ROWS = {"filter_project": 20_000_000, "stateful_processor": 250_000}
OTHER_BATCH_ROWS = 10_000_000
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "2g")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC")
    return builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR").getOrCreate()


def program(numbers: DataFrame, work: Work) -> DataFrame:
    keys = work.keys
    match work.name:
        case "filter_project":
            return numbers.where(f"value % {KEEP_ONE_IN} = 0").selectExpr("value AS v", "value * 2 AS d")
        case "keyed_aggregate_1k" | "keyed_aggregate_1m":
            keyed = numbers.selectExpr(f"value % {keys} AS k", "value")
            return keyed.groupBy("k").agg({"*": "count", "value": "sum"}).toDF("k", "c", "s")
        case "window_aggregate":
            from pyspark.sql import functions as sql

            timed = numbers.selectExpr(f"value % {keys} AS k", "value", "timestamp_micros(value) AS t")
            windows = timed.withWatermark("t", "1 second").groupBy("k", sql.window("t", "1 second"))
            return windows.agg(sql.count("*").alias("c"), sql.sum("value").alias("s")).drop("window")
        case "stateful_processor":
            from benchmarks.peers.processors import CountAndSum, with_key

            numbers.sparkSession.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
            mapped = numbers.select("value").mapInArrow(with_key(keys), "k long, value long")
            return mapped.groupBy("k").transformWithState(CountAndSum(), "k long, c long, s long", "Update", "None")
        case _:
            raise SystemExit(f"unknown: {work.name}")


class _Progress(StreamingQueryListener):
    """Lets the main thread wait until the query started last has taken in so many rows, or has ended."""

    def __init__(self) -> None:
        self.rows = 0
        self.wanted = 0
        self.query: str | None = None  # its run; events of those before may still come
        self.reached = threading.Event()

    def onQueryStarted(self, event: Any) -> None:  # within `start`, before any other event of the query
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
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", batch_rows).option("numPartitions", 2)
    return source.load()


def run(spark: SparkSession, work: Work, rows: int, batch_rows: int, progress: _Progress, sink: str, output_mode: str) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bench-spark-") as checkpoints:
        result = program(stream(spark, batch_rows), work)
        writer = result.writeStream.format(sink).outputMode(output_mode).option("checkpointLocation", checkpoints)
        progress.expect(rows)
        query = writer.queryName("result").start()
        progress.reached.wait()
        if query.exception() is not None:
            raise SystemExit(f"{work.name}: {query.exception()}")
        query.stop()


def checked(spark: SparkSession, work: Work, progress: _Progress) -> None:
    """All rows in one micro-batch; of the next ones, which may have begun, nothing is looked at."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bench-spark-") as checkpoints:
        result = program(stream(spark, work.check_rows), work)
        found: list[dict[str, list[int]]] = []

        def take(batch: DataFrame, number: int) -> None:
            if number == 0:
                found.append(batch.toArrow().to_pydict())

        mode = "append" if work.name == "filter_project" else "update"
        progress.expect(work.check_rows)
        writer = result.writeStream.foreachBatch(take).outputMode(mode).option("checkpointLocation", checkpoints)
        query = writer.start()
        progress.reached.wait()
        if query.exception() is not None:
            raise SystemExit(f"{work.name}: {query.exception()}")
        query.stop()
    peers.check(work, found[0], work.check_rows)


def main() -> None:
    work = peers.WORKS[sys.argv[1]]
    spark = session()
    progress = _Progress()
    spark.streams.addListener(progress)
    checked(spark, work, progress)
    batch_rows = BATCH_ROWS.get(work.name, OTHER_BATCH_ROWS)
    mode = "append" if work.name == "filter_project" else "update"
    peers.begin()
    run(spark, work, work.rows, batch_rows, progress, "noop", mode)
    peers.end(progress.rows)
    spark.stop()


if __name__ == "__main__":
    main()
