"""The queries as batch programs, as a user would write them, and in Spark SQL.

`words` counts the words of comments; `priorities` joins two tables and aggregates. The others are
TPC-H's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from firesteel import Environment
from firesteel.connectors import FileSource
from firesteel.datastream import DataStream

TABLES = ("customer", "orders", "lineitem")
REVENUE = "l_extendedprice * (1 - l_discount)"


class Tables(NamedTuple):
    customer: DataStream
    orders: DataStream
    lineitem: DataStream


def tables(env: Environment, folder: Path) -> Tables:
    return Tables(
        *(env.from_source(FileSource(str(folder / name), format="parquet")) for name in TABLES)
    )


def on(condition: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
    return lambda left, right: left.join(right, F.expr(condition))


def words(of: Tables) -> DataStream:
    found = of.lineitem.select_expr("explode(split(l_comment, ' ')) AS word")
    return found.key_by("word").aggregate("count(*) AS n")


def priorities(of: Tables) -> DataStream:
    orders = of.orders.select("o_orderkey", "o_orderpriority")
    lines = of.lineitem.select_expr("l_orderkey", f"{REVENUE} AS revenue")
    joined = orders.connect(lines).key_by("o_orderkey", "l_orderkey")
    return (
        joined.apply(on("o_orderkey = l_orderkey"))
        .key_by("o_orderpriority")
        .aggregate("count(*) AS n", "sum(revenue) AS revenue")
    )


def q1(of: Tables) -> DataStream:
    shipped = of.lineitem.where("l_shipdate <= DATE'1998-09-02'").select_expr(
        "l_returnflag",
        "l_linestatus",
        "l_quantity",
        "l_extendedprice",
        f"{REVENUE} AS disc_price",
        f"{REVENUE} * (1 + l_tax) AS charge",
        "l_discount",
    )
    return (
        shipped.key_by("l_returnflag", "l_linestatus")
        .aggregate(
            "sum(l_quantity) AS sum_qty",
            "sum(l_extendedprice) AS sum_base_price",
            "sum(disc_price) AS sum_disc_price",
            "sum(charge) AS sum_charge",
            "avg(l_quantity) AS avg_qty",
            "avg(l_extendedprice) AS avg_price",
            "avg(l_discount) AS avg_disc",
            "count(*) AS count_order",
        )
        .apply(lambda df: df.orderBy("l_returnflag", "l_linestatus"))
    )


def q3(of: Tables) -> DataStream:
    customers = of.customer.where("c_mktsegment = 'BUILDING'").select("c_custkey")
    orders = of.orders.where("o_orderdate < DATE'1995-03-15'").select(
        "o_orderkey", "o_custkey", "o_orderdate", "o_shippriority"
    )
    lines = of.lineitem.where("l_shipdate > DATE'1995-03-15'").select_expr(
        "l_orderkey", f"{REVENUE} AS revenue"
    )
    chosen = (
        orders.connect(customers)
        .key_by("o_custkey", "c_custkey")
        .apply(
            lambda orders, customers: orders.join(
                customers, orders.o_custkey == customers.c_custkey
            )
        )
        .select("o_orderkey", "o_orderdate", "o_shippriority")
    )
    return (
        lines.connect(chosen)
        .key_by("l_orderkey", "o_orderkey")
        .apply(
            lambda lines, orders: (
                lines.join(orders, lines.l_orderkey == orders.o_orderkey)
                .groupBy("l_orderkey", "o_orderdate", "o_shippriority")
                .agg(F.sum("revenue").alias("revenue"))
            )
        )
        .apply(lambda df: df.orderBy(F.desc("revenue"), "o_orderdate", "l_orderkey").limit(10))
    )


def q6(of: Tables) -> DataStream:
    chosen = of.lineitem.where(
        "l_shipdate >= DATE'1994-01-01' AND l_shipdate < DATE'1995-01-01'"
        " AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24"
    )
    revenue = chosen.select_expr("1 AS everything", "l_extendedprice * l_discount AS revenue")
    return revenue.key_by("everything").aggregate("sum(revenue) AS revenue").select("revenue")


def q13(of: Tables) -> DataStream:
    customers = of.customer.select("c_custkey")
    orders = of.orders.where("o_comment NOT LIKE '%special%requests%'").select(
        "o_orderkey", "o_custkey"
    )
    counts = (
        customers.connect(orders)
        .key_by("c_custkey", "o_custkey")
        .apply(
            lambda customers, orders: (
                customers.join(orders, customers.c_custkey == orders.o_custkey, "left")
                .groupBy("c_custkey")
                .agg(F.count("o_orderkey").alias("c_count"))
            )
        )
    )
    return (
        counts.key_by("c_count")
        .aggregate("count(*) AS custdist")
        .apply(lambda df: df.orderBy(F.desc("custdist"), F.desc("c_count")))
    )


def q18(of: Tables) -> DataStream:
    orders = of.orders.select("o_orderkey", "o_custkey", "o_orderdate", "o_totalprice")
    large = (
        of.lineitem.select("l_orderkey", "l_quantity")
        .key_by("l_orderkey")
        .aggregate("sum(l_quantity) AS quantity")
        .where("quantity > 300")
    )
    found = (
        orders.connect(large)
        .key_by("o_orderkey", "l_orderkey")
        .apply(on("o_orderkey = l_orderkey"))
    )
    customers = of.customer.select("c_custkey", "c_name")
    return (
        found.connect(customers)
        .key_by("o_custkey", "c_custkey")
        .apply(
            lambda orders, customers: orders.join(
                customers, orders.o_custkey == customers.c_custkey
            )
        )
        .select("c_name", "c_custkey", "o_orderkey", "o_orderdate", "o_totalprice", "quantity")
        .apply(
            lambda df: df.orderBy(F.desc("o_totalprice"), "o_orderdate", "o_orderkey").limit(100)
        )
    )


PROGRAMS: dict[str, Callable[[Tables], DataStream]] = {
    program.__name__: program for program in (words, priorities, q1, q3, q6, q13, q18)
}

SQL = {
    "words": """
        SELECT word, count(*) AS n FROM (SELECT explode(split(l_comment, ' ')) AS word
        FROM lineitem) GROUP BY word""",
    "priorities": f"""
        SELECT o_orderpriority, count(*) AS n, sum({REVENUE}) AS revenue
        FROM orders JOIN lineitem ON o_orderkey = l_orderkey GROUP BY o_orderpriority""",
    "q1": f"""
        SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty,
        sum(l_extendedprice) AS sum_base_price, sum({REVENUE}) AS sum_disc_price,
        sum({REVENUE} * (1 + l_tax)) AS sum_charge, avg(l_quantity) AS avg_qty,
        avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc, count(*) AS count_order
        FROM lineitem WHERE l_shipdate <= DATE'1998-09-02'
        GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus""",
    "q3": f"""
        SELECT l_orderkey, o_orderdate, o_shippriority, sum({REVENUE}) AS revenue
        FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
        WHERE c_mktsegment = 'BUILDING' AND o_orderdate < DATE'1995-03-15'
        AND l_shipdate > DATE'1995-03-15' GROUP BY l_orderkey, o_orderdate, o_shippriority
        ORDER BY revenue DESC, o_orderdate, l_orderkey LIMIT 10""",
    "q6": """
        SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem
        WHERE l_shipdate >= DATE'1994-01-01' AND l_shipdate < DATE'1995-01-01'
        AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
    "q13": """
        SELECT c_count, count(*) AS custdist FROM (
          SELECT c_custkey, count(o_orderkey) AS c_count FROM customer LEFT JOIN orders
          ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%' GROUP BY c_custkey)
        GROUP BY c_count ORDER BY custdist DESC, c_count DESC""",
    "q18": """
        SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice,
        sum(l_quantity) AS quantity FROM customer JOIN orders ON c_custkey = o_custkey
        JOIN lineitem ON o_orderkey = l_orderkey WHERE o_orderkey IN (
          SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 300)
        GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
        ORDER BY o_totalprice DESC, o_orderdate, o_orderkey LIMIT 100""",
}
