"""Runs Spark SQL alone, `python -m benchmarks.batch.run_spark DATA RESULTS QUERY...`, with
`local[2]`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks.batch.programs import SQL, TABLES
from benchmarks.batch.protocol import run_all
from benchmarks.peers.run_spark import session


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-spark-", ignore_cleanup_errors=True) as temp_dir:
        spark = session(temp_dir)

        def run(query: str, data: Path, result: Path) -> None:
            for table in TABLES:
                spark.read.parquet(str(data / table)).createOrReplaceTempView(table)
            spark.sql(SQL[query]).write.parquet(str(result))

        run_all(sys.argv[1:], run)
        spark.stop()


if __name__ == "__main__":
    main()
