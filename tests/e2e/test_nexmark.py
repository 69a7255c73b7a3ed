"""Nexmark's queries have the results that pandas computes, over files and over generated bids."""

from __future__ import annotations

from pathlib import Path

import pytest

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

BIDS = 4_600  # of 5,000 events
FILE_BIDS = 1_600  # three files
NEXMARK = Nexmark(events_per_s=10)  # eight minutes, over midnight: many windows and sessions
COLUMNS = ["auction", "bidder", "price", "channel", "url", "dateTime", "extra"]


def test_queries(in_session: None, tmp_path: Path) -> None:
    """All in one job, each with a source of its own, as in a program of its own."""
    NEXMARK.write(tmp_path, BIDS, file_bids=FILE_BIDS)
    env = Environment(parallelism=2)
    sources = {
        "parquet": lambda uid: bids_of_files(env, tmp_path, "parquet", uid),
        "csv": lambda uid: bids_of_files(env, tmp_path, "csv", uid),
        "generated": lambda uid: bids_of_generator(env, NEXMARK, BIDS),
    }
    read = {kind: bids(kind).sink_to(CollectSink()) for kind, bids in sources.items()}
    found = {}
    for number, (name, query) in enumerate(QUERIES.items()):
        bids = list(sources.values())[number % len(sources)](name)
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


def test_joins(in_session: None, tmp_path: Path) -> None:
    """As above, of persons, auctions and bids."""
    NEXMARK.write(tmp_path, BIDS, file_bids=FILE_BIDS)
    env = Environment(parallelism=2)
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
