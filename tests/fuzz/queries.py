"""Steps that both engines run: each as a method of streams and as a plan of DataFrames."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import Window as W
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from firesteel import DataStream, Session, Sliding, Tumbling
from firesteel.errors import FiresteelError

from .tables import NESTED, Table


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operation on a stream: its text in a program, and how each engine runs it."""

    text: str
    stream: Callable[[DataStream], DataStream]
    frame: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, kw_only=True)
class JoinStep:
    text: str
    stream: Callable[[DataStream, DataStream], DataStream]
    frame: Callable[[DataFrame, DataFrame], DataFrame]


AGGREGATES = [
    "count(*) AS rows",
    "count(x) AS xs",
    "sum(n) AS total",
    "sum(x) AS sum_x",
    "min(x) AS least",
    "max(k) AS last_text",
    "min(k) AS first_text",
    "avg(n) AS mean",
    "count(DISTINCT k) AS texts",
    "count(DISTINCT n) AS numbers",
    "stddev(n) AS spread",
    "count(*) FILTER (WHERE n > 0) AS positive",
    "max(struct(ts, id)) AS newest",
    "min_by(id, struct(ts, id)) AS oldest",
    "sum(n) / count(*) AS ratio",
    "count_if(x > 3) AS large",
    "bool_and(n > -900) AS bounded",
    "max(ts) AS latest",
    "sort_array(collect_list(n)) AS listed",
    "sort_array(collect_set(k)) AS texts_seen",
    "median(n) AS middle",
    "round(avg(n), 2) AS near",
    "percentile(x, 0.25) AS quarter",
]
OF_COLUMN = {
    "money": ["sum(money) AS sum_money", "avg(money) AS mean_money", "max(money) AS most_money"],
    "kd": ["max(kd) AS max_kd", "count(DISTINCT kd) AS kds"],
    "day": ["min(day) AS first_day", "count(DISTINCT day) AS days"],
    "flag": ["bool_or(flag) AS any_flag", "count(DISTINCT flag) AS flags"],
    "seen": ["max(seen) AS last_seen", "count(DISTINCT seen) AS seen_times"],
    "wall": ["min(wall) AS first_wall"],
    "g": ["count(DISTINCT g) AS gs", "sum(g) AS sum_g"],
}
# These take rows back, or are split, as aggregates without windows have to be.
SPLITTABLE = {"listed", "texts_seen", "middle", "near", "quarter"}


def name_of(aggregate: str) -> str:
    return aggregate.rsplit(" AS ", 1)[1]


def aggregates(rng: random.Random, table: Table, *, without: set[str] = frozenset()) -> list[str]:  # type: ignore[assignment]
    known = AGGREGATES + [a for c, some in OF_COLUMN.items() if c in table.columns for a in some]
    allowed = [a for a in known if name_of(a) not in without]
    return rng.sample(allowed, rng.randint(1, 4))


def keys(rng: random.Random, table: Table, *, most: int = 2) -> list[str]:
    may = [
        "k",
        *(
            c
            for c in ("g", "kd", "day", "flag", "money", "seen", "wall", "arr", "st")
            if c in table.columns
        ),
    ]
    return rng.sample(may, rng.randint(1, min(most, len(may))))


def exprs(aggregates: list[str]) -> list[Column]:
    return [F.expr(a.rsplit(" AS ", 1)[0]).alias(name_of(a)) for a in aggregates]


# ------------------------------------------------------------------ steps that keep all rows apart


def row_step(rng: random.Random, table: Table) -> Step:
    draws = [filtered, with_columns, in_pandas, in_arrow, in_rows]
    return rng.choice(draws)(rng, table)


def filtered(rng: random.Random, table: Table) -> Step:
    conditions = [
        "n > 0", "n IS NOT NULL", "k LIKE '%o%'", "x > 0 OR x IS NULL", "hour(ts) < 12", "day(ts) % 2 = 0",
        "k IN ('north', 'é', '')", "id % 3 <> 1", "NOT (n < -500)", "k IS NULL OR length(k) > 1", "x = 'NaN'",
        "coalesce(n, 0) BETWEEN -200 AND 700",
    ]  # fmt: skip
    of_columns = {
        "kd": "kd = 0.0",
        "day": "day > DATE'2024-03-10'",
        "flag": "flag",
        "money": "money >= 0.5",
        "seen": "seen < TIMESTAMP'2024-03-10 12:00:00'",
        "wall": "hour(wall) >= 6",
        "arr": "size(arr) > 0",
        "st": "st.a > 0",
    }
    conditions += [condition for column, condition in of_columns.items() if column in table.columns]
    condition = rng.choice(conditions)
    return Step(
        text=f'.filter("{condition}")',
        stream=lambda s: s.filter(condition),
        frame=lambda df: df.filter(condition),
    )


def with_columns(rng: random.Random, table: Table) -> Step:
    name = f"c{rng.randrange(10**6)}"
    texts = [
        "upper(k)", "date_format(ts, 'yyyy-MM-dd HH:mm')", "n * 2", "coalesce(x, 0)", "to_date(ts)",
        "date_trunc('hour', ts)", "concat(k, '-', n)", "CAST(ts AS STRING)", "n IS NULL", "CAST(x AS STRING)",
        "hash(k, n)", "CASE WHEN n > 0 THEN k ELSE 'none' END", "to_timestamp_ntz(ts)", "array(n, 1)",
    ]  # fmt: skip
    text = rng.choice(texts)
    return Step(
        text=f'.with_column("{name}", "{text}")',
        stream=lambda s: s.with_column(name, text),
        frame=lambda df: df.withColumn(name, F.expr(text)),
    )


def with_texts(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        seen = frame["ts"].astype(str) if len(frame) else pd.Series([], dtype=str)
        yield frame.assign(shown=seen, doubled=frame["x"] * 2)


def in_pandas(rng: random.Random, table: Table) -> Step:
    columns = [
        "id",
        "ts",
        "k",
        "n",
        "x",
        *(c for c in ("seen", "wall", "day", "kd") if c in table.columns),
    ]
    schema = ", ".join(f"{c} {t}" for c, t in types(columns)) + ", shown STRING, doubled DOUBLE"
    return Step(
        text=f".select({columns}).map_in_pandas(with_texts)",
        stream=lambda s: s.select(*columns).map_in_pandas(with_texts, schema),
        frame=lambda df: df.select(*columns).mapInPandas(with_texts, schema),
    )


def reversed_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            yield batch.take(pa.array(range(batch.num_rows - 1, -1, -1)))


def in_arrow(rng: random.Random, table: Table) -> Step:
    columns = [c for c in table.columns if rng.random() < 0.7 or c in ("id", "ts", "k", "n", "x")]
    schema = ", ".join(f"{c} {t}" for c, t in types(columns))
    return Step(
        text=f".select({columns}).map_in_arrow(reversed_batches)",
        stream=lambda s: s.select(*columns).map_in_arrow(reversed_batches, schema),
        frame=lambda df: df.select(*columns).mapInArrow(reversed_batches, schema),
    )


def in_rows(rng: random.Random, table: Table) -> Step:
    schema = "id BIGINT, ts TIMESTAMP, k STRING, n INT, x DOUBLE, both STRING"
    columns = ["id", "ts", "k", "n", "x"]

    def both(row: Row) -> tuple[Any, ...]:
        return row.id, row.ts, row.k, row.n, row.x, f"{row.k}/{row.n}/{row.x}"

    def reference(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = [
                f"{k}/{n}/{x}"
                for k, n, x in zip(*(batch[c].to_pylist() for c in ("k", "n", "x")), strict=True)
            ]
            yield batch.append_column("both", pa.array(texts, pa.string()))

    return Step(
        text=f".select({columns}).map(both)",
        stream=lambda s: s.select(*columns).map(both, schema),
        frame=lambda df: df.select(*columns).mapInArrow(reference, schema),
    )


def types(columns: list[str]) -> list[tuple[str, str]]:
    from .tables import COLUMNS

    return [(column, COLUMNS[column][0]) for column in columns]


# ------------------------------------------------------------------------------------ last steps


def last_step(rng: random.Random, table: Table, mode: str) -> Step:
    draws = [
        windowed, windowed, windowed, sessions, running, running, duplicates, latest, top_of_windows,
        top_of_keys, rows_around, processor, apply_windows, twice, whole_windows, all_rows,
    ]  # fmt: skip
    return rng.choice(draws)(rng, table)


def all_rows(rng: random.Random, table: Table) -> Step:
    return Step(text="", stream=lambda s: s, frame=lambda df: df)


def window_of(rng: random.Random) -> tuple[str, Callable[[], Tumbling | Sliding], Column]:
    size, slide = rng.choice(
        [
            ("10 seconds", "5 seconds"),
            ("1 hour", "20 minutes"),
            ("1 day", "6 hours"),
            ("90 minutes", "30 minutes"),
        ]
    )
    if rng.random() < 0.6:
        return f'Tumbling("{size}")', lambda: Tumbling(size), F.window("ts", size)
    return (
        f'Sliding("{size}", "{slide}")',
        lambda: Sliding(size, slide),
        F.window("ts", size, slide),
    )


def windowed(rng: random.Random, table: Table) -> Step:
    by, aggs = keys(rng, table), aggregates(rng, table)
    text, window, column = window_of(rng)
    return Step(
        text=f".key_by({by}).window({text}).aggregate({aggs})",
        stream=lambda s: s.key_by(*by).window(window()).aggregate(*aggs),
        frame=lambda df: of_windows(df.groupBy(*by, column).agg(*exprs(aggs)), by, aggs),
    )


def of_windows(df: DataFrame, by: list[str], aggs: list[str], column: str = "window") -> DataFrame:
    return df.select(
        *by,
        F.col(f"{column}.start").alias("window_start"),
        F.col(f"{column}.end").alias("window_end"),
        *map(name_of, aggs),
    )


def whole_windows(rng: random.Random, table: Table) -> Step:
    aggs = aggregates(rng, table)
    text, window, column = window_of(rng)
    return Step(
        text=f".window_all({text}).aggregate({aggs})",
        stream=lambda s: s.window_all(window()).aggregate(*aggs),
        frame=lambda df: of_windows(df.groupBy(column).agg(*exprs(aggs)), [], aggs),
    )


def sessions(rng: random.Random, table: Table) -> Step:
    by, aggs = keys(rng, table), aggregates(rng, table)
    gap = rng.choice(["5 seconds", "10 minutes", "3 hours"])

    # Spark has two rows that are exactly the gap apart in two sessions, as Flink has.
    return Step(
        text=f'.key_by({by}).window(Session("{gap}")).aggregate({aggs})',
        stream=lambda s: s.key_by(*by).window(Session(gap)).aggregate(*aggs),
        frame=lambda df: of_windows(
            df.groupBy(*by, F.session_window("ts", gap)).agg(*exprs(aggs)),
            by,
            aggs,
            "session_window",
        ),
    )


def running(rng: random.Random, table: Table) -> Step:
    by, aggs = keys(rng, table), aggregates(rng, table, without=SPLITTABLE)
    return Step(
        text=f".key_by({by}).aggregate({aggs}, changes=True)",
        stream=lambda s: s.key_by(*by).aggregate(*aggs, changes=True),
        frame=lambda df: df.groupBy(*by).agg(*exprs(aggs)),
    )


def twice(rng: random.Random, table: Table) -> Step:
    by = keys(rng, table)
    first = ["sum(n) AS total", "count(*) AS rows"]
    aggs = rng.sample(
        ["sum(total) AS total_2", "count(*) AS groups", "max(total) AS most", "min(rows) AS fewest", "avg(rows) AS mean_rows", "count(DISTINCT rows) AS sizes"],
        rng.randint(1, 3),
    )  # fmt: skip
    again = by[:1]
    return Step(
        text=f".with_column('seventh', 'id % 7').key_by({[*by, 'seventh']}).aggregate({first}, changes=True)"
        f".key_by({again}).aggregate({aggs})",
        stream=lambda s: (
            s.with_column("seventh", "id % 7")
            .key_by(*by, "seventh")
            .aggregate(*first, changes=True)
            .key_by(*again)
            .aggregate(*aggs)
        ),
        frame=lambda df: (
            df.groupBy(*by, F.expr("id % 7").alias("seventh"))
            .agg(*exprs(first))
            .groupBy(*again)
            .agg(*exprs(aggs))
        ),
    )


def duplicates(rng: random.Random, table: Table) -> Step:
    by = keys(rng, table, most=3)
    return Step(
        text=f".drop_duplicates({by}).select({by})",
        stream=lambda s: s.drop_duplicates(*by).select(*by),
        frame=lambda df: df.select(*by).distinct(),
    )


def latest(rng: random.Random, table: Table) -> Step:
    by = keys(rng, table)
    return Step(
        text=f'.drop_duplicates({by}, keep="last").select({by}, ts)',
        stream=lambda s: s.drop_duplicates(*by, keep="last").select(*by, "ts", "row_kind"),
        frame=lambda df: df.groupBy(*by).agg(F.max("ts").alias("ts")),
    )


def order_of(rng: random.Random, table: Table) -> tuple[list[str], list[bool], list[Column]]:
    may = [c for c in ("n", "x", "k", "ts", "day", "kd", "money", "flag") if c in table.columns]
    by = [*rng.sample(may, rng.randint(1, 2)), "id"]
    ascending = [rng.random() < 0.5 for _ in by]
    sorted_ = [
        F.col(c).asc_nulls_first() if up else F.col(c).desc_nulls_last()
        for c, up in zip(by, ascending, strict=True)
    ]
    return by, ascending, sorted_


def top_of_windows(rng: random.Random, table: Table) -> Step:
    partition = keys(rng, table)
    by, ascending, sorted_ = order_of(rng, table)
    n = rng.choice([1, 2, 5])
    text, window, column = window_of(rng)

    def frame(df: DataFrame) -> DataFrame:
        names = df.columns
        rows = df.select("*", column.alias("window")).withColumn(
            "rank", F.row_number().over(W.partitionBy(*partition, "window").orderBy(*sorted_))
        )
        return rows.where(f"rank <= {n}").select(
            *names,
            F.col("window.start").alias("window_start"),
            F.col("window.end").alias("window_end"),
            "rank",
        )

    return Step(
        text=f".key_by({partition}).window({text}).top_n({n}, by={by}, ascending={ascending})",
        stream=lambda s: s.key_by(*partition).window(window()).top_n(n, by=by, ascending=ascending),
        frame=frame,
    )


def top_of_keys(rng: random.Random, table: Table) -> Step:
    partition = keys(rng, table)
    by, ascending, sorted_ = order_of(rng, table)
    n = rng.choice([1, 3])
    return Step(
        text=f".key_by({partition}).top_n({n}, by={by}, ascending={ascending})",
        stream=lambda s: s.key_by(*partition).top_n(n, by=by, ascending=ascending),
        frame=lambda df: df.withColumn(
            "rank", F.row_number().over(W.partitionBy(*partition).orderBy(*sorted_))
        ).where(f"rank <= {n}"),
    )


def rows_around(rng: random.Random, table: Table) -> Step:
    partition = keys(rng, table, most=1)
    before, after = rng.choice([(-2, 0), (-1, 1), (0, 3)])
    aggs = rng.sample(
        [
            "sum(n) AS total",
            "count(*) AS rows",
            "max(x) AS most",
            "count(DISTINCT k) AS texts",
            "avg(n) AS mean",
        ],
        2,
    )
    over = W.partitionBy(*partition).orderBy("ts", "id").rowsBetween(before, after)

    def frame(df: DataFrame) -> DataFrame:
        # Spark has no count(DISTINCT) over rows.
        spark = {
            "sum(n) AS total": F.sum("n").over(over),
            "count(*) AS rows": F.count("*").over(over),
            "max(x) AS most": F.max("x").over(over),
            "count(DISTINCT k) AS texts": F.size(F.collect_set("k").over(over)).cast("bigint"),
            "avg(n) AS mean": F.avg("n").over(over),
        }
        return df.select("*", *(spark[a].alias(name_of(a)) for a in aggs))

    return Step(
        text=f'.key_by({partition}).rows_between({before}, {after}, by=["ts", "id"]).aggregate({aggs})',
        stream=lambda s: (
            s.key_by(*partition).rows_between(before, after, by=["ts", "id"]).aggregate(*aggs)
        ),
        frame=frame,
    )


class Totals(StatefulProcessor):
    """Emits the number of rows and the sum of `n` of each key when the input ends."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.totals = handle.getValueState("totals", "rows BIGINT, total BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        count, total = self.totals.get() or (0, 0)
        for row in rows:
            count, total = count + 1, total + (row.n or 0)
        self.totals.update((count, total))
        if not list(self.handle.listTimers()):
            self.handle.registerTimer(32503680000000)  # in the year 3000: at the end
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        count, total = self.totals.get()
        yield Row(key=str(key[0]), rows=count, total=total)


def processor(rng: random.Random, table: Table) -> Step:
    key = rng.choice([c for c in ("k", "g", "day") if c in table.columns])
    return Step(
        text=f'.key_by("{key}").transform_with_state(Totals())',
        stream=lambda s: s.key_by(key).transform_with_state(
            Totals(), "key STRING, rows BIGINT, total BIGINT", time_mode="event_time"
        ),
        frame=lambda df: (
            df.groupBy(key)
            .agg(F.count("*").alias("rows"), F.sum(F.coalesce("n", F.lit(0))).alias("total"))
            .select(
                F.coalesce(F.col(key).cast("string"), F.lit("None")).alias("key"), "rows", "total"
            )
        ),
    )


def apply_windows(rng: random.Random, table: Table) -> Step:
    by = keys(rng, table)
    text, window, column = window_of(rng)
    aggs = ["sum(n) AS total", "count(*) AS rows", "sort_array(collect_list(id)) AS ids"]

    def function(df: DataFrame) -> DataFrame:
        return df.groupBy(*by, "window_start", "window_end").agg(*exprs(aggs))

    return Step(
        text=f".key_by({by}).window({text}).apply(groupBy({by}, window_start, window_end).agg({aggs}))",
        stream=lambda s: s.key_by(*by).window(window()).apply(function),
        frame=lambda df: of_windows(df.groupBy(*by, column).agg(*exprs(aggs)), by, aggs),
    )


# ------------------------------------------------------------------------------------ two streams


def join_step(rng: random.Random, left: Table, right: Table) -> JoinStep:
    return rng.choice([equal_keys, equal_keys, near_times, same_windows, as_of, united])(
        rng, left, right
    )


def shared_keys(rng: random.Random, left: Table, right: Table) -> list[str]:
    may = [
        c
        for c in ("k", "g", "kd", "day", "flag", "money", "arr", "st")
        if c in left.columns and c in right.columns
    ]
    return rng.sample(may, rng.randint(1, min(2, len(may))))


def renamed(on: list[str]) -> list[str]:
    return [*on, "id AS id2", "ts AS ts2", "n AS n2"]


def equal_keys(rng: random.Random, left: Table, right: Table) -> JoinStep:
    on, how = shared_keys(rng, left, right), rng.choice(["inner", "left", "right", "full"])
    return JoinStep(
        text=f".select({on}, id, x).join(other.select_expr({renamed(on)}), on={on}, how={how})",
        stream=lambda a, b: a.select(*on, "id", "x").join(
            b.select_expr(*renamed(on)), on=on, how=how
        ),
        frame=lambda a, b: a.select(*on, "id", "x").join(
            b.selectExpr(*renamed(on)), on=on, how=how
        ),
    )


def time_join(a: DataFrame, b: DataFrame, on: list[str], how: str, near: Column) -> DataFrame:
    """An outer join by `on` and a condition on times, with the columns of `on` once, and first."""
    b = b.select(*(F.col(c).alias(f"_{c}") for c in on), "id2", "ts2", "n2")
    joined = a.join(b, [*(F.col(c) == F.col(f"_{c}") for c in on), near], how)
    return joined.select(
        *(F.coalesce(c, f"_{c}").alias(c) for c in on), "id", "ts", "x", "id2", "ts2", "n2"
    )


def near_times(rng: random.Random, left: Table, right: Table) -> JoinStep:
    on, how = shared_keys(rng, left, right), rng.choice(["inner", "left", "right", "full"])
    before, after = rng.choice([(60, 0), (0, 3600), (5, 5), (7200, -60)])
    near = F.expr(f"ts2 BETWEEN ts - INTERVAL {before} SECONDS AND ts + INTERVAL {after} SECONDS")
    return JoinStep(
        text=f".interval_join(other, on={on}, how={how}, between=(-{before} s, {after} s))",
        stream=lambda a, b: a.select(*on, "id", "ts", "x").interval_join(
            b.select_expr(*renamed(on)),
            on=on,
            how=how,
            between=(f"{-before} s", f"{after} s"),
            times=("ts", "ts2"),
        ),
        frame=lambda a, b: time_join(
            a.select(*on, "id", "ts", "x"), b.selectExpr(*renamed(on)), on, how, near
        ),
    )


def same_windows(rng: random.Random, left: Table, right: Table) -> JoinStep:
    on, how = shared_keys(rng, left, right), rng.choice(["inner", "left", "right", "full"])
    size = rng.choice(["10 seconds", "1 hour", "1 day"])
    window, other = F.window("ts", size), F.window("ts2", size)
    chosen = F.coalesce(F.col("w"), F.col("w2"))

    def frame(a: DataFrame, b: DataFrame) -> DataFrame:
        a = a.select(*on, "id", "ts", "x", window.alias("w"))
        b = b.selectExpr(*renamed(on)).select(
            *(F.col(c).alias(f"_{c}") for c in on), "id2", "ts2", "n2", other.alias("w2")
        )
        joined = a.join(
            b, [*(F.col(c) == F.col(f"_{c}") for c in on), F.col("w") == F.col("w2")], how
        )
        return joined.select(
            *(F.coalesce(c, f"_{c}").alias(c) for c in on), "id", "ts", "x", "id2", "ts2", "n2",
            chosen["start"].alias("window_start"), chosen["end"].alias("window_end"),
        )  # fmt: skip

    return JoinStep(
        text=f'.window_join(other, on={on}, how={how}, window=Tumbling("{size}"))',
        stream=lambda a, b: a.select(*on, "id", "ts", "x").window_join(
            b.select_expr(*renamed(on)), on=on, how=how, window=Tumbling(size), times=("ts", "ts2")
        ),
        frame=frame,
    )


def as_of(rng: random.Random, left: Table, right: Table) -> JoinStep:
    on, how = shared_keys(rng, left, right), rng.choice(["inner", "left"])
    tolerance = rng.choice([None, 60, 3600])

    def versions(df: DataFrame) -> DataFrame:
        """One version per key and time: which of equal ones arrives last is not known."""
        return df.groupBy(*on, F.col("ts").alias("ts2")).agg(F.count("*").alias("n2"))

    def frame(a: DataFrame, b: DataFrame) -> DataFrame:
        a = a.select(*on, "id", "ts", "x")
        b = versions(b).select(*(F.col(c).alias(f"_{c}") for c in on), "ts2", "n2")
        valid = F.col("ts2") <= F.col("ts")
        if tolerance is not None:
            valid &= F.expr(f"ts2 >= ts - INTERVAL {tolerance} SECONDS")
        pairs = a.join(b, [*(F.col(c) == F.col(f"_{c}") for c in on), valid], how)
        best = pairs.withColumn(
            "_rank", F.row_number().over(W.partitionBy("id").orderBy(F.desc_nulls_last("ts2")))
        )
        return best.where("_rank = 1").select(*on, "id", "ts", "x", "ts2")

    return JoinStep(
        text=f".as_of_join(other, on={on}, how={how}, tolerance={tolerance} s)",
        stream=lambda a, b: a.select(*on, "id", "ts", "x").as_of_join(
            b.select_expr(*on, "ts AS ts2"),
            on=on,
            how=how,
            tolerance=None if tolerance is None else f"{tolerance} s",
            times=("ts", "ts2"),
        ),
        frame=frame,
    )


def united(rng: random.Random, left: Table, right: Table) -> JoinStep:
    by, aggs = ["k"], rng.sample(["count(*) AS rows", "sum(n) AS total", "max(x) AS most"], 2)
    columns = ["id", "ts", "k", "n", "x"]
    text, window, column = window_of(rng)
    return JoinStep(
        text=f".union(other).key_by({by}).window({text}).aggregate({aggs})",
        stream=lambda a, b: (
            a.select(*columns)
            .union(b.select(*columns))
            .key_by(*by)
            .window(window())
            .aggregate(*aggs)
        ),
        frame=lambda a, b: of_windows(
            a.select(*columns).union(b.select(*columns)).groupBy(*by, column).agg(*exprs(aggs)),
            by,
            aggs,
        ),
    )


__all__ = ["NESTED", "FiresteelError", "JoinStep", "Step", "join_step", "last_step", "row_step"]
