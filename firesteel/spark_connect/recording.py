"""Records the class archive of the front's JVM: serves one client that analyses a query, plans
streaming queries and runs batch queries. `archive` starts it.

The archive is recorded again when this file changes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from firesteel.client.execution_context import ExecutionContext, active
from firesteel.common.process import watch_lifeline
from firesteel.common.process.class_archive import recording_options
from firesteel.spark_connect.admission import OneToken
from firesteel.spark_connect.front import Front, SparkServer
from firesteel.spark_connect.planner import stream_of
from firesteel.spark_connect.queries import StreamingQueries
from firesteel.spark_connect.spark import Spark
from firesteel.spark_connect.starter import JobStarter

_TOKEN = "recording"
_COLUMNS = "key string, n long"
_WINDOWS = "SELECT window, count(1), sum(value) FROM ticks GROUP BY window(timestamp, '1 minute')"


def main() -> None:
    archive, folder = map(Path, sys.argv[1:])
    spark = Spark({}, folder, recording_options(archive))
    try:
        with active(ExecutionContext(mode="plan-only")) as context:
            spark.start()
            queries = StreamingQueries(JobStarter(spark, lambda session: context))
            server = SparkServer(spark.address, spark.token)
            front = Front(OneToken(_TOKEN), lambda: server, queries)
            front.start()
            try:
                _use(spark, f"sc://localhost:{front.port}/;token={_TOKEN}", folder)
            finally:
                front.stop()
    finally:
        spark.stop()  # the JVM writes the archive when it exits


def _use(spark: Spark, url: str, folder: Path) -> None:
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(url).create()
    try:
        _run(session, folder)
        _plan(session, spark, folder)
    finally:
        session.stop()


def _run(session: Any, folder: Path) -> None:
    """Runs batch queries."""
    session.conf.set("spark.sql.session.timeZone", "UTC")
    rows = session.createDataFrame([("a", 1), ("b", 2)], _COLUMNS)
    rows.groupBy("key").count().collect()
    for kind in ("json", "parquet"):
        path = str(folder / kind)
        rows.write.format(kind).save(path)
        session.read.format(kind).schema(_COLUMNS).load(path).collect()


def _plan(session: Any, spark: Spark, folder: Path) -> None:
    """Plans streaming queries."""
    files = session.readStream.schema(_COLUMNS).parquet(str(folder / "parquet"))
    names = session.createDataFrame([("a", "A")], "key string, name string")
    ticks = session.readStream.format("rate").load().withWatermark("timestamp", "10 seconds")
    ticks.createOrReplaceTempView("ticks")
    user, session_id = session.client._user_id or "", session.session_id
    for frame, output_mode in (
        (files.selectExpr("upper(key) AS key", "n + 1 AS n").where("n > 1"), "append"),
        (files.groupBy("key").count(), "complete"),
        (session.sql(_WINDOWS), "append"),
        (files.join(names, "key").dropDuplicates(["key"]), "append"),
    ):
        relation = frame._plan.plan(session.client).SerializeToString()
        stream_of(
            spark,
            user,
            session_id,
            spark.analyzed(user, session_id, relation),
            output_mode=output_mode,
            batches=True,
            configuration={},
            begun_us=lambda: 0,
        )


if __name__ == "__main__":
    watch_lifeline()
    main()
