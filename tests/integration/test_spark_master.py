"""A slot whose Spark is a real standalone cluster: a master and a worker of Spark's own, on
loopback.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firesteel.common.process.class_archive import spark_home
from firesteel.common.process.java import java_home
from firesteel.connectors import FileSource
from firesteel.operators import SourceSpec, TransformSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.jvm.engine import SparkEngine, SparkLost
from taskexecutor.executor.columnar.jvm.launch import class_path
from taskexecutor.executor.columnar.jvm.transfer import LOCAL_ROWS
from taskexecutor.executor.columnar.stages.transform_stage import SparkTransformStage
from taskexecutor.executor.connectors.files.source import FileStage
from tests.integration.conftest import Slot
from tests.integration.file_splits import read_split, split_of

START_S = 120.0
SCHEMA = pa.schema([("x", pa.int64())])


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("standalone")
    processes: list[subprocess.Popen[bytes]] = []

    def daemon(kind: str, ready: str, *arguments: str) -> str:
        """Starts a daemon and returns its log once it is ready."""
        log = folder / f"{kind}.log"
        processes.append(started(log, kind, *arguments))
        deadline = time.monotonic() + START_S
        while ready not in (written := log.read_text()):
            assert processes[-1].poll() is None and time.monotonic() < deadline, written
            time.sleep(0.05)
        return written

    try:
        # The daemon picks a port, so that no other process can take it first.
        log = daemon("master.Master", "I have been elected leader", "--port", "0")
        found = re.search(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)", log)
        assert found is not None, log
        more = ("--cores", "1", "--memory", "512m", "--work-dir", str(folder / "work"), found[1])
        daemon("worker.Worker", "Successfully registered with master", *more)
        yield found[1]
    finally:
        for process in reversed(processes):
            process.terminate()  # a worker ends its executors
            process.wait(START_S)


def started(log: Path, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
    # As Spark's scripts do; without the version, a worker looks for the folders of a build.
    environment = {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [
        f"{java_home()}/bin/java",
        "-Xmx192m",
        "-cp",
        class_path(),
        f"org.apache.spark.deploy.{kind}",
    ]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=log.parent,
        )


@pytest.fixture(scope="module")
def engine(slot: Slot, master: str) -> Iterator[SparkEngine]:
    conf = {
        "spark.master": master,
        "spark.executor.memory": "512m",
        "spark.cores.max": "1",
        "spark.driver.host": "127.0.0.1",
    }
    yield slot.spark(heap_bytes=256 * 2**20, conf=conf)
    slot.stop()  # before its master


def stage(engine: SparkEngine, function: Callable[[Any], Any]) -> OperatorHarness:
    operator = SparkTransformStage([TransformSpec(function=function)], SCHEMA)
    return OperatorHarness(operator, [SCHEMA], output_schema=SCHEMA, spark=engine.session).open()


def aggregated(df: Any) -> Any:
    """With a shuffle, and a Python worker of the executor's."""
    from pyspark.sql import functions as sql

    half = sql.udf(lambda x: x // 2, "long")
    return df.select(half("x").alias("x")).groupBy("x").count().select("x")


@pytest.mark.long  # e2e/test_spark_batch.py runs on such a master
@pytest.mark.parametrize("rows", [10, 20 * LOCAL_ROWS])
def test_bundles_of_any_size(engine: SparkEngine, rows: int) -> None:
    harness = stage(engine, aggregated)
    harness.process(pa.record_batch([list(range(rows))], schema=SCHEMA))
    harness.end()
    assert sorted(row["x"] for row in harness.rows()) == list(range(rows // 2))
    tracker = engine.session._jsc.sc().statusTracker()
    assert len(tracker.getExecutorInfos()) == 2, (
        "the driver's, which runs no tasks, and the worker's"
    )


def test_files(engine: SparkEngine, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": list(range(1_000))}, schema=SCHEMA), tmp_path / "1.parquet")
    source = FileSource(str(tmp_path / "1.parquet"), format="parquet")
    operator = FileStage(
        source,
        SourceSpec(source=source),
        SCHEMA,
        [TransformSpec(function=lambda df: df.where("x % 2 = 0"))],
        SCHEMA,
    )
    harness = OperatorHarness(operator, [], output_schema=SCHEMA, spark=engine.session).open()
    read_split(harness, 0, split_of(tmp_path / "1.parquet"))
    assert [row["x"] for row in harness.rows()] == list(range(0, 1_000, 2))
    assert harness.metrics.records_taken == 1_000
    harness.close()


def test_a_context_that_is_stopped_takes_its_jvm_with_it(engine: SparkEngine) -> None:
    """Last: the engine is gone afterwards, and a slot's process with it, so that the slot gets
    another.
    """

    def stopping(df: Any) -> Any:
        df.sparkSession._jsc.sc().stop()  # as it stops itself when its cluster has removed it
        return df.selectExpr("x + 1 AS x")

    harness = stage(engine, stopping)
    harness.process(pa.record_batch([[1]], schema=SCHEMA))
    with pytest.raises(SparkLost, match="its SparkContext was stopped"):
        harness.flush()
    assert not engine.is_alive()
    harness.close()
