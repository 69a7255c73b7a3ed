"""Runs Spark Structured Streaming, `local[2]`: `python -m benchmarks.nexmark.run_spark KIND DATA
QUERY...`. The same program on Firesteel:

    firesteel run -t local -p 2 benchmarks/nexmark/run_spark.py KIND DATA QUERY...

A file stream with `availableNow`, four files (two million bids) per micro-batch; checkpoints in
shared memory. State is in Spark's default store; that of q20, all rows of both streams, is in
RocksDB. Windows are appended once they are closed: at the end, by a bid that is an hour later.
Other aggregates are updates. Streams do not support `count(DISTINCT)`, so distinct values are
counted by collecting sets of them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from benchmarks.nexmark import protocol
from benchmarks.nexmark.data import shared_memory
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
from benchmarks.nexmark.oracle import UPDATES
from benchmarks.peers.run_spark import ROCKSDB, session

FILES_PER_BATCH = 4
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
WATERMARK = "4 seconds"


def events(
    spark: SparkSession, folder: Path, kind: str, name: str = "bid", *, last: bool
) -> DataFrame:
    folders = f"{{{kind}/{name},{protocol.LAST}/{kind}/{name}}}" if last else f"{kind}/{name}"
    schema = ", ".join(f"{column} {type_}" for column, type_ in COLUMNS[name].items())
    stream = spark.readStream.schema(schema).format(kind)
    return stream.option("maxFilesPerTrigger", FILES_PER_BATCH).load(f"{folder}/{folders}")


def q0(df: DataFrame) -> DataFrame:
    return df.select("auction", "bidder", "price", "dateTime", "extra")


def q1(df: DataFrame) -> DataFrame:
    return df.selectExpr("auction", "bidder", f"{EUROS} AS price", "dateTime", "extra")


def q2(df: DataFrame) -> DataFrame:
    return df.where("auction % 123 = 0").select("auction", "price")


def q5(df: DataFrame) -> DataFrame:
    window = sql.window("dateTime", "10 seconds", "2 seconds")
    counts = (
        df.withWatermark("dateTime", WATERMARK)
        .groupBy(window, "auction")
        .agg(sql.count("*").alias("num"))
    )
    most = counts.groupBy("window").agg(
        sql.max("num").alias("num"), sql.expr("collect_list(struct(auction, num)) AS auctions")
    )
    return most.selectExpr(
        "num",
        "window.start AS start",
        "explode(filter(auctions, a -> a.num = num).auction) AS auction",
    )


def q7(df: DataFrame) -> DataFrame:
    bid = "max(struct(price, auction, bidder, dateTime, extra)) AS bid"
    highest = df.withWatermark("dateTime", WATERMARK).groupBy(sql.window("dateTime", "10 seconds"))
    return highest.agg(sql.expr(bid)).select("bid.*")


def q11(df: DataFrame) -> DataFrame:
    sessions = df.withWatermark("dateTime", WATERMARK).groupBy(
        "bidder", sql.session_window("dateTime", "10 seconds").alias("window")
    )
    return sessions.agg(sql.count("*").alias("bid_count")).selectExpr(
        "bidder", "window.start AS window_start", "window.end AS window_end", "bid_count"
    )


def q12(df: DataFrame) -> DataFrame:
    windows = df.withWatermark("dateTime", WATERMARK).groupBy(
        "bidder", sql.window("dateTime", "10 seconds")
    )
    counts = windows.agg(sql.count("*").alias("bid_count"))
    return counts.selectExpr("bidder", "window.start AS window_start", "bid_count")


def q14(df: DataFrame) -> DataFrame:
    chosen = df.where(Q14_WHERE).selectExpr(*Q14_SELECT)
    schema = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in chosen.schema)
    return chosen.mapInArrow(count_char, f"{schema}, c_counts bigint")


def _aggregates(distinct: tuple[str, ...]) -> Iterator[str]:
    yield "count(*) AS total_bids"
    for name in distinct:
        yield f"size(collect_set({name})) AS total_{name}s"
    for rank, where in RANKS.items():
        yield f"count(*) FILTER (WHERE {where}) AS {rank}_bids"
        for name in distinct:
            yield f"size(collect_set({name}) FILTER (WHERE {where})) AS {rank}_{name}s"


def _per_day(df: DataFrame, keys: tuple[str, ...], aggregates: list[str]) -> DataFrame:
    day = sql.date_format("dateTime", "yyyy-MM-dd").alias("day")
    return df.groupBy(*keys, day).agg(*map(sql.expr, aggregates))


def q15(df: DataFrame) -> DataFrame:
    return _per_day(df, (), [*_aggregates(("bidder", "auction"))])


def q16(df: DataFrame) -> DataFrame:
    minute = "max(date_format(dateTime, 'HH:mm')) AS minute"
    return _per_day(df, ("channel",), [minute, *_aggregates(("bidder", "auction"))])


def q17(df: DataFrame) -> DataFrame:
    prices = [f"{function}(price) AS {function}_price" for function in ("min", "max", "avg", "sum")]
    return _per_day(df, ("auction",), [*_aggregates(()), *prices])


def q21(df: DataFrame) -> DataFrame:
    found = df.selectExpr(
        "auction", "bidder", "price", "channel", f"{Q21_CHANNEL_ID} AS channel_id"
    )
    return found.where("channel_id <> ''")


def q22(df: DataFrame) -> DataFrame:
    folders = (f"split(url, '/')[{at}] AS dir{at - 2}" for at in (3, 4, 5))
    return df.selectExpr("auction", "bidder", "price", "channel", *folders)


Events = Callable[[str], DataFrame]


def q3(of: Events) -> DataFrame:
    auctions = of("auction").where("category = 10").select("id", "seller")
    persons = of("person").where("state IN ('OR', 'ID', 'CA')")
    persons = persons.selectExpr("id AS person", "name", "city", "state")
    return auctions.join(persons, sql.expr("seller = person")).select("name", "city", "state", "id")


def q8(of: Events) -> DataFrame:
    window = sql.window("dateTime", "10 seconds")
    persons = of("person").withWatermark("dateTime", WATERMARK).select("id", "name", window)
    auctions = of("auction").withWatermark("dateTime", WATERMARK)
    auctions = auctions.select(sql.col("seller").alias("id"), window)
    counts = persons.join(auctions, ["id", "window"]).groupBy("id", "name", "window")
    return counts.agg(sql.count("*").alias("auctions")).selectExpr(
        "id", "name", "auctions", "window.start AS window_start"
    )


def q13(of: Events) -> DataFrame:
    bids = of("bid")
    table = side_input(bids.sparkSession)
    joined = bids.join(sql.broadcast(table), bids.auction % SIDE_ROWS == table.key)
    return joined.select("auction", "bidder", "price", "dateTime", "value")


def q20(of: Events) -> DataFrame:
    auctions = (
        of("auction")
        .where("category = 10")
        .withColumnsRenamed({"dateTime": "auction_dateTime", "extra": "auction_extra"})
    )
    return of("bid").join(auctions, sql.expr("auction = id")).drop("id")


JOINS: dict[str, Callable[[Events], DataFrame]] = {
    query.__name__: query for query in (q3, q8, q13, q20)
}
QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    query.__name__: query for query in (q0, q1, q2, q5, q7, q11, q12, q14, q15, q16, q17, q21, q22)
}


def _in_order(folder: str) -> pa.Table:
    """Reads the batches in their order. Spark's times have no zone in files."""
    rows = pq.read_table(folder).sort_by("batch_").drop_columns("batch_")
    types = [
        pa.timestamp("us", "UTC") if pa.types.is_timestamp(t) else t for t in rows.schema.types
    ]
    return rows.cast(pa.schema(list(zip(rows.schema.names, types, strict=True))))


def main() -> None:
    kind, data, queries = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]

    def program(query: str, folder: str) -> DataFrame:
        if query in JOINS:
            last = query == "q8"
            return JOINS[query](lambda name: events(spark, data / folder, kind, name, last=last))
        windows = query not in protocol.ROW_BY_ROW and query not in UPDATES
        return QUERIES[query](events(spark, data / folder, kind, last=windows))

    def finish(query: str, stream: DataFrame, sink: str, **settings: object) -> None:
        if query == "q20":
            spark.conf.set(STATE_STORE, ROCKSDB)
        else:
            spark.conf.unset(STATE_STORE)
        with tempfile.TemporaryDirectory(dir=shared_memory(), prefix="bench-spark-") as folder:
            writer = stream.writeStream.outputMode("update" if query in UPDATES else "append")
            writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
            writer = writer.trigger(availableNow=True)
            if sink == "foreachBatch":
                writer = writer.foreachBatch(settings["function"])  # type: ignore[arg-type]
            else:
                writer = writer.format(sink)
            running = writer.start(f"{folder}/output") if sink == "parquet" else writer.start()
            running.awaitTermination()

    def collect(query: str) -> pa.Table:
        with tempfile.TemporaryDirectory(dir=shared_memory(), prefix="bench-spark-") as folder:

            def keep(df: DataFrame, number: int) -> None:
                df.withColumn("batch_", sql.lit(number)).write.mode("append").parquet(folder)

            finish(query, program(query, protocol.CHECK), "foreachBatch", function=keep)
            return _in_order(folder)

    def run(query: str) -> None:
        sink = "parquet" if protocol.writes_parquet(query, kind) else "noop"
        finish(query, program(query, protocol.TIMED), sink)

    with tempfile.TemporaryDirectory(prefix="bench-spark-", ignore_cleanup_errors=True) as temp_dir:
        spark = session(temp_dir)
        protocol.run_all(data, queries, collect, run)
        spark.stop()


if __name__ == "__main__":
    main()
