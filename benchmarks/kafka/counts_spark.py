"""Counts records by key in windows of ten seconds, in update mode, from topic to topic. A PySpark
program: on Spark's own engine with its connector's JARS, on Firesteel without.

    python -m benchmarks.kafka.counts_spark BOOTSTRAP FROM TO JARS
    firesteel run -t local -p 2 benchmarks/kafka/counts_spark.py BOOTSTRAP FROM TO

It runs until the end of its standard input.
"""

from __future__ import annotations

import sys
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

KEYS = 100
CHECKPOINTS = "5 seconds"  # the shortest interval of Spark's real-time mode


def main() -> None:
    bootstrap, source, to, *jars = sys.argv[1:]
    builder = SparkSession.builder.master("local[5]").config("spark.sql.shuffle.partitions", "2")
    if jars:
        builder = builder.config("spark.jars", jars[0])
    builder = builder.config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    numbers = records.selectExpr("timestamp", "CAST(CAST(value AS STRING) AS BIGINT) AS number")
    counts = (
        numbers.withWatermark("timestamp", "10 seconds")
        .groupBy(sql.window("timestamp", "10 seconds"), sql.expr(f"number % {KEYS} AS key"))
        .agg(sql.count("*").alias("n"), sql.max("number").alias("latest"))
    )
    with tempfile.TemporaryDirectory(prefix="bench-counts-") as folder:
        query = (
            counts.selectExpr("concat_ws(' ', key, n, latest) AS value")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", to)
            .option("checkpointLocation", folder)
            .outputMode("update")
            .trigger(realTime=CHECKPOINTS)  # type: ignore[call-overload]
            .start()
        )
        sys.stdin.read()
        query.stop()
        spark.stop()


ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

if __name__ == "__main__":
    main()
