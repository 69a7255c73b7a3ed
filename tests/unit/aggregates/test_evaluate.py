"""Partial, merge and final halves together give what pandas gives on the rows."""

from __future__ import annotations

import decimal

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.errors import FiresteelError
from firesteel.operators import AggregateExpression
from firesteel.plan.aggregates.finals import evaluate
from firesteel.plan.aggregates.parse import parse_aggregates

_FUNCTIONS = {
    "sum(x)": "sum",
    "sum(double(x))": "sum",
    "count(x)": "count",
    "min(x)": "min",
    "max(x)": "max",
    "count(1)": "rows",
}


def _partials(
    items: tuple[AggregateExpression, ...], chunks: list[list[int | None]]
) -> dict[str, pa.Array]:
    """Partials of each chunk by pandas, merged as the expressions say."""
    merged: dict[str, pa.Array] = {}
    for item in items:
        for name, sql in item.partial.items():
            values = [_one(sql, pd.Series(chunk, dtype="Int64")) for chunk in chunks]
            whole = getattr(pd.Series(values, dtype="Int64"), item.merge[name])(
                **_SUM_OF_NOTHING.get(item.merge[name], {})
            )
            merged[name] = pa.array([None if pd.isna(whole) else int(whole)], pa.int64())
    return merged


_SUM_OF_NOTHING = {"sum": {"min_count": 1}}


def _one(sql: str, rows: pd.Series) -> int | None:
    how = _FUNCTIONS[sql]
    value = len(rows) if how == "rows" else getattr(rows, how)(**_SUM_OF_NOTHING.get(how, {}))
    return None if pd.isna(value) else int(value)


@given(st.lists(st.lists(st.none() | st.integers(-1000, 1000), min_size=1), min_size=1))
def test_split_aggregation_equals_pandas(chunks: list[list[int | None]]) -> None:
    items = parse_aggregates(
        [
            "count(*) AS n",
            "count(x) AS c",
            "sum(x) AS s",
            "avg(x) AS a",
            "min(x) AS lo",
            "max(x) - min(x) AS spread",
        ]
    )
    merged = _partials(items, chunks)
    kinds = {"a": pa.float64()}
    got = {
        item.name: evaluate(item, merged, 1, kinds.get(item.name, pa.int64()))[0].as_py()
        for item in items
    }
    rows = pd.Series([x for chunk in chunks for x in chunk], dtype="Int64")
    present = rows.dropna()
    empty = present.empty
    assert got == {
        "n": len(rows),
        "c": len(present),
        "s": None if empty else int(present.sum()),
        "a": None if empty else pytest.approx(float(present.mean())),
        "lo": None if empty else int(present.min()),
        "spread": None if empty else int(present.max() - present.min()),
    }


def test_division_is_sparks() -> None:
    (item,) = parse_aggregates(["sum(a) / count(*) * 100 AS p"])
    values = {"_p0_sum": pa.array([1, None, 3]), "_p0_count": pa.array([4, 2, 2])}
    assert evaluate(item, values, 3, pa.float64()).to_pylist() == [25.0, None, 150.0]
    with pytest.raises(FiresteelError, match="division by zero"):
        evaluate(item, {"_p0_sum": pa.array([1]), "_p0_count": pa.array([0])}, 1, pa.float64())


def test_decimals_keep_their_scale() -> None:
    (item,) = parse_aggregates(["avg(price) AS p"])
    values = {
        "_p0_sum": pa.array([decimal.Decimal("10.00"), None], pa.decimal128(20, 2)),
        "_p0_count": pa.array([3, 0]),
    }
    got = evaluate(item, values, 2, pa.decimal128(14, 6))
    assert got.to_pylist() == [decimal.Decimal("3.333333"), None]
    assert got.type == pa.decimal128(14, 6)
