"""Every kind of operator that uses Spark, in slots of two cores: the results are what pandas finds
in the same rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from firesteel import Environment, ResourceProfile, Tumbling, Watermarks
from firesteel.connectors import CollectSink, FileSource

from .conftest import Session

MIB = 2**20
TWO_CORES = ResourceProfile(
    cpu_cores=2, heap_bytes=512 * MIB, off_heap_bytes=1024 * MIB, network_bytes=128 * MIB
)
FILES, ROWS = 3, 300_000


class OutOfOrder(StatefulProcessor):
    """How many of a file's rows came before one that the file has before them, though one subtask
    has read them. (A file that is cut is read by several.)
    """

    def init(self, handle: Any) -> None:
        self.last = handle.getValueState("last", "n BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        (last,) = self.last.get() or (-1,)
        for row in rows:
            if row.n < last:
                yield Row(origin=key[0], n=row.n)
            last = row.n
        self.last.update((last,))


def with_reader(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In the chain of the source, so in the process that reads."""
    for batch in batches:
        yield batch.append_column("reader", pa.array([os.getpid()] * batch.num_rows, pa.int64()))


def events(file: int) -> pd.DataFrame:
    n = np.arange(ROWS) + file * ROWS
    at = pd.Timestamp("2024-03-01", tz="UTC") + pd.to_timedelta(n % ROWS * 20, unit="ms")
    return pd.DataFrame(
        {
            "n": n,
            "at": at.astype("datetime64[us, UTC]"),
            "key": n % 13,
            "origin": file,
            "value": n % 101 / 4,
        }
    )


def test_all_features_together(session: Session, in_session: None, tmp_path: Path) -> None:
    for file in range(FILES):  # each of two partitions or more, for two cores
        pq.write_table(
            pa.Table.from_pandas(events(file)),
            tmp_path / f"{file}.parquet",
            row_group_size=20_000,
            compression="none",
        )
    env = Environment(parallelism=2)
    source = FileSource(f"{tmp_path}/*.parquet", format="parquet")
    read = env.from_source(
        source, watermarks=Watermarks.bounded("at", max_out_of_orderness="1 d")
    ).set_resources(TWO_CORES)
    even = read.transform(lambda df: df.where("n % 2 = 0").selectExpr("*", "value * 2 AS double"))
    again = even.rebalance().transform(
        lambda df: df.selectExpr("*", "double / 2 AS half"), name="Through bundles"
    )
    windows = (
        again.key_by("key")
        .window(Tumbling("10 min"))
        .aggregate("count(*) AS rows", "sum(half) AS total", "max(n) AS latest")
    )
    running = even.key_by("key").aggregate("count(*) AS rows", "avg(double) AS mean")
    medians = even.key_by("key").window(Tumbling("1 h")).apply(
        lambda df: df.groupBy("key", "window_start").agg({"value": "median"}).toDF("key", "window_start", "median")
    )  # fmt: skip
    order = (
        even.transform(lambda df: df.where("n % 10 = 0").select("origin", "n"))
        .map_in_arrow(with_reader, "origin BIGINT, n BIGINT, reader BIGINT")
        .key_by("origin", "reader")
    )
    disorder = order.transform_with_state(OutOfOrder(), "origin BIGINT, n BIGINT")
    squares = env.from_sequence(0, 100_000).transform(
        lambda df: df.selectExpr("sum(value) AS value"), per_bundle=True
    )
    sinks = [
        stream.sink_to(CollectSink()) for stream in (windows, running, medians, disorder, squares)
    ]
    result = env.execute("everything")
    windowed, updates, median, late, sums = (result.table(sink).to_pandas() for sink in sinks)

    expected = pd.concat([events(file) for file in range(FILES)]).query("n % 2 == 0")
    by_window = expected.assign(
        total=expected["value"], window_start=expected["at"].dt.floor("10min")
    ).groupby(["key", "window_start"])
    wanted = by_window.agg(rows=("n", "size"), total=("total", "sum"), latest=("n", "max"))
    found = windowed.set_index(["key", "window_start"]).sort_index()[["rows", "total", "latest"]]
    assert found.values.tolist() == wanted.values.tolist()
    last = updates.sort_values("rows").groupby("key").last()
    assert last["rows"].tolist() == expected.groupby("key").size().tolist()
    assert np.allclose(last["mean"], 2 * expected.groupby("key")["value"].mean())
    hours = expected.groupby(["key", expected["at"].dt.floor("1h")])["value"].median()
    assert median.sort_values(["key", "window_start"])["median"].tolist() == hours.tolist()
    assert late.to_dict("records") == []
    assert sums["value"].sum() == sum(range(100_000))
