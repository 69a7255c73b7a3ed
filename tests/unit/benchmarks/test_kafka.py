"""The records of the benchmarks of Kafka, and their expected results."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from benchmarks.kafka.bids import CHECK, COPY_COLUMNS, PARTITIONS, as_json, copied, right


def test_records_hold_the_bids() -> None:
    bids = CHECK.part(1_000, 1_100)
    records = [json.loads(value) for value in as_json(bids).to_pylist()]
    for record in records:
        record["dateTime"] = datetime.fromisoformat(record["dateTime"]).replace(tzinfo=UTC)
    expected = bids.to_pylist()
    for bid in expected:
        bid["dateTime"] = bid["dateTime"].replace(tzinfo=UTC)
    assert records == expected


def test_only_some_engines_close_the_last_window() -> None:
    without, whole = (right("q12", last_window=last) for last in (False, True))
    assert whole["bid_count"].sum() - without["bid_count"].sum() == PARTITIONS
    assert len(right("q0", last_window=False)) == CHECK.records


def test_copies_have_the_columns_of_both_statements() -> None:
    found = copied(CHECK.part(0, 10))
    assert found.column_names == list(COPY_COLUMNS)
    assert found["channel"].to_pylist()[0] == "APPLE"
    assert found["price"].to_pylist()[0] == 5255626 * 908 // 1000
