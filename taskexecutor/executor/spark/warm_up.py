"""Warms Spark up: runs the kinds of plans that jobs run first, so that a job's first bundle finds
classes loaded, code compiled, sockets and codecs in use.

The class archive is recorded from this, and made anew when this file changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv

from firesteel.common.units import MIB
from firesteel.connectors import FileSource
from firesteel.plan.specs import (
    AggregateExpression,
    PartialWindowAggregateSpec,
    TransformSpec,
    TumblingSpec,
    WatermarkSpec,
)
from taskexecutor.executor.spark import observations, plans
from taskexecutor.executor.spark.bundle_plans import BundlePlans
from taskexecutor.executor.spark.bundles import LOCAL_ROWS, BundleLoader, collect
from taskexecutor.executor.spark.files import read_files
from taskexecutor.executor.spark.jvm.archive import ArchivedStart
from taskexecutor.executor.spark.jvm.engine import SparkEngine
from taskexecutor.executor.spark.schemas import to_arrow
from taskexecutor.executor.timing.clock import TaskClock
from taskexecutor.executor.timing.plan_meter import PlanMeter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCHEMA = pa.schema(
    [("key", pa.string()), ("time", pa.timestamp("us", "UTC")), ("number", pa.float64())]
)
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
        warm_up(engine)
        engine.collect_garbage()  # what the start leaves behind goes before the first job comes
    except BaseException:
        engine.stop(grace_s=0)
        raise


def warm_up(engine: SparkEngine) -> None:
    path = engine.temp_dir / "warm.csv"
    path.write_text("key,time,number\na,2013-01-01T05:00:00Z,1.5\nb,2013-01-01T05:00:00Z,\n")
    # Given Python or NumPy values, pyarrow would import pandas, which an idle slot does not need.
    table = csv.read_csv(path, csv.ReadOptions(use_threads=False, block_size=4096)).cast(_SCHEMA)
    loader = BundleLoader(engine.session, engine.bundles, _SCHEMA)

    # Small bundles: by a kept plan, and as a local relation.
    bundles = BundlePlans(
        engine, _SCHEMA, [TransformSpec(function=_filter_and_project)], PlanMeter(TaskClock())
    )
    bundles.make()
    for _ in bundles.run(table.to_batches(), _SCHEMA, "warm-up"):
        pass
    bundles.close()
    with loader.dataframe(table.to_batches()) as frame:
        _run(_filter_and_project(frame))
    if not engine.is_local:
        return
    _read_file(engine, path)
    # Large bundles: Parquet in shared memory.
    large = pa.concat_tables([table] * (LOCAL_ROWS // 2 + 1)).combine_chunks()
    with loader.dataframe(large.to_batches()) as frame:
        _run(_aggregated(frame, engine.cores))


def _read_file(engine: SparkEngine, path: Path) -> None:
    """A source that is read, observed, filtered and aggregated in one plan; CSV needs most code."""
    source = FileSource(
        str(path), format="csv", schema="key STRING, time TIMESTAMP, number DOUBLE", header=True
    )
    frame = read_files(engine.session, source, [str(path)], None)
    frame = observations.observe_time(
        frame, WatermarkSpec(column="time", max_out_of_orderness_us=0)
    )
    frame = _aggregated(frame, engine.cores)
    _run(frame)
    observations.observed_times(frame)


def _filter_and_project(frame: DataFrame) -> DataFrame:
    return frame.where("number IS NOT NULL").selectExpr("key", "time", "number + 1 AS number")


def _aggregated(frame: DataFrame, cores: int) -> DataFrame:
    return plans.partial_window_aggregate(
        frame.where("number IS NOT NULL"), _AGGREGATE, cores=cores
    )


def _run(frame: DataFrame) -> None:
    for _ in collect(frame, to_arrow(frame.schema), PlanMeter(TaskClock())):
        pass
