"""Compares the results of the two engines as bags of rows."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

DIGITS = 9  # of doubles, whose sums depend on the order of rows


def differences(ours: pa.Table, theirs: pa.Table) -> str:
    """Says how the tables differ, in one text; empty if they have the same columns and rows."""
    if columns(ours) != columns(theirs):
        return f"columns: Firesteel has {columns(ours)}, Spark has {columns(theirs)}"
    here, there = bag(ours), bag(theirs)
    missing, extra = there - here, here - there
    if not missing and not extra:
        return ""
    # Rows may differ by the last digits of doubles alone.
    if missing.total() == extra.total() and all(
        close(mine, other)
        for mine, other in zip(
            sorted(extra.elements(), key=order), sorted(missing.elements(), key=order), strict=True
        )
    ):
        return ""
    return "\n".join(
        [
            f"rows: Firesteel has {ours.num_rows}, Spark has {theirs.num_rows}",
            *(f"  only Firesteel, {n} times: {row}" for row, n in extra.most_common(4)),
            *(f"  only Spark, {n} times: {row}" for row, n in missing.most_common(4)),
        ]
    )


def settled(changes: pa.Table) -> pa.Table:
    """Returns the rows that remain of a stream of changes. Raises AssertionError if more go than come."""
    if "row_kind" not in changes.column_names:
        return changes
    kinds = changes["row_kind"].to_pylist()
    rows = changes.drop_columns(["row_kind"])
    balance: Counter[Any] = Counter()
    places: dict[Any, int] = {}
    for place, (kind, row) in enumerate(zip(kinds, exact_rows(rows), strict=True)):
        balance[row] += 1 if kind == "insert" else -1
        places[row] = place
    assert all(n >= 0 for n in balance.values()), f"rows go that never came: {-balance}"
    kept = [place for row, place in places.items() for _ in range(balance[row])]
    return rows.take(pa.array(kept, pa.int64()))


def columns(table: pa.Table) -> list[tuple[str, str]]:
    return [(field.name, str(plain_type(field.type))) for field in table.schema]


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without what Arrow says beyond Spark's type: zones, nullability, names of items."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("item", plain_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    return kind


def exact_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(map(plain, row.values())) for row in table.to_pylist()]


def bag(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(map(rounded, row)) for row in exact_rows(table))


def plain(value: Any) -> Any:
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float():
            return value + 0.0  # -0.0 is 0.0
        case datetime() if value.tzinfo:
            return value.astimezone(UTC)
        case list():
            return tuple(map(plain, value))
        case dict():
            return tuple((name, plain(item)) for name, item in value.items())
        case _:
            return value


def rounded(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{DIGITS}g}")
    return tuple(map(rounded, value)) if isinstance(value, tuple) else value


def order(row: tuple[Any, ...]) -> tuple[str, ...]:
    others = [repr(value) for value in row if not isinstance(value, float)]
    return (*others, *(f"{value:+.3e}" for value in row if isinstance(value, float)))


def close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-8, abs_tol=1e-8)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return bool(one == other)
