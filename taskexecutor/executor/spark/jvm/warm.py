"""The plans that jobs run first, run once at the start: classes loaded, code generated, sockets and
codecs tried.

Also what the class archive is recorded from.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv

from firesteel.connectors import FileSource
from firesteel.plan.specs import (
    AggregateExpression,
    PartialWindowAggregateSpec,
    TransformSpec,
    TumblingSpec,
    WatermarkSpec,
)
from taskexecutor.executor.spark import plans
from taskexecutor.executor.spark.bundle_plan import BundlePlans
from taskexecutor.executor.spark.bundles import LOCAL_ROWS, BundleWay, collect
from taskexecutor.executor.spark.files import read_files
from taskexecutor.executor.spark.schemas import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from taskexecutor.executor.spark.jvm.engine import SparkEngine

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


def _filter_and_project(frame: DataFrame) -> DataFrame:
    return frame.where("number IS NOT NULL").selectExpr("key", "time", "number + 1 AS number")


def warm_up(engine: SparkEngine, temp_dir: Path) -> None:
    session = engine.session
    path = temp_dir / "warm.csv"
    path.write_text("key,time,number\na,2013-01-01T05:00:00Z,1.5\nb,2013-01-01T05:00:00Z,\n")
    # From Python's or NumPy's values pyarrow would import pandas, which a slot without a job does
    # without.
    table = csv.read_csv(path, csv.ReadOptions(use_threads=False, block_size=4096)).cast(_SCHEMA)
    way = BundleWay(session, engine.bundles, _SCHEMA)

    def run(frame: object) -> None:
        for _ in collect(frame, to_arrow(frame.schema)):  # type: ignore[attr-defined, arg-type]
            pass

    # Small bundles: by a plan that is kept, and as a local relation.
    bundles = BundlePlans(engine, _SCHEMA, [TransformSpec(function=_filter_and_project)])
    bundles.make()
    for _ in bundles.run(table.to_batches(), _SCHEMA, "warm-up"):
        pass
    bundles.close()
    with way.dataframe(table.to_batches()) as frame:
        run(_filter_and_project(frame))
    if not engine.is_local:
        return
    # A source that is read, observed, filtered and aggregated in one plan; CSV brings the most code
    # with it.
    source = FileSource(
        str(path), format="csv", schema="key STRING, time TIMESTAMP, number DOUBLE", header=True
    )
    watermarks = WatermarkSpec(column="time", max_out_of_orderness_us=0)
    frame = read_files(session, source, str(path), None)
    frame = plans.observe_time(frame, watermarks)
    frame = plans.partial_window_aggregate(
        frame.where("number IS NOT NULL"), _AGGREGATE, cores=engine.cores
    )
    run(frame)
    plans.observed_times(frame)
    # Large bundle: Parquet in shared memory.
    large = pa.concat_tables([table] * (LOCAL_ROWS // 2 + 1)).combine_chunks()
    with way.dataframe(large.to_batches()) as frame:
        run(
            plans.partial_window_aggregate(
                frame.where("number IS NOT NULL"), _AGGREGATE, cores=engine.cores
            )
        )
