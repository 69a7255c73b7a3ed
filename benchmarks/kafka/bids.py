"""The records: Nexmark's bids as JSON, and what the engines should make of them.

Each partition ends with a bid that is an hour later than all others, which closes Spark's windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.generator import FIRST_MS, Nexmark
from benchmarks.nexmark.oracle import expected

PARTITIONS = 8
QUERIES = ("q0", "q5", "q12", "q17")
WINDOWS = ("q5", "q12")
DELAY_S = 4  # of watermarks
CHECK_BIDS = 200_000
COPY_INTERVAL = "1 s"  # between checkpoints
_LATER_MS = 3_600_000


@dataclass(frozen=True)
class Topic:
    """A topic of bids. Bid number n is in partition n mod PARTITIONS."""

    name: str
    bids: int  # without the last one of each partition
    nexmark: Nexmark

    @property
    def records(self) -> int:
        return self.bids + PARTITIONS

    def part(self, start: int, end: int) -> pa.Table:
        """Returns bids number `start` up to, and excluding, `end`."""
        return self.nexmark.bids(start, end)

    def last(self) -> pa.Table:
        """Returns the last bid of each partition."""
        return Nexmark(first_ms=FIRST_MS + _LATER_MS).bids(0, PARTITIONS)

    def all(self) -> pa.Table:
        return pa.concat_tables([self.part(0, self.bids), self.last()])


CHECK = Topic("check", CHECK_BIDS, Nexmark(events_per_s=500))  # seven minutes, over midnight


def timed(bids: int) -> Topic:
    return Topic(f"bids-{bids}", bids, Nexmark())


def right(query: str, *, last_window: bool) -> pd.DataFrame:
    """Returns the result of a query over CHECK; of windows, without those of the last bids, unless
    the engine closes them at the end of its input.
    """
    last = last_window or query not in WINDOWS
    return expected(query, CHECK.all() if last else CHECK.part(0, CHECK.bids))


def as_json(bids: pa.Table) -> pa.Array:
    """Returns a JSON object for each bid. Times are in UTC, as Spark and Flink's SQL write them."""
    parts: list[pa.Array | str] = []
    for name in bids.column_names:
        column = bids[name].combine_chunks()
        kind = column.type
        if pa.types.is_timestamp(kind):
            # Arrow prints as many digits as the type has.
            text = column.cast(pa.timestamp("ms")).cast(pa.string())
        else:
            text = column.cast(pa.string())
        quote = "" if pa.types.is_integer(kind) else '"'
        parts += [f'{"," if parts else "{"}"{name}":{quote}', text, quote]
    return pc.binary_join_element_wise(*parts, "}", "")


def copied(bids: pa.Table) -> pa.Table:
    """Returns what the transformation between two topics makes of bids: see COPY_COLUMNS."""
    price = bids["price"].to_numpy()
    return pa.table(
        {
            "auction": bids["auction"],
            "bidder": bids["bidder"],
            "price": pa.array(np.floor_divide(price * 908, 1000)),
            "channel": pc.utf8_upper(bids["channel"]),
            "extra": bids["extra"],
        }
    )


# By name: the expressions of Spark and of Flink, and Flink's type.
COPY_COLUMNS = {
    "auction": ("auction", "auction", "BIGINT"),
    "bidder": ("bidder", "bidder", "BIGINT"),
    "price": ("price * 908 div 1000", "price * 908 / 1000", "BIGINT"),
    "channel": ("upper(channel)", "UPPER(channel)", "STRING"),
    "extra": ("extra", "extra", "STRING"),
}
