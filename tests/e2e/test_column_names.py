"""Keys and times named in another case than their columns, and computed keys: as in Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from firesteel import CoProcessFunction, Environment, Tumbling, Watermarks
from firesteel.connectors import FileSource
from firesteel.errors import JobFailed

from .conftest import Session
from .test_operators import collected

ROWS = pd.DataFrame(
    {
        "at": pd.date_range("2024-03-01", periods=60, freq="7min", tz="UTC"),
        "order": [f"o{i % 7}" for i in range(60)],
        "n": range(60),
    }
)
Environment()  # makes functions of PySpark work without a session
FIRST = F.right("order", F.lit(1)).alias("digit")
TAKEN = F.lit(1).alias("N")


class Sum(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        yield Row(order=key[0], n=sum(row.n for row in rows))


class Pass(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield ctx.get_current_key(), value.n

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return ()


def read(folder: Path, env: Environment, watermarks: Watermarks | None) -> Any:
    ROWS.to_csv(folder / "rows.csv", index=False)
    schema = "at TIMESTAMP, order STRING, n LONG"
    source = FileSource(f"{folder}/rows.csv", format="csv", header=True, schema=schema)
    return env.from_source(source, watermarks=watermarks)


def test_keys_and_times_in_another_case(session: Session, tmp_path: Path) -> None:
    env = Environment(parallelism=2)
    rows = read(tmp_path, env, Watermarks.bounded("AT"))
    assigned = rows.rebalance().assign_timestamps_and_watermarks(
        Watermarks.bounded("At", max_out_of_orderness="1 day")
    )
    keyed, day = assigned.key_by("ORDER"), Tumbling("1 day")
    schema = "order STRING, n LONG"
    state = keyed.transform_with_state(
        statefulProcessor=Sum(), outputStructType=schema, outputMode="Append", timeMode="None"
    )
    both = assigned.connect(rows).key_by("Order", "ORDER").co_process(Pass(), schema)
    found = collected(
        session,
        keyed.window(day).aggregate("sum(N) AS n"),
        keyed.window(day).aggregate("sum(n) AS n", "median(n) AS middle"),
        keyed.window(Tumbling("1 day", on="AT")).apply(lambda df: df.groupBy("ORDER").sum("n")),
        keyed.aggregate("sum(n) AS n"),
        state,
        both,
        assigned.key_by(FIRST).window(day).aggregate("sum(n) AS n"),
    )
    expected = ROWS.groupby("order")["n"].sum().to_dict()
    split, kept, applied, running, summed, passed, digits = (table.to_pandas() for table in found)
    for windows in (split, kept):
        assert windows.set_index("ORDER")["n"].to_dict() == expected
    assert applied.set_index("ORDER")["sum(n)"].to_dict() == expected
    assert running.groupby("ORDER")["n"].max().to_dict() == expected
    for rows_of_keys in (summed, passed):
        assert rows_of_keys.groupby("order")["n"].sum().to_dict() == expected
    assert digits.set_index("digit")["n"].to_dict() == {
        order.removeprefix("o"): n for order, n in expected.items()
    }


def test_a_computed_key_hides_no_column(session: Session, tmp_path: Path) -> None:
    stream = read(tmp_path, Environment(), None).key_by(TAKEN).map(lambda row: row)
    with pytest.raises(JobFailed, match=r"KeyBy\(N\): the stream already has a column 'n'"):
        collected(session, stream)
