"""Records Spark's class archive from one warm-up; run by `jvm.archive` in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from firesteel.common.units import GIB
from taskexecutor.executor.spark.jvm.archive import recording_start
from taskexecutor.executor.spark.jvm.engine import SparkEngine
from taskexecutor.executor.spark.warm_up import start_warm


def main() -> None:
    archive, jars = map(Path, sys.argv[1:])
    engine = SparkEngine()
    start_warm(engine, {}, cores=1, heap_bytes=GIB, archived=recording_start(archive, jars))
    engine.stop(grace_s=300)  # the JVM writes the archive when it exits


if __name__ == "__main__":
    main()
