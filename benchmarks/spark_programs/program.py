"""The program: `program.py REQUEST`. Runs queries on small tables first, and then timed.

It uses Spark alone. REQUEST is a JSON file with `tables` (the folders of small and timed tables),
`results`, `queries` (SQL by name) and `rounds`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

TABLES = ("customer", "orders", "lineitem")


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    results = Path(request["results"])
    spark = SparkSession.builder.appName("queries").getOrCreate()
    for name, query in request["queries"].items():
        for number in range(-1, request["rounds"]):
            tables = Path(request["tables"]["small" if number < 0 else "timed"])
            for table in TABLES:
                spark.read.parquet(str(tables / table)).createOrReplaceTempView(table)
            (results / f"{name}-{number}-begins").touch()
            began = time.perf_counter()
            spark.sql(query).write.parquet(str(results / f"{name}-{number}"))
            took_s = time.perf_counter() - began
            (results / f"{name}-{number}-s").write_text(str(took_s))


if __name__ == "__main__":
    main()
