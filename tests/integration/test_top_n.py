"""top_n orders as Spark does; windows without keys over no rows."""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import functions as sql

from firesteel.operators import PartialWindowAggregateSpec, TumblingSpec
from firesteel.plan.aggregates.parse import parse_aggregates
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.grouping.ordering import sorted_rows
from taskexecutor.executor.columnar.jvm.engine import SparkEngine

VALUES = {
    "x DOUBLE": [1.0, None, math.nan, -math.inf, 0.0, math.inf, math.nan, None, -2.5],
    "t STRING": ["b", None, "", "ä", "z", "Z", "𝄞", "￿", "b"],
    "d DECIMAL(5,2)": [Decimal("1.5"), None, Decimal("-1.5"), Decimal(0), *[None] * 5],
    "b BOOLEAN": [True, None, False, True, False, None, True, False, None],
    "y BINARY": [b"\xff", b"", None, b"\x00", b"a", b"ab", b"b", None, b"\x7f"],
    "a DATE": [date(1969, 1, 1), None, date(2024, 1, 1), *[date(1970, 1, 1)] * 6],
}


@pytest.mark.parametrize("ascending", [True, False])
def test_rows_are_in_sparks_order(engine: SparkEngine, ascending: bool) -> None:
    session = engine.session
    for column, values in VALUES.items():
        name = column.split()[0]
        frame = session.createDataFrame(list(enumerate(values)), f"n INT, {column}")
        by = sql.col(name).asc() if ascending else sql.col(name).desc()
        expected = [row.n for row in frame.orderBy(by, "n").collect()]
        rows = frame.orderBy("n").toArrow()
        found = sorted_rows(
            [(rows.column(name).combine_chunks(), ascending), (pa.array(range(9)), True)]
        )
        assert found.tolist() == expected, column


def test_no_rows_have_no_window(engine: SparkEngine) -> None:
    spec = PartialWindowAggregateSpec(
        key_columns=(),
        window=TumblingSpec(size_us=1_000, processing_time=True),
        time_column="",
        aggregates=parse_aggregates(["count(*) AS n_rows"]),
    )
    rows = engine.session.range(5)
    partial = composed.partial_window_aggregate(rows, spec, cores=1)
    assert [row.asDict() for row in partial.collect()] == [{"_p0_count": 5, "_rows": 5}]
    nothing = composed.partial_window_aggregate(rows.where("id > 9"), spec, cores=1)
    assert nothing.collect() == []
