"""Compiles Firesteel's Java into a jar, and records Spark's class archive from one warm-up.
`jvm.archive` runs it in a separate process.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from firesteel.common.units import GIB, MIB
from taskexecutor.executor.columnar.jvm.archive import recording_start, write_own_jar
from taskexecutor.executor.columnar.jvm.code import Code
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.launch import OWN_JAR, start_jvm
from taskexecutor.executor.columnar.warm_up import exercise, start_warm


def main() -> None:
    archive, jars = map(Path, sys.argv[1:])
    compile_jar(jars)
    engine = SparkEngine()
    start_warm(engine, {}, cores=1, heap_bytes=GIB, archived=recording_start(archive, jars))
    exercise(engine)
    engine.stop(grace_s=300)  # the JVM writes the archive when it exits


def compile_jar(jars: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="firesteel-compile-") as scratch:
        jvm = start_jvm(
            {"spark.master": "local[1]"},
            cores=1,
            heap_bytes=512 * MIB,
            temp_dir=Path(scratch),
            jar_copies=jars,
        )
        try:
            write_own_jar(Code(jvm.gateway).compiled(), jars / OWN_JAR)
            jvm.gateway.shutdown()
        finally:
            jvm.stop(grace_s=10)


if __name__ == "__main__":
    main()
