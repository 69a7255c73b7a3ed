"""Counts 5,000 JSON files of ten rows by key; compared with Spark Structured Streaming.

As in Nexmark, an engine first reads a few other files, as a warm-up whose result is checked, and is
then timed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.nexmark.data import shared_memory
from benchmarks.nexmark.protocol import CHECK, TIMED
from benchmarks.peers.measure import measure

FILES, CHECK_FILES, ROWS_PER_FILE = 5_000, 100, 10
KEYS = 7
SCHEMA = "k INT, v BIGINT, name STRING"
AGGREGATES = ("count(*) AS n", "sum(v) AS s")
GOAL_S, GOAL_RATIO = 15.0, 2.0


def write(folder: Path, files: int) -> None:
    folder.mkdir(parents=True)
    for number in range(files):
        first = number * ROWS_PER_FILE
        rows = range(first, first + ROWS_PER_FILE)
        lines = [json.dumps({"k": v % KEYS, "v": v, "name": f"row {v}"}) for v in rows]
        (folder / f"{number:05}.json").write_text("\n".join(lines) + "\n")


def check(found: pa.Table, files: int) -> None:
    """`found` holds updates; the last count of a key is the greatest. Raises AssertionError."""
    last = found.group_by("k").aggregate([("n", "max"), ("s", "max")]).sort_by("k")
    rows = range(files * ROWS_PER_FILE)
    expected = [
        {"k": k, "n_max": len(rows[k::KEYS]), "s_max": sum(rows[k::KEYS])} for k in range(KEYS)
    ]
    assert last.to_pylist() == expected, f"{last.to_pylist()} is not {expected}"


def run_firesteel(data: Path) -> None:
    from benchmarks.peers.run_firesteel import SLOTS, collected, configuration
    from firesteel import Environment
    from firesteel.client.cluster import LocalCluster
    from firesteel.connectors import DiscardSink, FileSource
    from firesteel.datastream import DataStream

    def program(env: Environment, folder: str) -> DataStream:
        rows = env.from_source(FileSource(str(data / folder), format="json", schema=SCHEMA))
        return rows.key_by("k").aggregate(*AGGREGATES)

    with LocalCluster(configuration(), task_executors=1, slots=SLOTS) as cluster:
        cluster.wait_for_slots()
        client = cluster.client()
        check(collected(client, program(Environment(parallelism=SLOTS), CHECK)), CHECK_FILES)
        env = Environment(parallelism=SLOTS)
        program(env, TIMED).sink_to(DiscardSink())
        graph = env.job_graph("small files")
        print("begin", flush=True)
        client.wait(client.submit(graph))
        print(f"end {FILES * ROWS_PER_FILE}", flush=True)


def run_spark(data: Path) -> None:
    """Reads all files that `availableNow` finds, in micro-batches of a thousand, Spark's
    default.
    """
    from pyspark.sql import functions as sql
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from benchmarks.peers.run_spark import session

    with tempfile.TemporaryDirectory(prefix="bench-spark-", ignore_cleanup_errors=True) as temp_dir:
        spark = session(temp_dir)

        def writer(folder: str) -> DataStreamWriter:
            stream = spark.readStream.schema(SCHEMA).json(str(data / folder))
            counts = stream.groupBy("k").agg(*map(sql.expr, AGGREGATES))
            written = counts.writeStream.outputMode("update").trigger(availableNow=True)
            return written.option("checkpointLocation", str(data / f"checkpoint-{folder}"))

        found: list[pa.Table] = []
        writer(CHECK).foreachBatch(
            lambda df, _: found.append(df.toArrow())
        ).start().awaitTermination()
        check(pa.concat_tables(found), CHECK_FILES)
        print("begin", flush=True)
        writer(TIMED).format("noop").start().awaitTermination()
        print(f"end {FILES * ROWS_PER_FILE}", flush=True)
        spark.stop()


ENGINES = {"firesteel": run_firesteel, "spark": run_spark}


def run() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="bench-files-", dir=shared_memory()) as folder:
        write(Path(folder) / CHECK, CHECK_FILES)
        write(Path(folder) / TIMED, FILES)
        command = [sys.executable, "-m", "benchmarks.small_files"]
        took_s = {engine: measure([*command, engine, folder]).seconds for engine in ENGINES}
    ratio = took_s["spark"] / took_s["firesteel"]
    return [
        {
            "name": f"{FILES:,} JSON files of ten rows",
            "ours": round(took_s["firesteel"], 1),
            "unit": "s",
            "peers": {"Spark Structured Streaming": f"{took_s['spark']:.1f} s"},
            "ratio": ratio,
            "goal": f"<= {GOAL_S:g} s, >= {GOAL_RATIO:g} x Spark",
            "met": took_s["firesteel"] <= GOAL_S and ratio >= GOAL_RATIO,
        }
    ]


if __name__ == "__main__":
    if len(sys.argv) == 3:
        ENGINES[sys.argv[1]](Path(sys.argv[2]))
    else:
        for row in run():
            print(row)
