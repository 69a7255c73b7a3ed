"""Nexmark's queries as Firesteel programs: from the streams of events to the result.

    python -m benchmarks.nexmark.generator FOLDER
    python -m benchmarks.nexmark.programs q5 --data FOLDER [--format csv] [--output FOLDER]

q12 is in event time here, because a result in processing time cannot be checked. If several bids of
a window have the highest price, q7 returns one of them, and q19 ranks the earlier one first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.nexmark.expressions import (
    COLUMNS,
    EUROS,
    Q14_SELECT,
    Q14_WHERE,
    Q21_CHANNEL_ID,
    RANKS,
    SIDE_ROWS,
    count_char,
    side_input,
)
from benchmarks.nexmark.generator import BID_COLUMNS, Nexmark
from firesteel import Environment, Session, Sliding, Tumbling, Watermarks
from firesteel.connectors import DiscardSink, FileSink, FileSource
from firesteel.datastream import DataStream

WATERMARKS = Watermarks.bounded("dateTime", max_out_of_orderness="4 s")
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in BID_COLUMNS.items())


class Events(NamedTuple):
    """The three streams of a program."""

    env: Environment
    bids: DataStream
    auctions: DataStream
    persons: DataStream


def bids_of_files(env: Environment, folder: Path, kind: str, uid: str = "bids") -> DataStream:
    return _of_files(env, folder, kind, "bid", uid)


def events_of_files(env: Environment, folder: Path, kind: str, uid: str = "") -> Events:
    streams = (_of_files(env, folder, kind, name, f"{uid}{name}s") for name in COLUMNS)
    return Events(env, *streams)


def _of_files(env: Environment, folder: Path, kind: str, name: str, uid: str) -> DataStream:
    schema = ", ".join(f"{column} {type_}" for column, type_ in COLUMNS[name].items())
    files = FileSource(f"{folder}/{kind}/{name}/*.{kind}", format=kind, schema=schema)
    return env.from_source(files, watermarks=WATERMARKS, uid=uid)


def bids_of_generator(env: Environment, nexmark: Nexmark, rows: int) -> DataStream:
    """Returns the same bids, generated in Spark."""
    numbers = env.from_sequence(0, rows)
    bids = numbers.transform(nexmark.bids_on_spark, name="Bids")
    return bids.assign_timestamps_and_watermarks(WATERMARKS)


def q0(bids: DataStream) -> DataStream:
    """Forwards bids unchanged."""
    return bids.transform(lambda df: df.select("auction", "bidder", "price", "dateTime", "extra"))


def q1(bids: DataStream) -> DataStream:
    """Converts prices to euros."""
    return bids.transform(
        lambda df: df.selectExpr("auction", "bidder", f"{EUROS} AS price", "dateTime", "extra")
    )


def q2(bids: DataStream) -> DataStream:
    """Selects bids for some auctions."""
    return bids.transform(lambda df: df.where("auction % 123 = 0").select("auction", "price"))


def q5(bids: DataStream) -> DataStream:
    """Finds the auctions with the most bids of the last ten seconds, every two seconds."""
    counts = (
        bids.key_by("auction").window(Sliding("10 s", "2 s")).aggregate("count(*) AS num")
    ).transform(lambda df: df.withColumnRenamed("window_start", "start"))
    # Sliding windows end every two seconds; each of them gets a separate window here.
    most = (
        counts.key_by("start")
        .window(Tumbling("2 s"))
        .aggregate("max(num) AS num", "collect_list(struct(auction, num)) AS auctions")
    )
    return most.transform(
        lambda df: df.selectExpr(
            "num", "start", "explode(filter(auctions, a -> a.num = num).auction) AS auction"
        )
    )


def q7(bids: DataStream) -> DataStream:
    """Finds the highest bid of each ten seconds."""
    highest = (
        bids.transform(lambda df: df.selectExpr("*", "'all' AS key"))
        .key_by("key")
        .window(Tumbling("10 s"))
        .aggregate("max(struct(price, auction, bidder, dateTime, extra)) AS bid")
    )
    return highest.transform(lambda df: df.select("bid.*"))


def q10(bids: DataStream) -> DataStream:
    """Adds the day and the minute that name the folder to which a bid would be written."""
    return bids.select_expr(
        *("auction", "bidder", "price", "dateTime", "extra"),
        "date_format(dateTime, 'yyyy-MM-dd') AS dt",
        "date_format(dateTime, 'HH:mm') AS hm",
    )


def q11(bids: DataStream) -> DataStream:
    """Counts bids per session of a bidder."""
    return bids.key_by("bidder").window(Session("10 s")).aggregate("count(*) AS bid_count")


def q12(bids: DataStream) -> DataStream:
    """Counts bids per bidder in each ten seconds."""
    return bids.key_by("bidder").window(Tumbling("10 s")).aggregate("count(*) AS bid_count")


def q14(bids: DataStream) -> DataStream:
    """Selects expensive bids, with a count by a Python function."""
    chosen = bids.transform(lambda df: df.where(Q14_WHERE).selectExpr(*Q14_SELECT))
    return chosen.map_in_arrow(
        count_char,
        "auction BIGINT, bidder BIGINT, price DECIMAL(24,3), bidTimeType STRING,"
        " dateTime TIMESTAMP, extra STRING, c_counts BIGINT",
    )


def _ranks() -> list[str]:
    return [f"count(*) FILTER (WHERE {where}) AS {name}_bids" for name, where in RANKS.items()]


def _distinct(of: str) -> list[str]:
    return [
        f"count(DISTINCT {of}) AS total_{of}s",
        *(
            f"count(DISTINCT {of}) FILTER (WHERE {where}) AS {name}_{of}s"
            for name, where in RANKS.items()
        ),
    ]


def _with_day(bids: DataStream) -> DataStream:
    return bids.transform(
        lambda df: df.selectExpr("*", "date_format(dateTime, 'yyyy-MM-dd') AS day")
    )


def q15(bids: DataStream) -> DataStream:
    """Counts bids, bidders and auctions by rank of price, per day, as updates."""
    return (
        _with_day(bids)
        .key_by("day")
        .aggregate("count(*) AS total_bids", *_ranks(), *_distinct("bidder"), *_distinct("auction"))
    )


def q16(bids: DataStream) -> DataStream:
    """Counts as in q15, per channel and day."""
    return (
        _with_day(bids)
        .key_by("channel", "day")
        .aggregate(
            "max(date_format(dateTime, 'HH:mm')) AS minute",
            "count(*) AS total_bids",
            *_ranks(),
            *_distinct("bidder"),
            *_distinct("auction"),
        )
    )


def q17(bids: DataStream) -> DataStream:
    """Computes statistics of the bids for an auction, per day, as updates."""
    return (
        _with_day(bids)
        .key_by("auction", "day")
        .aggregate(
            "count(*) AS total_bids",
            *_ranks(),
            "min(price) AS min_price",
            "max(price) AS max_price",
            "avg(price) AS avg_price",
            "sum(price) AS sum_price",
        )
    )


def q18(bids: DataStream) -> DataStream:
    """Finds the last bid of each bidder for each auction, as changes."""
    return bids.drop_duplicates("bidder", "auction", keep="last")


def q19(bids: DataStream) -> DataStream:
    """Finds the ten highest bids for each auction, as changes."""
    return bids.key_by("auction").top_n(10, by=["price", "dateTime"], ascending=[False, True])


def q21(bids: DataStream) -> DataStream:
    """Adds the id of each bid's channel, from its name or its URL; drops bids without one."""
    return bids.transform(
        lambda df: df.selectExpr(
            "auction", "bidder", "price", "channel", f"{Q21_CHANNEL_ID} AS channel_id"
        ).where("channel_id <> ''")
    )


def q22(bids: DataStream) -> DataStream:
    """Adds the folders in each bid's URL."""
    return bids.transform(
        lambda df: df.selectExpr(
            "auction",
            "bidder",
            "price",
            "channel",
            *(f"split(url, '/')[{at}] AS dir{at - 2}" for at in (3, 4, 5)),
        )
    )


def q3(events: Events) -> DataStream:
    """Sellers in some states with auctions in one category."""
    auctions = events.auctions.where("category = 10").select("id", "seller")
    persons = events.persons.where("state IN ('OR', 'ID', 'CA')").select_expr(
        "id AS person", "name", "city", "state"
    )
    return auctions.join(persons, on={"seller": "person"}).select("name", "city", "state", "id")


def _bids_in_time(auctions: DataStream, bids: DataStream) -> DataStream:
    """Joins auctions with the bids that arrived while they were open. The join keeps the columns
    that both streams have.
    """
    return auctions.join(bids, on={"id": "auction"}).where(
        "bid_dateTime BETWEEN dateTime AND expires"
    )


def _winning_bids(auctions: DataStream, bids: DataStream) -> DataStream:
    order = ["price", "bid_dateTime"]
    pairs = _bids_in_time(auctions, bids)
    winning = pairs.key_by("id").top_n(1, by=order, ascending=[False, True])
    return winning.drop("rank")


BID = ("auction", "price", "dateTime AS bid_dateTime")
AUCTION = ("id", "dateTime", "expires")


def q4(events: Events) -> DataStream:
    """Computes the average of the auctions' final prices in each category, as changes."""
    pairs = _bids_in_time(
        events.auctions.select(*AUCTION, "category"), events.bids.select_expr(*BID)
    )
    final = pairs.key_by("id", "category").aggregate("max(price) AS final", changes=True)
    return final.key_by("category").aggregate("avg(final) AS final")


def q6(events: Events) -> DataStream:
    """Computes for each auction with a bid the average final price of its seller's last ten
    auctions, as changes.
    """
    winning = _winning_bids(
        events.auctions.select(*AUCTION, "seller"), events.bids.select_expr(*BID)
    ).select("id", "seller", "price", "bid_dateTime", "row_kind")
    last_ten = winning.key_by("seller").rows_between(-9, 0, by=["bid_dateTime", "id"])
    return last_ten.aggregate("avg(price) AS average")


def q8(events: Events) -> DataStream:
    """Persons who open an auction in the ten-second window in which they register."""
    persons = events.persons.select("id", "name", "dateTime")
    auctions = events.auctions.select_expr("seller", "dateTime AS opened")
    pairs = persons.window_join(
        auctions, on={"id": "seller"}, window=Tumbling("10 s"), times=("dateTime", "opened")
    )
    return pairs.key_by("id", "name").window(Tumbling("10 s")).aggregate("count(*) AS auctions")


def q9(events: Events) -> DataStream:
    """Finds the winning bid of each auction, as changes."""
    bids = events.bids.select_expr(*BID, "bidder")
    return _winning_bids(events.auctions, bids)


def q13(events: Events) -> DataStream:
    """Joins bids with the values of a static table."""
    table = events.env.static(side_input, name="side_input")
    return events.bids.transform(
        lambda df: df.join(
            table.dataframe(), df.auction % SIDE_ROWS == table.dataframe().key
        ).select("auction", "bidder", "price", "dateTime", "value")
    )


def q20(events: Events) -> DataStream:
    """Joins bids with the auctions of one category."""
    auctions = events.auctions.where("category = 10").select_expr(
        *("id", "itemName", "description", "initialBid", "reserve", "expires", "seller"),
        *("category", "dateTime AS auction_dateTime", "extra AS auction_extra"),
    )
    return events.bids.join(auctions, on={"auction": "id"}).drop("id")


JOINS: dict[str, Callable[[Events], DataStream]] = {
    query.__name__: query for query in (q3, q4, q6, q8, q9, q13, q20)
}
QUERIES: dict[str, Callable[[DataStream], DataStream]] = {
    query.__name__: query
    for query in (q0, q1, q2, q5, q7, q10, q11, q12, q14, q15, q16, q17, q18, q19, q21, q22)
}


def main() -> None:
    parser = argparse.ArgumentParser(description="One of Nexmark's queries.")
    parser.add_argument("query", choices=[*QUERIES, *JOINS])
    parser.add_argument("--data", type=Path, required=True, help="folder with the events")
    parser.add_argument("--format", choices=("parquet", "csv"), default="parquet")
    parser.add_argument(
        "--output", type=Path, help="where to write Parquet; by default, results are discarded"
    )
    arguments = parser.parse_args()
    env = Environment(parallelism=2)
    if arguments.query in JOINS:
        result = JOINS[arguments.query](events_of_files(env, arguments.data, arguments.format))
    else:
        result = QUERIES[arguments.query](bids_of_files(env, arguments.data, arguments.format))
    sink = DiscardSink() if arguments.output is None else FileSink(str(arguments.output), "parquet")
    result.sink_to(sink, uid="result")
    env.execute(f"nexmark {arguments.query}").print_timing()


if __name__ == "__main__":
    main()
