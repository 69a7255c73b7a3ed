"""A PySpark program with queries of every kind over the flights of 2013. It writes the results of
each to a folder; it knows nothing of Firesteel.

Arguments: the folder of the flights, in JSON; that of the results; names of queries, or none for
all.
"""

import json
import sys

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

FLIGHTS, RESULTS, *WANTED = sys.argv[1:]
DELAY = "2 hours"
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
carriers = [("UA", "United"), ("AA", "American"), ("B6", "JetBlue"), (None, "Nobody")]

spark = (
    SparkSession.builder.appName("queries")
    .master("local[2]")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.streaming.stateStore.providerClass", STATE_STORE)
    .config("spark.sql.session.timeZone", "America/New_York")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")

SCHEMA = (
    "time TIMESTAMP, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,"
    " dep_delay DOUBLE, distance INT"
)
flights = spark.readStream.schema(SCHEMA).json(FLIGHTS)
timed = flights.withWatermark("time", DELAY)
flights.createOrReplaceTempView("flights")
spark.read.schema(SCHEMA).json(FLIGHTS).where("distance > 2500").createOrReplaceTempView("far")


class EndsOf:
    """The two airports of a flight."""

    def eval(self, origin: str, dest: str):
        yield "from", origin
        yield "to", dest


spark.udtf.register("ends_of", F.udtf(EndsOf, returnType="end STRING, airport STRING"))
airlines = spark.createDataFrame(carriers, "carrier STRING, name STRING")


@F.udf("string")
def route(origin, dest):
    return f"{origin}{ARROW}{dest}"


ARROW = "->"


def doubled(frames):
    for frame in frames:
        yield frame.assign(distance=frame.distance * 2)


def rounded(column):
    return F.round(column, 6)


def legs(key, frames, state):
    (seen,) = state.getOption or (0,)
    for frame in frames:
        seen += len(frame)
    state.update((seen,))
    yield pd.DataFrame({"carrier": [key[0]], "legs": [seen]})


class Longest(StatefulProcessor):
    """The longest flight of each plane so far."""

    def init(self, handle):
        self.longest = handle.getValueState("longest", "distance INT")

    def handleInputRows(self, key, rows, timerValues):
        longest = self.longest.get()[0] if self.longest.exists() else 0
        longest = max(longest, *(row.distance for row in rows))
        self.longest.update((longest,))
        yield Row(plane=key[0], longest=longest)

    def close(self):
        pass


class Landings(StatefulProcessor):
    """When each flight lands, if each mile takes two minutes."""

    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            lands = frame.time + pd.to_timedelta(frame.distance * 2, "min")
            yield pd.DataFrame({"carrier": key[0], "lands": lands})

    def close(self):
        pass


timed.withColumn("stay", F.session_window("time", "2 hours")).createOrReplaceTempView("stays")
departures = timed.selectExpr("time AS left_at", "tailnum", "origin").where("origin = 'EWR'")
others = (
    flights.selectExpr("time AS next_at", "tailnum AS plane", "origin AS place")
    .where("place = 'JFK'")
    .withWatermark("next_at", "3 hours")
)
near = F.expr("tailnum = plane AND next_at >= left_at AND next_at <= left_at + interval 12 hours")

some = spark.read.schema(SCHEMA).json(FLIGHTS).where("flight % 50 = 3").coalesce(1)
some.write.mode("ignore").parquet(f"{RESULTS}/_parquet")
some.select("flight", "_metadata").write.mode("ignore").parquet(f"{RESULTS}/_stored")
in_parquet = spark.readStream.schema(SCHEMA).parquet(f"{RESULTS}/_parquet")
stored = spark.readStream.schema(spark.read.parquet(f"{RESULTS}/_stored").schema)

QUERIES = {
    "append": {
        "rows": flights.select(
            route("origin", "dest").alias("route"), F.hour("time").alias("h"), "flight"
        ).where("dep_delay > 60 AND flight % 7 = 0"),
        "files": flights.where("flight % 50 = 3").select(
            "flight",
            "_metadata.file_name",
            "_metadata.file_size",
            F.input_file_name().alias("file"),
        ),
        "rows_of_parquet": in_parquet.select(
            "flight",
            "_metadata.row_index",
            F.endswith("_metadata.file_name", F.lit(".parquet")).alias("is_parquet"),
        ),
        # The column names the files from which the rows were read first.
        "stored_metadata": stored.parquet(f"{RESULTS}/_stored").select(
            "flight", "_metadata.file_name"
        ),
        "sql": spark.sql(
            """
            WITH late AS (SELECT * FROM flights WHERE dep_delay >= 120)
            SELECT carrier, explode(array(origin, dest)) AS airport,
                   CASE WHEN distance > 1000 THEN 'far' ELSE 'near' END AS how_far
            FROM late
            """
        ),
        "subqueries": spark.sql(
            """
            FROM flights
            |> WHERE dest IN (SELECT dest FROM far) AND flight % 10 = 1
            |> WHERE NOT EXISTS (
                SELECT 1 FROM far WHERE far.tailnum = flights.tailnum AND origin = 'EWR'
            )
            |> WHERE carrier NOT IN (SELECT carrier FROM far WHERE carrier = 'DL')
            |> SELECT time, flight, dest
            """
        ),
        "subqueries_of_one_table": spark.sql(
            """
            SELECT flights.flight, flights.dest, far.distance AS miles
            FROM flights JOIN far ON flights.tailnum = far.tailnum AND far.flight = 59
            WHERE flights.dest IN (SELECT dest FROM far WHERE distance > 2550)
              AND flights.dest NOT IN (SELECT dest FROM far WHERE distance > 4900)
              AND (flights.origin IN (SELECT origin FROM far WHERE carrier = 'HA')
                   OR flights.carrier IN (SELECT carrier FROM far WHERE origin = 'EWR'))
              AND EXISTS (SELECT 1 FROM far WHERE distance > 4900)
              AND NOT EXISTS (SELECT 1 FROM far WHERE distance < 0)
            """
        ),
        "lateral": spark.sql(
            """
            SELECT flight, end, airport, kilometers
            FROM flights,
                 LATERAL ends_of(origin, dest),
                 LATERAL (SELECT distance * 1.609344D AS kilometers)
            WHERE flight % 20 = 1
            """
        ),
        "scalar_subqueries": spark.sql(
            """
            SELECT flight, (SELECT max(distance) FROM far WHERE far.carrier = f.carrier) AS farthest,
                   distance - (SELECT min(distance) FROM far) AS further,
                   (SELECT flight FROM far WHERE distance < 0) IS NULL AS none
            FROM flights AS f
            WHERE distance + 100 > (SELECT avg(distance) FROM far)
            """
        ),
        "union": flights.where("carrier = 'HA'")
        .select("flight", "origin")
        .union(flights.where("carrier = 'OO'").select("flight", "dest")),
        "pandas": flights.where("carrier = 'AS'")
        .select("flight", "distance")
        .mapInPandas(doubled, "flight INT, distance INT"),
        "tumbling": timed.groupBy(F.window("time", "6 hours"), "origin").agg(
            F.count("*").alias("n"),
            rounded(F.avg("dep_delay")).alias("delay"),
            (F.max("distance") - F.min("distance")).alias("span"),
            F.count("dep_delay").alias("known"),
        ),
        "times": timed.groupBy("time", "origin").agg(F.max("distance").alias("longest")),
        "sliding": timed.groupBy(F.window("time", "1 day", "6 hours"), "carrier")
        .agg(F.sum("distance").alias("miles"), F.approx_count_distinct("tailnum").alias("planes"))
        .where("miles > 10000")
        .select("window.end", "carrier", "miles", "planes"),
        "added_windows": timed.withColumn("time", F.col("time"))
        .withColumns({"hours": F.window("time", "6 hours"), "miles": F.col("distance") + 1})
        .groupBy("hours", "origin")
        .agg(F.sum("miles").alias("miles"), F.count("*").alias("n")),
        "added_sessions": spark.sql(
            "SELECT stay.start, count(*) AS n FROM stays GROUP BY stay, origin"
        ),
        "sessions": timed.where("tailnum IS NOT NULL")
        .groupBy(F.session_window("time", "4 hours"), "tailnum")
        .agg(F.count("*").alias("legs"), F.sum("distance").alias("miles"))
        .where("legs > 2"),
        "unique": timed.select("time", "origin", "dest")
        .dropDuplicates(["time", "origin"])
        .drop("dest"),
        "unique_windows": timed.select(F.window("time", "6 hours"), "carrier").dropDuplicates(
            ["window", "carrier"]
        ),
        # Flights leave on the hour: rows are at the bound, and unmatched ones at the watermark.
        "within_hours": departures.join(
            others,
            F.expr(
                "tailnum = plane AND next_at > left_at AND next_at < left_at + interval 9 hours"
            ),
            "left",
        )
        .groupBy(F.window("left_at", "1 hour"))
        .agg(F.count("*").alias("all"), F.count("plane").alias("known")),
        "after_state": timed.groupBy("carrier")
        .transformWithStateInPandas(
            Landings(),
            "carrier STRING, lands TIMESTAMP",
            "Append",
            "EventTime",
            eventTimeColumnName="lands",
        )
        .groupBy(F.window("lands", "6 hours"), "carrier")
        .count(),
        "same_windows": timed.where("origin = 'EWR'")
        .select(F.window("time", "2 hours"), "tailnum", "flight")
        .join(
            timed.where("origin = 'LGA'").select(F.window("time", "2 hours"), "tailnum", "dest"),
            ["window", "tailnum"],
            "left",
        ),
        # The flights themselves have no watermark.
        "others_at_noon": flights.where("origin = 'JFK' AND hour(time) BETWEEN 6 AND 14")
        .join(
            timed.where("origin = 'LGA' AND hour(time) = 12")
            .select(F.col("carrier").alias("other"), F.col("time").alias("noon"))
            .dropDuplicates(["other", "noon"]),
            F.expr("carrier = other AND date_trunc('day', time) + interval 12 hours = noon"),
            "full",
        )
        .select("carrier", "flight", "time", "other", "noon"),
        "unknown_planes": departures.join(
            others,
            F.expr(
                "tailnum <=> plane AND next_at >= left_at AND next_at <= left_at + interval 2 hours"
            ),
            "left",
        ).select("tailnum", "plane", "left_at", "next_at"),
        "unique_near": timed.select("tailnum", "time")
        .dropDuplicatesWithinWatermark(["tailnum"])
        .select("tailnum"),
        "static": flights.where("dep_delay > 200")
        .join(airlines, "carrier", "left")
        .select("flight", "carrier", "name"),
        "join_windows": departures.join(others, near)
        .groupBy(F.window("left_at", "1 day"), "origin")
        .count(),
        "union_windows": timed.where("origin = 'EWR'")
        .select("time", "origin")
        .union(
            flights.where("origin = 'JFK'").withWatermark("time", DELAY).select("time", "origin")
        )
        .groupBy(F.window("time", "1 day"), "origin")
        .count(),
        # The windows of both are complete at the lower watermark.
        # The values are the same in all rows of a group: Spark returns those of any row.
        "first_values": timed.groupBy("carrier", F.window("time", "7 days")).agg(
            F.first("carrier").alias("first"),
            F.last("carrier").alias("last"),
            F.expr("any_value(carrier || '!')").alias("any"),
            F.last(F.when(F.col("flight") % 3 == 0, F.col("carrier")), True).alias("some"),
            F.expr("first(carrier) FILTER (WHERE flight > 99) IGNORE NULLS AS filtered"),
        ),
        "united_windows": timed.groupBy(F.window("time", "1 day"))
        .count()
        .union(
            flights.where("time < '2013-01-10'")
            .withWatermark("time", DELAY)
            .groupBy(F.window("time", "1 day"))
            .count()
        ),
        "observed": timed.observe(
            "read",
            F.count("*").alias("rows"),
            F.expr("count_if(tailnum IS NULL) AS unknown"),
            F.max("time").alias("last"),
            F.min(F.to_date("time")).alias("first_day"),
            (F.sum("distance") / F.count("*")).alias("mean"),
            F.sum(F.col("distance").cast("DECIMAL(10, 2)")).alias("exact"),
            F.min(F.struct("distance", "carrier")).alias("shortest"),
        )
        .where("distance > 4000")
        .observe("far", F.count("*"), F.approx_count_distinct("carrier").alias("carriers"))
        .where("distance < 0")
        .observe("none", F.count("*").alias("rows"), F.max("time").alias("last"))
        .union(timed.where("carrier = 'HA'"))
        .select("flight"),
        "percentiles": timed.groupBy(F.window("time", "6 hours"), "carrier").agg(
            F.percentile_approx("dep_delay", [0.5, 0.95]).alias("delays"),
            F.count("*").alias("n"),
            F.expr("median(distance) FILTER (WHERE dest <> 'ATL')").alias("far"),
            F.expr("listagg(origin, '+') WITHIN GROUP (ORDER BY origin)").alias("from"),
            rounded(F.corr("dep_delay", "distance")).alias("related"),
        ),
        "first_rows": timed.limit(1_000)
        .select(F.lit(1).alias("one"))
        .union(timed.limit(0).select("flight")),
        "left_join": departures.join(others, near, "left").select("tailnum", "left_at", "next_at"),
        "join": departures.join(others, near).select("tailnum", "left_at", "next_at"),
    },
    "update": {
        "by_hour": flights.groupBy(F.hour("time").alias("h")).agg(
            F.count("*").alias("n"), rounded(F.stddev("dep_delay")).alias("spread")
        ),
        "windows": timed.groupBy(F.window("time", "12 hours"), "carrier").count(),
        "days": timed.groupBy(F.window("time", "1 day"))
        .count()
        .observe("days", F.count("*").alias("n"), F.sum("count").alias("flights")),
        "group_state": flights.groupBy("carrier").applyInPandasWithState(
            legs, "carrier STRING, legs INT", "seen INT", "update", "NoTimeout"
        ),
        "with_state": flights.where("tailnum IS NOT NULL")
        .groupBy("tailnum")
        .transformWithState(Longest(), "plane STRING, longest INT", "Update", "None"),
        "medians": flights.groupBy("tailnum").agg(
            F.median("dep_delay").alias("delay"), F.max("distance").alias("longest")
        ),
        "no_flights": flights.where("distance < 0").agg(
            F.count("*").alias("n"),
            F.max("time").alias("last"),
            F.expr("count_if(dest = 'LAX') + 1").alias("more"),
        ),
        "null_keys": flights.groupBy("tailnum").agg(F.max("distance").alias("longest")),
    },
    "complete": {
        "no_flight": flights.where("distance < 0").agg(
            F.count("*").alias("n"),
            F.avg("distance").alias("mean"),
            F.sum(F.col("distance").cast("DECIMAL(10, 2)")).alias("miles"),
            F.collect_list(F.struct("carrier", "dest")).alias("flights"),
            F.median("dep_delay").alias("delay"),
        ),
        "top": flights.groupBy("dest").count().orderBy(F.desc("count"), "dest").limit(10),
        "planes": flights.groupBy("origin").agg(F.approx_count_distinct("tailnum").alias("planes")),
        "all": flights.agg(
            F.count("*").alias("n"), F.sum("distance").alias("miles"), F.min("time").alias("first")
        ),
        "having": flights.groupBy("origin", (F.col("distance") > 1000).alias("far"))
        .agg(F.collect_set("carrier").alias("carriers"))
        .select("origin", "far", F.array_sort("carriers").alias("carriers")),
    },
}


def run(name: str, query: DataFrame, mode: str) -> None:
    path, state = f"{RESULTS}/{name}", f"{RESULTS}/_{name}_state"

    def keep(batch: DataFrame, batch_id: int) -> None:
        batch.withColumn("batch", F.lit(batch_id)).write.mode("append").parquet(path)

    writer = query.writeStream.queryName(name).outputMode(mode).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", state)
    if mode == "append":
        writer = writer.format("parquet").option("path", path)
    else:
        writer = writer.foreachBatch(keep)
    started = writer.start()
    started.awaitTermination()
    observed = [each["observedMetrics"] for each in started.recentProgress if each["numInputRows"]]
    if any(observed):
        metrics = [
            (json.dumps({name: row.asDict(True) for name, row in sorted(each.items())}),)
            for each in observed
        ]
        spark.createDataFrame(metrics, "metrics STRING").write.parquet(f"{path}_metrics")
    print("finished", name, flush=True)


for mode, queries in QUERIES.items():
    for name, query in queries.items():
        if not WANTED or name in WANTED:
            run(name, query, mode)
