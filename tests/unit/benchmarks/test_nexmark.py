"""Nexmark's generator: the proportions, hot keys and files of its events."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from benchmarks.nexmark import oracle
from benchmarks.nexmark.generator import Nexmark

NEXMARK = Nexmark()


def test_keys_are_as_hot_as_nexmarks() -> None:
    bids = NEXMARK.bids(0, 46_000)  # of 50,000 events: five seconds
    auction, bidder, price = (bids[name].to_numpy() for name in ("auction", "bidder", "price"))
    channel = np.array(bids["channel"].to_pylist())
    for share, of_all in (
        ((auction % 100 == 0).mean(), 0.50),
        ((bidder % 100 == 1).mean(), 0.75),
        (np.char.startswith(channel, "channel-").mean(), 0.50),
        ((channel == "Apple").mean(), 0.125),
        ((price >= 1_000_000).mean(), 1 / 3),
    ):
        assert share == pytest.approx(of_all, abs=0.02)
    assert auction.max() - auction.min() == pytest.approx(3_000, abs=20)
    assert bidder.max() - bidder.min() == pytest.approx(1_000, abs=20)
    assert bids.nbytes / bids.num_rows == pytest.approx(170, abs=20)


def test_a_row_depends_on_its_number_and_the_seed_only() -> None:
    for table in (NEXMARK.bids, NEXMARK.auctions, NEXMARK.persons):
        rows = table(0, 200).to_pylist()
        assert table(60, 200).to_pylist() == rows[60:]
        assert [row["dateTime"] for row in rows] == sorted(row["dateTime"] for row in rows)
    assert Nexmark(seed=2).bids(0, 10) != NEXMARK.bids(0, 10)


def test_files_have_the_rows_of_all_three_streams(tmp_path: Path) -> None:
    NEXMARK.write(tmp_path, 100, file_bids=40)
    for name, rows, files, table in (
        ("bid", 100, 3, NEXMARK.bids),
        ("auction", 9, 1, NEXMARK.auctions),  # of the three epochs with 46 bids each
        ("person", 3, 1, NEXMARK.persons),
    ):
        right = table(0, rows)
        assert len(list((tmp_path / "parquet" / name).iterdir())) == files
        assert pq.read_table(tmp_path / "parquet" / name).equals(right)
        options = pyarrow.csv.ReadOptions(column_names=right.column_names)
        lines = pa.concat_tables(
            pyarrow.csv.read_csv(path, options)
            for path in sorted((tmp_path / "csv" / name).iterdir())
        )
        assert lines.num_rows == rows
        key = right.column_names[0]
        assert lines[key].to_pylist() == right[key].to_pylist()


def test_a_wrong_result_is_found() -> None:
    bids = NEXMARK.bids(0, 1_000)
    right = oracle.expected("q0", bids)
    columns = list(right.columns)
    oracle.check("q0", bids.select(columns), right)
    with pytest.raises(oracle.WrongResult, match="q0: 999 rows instead of 1,000"):
        oracle.check("q0", bids.select(columns).slice(1), right)
    with pytest.raises(oracle.WrongResult, match="q0: there are no columns extra"):
        oracle.check("q0", bids.select(columns[:-1]), right)
    prices = pa.array([*bids["price"].to_pylist()[:-1], 1])
    other = bids.set_column(2, "price", prices)
    with pytest.raises(oracle.WrongResult, match=r"q0: \(auction, bidder, price.* instead of"):
        oracle.check("q0", other.select(columns), right)
