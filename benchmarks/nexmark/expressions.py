"""Nexmark's tables and expressions in Spark SQL, for programs of Firesteel and of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.generator import AUCTION_COLUMNS, BID_COLUMNS, PERSON_COLUMNS

COLUMNS = {"bid": BID_COLUMNS, "auction": AUCTION_COLUMNS, "person": PERSON_COLUMNS}

EUROS = "0.908 * price"
RANKS = {
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}

Q14_SELECT = (
    "auction",
    "bidder",
    f"{EUROS} AS price",
    "CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'"
    " WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'"
    " ELSE 'otherTime' END AS bidTimeType",
    "dateTime",
    "extra",
)
Q14_WHERE = f"{EUROS} > 1000000 AND {EUROS} < 50000000"

CHANNEL_IDS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
Q21_CHANNEL_ID = (
    "CASE "
    + " ".join(f"WHEN lower(channel) = '{name}' THEN '{id}'" for name, id in CHANNEL_IDS.items())
    + " ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END"
)

SIDE_ROWS = 10_000


def side_input(spark: Any) -> Any:
    return spark.range(SIDE_ROWS).selectExpr("id AS key", "concat('value-', id) AS value")


def count_char(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Adds `c_counts`, how often "c" occurs in `extra`."""
    for batch in batches:
        counts = pc.cast(pc.count_substring(batch["extra"], "c"), pa.int64())
        yield batch.append_column("c_counts", counts)
