"""Warms up Spark: runs the kinds of plans that jobs run first, so that a job's first bundle finds
classes loaded, code compiled, and sockets and codecs initialized.

The class archive is recorded from this, and recorded again when this file changes. As a program,
which `jvm.archive` starts, it compiles Firesteel's Java into a jar, adds classes in place of
Scala's lambdas (see `FiresteelLambdas.java`), and records the archive.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from firesteel.common.file_parts import FilePart
from firesteel.common.units import GIB, MIB
from firesteel.connectors import FileSource
from firesteel.operators import (
    AggregateExpression,
    PartialWindowAggregateSpec,
    TransformSpec,
    TumblingSpec,
    WatermarkSpec,
)
from taskexecutor.executor.columnar.cached_plans import composed, observations
from taskexecutor.executor.columnar.jvm.archive import (
    ArchivedStart,
    listing_start,
    recording_start,
    write_own_jar,
)
from taskexecutor.executor.columnar.jvm.code import Code
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.launch import OWN_JAR, start_jvm
from taskexecutor.executor.columnar.jvm.transfer import LOCAL_ROWS, BundleLoader, collect
from taskexecutor.executor.columnar.readers.frames import declared_schema, read_files
from taskexecutor.executor.columnar.readers.parts import FileParts
from taskexecutor.executor.columnar.readers.schema_inference import inferred_schema
from taskexecutor.executor.columnar.runners.bundle_plans import BundlePlans
from taskexecutor.executor.columnar.runners.file_plans import FilePlans
from taskexecutor.executor.columnar.schemas import to_arrow
from taskexecutor.executor.timing.clock import PlanMeter, TaskClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCHEMA = pa.schema(
    [("key", pa.string()), ("time", pa.timestamp("us", "UTC")), ("number", pa.float64())]
)
_DDL = "key STRING, time TIMESTAMP, number DOUBLE"
_WATERMARKS = WatermarkSpec(column="time", max_out_of_orderness_us=0)
_AGGREGATE = PartialWindowAggregateSpec(
    key_columns=("key",),
    window=TumblingSpec(size_us=86_400_000_000),
    time_column="time",
    aggregates=(
        AggregateExpression(
            sql="",
            name="total",
            partial={"_c": "count(1)", "_s": "sum(number)", "_m": "max(number)"},
            merge={},
            final="",
        ),
    ),
)
# In the JVM's log of loaded classes: the class that contains the lambda.
_LAMBDA = re.compile(r"\] (\S+)\$\$Lambda[$/]")


def start_warm(
    engine: SparkEngine,
    conf: Mapping[str, str],
    cores: int = 1,
    heap_bytes: int = 512 * MIB,
    *,
    archived: ArchivedStart | None = None,
) -> None:
    """Starts the engine and returns when it is warm. Raises FiresteelError if the JVM does not
    start.
    """
    engine.start(conf, cores, heap_bytes, archived=archived)
    try:
        with engine.compiler_waiting():
            warm_up(engine)
        engine.collect_garbage()  # collects the start's garbage before the first job
    except BaseException:
        engine.stop(grace_s=0)
        raise


def warm_up(engine: SparkEngine) -> None:
    """Runs the first steps of most jobs: a bundle, and a part of a file, through cached plans."""
    path, table = _rows(engine)
    _run_bundle(engine, table)
    if not engine.is_local:
        loader = BundleLoader(engine.session, engine.bundles, _SCHEMA)
        with loader.dataframe(table.to_batches()) as frame:
            _run(_filter_and_project(frame))
    elif engine.cores == 1:
        _read_file(engine, FileSource(str(path), format="csv", schema=_DDL, header=True))
    else:
        _read_file_anew(engine, path)


def exercise(engine: SparkEngine) -> None:
    """Runs rarer work after the warm-up, only to have its classes in the archive."""
    path, table = _rows(engine)
    loader = BundleLoader(engine.session, engine.bundles, _SCHEMA)
    with loader.dataframe(table.to_batches()) as frame:  # a local relation
        _run(_filter_and_project(frame))
    large = pa.concat_tables([table] * (LOCAL_ROWS // 2 + 1)).combine_chunks()
    with loader.dataframe(large.to_batches()) as frame:  # Parquet in shared memory
        _run(_aggregated(frame, engine.cores))
    _read_file_anew(engine, path)
    parquet = path.with_suffix(".parquet")
    pq.write_table(table, parquet, compression="snappy")
    inferred_schema(engine, FileSource(str(parquet), format="parquet"), [str(parquet)])
    _read_file(engine, FileSource(str(parquet), format="parquet", schema=_DDL))
    lines = path.with_suffix(".json")
    lines.write_text('{"key": "a", "time": "2013-01-01T05:00:00Z", "number": 1.5}\n')
    _read_file(engine, FileSource(str(lines), format="json", schema=_DDL))


def _rows(engine: SparkEngine) -> tuple[Path, pa.Table]:
    path = engine.temp_dir / "warm.csv"
    path.write_text("key,time,number\na,2013-01-01T05:00:00Z,1.5\nb,2013-01-01T05:00:00Z,\n")
    # Given Python or NumPy values, pyarrow would import pandas, which an idle slot does not need.
    table = csv.read_csv(path, csv.ReadOptions(use_threads=False, block_size=4096)).cast(_SCHEMA)
    return path, table


def _run_bundle(engine: SparkEngine, table: pa.Table) -> None:
    bundles = BundlePlans(
        engine, _SCHEMA, [TransformSpec(function=_filter_and_project)], PlanMeter(TaskClock())
    )
    bundles.make()
    for _ in bundles.run(table.to_batches(), _SCHEMA, "warm-up"):
        pass
    bundles.close()


def _read_file(engine: SparkEngine, source: FileSource) -> None:
    """Runs a source that is read, observed, filtered and aggregated by a cached plan."""
    (path,) = source.paths
    schema = declared_schema(source)
    assert schema is not None
    plans = FilePlans(
        engine,
        source,
        schema,
        [TransformSpec(function=_with_number), _AGGREGATE],
        _WATERMARKS,
        FileParts(engine, source, schema),
        PlanMeter(TaskClock()),
    )
    plan = plans.plan((), path)
    assert plan is not None
    found = os.stat(path)
    part = FilePart(path, 0, found.st_size, found.st_size, found.st_mtime_ns)
    plan.begin([part], "warm-up")
    while plan.state.part < 1:
        for _ in plan.bundle(to_arrow(plan.frame.schema), "warm-up", 1.0):
            pass
    plans.close()


def _read_file_anew(engine: SparkEngine, path: Path) -> None:
    """Runs the same by a Spark job."""
    source = FileSource(str(path), format="csv", schema=_DDL, header=True)
    frame = read_files(engine.session, source, [str(path)], None)
    frame = observations.observe_time(frame, _WATERMARKS)
    frame = _aggregated(frame, engine.cores)
    _run(frame)
    observations.observed_times(frame)


def _filter_and_project(frame: DataFrame) -> DataFrame:
    return _with_number(frame).selectExpr("key", "time", "number + 1 AS number")


def _with_number(frame: DataFrame) -> DataFrame:
    return frame.where("number IS NOT NULL")


def _aggregated(frame: DataFrame, cores: int) -> DataFrame:
    return composed.partial_window_aggregate(_with_number(frame), _AGGREGATE, cores=cores)


def _run(frame: DataFrame) -> None:
    for _ in collect(frame, to_arrow(frame.schema), PlanMeter(TaskClock())):
        pass


def main() -> None:
    archive, jars = map(Path, sys.argv[1:])
    classes = compiled(jars)
    write_own_jar(classes, jars / OWN_JAR)
    write_own_jar({**classes, **_without_lambdas(jars)}, jars / OWN_JAR)
    # The JVM writes the archive when it exits.
    _exercised(recording_start(archive, jars)).stop(grace_s=300)


def compiled(jars: Path) -> dict[str, bytes]:
    """Returns Firesteel's classes, as files of a jar."""
    with tempfile.TemporaryDirectory(prefix="firesteel-compile-") as scratch:
        jvm = start_jvm(
            {"spark.master": "local[1]"},
            cores=1,
            heap_bytes=512 * MIB,
            temp_dir=Path(scratch),
            jar_copies=jars,
        )
        try:
            classes = Code(jvm.gateway).compiled()
            jvm.gateway.shutdown()
        finally:
            jvm.stop(grace_s=10)
    return classes


def _without_lambdas(jars: Path) -> dict[str, bytes]:
    """Returns the classes whose lambdas a warm-up evaluates, with classes in place of the lambdas,
    as files of a jar.
    """
    with tempfile.TemporaryDirectory(prefix="firesteel-lambdas-") as scratch:
        loaded, replaced = Path(scratch) / "loaded", Path(scratch) / "replaced.jar"
        engine = _exercised(listing_start(loaded, jars))
        owners = sorted(set(_LAMBDA.findall(loaded.read_text())))
        names = " ".join(owner.replace(".", "/") for owner in owners)
        engine.code.type("FiresteelLambdas").write(names, str(replaced))
        engine.stop()
        with zipfile.ZipFile(replaced) as jar:
            return {name: jar.read(name) for name in jar.namelist()}


def _exercised(start: ArchivedStart) -> SparkEngine:
    engine = SparkEngine()
    start_warm(engine, {}, cores=1, heap_bytes=GIB, archived=start)
    exercise(engine)
    return engine


if __name__ == "__main__":
    main()
