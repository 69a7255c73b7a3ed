"""Computes the expected results of the queries with pandas, and compares results.

A result is compared as a whole, in any order. Of a stream of updates, the last row of each key
counts; of a changelog stream, the inserted rows that were not deleted. The oracle uses neither
Spark nor Flink, so it does not share an engine's mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

_GAP_MS = 10_000
_CHANNEL_IDS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
# Queries with updates: the key columns. `_GROWS` is the column that grows with each update.
UPDATES = {"q15": ["day"], "q16": ["channel", "day"], "q17": ["auction", "day"]}
_GROWS = "total_bids"
# Queries whose output is changes, with `_KIND` as the kind of each.
_CHANGES = {"q4", "q6", "q9", "q18", "q19"}
_KIND = "row_kind"


class WrongResult(Exception):
    """A result differs from the expected one."""


def expected(query: str, bids: pa.Table) -> pd.DataFrame:
    """Returns the result over these bids. Times are in milliseconds, and euros in thousandths."""
    return _QUERIES[query](_plain(bids))


def expected_of_join(
    query: str, bids: pa.Table, auctions: pa.Table, persons: pa.Table
) -> pd.DataFrame:
    """Returns the result over these events."""
    return _JOINS[query](_plain(bids), _plain(auctions), _plain(persons))


def is_join(query: str) -> bool:
    """Returns whether the query reads other events than bids."""
    return query in _JOINS


def check(query: str, found: pa.Table, right: pd.DataFrame) -> None:
    """Raises WrongResult unless `found` has the expected rows. Ignores unexpected columns, such as
    an engine's window bounds.
    """
    names = list(right.columns)
    if missing := [name for name in names if name not in found.column_names]:
        raise WrongResult(f"{query}: there are no columns {', '.join(missing)}")
    rows = _plain(found.select(names))
    if query in UPDATES:
        rows = rows.sort_values(_GROWS, kind="stable").drop_duplicates(UPDATES[query], keep="last")
    if query in _CHANGES:
        rows = _there(
            query, rows.assign(change=np.where(found[_KIND].to_pandas() == "insert", 1, -1)), names
        )
    if len(rows) != len(right):
        raise WrongResult(f"{query}: {len(rows):,} rows instead of {len(right):,}")
    rows, right = (each.sort_values(names, ignore_index=True) for each in (rows, right))
    for name in names:
        different = np.flatnonzero(rows[name].to_numpy() != right[name].to_numpy())
        if len(different):
            at = different[0]
            raise WrongResult(
                f"{query}: ({', '.join(names)}) is {tuple(rows.loc[at])}"
                f" instead of {tuple(right.loc[at])}"
            )


def _there(query: str, changes: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Returns the rows that were inserted and not deleted; `change` is 1 or -1."""
    counts = changes.groupby(names, dropna=False)["change"].sum().reset_index()
    if (counts["change"] < 0).any():
        raise WrongResult(f"{query}: rows are deleted that were not inserted")
    return counts.loc[counts.index.repeat(counts["change"]), names]


def _plain(table: pa.Table) -> pd.DataFrame:
    """Returns only integers and strings, because engines have different types for other values.
    Decimals are in thousandths; of averages only the integer part counts, which is all that Flink
    returns.
    """
    columns: dict[str, Any] = {}
    for field in table.schema:
        column, kind = table[field.name], field.type
        if pa.types.is_timestamp(kind):
            values = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_numpy() // 1000
        elif pa.types.is_decimal(kind):
            scaled = (int(value.scaleb(3)) for value in column.to_pylist())
            values = np.fromiter(scaled, np.int64, len(column))
        elif pa.types.is_floating(kind):
            values = np.floor(column.to_numpy() + 1e-6).astype(np.int64)
        else:
            values = column.to_pandas()
        columns[field.name] = values
    return pd.DataFrame(columns)


def _q0(bids: pd.DataFrame) -> pd.DataFrame:
    return bids[["auction", "bidder", "price", "dateTime", "extra"]]


def _q1(bids: pd.DataFrame) -> pd.DataFrame:
    return _q0(bids).assign(price=bids["price"] * 908)


def _q2(bids: pd.DataFrame) -> pd.DataFrame:
    return bids.loc[bids["auction"] % 123 == 0, ["auction", "price"]]


def _q5(bids: pd.DataFrame) -> pd.DataFrame:
    latest = bids["dateTime"] // 2_000 * 2_000
    starts = pd.concat([bids.assign(start=latest - back) for back in range(0, 10_000, 2_000)])
    counts = starts.groupby(["start", "auction"]).size().rename("num").reset_index()
    return counts[counts["num"] == counts.groupby("start")["num"].transform("max")]


def _q7(bids: pd.DataFrame) -> pd.DataFrame:
    columns = ["price", "auction", "bidder", "dateTime", "extra"]
    return bids.sort_values(columns).groupby(bids["dateTime"] // 10_000).tail(1)[columns]


def _q10(bids: pd.DataFrame) -> pd.DataFrame:
    return _q0(bids).assign(dt=_with_day(bids)["day"], hm=_with_day(bids)["minute"])


def _q11(bids: pd.DataFrame) -> pd.DataFrame:
    ordered = bids.sort_values(["bidder", "dateTime"])
    later = ordered.groupby("bidder")["dateTime"].diff() > _GAP_MS
    new = later | (ordered["bidder"] != ordered["bidder"].shift())
    times = ordered.groupby(new.cumsum())
    return pd.DataFrame(
        {
            "bidder": times["bidder"].first(),
            "window_start": times["dateTime"].min(),
            "window_end": times["dateTime"].max() + _GAP_MS,
            "bid_count": times.size(),
        }
    )


def _q12(bids: pd.DataFrame) -> pd.DataFrame:
    start = (bids["dateTime"] // 10_000 * 10_000).rename("window_start")
    return bids.groupby(["bidder", start]).size().rename("bid_count").reset_index()


def _q14(bids: pd.DataFrame) -> pd.DataFrame:
    found = _q1(bids)
    found = found[(found["price"] > 1_000_000_000) & (found["price"] < 50_000_000_000)]
    hour = found["dateTime"] // 3_600_000 % 24
    kind = np.where(
        hour.between(8, 18),
        "dayTime",
        np.where((hour <= 6) | (hour >= 20), "nightTime", "otherTime"),
    )
    return found.assign(bidTimeType=kind, c_counts=found["extra"].str.count("c"))


def _with_day(bids: pd.DataFrame) -> pd.DataFrame:
    time = pd.to_datetime(bids["dateTime"], unit="ms")
    price = bids["price"]
    return bids.assign(
        day=time.dt.strftime("%Y-%m-%d"),
        minute=time.dt.strftime("%H:%M"),
        rank=np.where(price < 10_000, 1, np.where(price < 1_000_000, 2, 3)),
    )


def _counts(bids: pd.DataFrame, keys: list[str], distinct: tuple[str, ...]) -> pd.DataFrame:
    """Counts rows and distinct values, of all bids and of the bids of each rank."""
    groups = bids.groupby(keys)
    found = {"total_bids": groups.size()}
    found |= {f"total_{name}s": groups[name].nunique() for name in distinct}
    for rank in (1, 2, 3):
        groups = bids[bids["rank"] == rank].groupby(keys)
        found[f"rank{rank}_bids"] = groups.size()
        found |= {f"rank{rank}_{name}s": groups[name].nunique() for name in distinct}
    return pd.DataFrame(found).fillna(0).astype("int64")


def _q15(bids: pd.DataFrame) -> pd.DataFrame:
    return _counts(_with_day(bids), ["day"], ("bidder", "auction")).reset_index()


def _q16(bids: pd.DataFrame) -> pd.DataFrame:
    keyed, keys = _with_day(bids), ["channel", "day"]
    counts = _counts(keyed, keys, ("bidder", "auction"))
    return counts.join(keyed.groupby(keys)["minute"].max()).reset_index()


def _q17(bids: pd.DataFrame) -> pd.DataFrame:
    keyed, keys = _with_day(bids), ["auction", "day"]
    prices = keyed.groupby(keys)["price"].agg(["min", "max", "sum", "count"])
    prices["avg"] = prices["sum"] // prices.pop("count")
    counts = _counts(keyed, keys, ())
    return counts.join(prices.rename(columns=lambda name: f"{name}_price")).reset_index()


def _q18(bids: pd.DataFrame) -> pd.DataFrame:
    ordered = bids.sort_values("dateTime", kind="stable")
    return ordered.drop_duplicates(["bidder", "auction"], keep="last")


def _q19(bids: pd.DataFrame) -> pd.DataFrame:
    ordered = bids.sort_values(["price", "dateTime"], ascending=[False, True], kind="stable")
    ranks = ordered.groupby("auction").cumcount() + 1
    return ordered.assign(rank=ranks)[ranks <= 10]


def _q21(bids: pd.DataFrame) -> pd.DataFrame:
    by_url = bids["url"].str.extract("[?&]channel_id=([^&]*)")[0]
    found = bids.assign(channel_id=bids["channel"].str.lower().map(_CHANNEL_IDS).fillna(by_url))
    columns = ["auction", "bidder", "price", "channel", "channel_id"]
    return found.loc[found["channel_id"].notna(), columns]


def _q22(bids: pd.DataFrame) -> pd.DataFrame:
    parts = bids["url"].str.split("/")
    folders = {f"dir{at - 2}": parts.str[at] for at in (3, 4, 5)}
    return bids[["auction", "bidder", "price", "channel"]].assign(**folders)


def _q3(bids: pd.DataFrame, auctions: pd.DataFrame, persons: pd.DataFrame) -> pd.DataFrame:
    sellers = persons.loc[persons["state"].isin(["OR", "ID", "CA"])].drop(columns="extra")
    sold = auctions.loc[auctions["category"] == 10, ["id", "seller"]]
    pairs = sold.merge(
        sellers.rename(columns={"id": "person"}), left_on="seller", right_on="person"
    )
    return pairs[["name", "city", "state", "id"]]


def _q4(bids: pd.DataFrame, auctions: pd.DataFrame, persons: pd.DataFrame) -> pd.DataFrame:
    winning = _q9(bids, auctions, persons)
    means = winning.groupby("category")["price"].agg(["sum", "count"])
    return (means["sum"] // means["count"]).rename("final").reset_index()


def _q6(bids: pd.DataFrame, auctions: pd.DataFrame, persons: pd.DataFrame) -> pd.DataFrame:
    winning = _q9(bids, auctions, persons).sort_values(["seller", "bid_dateTime", "id"])
    sums = winning.groupby("seller")["price"].cumsum()
    until = sums.groupby(winning["seller"]).shift(10, fill_value=0)
    counts = (winning.groupby("seller").cumcount() + 1).clip(upper=10)
    return winning[["id", "seller"]].assign(average=(sums - until) // counts)


def _q8(bids: pd.DataFrame, auctions: pd.DataFrame, persons: pd.DataFrame) -> pd.DataFrame:
    sides = [each.assign(window=each["dateTime"] // 10_000) for each in (persons, auctions)]
    pairs = sides[0].merge(
        sides[1][["seller", "window"]], left_on=["id", "window"], right_on=["seller", "window"]
    )
    found = pairs.groupby(["id", "name", "window"]).size().rename("auctions").reset_index()
    return found.assign(window_start=found.pop("window") * 10_000)


def _q9(bids: pd.DataFrame, auctions: pd.DataFrame, persons: pd.DataFrame) -> pd.DataFrame:
    offers = bids[["auction", "bidder", "price"]].assign(bid_dateTime=bids["dateTime"])
    pairs = auctions.merge(offers, left_on="id", right_on="auction")
    pairs = pairs[pairs["bid_dateTime"].between(pairs["dateTime"], pairs["expires"])]
    order = pairs.sort_values(["price", "bid_dateTime"], ascending=[False, True], kind="stable")
    return order.drop_duplicates("id")


def _q13(bids: pd.DataFrame, auctions: pd.DataFrame, persons: pd.DataFrame) -> pd.DataFrame:
    value = "value-" + (bids["auction"] % 10_000).astype(str)
    return bids[["auction", "bidder", "price", "dateTime"]].assign(value=value)


def _q20(bids: pd.DataFrame, auctions: pd.DataFrame, persons: pd.DataFrame) -> pd.DataFrame:
    sold = auctions[auctions["category"] == 10].rename(
        columns={"dateTime": "auction_dateTime", "extra": "auction_extra", "id": "auction"}
    )
    return bids.merge(sold, on="auction")


_JOINS: dict[str, Callable[[pd.DataFrame, pd.DataFrame, pd.DataFrame], pd.DataFrame]] = {
    "q3": _q3, "q4": _q4, "q6": _q6, "q8": _q8, "q9": _q9, "q13": _q13, "q20": _q20,
}  # fmt: skip
_QUERIES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "q0": _q0, "q1": _q1, "q2": _q2, "q5": _q5, "q7": _q7, "q10": _q10, "q11": _q11,
    "q12": _q12, "q14": _q14, "q15": _q15, "q16": _q16, "q17": _q17, "q18": _q18, "q19": _q19,
    "q21": _q21, "q22": _q22,
}  # fmt: skip
