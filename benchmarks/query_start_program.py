"""A program that starts a streaming query several times: `query_start_program.py FOLDER QUERIES`.

It uses Spark alone. Before each start it prints the time; it stops the query once FOLDER has a file
whose name is the number of the query.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

_POLL_S = 0.05
_PAUSE_S = 3.0  # in which the cluster becomes idle


def main() -> None:
    folder, queries = Path(sys.argv[1]), int(sys.argv[2])
    spark = SparkSession.builder.appName("starts").getOrCreate()
    rows = spark.readStream.format("rate").option("rowsPerSecond", 1_000).load()
    timed = rows.withWatermark("timestamp", "1 second")
    keys = (sql.window("timestamp", "10 seconds"), sql.expr("value % 100 AS key"))
    counts = timed.groupBy(*keys).count()
    for number in range(queries):
        print(f"starts {time.time()}", flush=True)
        query = counts.writeStream.outputMode("update").format("noop").start()
        while not (folder / str(number)).exists():
            time.sleep(_POLL_S)
        query.stop()
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
