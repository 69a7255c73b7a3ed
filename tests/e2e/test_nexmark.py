"""Nexmark's queries have the results that pandas computes, over files and over generated bids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame

from benchmarks.nexmark import oracle
from benchmarks.nexmark.generator import Nexmark
from benchmarks.nexmark.programs import (
    JOINS,
    QUERIES,
    bids_of_files,
    bids_of_generator,
    events_of_files,
)
from firesteel import Environment
from firesteel.connectors import CollectSink
from tests.long import long_after

BIDS = 4_600  # of 5,000 events
FILE_BIDS = 1_600  # three files
NEXMARK = Nexmark(events_per_s=10)  # eight minutes, over midnight: many windows and sessions
COLUMNS = ["auction", "bidder", "price", "channel", "url", "dateTime", "extra"]


@pytest.mark.parametrize("mode", long_after(1, ["streaming", "batch"]))
def test_queries(in_session: None, tmp_path: Path, mode: Literal["streaming", "batch"]) -> None:
    """Runs all queries in one job, each with a separate source, as in a separate program."""
    NEXMARK.write(tmp_path, BIDS, file_bids=FILE_BIDS)
    env = Environment(parallelism=2, mode=mode)
    sources = {
        "parquet": lambda uid: bids_of_files(env, tmp_path, "parquet", uid),
        "csv": lambda uid: bids_of_files(env, tmp_path, "csv", uid),
        "generated": lambda uid: bids_of_generator(env, NEXMARK, BIDS),
    }
    read = {kind: bids(kind).sink_to(CollectSink()) for kind, bids in sources.items()}
    found = {}
    for number, (name, query) in enumerate(QUERIES.items()):
        bids = list(sources.values())[number % len(sources)](name)
        if name == "q10":
            query(bids).foreach_batch(partitioned_into(tmp_path / name))
        else:
            found[name] = query(bids).sink_to(CollectSink())
    result = env.execute("nexmark")
    right = NEXMARK.bids(0, BIDS)
    for kind, sink in read.items():
        rows = result.table(sink).select(COLUMNS)
        assert rows.sort_by([(name, "ascending") for name in COLUMNS]).equals(
            right.sort_by([(name, "ascending") for name in COLUMNS])
        ), kind
    for name, sink in found.items():
        oracle.check(name, result.table(sink), oracle.expected(name, right))
    texts = ds.partitioning(pa.schema([("dt", pa.string()), ("hm", pa.string())]), flavor="hive")
    written = ds.dataset(tmp_path / "q10", partitioning=texts, exclude_invalid_files=True)
    oracle.check("q10", written.to_table(), oracle.expected("q10", right))


def partitioned_into(folder: Path) -> Callable[[DataFrame, int], None]:
    """Writes each bundle to a folder per day and minute."""
    path = str(folder)
    return lambda df, number: df.write.partitionBy("dt", "hm").mode("append").parquet(path)


@pytest.mark.parametrize("mode", long_after(1, ["batch", "streaming"]))
def test_joins(in_session: None, tmp_path: Path, mode: Literal["streaming", "batch"]) -> None:
    """As above, of persons, auctions and bids."""
    NEXMARK.write(tmp_path, BIDS, file_bids=FILE_BIDS)
    env = Environment(parallelism=2, mode=mode)
    found = {}
    for number, (name, query) in enumerate(JOINS.items()):
        events = events_of_files(env, tmp_path, ("parquet", "csv")[number % 2], f"{name}-")
        found[name] = query(events).sink_to(CollectSink())
    with pytest.warns(UserWarning, match="go nowhere"):  # no query needs all three streams
        result = env.execute("nexmark joins")
    epochs = BIDS // 46
    tables = NEXMARK.bids(0, BIDS), NEXMARK.auctions(0, 3 * epochs), NEXMARK.persons(0, epochs)
    for name, sink in found.items():
        right = oracle.expected_of_join(name, *tables)
        assert len(right), name
        oracle.check(name, result.table(sink), right)
