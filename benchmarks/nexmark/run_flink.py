"""Runs Flink SQL in a local cluster of 2 slots, `python run_flink.py csv DATA QUERY...`, in
`.bench-venv`, which only has PyFlink (and so no Parquet).

Settings as in `benchmarks.peers.run_flink`, tuned: mini-batches, two-phase aggregation, and split
distinct aggregates. Flink reads files in no particular order, so the watermark is a day behind;
otherwise rows would be late. q14's function is a Python function on pandas Series.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json
from pyflink.common import Configuration
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import StreamTableEnvironment
from pyflink.table.udf import udf

from benchmarks.nexmark import protocol
from benchmarks.nexmark.generator import AUCTION_COLUMNS, BID_COLUMNS, PERSON_COLUMNS
from benchmarks.nexmark.oracle import UPDATES
from benchmarks.peers.run_flink import NOTHING, SETTINGS, TUNED

TUNED_HERE = {
    **TUNED,
    "table.optimizer.distinct-agg.split.enabled": "true",
    "python.executable": sys.executable,
    "python.fn-execution.bundle.size": "100000",
    "python.fn-execution.arrow.batch.size": "10000",
}
EUROS = "0.908 * price"
RANKS = {
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}
COUNTS = """SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end"""
TUMBLE = "TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))"
CHANNEL_ID = "REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2)"
DAY = "DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')"


@udf(result_type="BIGINT", func_type="pandas")  # type: ignore[untyped-decorator]
def count_char(texts: pd.Series) -> pd.Series:
    return pc.count_substring(pa.array(texts, pa.string()), "c").cast(pa.int64()).to_pandas()


def _counts(*distinct: str) -> dict[str, str]:
    found = {"total_bids": "COUNT(*)"}
    found |= {f"total_{name}s": f"COUNT(DISTINCT {name})" for name in distinct}
    for rank, where in RANKS.items():
        found[f"{rank}_bids"] = f"COUNT(*) FILTER (WHERE {where})"
        found |= {
            f"{rank}_{name}s": f"COUNT(DISTINCT {name}) FILTER (WHERE {where})" for name in distinct
        }
    return found


def _select(columns: dict[str, str]) -> str:
    return ", ".join(f"{expression} AS `{name}`" for name, expression in columns.items())


BID = {"auction": "BIGINT", "bidder": "BIGINT", "price": "BIGINT"}
EURO_BID = {**BID, "price": "DECIMAL(23, 3)"}
REST = {"dateTime": "TIMESTAMP(3)", "extra": "STRING"}
DISTINCT = _counts("bidder", "auction")
PRICES = {f"{name.lower()}_price": f"{name}(price)" for name in ("MIN", "MAX", "AVG", "SUM")}
# The columns of each result, and the statement.
QUERIES: dict[str, tuple[dict[str, str], str]] = {
    "q0": ({**BID, **REST}, "SELECT auction, bidder, price, `dateTime`, extra FROM bid"),
    "q1": ({**EURO_BID, **REST}, f"SELECT auction, bidder, {EUROS}, `dateTime`, extra FROM bid"),
    "q2": (
        {"auction": "BIGINT", "price": "BIGINT"},
        "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    ),
    "q5": (
        {"auction": "BIGINT", "num": "BIGINT", "start": "TIMESTAMP(3)"},
        f"""SELECT counts.auction, counts.num, counts.starttime FROM
            (SELECT auction, num, window_start AS starttime, window_end AS endtime
             FROM ({COUNTS})) AS counts
            JOIN (SELECT MAX(num) AS most, window_start AS starttime, window_end AS endtime
             FROM ({COUNTS}) GROUP BY window_start, window_end) AS highest
            ON counts.starttime = highest.starttime AND counts.endtime = highest.endtime
            AND counts.num >= highest.most""",
    ),
    "q7": (
        {**BID, **REST},
        f"""SELECT auction, bidder, price, `dateTime`, extra FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY
              price DESC, auction DESC, bidder DESC, `dateTime` DESC, extra DESC) AS place
            FROM {TUMBLE}) WHERE place <= 1""",
    ),
    "q11": (
        {
            "bidder": "BIGINT",
            "window_start": "TIMESTAMP(3)",
            "window_end": "TIMESTAMP(3)",
            "bid_count": "BIGINT",
        },
        """SELECT bidder, window_start, window_end, COUNT(*) FROM TABLE(SESSION(
            TABLE bid PARTITION BY bidder, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
            GROUP BY bidder, window_start, window_end""",
    ),
    "q12": (
        {"bidder": "BIGINT", "window_start": "TIMESTAMP(3)", "bid_count": "BIGINT"},
        f"""SELECT bidder, window_start, COUNT(*) FROM {TUMBLE}
            GROUP BY bidder, window_start, window_end""",
    ),
    "q14": (
        {**EURO_BID, "bidTimeType": "STRING", **REST, "c_counts": "BIGINT"},
        f"""SELECT auction, bidder, {EUROS}, CASE
              WHEN HOUR(`dateTime`) BETWEEN 8 AND 18 THEN 'dayTime'
              WHEN HOUR(`dateTime`) <= 6 OR HOUR(`dateTime`) >= 20 THEN 'nightTime'
              ELSE 'otherTime' END, `dateTime`, extra, count_char(extra)
            FROM bid WHERE {EUROS} > 1000000 AND {EUROS} < 50000000""",
    ),
    "q15": (
        {"day": "STRING", **dict.fromkeys(DISTINCT, "BIGINT")},
        f"SELECT {DAY}, {_select(DISTINCT)} FROM bid GROUP BY {DAY}",
    ),
    "q16": (
        {
            "channel": "STRING",
            "day": "STRING",
            "minute": "STRING",
            **dict.fromkeys(DISTINCT, "BIGINT"),
        },
        f"""SELECT channel, {DAY}, MAX(DATE_FORMAT(`dateTime`, 'HH:mm')), {_select(DISTINCT)}
            FROM bid GROUP BY channel, {DAY}""",
    ),
    "q17": (
        {
            "auction": "BIGINT",
            "day": "STRING",
            **dict.fromkeys((*_counts(), *PRICES), "BIGINT"),
        },
        f"""SELECT auction, {DAY}, {_select(_counts())}, {_select(PRICES)}
            FROM bid GROUP BY auction, {DAY}""",
    ),
    "q21": (
        {**BID, "channel": "STRING", "channel_id": "STRING"},
        f"""SELECT auction, bidder, price, channel, CASE LOWER(channel)
              WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
              WHEN 'baidu' THEN '3' ELSE {CHANNEL_ID} END
            FROM bid WHERE {CHANNEL_ID} IS NOT NULL
              OR LOWER(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    ),
    "q22": (
        {**BID, "channel": "STRING", "dir1": "STRING", "dir2": "STRING", "dir3": "STRING"},
        """SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3),
            SPLIT_INDEX(url, '/', 4), SPLIT_INDEX(url, '/', 5) FROM bid""",
    ),
}
AUCTION = {
    "id": "BIGINT", "itemName": "STRING", "description": "STRING", "initialBid": "BIGINT",
    "reserve": "BIGINT", "dateTime": "TIMESTAMP(3)", "expires": "TIMESTAMP(3)",
    "seller": "BIGINT", "category": "BIGINT", "extra": "STRING",
}  # fmt: skip
WHOLE_BID = {**BID, "channel": "STRING", "url": "STRING", **REST}
IN_TIME = """auction AS A JOIN bid AS B ON A.id = B.auction
    AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires"""
OTHER_AUCTION = {
    name: kind for name, kind in AUCTION.items() if name not in ("id", "dateTime", "extra")
}


def _tumbling(table: str) -> str:
    return f"TABLE(TUMBLE(TABLE {table}, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))"


def _quoted(columns: dict[str, str], of: str = "") -> str:
    return ", ".join(f"{of}`{name}`" for name in columns)


QUERIES |= {
    "q3": (
        {"name": "STRING", "city": "STRING", "state": "STRING", "id": "BIGINT"},
        """SELECT P.name, P.city, P.state, A.id FROM auction AS A JOIN person AS P
            ON A.seller = P.id WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    ),
    "q4": (
        {"category": "BIGINT", "final": "BIGINT"},
        f"""SELECT category, AVG(final) FROM (SELECT MAX(B.price) AS final, A.category
            FROM {IN_TIME} GROUP BY A.id, A.category) GROUP BY category""",
    ),
    "q8": (
        {"id": "BIGINT", "name": "STRING", "window_start": "TIMESTAMP(3)", "auctions": "BIGINT"},
        f"""SELECT id, name, window_start, COUNT(*) FROM (
            SELECT P.id, P.name, P.window_start, P.window_end FROM
            (SELECT * FROM {_tumbling("person")}) AS P JOIN
            (SELECT * FROM {_tumbling("auction")}) AS A
            ON P.id = A.seller AND P.window_start = A.window_start
            AND P.window_end = A.window_end)
            GROUP BY id, name, window_start, window_end""",
    ),
    "q9": (
        {**AUCTION, **BID, "bid_dateTime": "TIMESTAMP(3)"},
        f"""SELECT {_quoted(AUCTION)}, auction, bidder, price, bid_dateTime FROM (
            SELECT {_quoted(AUCTION, "A.")}, B.auction, B.bidder, B.price,
              B.`dateTime` AS bid_dateTime, ROW_NUMBER() OVER (
                PARTITION BY A.id ORDER BY B.price DESC, B.`dateTime` ASC) AS place
            FROM {IN_TIME}) WHERE place <= 1""",
    ),
    "q18": (
        WHOLE_BID,
        f"""SELECT {_quoted(WHOLE_BID)} FROM (SELECT *, ROW_NUMBER() OVER (
              PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS place FROM bid)
            WHERE place <= 1""",
    ),
    "q19": (
        {**WHOLE_BID, "rank": "BIGINT"},
        f"""SELECT {_quoted(WHOLE_BID)}, place FROM (SELECT *, ROW_NUMBER() OVER (
              PARTITION BY auction ORDER BY price DESC, `dateTime` ASC) AS place FROM bid)
            WHERE place <= 10""",
    ),
    "q20": (
        {
            **WHOLE_BID,
            **OTHER_AUCTION,
            "auction_dateTime": "TIMESTAMP(3)",
            "auction_extra": "STRING",
        },
        f"""SELECT {_quoted(WHOLE_BID, "B.")}, {_quoted(OTHER_AUCTION, "A.")},
              A.`dateTime`, A.extra
            FROM bid AS B JOIN auction AS A ON B.auction = A.id WHERE A.category = 10""",
    ),
}
TABLES = {"bid": BID_COLUMNS, "auction": AUCTION_COLUMNS, "person": PERSON_COLUMNS}
# of JSON; all other types are strings
_ARROW = {"BIGINT": pa.int64(), "DECIMAL(23, 3)": pa.float64()}


class Flink:
    def __init__(self, more: Mapping[str, str] | None = None) -> None:
        """`more` are other settings of the cluster."""
        configuration = Configuration()
        for key, value in {**SETTINGS, **TUNED_HERE, **(more or {})}.items():
            configuration.set_string(key, value)
        streams = StreamExecutionEnvironment.get_execution_environment(configuration)
        self._tables = StreamTableEnvironment.create(streams)
        self._tables.get_config().set("table.local-time-zone", "UTC")
        for key, value in TUNED_HERE.items():
            self._tables.get_config().set(key, value)
        self._tables.create_temporary_function("count_char", count_char)

    def run(self, query: str, folder: Path, connector: str) -> None:
        for name, all_columns in TABLES.items():
            kinds = {
                column: kind.replace("TIMESTAMP", "TIMESTAMP(3)")
                for column, kind in all_columns.items()
            }
            self.table(
                name,
                kinds,
                f"'connector' = 'filesystem', 'path' = '{folder}/csv/{name}', 'format' = 'csv'",
                ", WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '1' DAY",
            )
        self.insert(query, connector)

    def insert(self, query: str, connector: str) -> None:
        """Runs a query over the existing tables."""
        columns, statement = QUERIES[query]
        self.table("sink", columns, connector)
        self.execute(f"INSERT INTO sink {statement}")

    def execute(self, statement: str) -> None:
        """Returns when the job has ended."""
        self._tables.execute_sql(statement).wait()

    def submit(self, statement: str) -> None:
        """Returns when the job has started."""
        self._tables.execute_sql(statement)

    def table(self, name: str, columns: dict[str, str], connector: str, more: str = "") -> None:
        self._tables.execute_sql(f"DROP TEMPORARY TABLE IF EXISTS {name}")
        listed = ", ".join(f"`{column}` {kind}" for column, kind in columns.items())
        self._tables.execute_sql(
            f"CREATE TEMPORARY TABLE {name} ({listed}{more}) WITH ({connector})"
        )

    def collect(self, query: str, run: Callable[[str], object]) -> pa.Table:
        """Collects through files: through `collect`, Python reads only thousands of rows per
        second. `run` runs the query into a connector.
        """
        columns, _ = QUERIES[query]
        with tempfile.TemporaryDirectory(prefix="bench-flink-") as output:
            # A format for updates; the row before an update is a separate line.
            run(f"'connector' = 'filesystem', 'path' = '{output}', 'format' = 'debezium-json'")
            paths = [p for p in Path(output).rglob("*") if p.is_file() and p.stat().st_size]
            row = pa.struct(
                [(name, _ARROW.get(kind, pa.string())) for name, kind in columns.items()]
            )
            # An explicit schema, because "before" is null until a row is updated.
            parsing = json.ParseOptions(
                explicit_schema=pa.schema([("before", row), ("after", row), ("op", pa.string())])
            )
            lines = pa.concat_tables(json.read_json(p, parse_options=parsing) for p in paths)
        come = pc.equal(lines["op"], "c")
        parts = []
        for kind, side, which in (("insert", "after", come), ("delete", "before", pc.invert(come))):
            if kind == "delete" and query in UPDATES:
                break  # the last row of each key is compared
            rows = lines.filter(which)[side].combine_chunks()
            typed = [_typed(rows.field(at), k) for at, k in enumerate(columns.values())]
            kinds = pa.repeat(kind, len(rows))
            parts.append(pa.table([*typed, kinds], names=[*columns, "row_kind"]))
        return pa.concat_tables(parts)


def _typed(column: pa.Array, kind: str) -> pa.Array:
    if kind == "TIMESTAMP(3)":
        return column.cast(pa.timestamp("ms"))
    if kind.startswith("DECIMAL"):
        exact = [Decimal(round(value * 1000)).scaleb(-3) for value in column.to_pylist()]
        return pa.array(exact, pa.decimal128(23, 3))
    return column


def main() -> None:
    data, queries = Path(sys.argv[2]), sys.argv[3:]
    flink = Flink()
    protocol.run_all(
        data,
        queries,
        lambda query: flink.collect(
            query, lambda connector: flink.run(query, data / protocol.CHECK, connector)
        ),
        lambda query: flink.run(query, data / protocol.TIMED, NOTHING),
    )


if __name__ == "__main__":
    main()
