"""Runs Spark Structured Streaming, `local[2]`: `python -m benchmarks.kafka.run_spark BOOTSTRAP BIDS
QUERY...`.

As in `benchmarks.nexmark.run_spark`: `availableNow`, two million bids per micro-batch, checkpoints
in shared memory.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks.kafka.bids import CHECK, Topic, right, timed
from benchmarks.kafka.connectors import jars, spark_jars
from benchmarks.nexmark.data import shared_memory
from benchmarks.nexmark.oracle import UPDATES, check
from benchmarks.nexmark.programs import SCHEMA
from benchmarks.nexmark.protocol import run_each
from benchmarks.nexmark.run_spark import QUERIES
from benchmarks.peers.run_spark import session

RECORDS_PER_BATCH = 2_000_000


def bids(spark: SparkSession, bootstrap: str, topic: Topic) -> DataFrame:
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic.name)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", RECORDS_PER_BATCH)
        .load()
    )
    text = sql.col("value").cast("string")
    return records.select(sql.from_json(text, SCHEMA).alias("bid")).select("bid.*")


def finish(query: str, stream: DataFrame, sink: Any) -> None:
    """`sink` is the name of one, or a function for `foreachBatch`."""
    with tempfile.TemporaryDirectory(dir=shared_memory(), prefix="bench-spark-") as folder:
        writer = stream.writeStream.outputMode("update" if query in UPDATES else "append")
        writer = writer.option("checkpointLocation", folder).trigger(availableNow=True)
        writer = writer.format(sink) if isinstance(sink, str) else writer.foreachBatch(sink)
        writer.start().awaitTermination()


def main() -> None:
    bootstrap, count, queries = sys.argv[1], int(sys.argv[2]), sys.argv[3:]

    def program(query: str, topic: Topic) -> DataFrame:
        return QUERIES[query](bids(spark, bootstrap, topic))

    def checked(query: str) -> None:
        found: list[pa.Table] = []
        finish(query, program(query, CHECK), lambda df, number: found.append(df.toArrow()))
        check(query, pa.concat_tables(found), right(query, last_window=False))

    topic = timed(count)
    with tempfile.TemporaryDirectory(prefix="bench-spark-", ignore_cleanup_errors=True) as temp_dir:
        spark = session(temp_dir, spark_jars(jars()))
        run_each(
            queries,
            checked,
            lambda query: finish(query, program(query, topic), "noop"),
            topic.records,
        )
        spark.stop()


if __name__ == "__main__":
    main()
