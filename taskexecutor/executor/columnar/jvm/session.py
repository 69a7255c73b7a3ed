"""A slot's SparkSession and its settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.common.time_zones import SESSION_TIME_ZONE
from firesteel.common.units import MIB
from firesteel.operator import RuntimeContext
from taskexecutor.executor.columnar.jvm.launch import Jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON_DAEMON = f"{__package__}.python_daemon"


def session_settings(
    conf: Mapping[str, str], *, cores: int, heap_bytes: int, temp_dir: Path
) -> dict[str, str]:
    """Returns the settings of a slot's session; the spark.* values of `conf` take precedence."""
    given = {key: value for key, value in conf.items() if key.startswith("spark.") and value != ""}
    local = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    ours = {
        "spark.master": f"local[{cores}]",
        "spark.app.name": "firesteel slot",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "false",
        "spark.sql.warehouse.dir": f"{temp_dir}/warehouse",
        "spark.driver.maxResultSize": "0",  # results are streamed, and bounded by the bundle
        "spark.shuffle.compress": "false",  # a slot's shuffle stays in the page cache
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        # Plans are small and run often: no re-planning between stages, and no more partitions than
        # cores.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.default.parallelism": str(cores),
        "spark.sql.files.maxPartitionBytes": str(32 * MIB),
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
        "spark.sql.parquet.enableVectorizedReader": "true",
        "spark.sql.codegen.cache.maxEntries": "500",
        # Enables the fast map, in which most groups are found, also for an aggregation whose two
        # halves are merged into one.
        "spark.sql.codegen.aggregate.map.twolevel.partialOnly": "false",
        # Executed plans are not shown: keep as few as possible.
        "spark.ui.retainedJobs": "1",
        "spark.ui.retainedStages": "1",
        "spark.ui.retainedTasks": "10",
        "spark.sql.ui.retainedExecutions": "1",
        "spark.sql.maxPlanStringLength": "20000",
        # The part of the heap that Spark does not use for sorts and shuffles. Its default of 300
        # MiB, half of which must be free in addition, is meant for larger JVMs: an idle session
        # takes 60 MiB.
        "spark.testing.reservedMemory": str(min(300 * MIB, heap_bytes // 4)),
        "spark.cleaner.periodicGC.interval": "30min",
        # The default is two pools of 8, sized for a cluster's executors.
        "spark.shuffle.mapOutput.dispatcher.numThreads": "1",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": PYTHON_DAEMON,
        # Otherwise each call of a Column function requests its call site from the JVM several
        # times: two thirds of the traffic while a plan is built.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
    master = given.get("spark.master", ours["spark.master"])
    return {**ours, **(local if master.startswith("local") else {}), **given}


def create_session(settings: Mapping[str, str], jvm: Jvm) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    SparkContext(conf=conf, gateway=jvm.gateway)
    # getOrCreate() also makes it the default session, which SparkSession.active() returns.
    return SparkSession.builder.getOrCreate()


def session_zone(context: RuntimeContext) -> str:
    """Returns `spark.sql.session.timeZone`: the job's, or else the cluster's."""
    zone = context.config.get(SESSION_TIME_ZONE)
    if zone is None and context.spark is not None:
        zone = context.spark.conf.get(SESSION_TIME_ZONE)
    return zone or "UTC"
