"""map and flat_map: one call per row, results checked against the schema."""

from __future__ import annotations

import datetime
from collections import namedtuple
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from firesteel.errors import FiresteelError
from firesteel.operators import MapRowsSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operators.map.rows import MapRows

SCHEMA = pa.schema([("x", pa.int64()), ("y", pa.string())])
BATCH = pa.record_batch([[1, 2, 3], ["a", "b", None]], schema=SCHEMA)
Pair = namedtuple("Pair", ["y", "x"])


def run(
    function: Any,
    *,
    flat: bool = False,
    batch: pa.RecordBatch = BATCH,
    output: pa.Schema = SCHEMA,
) -> list[dict[str, Any]]:
    harness = OperatorHarness(
        MapRows(MapRowsSpec(function=function, flat=flat)),
        [batch.schema],
        output_schema=output,
        name="Map(f)",
    ).open()
    harness.process(batch)
    harness.end()
    return harness.rows()


def opposite(row: Row) -> Any:
    """A different kind of row for each."""
    return {
        1: Row(y=row.y, x=-row.x),
        2: {"y": row["y"], "x": -row[0]},
        3: Pair(y=row.y, x=-row.x),
    }[row.x]


def test_rows_dictionaries_and_named_tuples_are_matched_by_name() -> None:
    expected = [{"x": -1, "y": "a"}, {"x": -2, "y": "b"}, {"x": -3, "y": None}]
    assert run(opposite) == expected
    assert run(lambda row: (-row.x, row.y)) == expected
    assert run(lambda row: [opposite(row)], flat=True) == expected


def test_flat_map_returns_or_yields_any_number_of_rows() -> None:
    def repeated(row: Row) -> Any:
        for _ in range(row.x - 1):
            yield row

    assert [row["x"] for row in run(repeated, flat=True)] == [2, 3, 3]
    assert run(lambda row: (), flat=True) == []


def test_values_have_the_types_of_python() -> None:
    schema = pa.schema(
        [("at", pa.timestamp("us", "UTC")), ("s", pa.struct([("a", pa.list_(pa.int64()))]))]
    )
    noon = datetime.datetime(2024, 3, 1, 12, tzinfo=datetime.UTC)
    batch = pa.record_batch([[noon, None], [{"a": [1, None]}, None]], schema=schema)
    seen = []

    def keep(row: Row) -> Any:
        seen.append(row)
        return row.at, row.s

    assert run(keep, batch=batch, output=schema) == batch.to_pylist()
    assert seen[0].at == noon
    assert seen[0].s == {"a": [1, None]}


def test_a_time_without_a_zone_is_no_moment() -> None:
    naive, zone = datetime.datetime(2024, 3, 1, 12), datetime.timezone(datetime.timedelta(hours=5))
    moments = pa.schema([("at", pa.timestamp("us", "UTC"))])
    with pytest.raises(FiresteelError, match="cannot hold .*the time has no zone.*TIMESTAMP_NTZ"):
        run(lambda row: (naive,), output=moments)
    times = run(lambda row: (naive.replace(tzinfo=zone),), output=moments)
    assert times[0]["at"] == datetime.datetime(2024, 3, 1, 7, tzinfo=datetime.UTC)
    local = pa.schema([("at", pa.timestamp("us"))])
    assert run(lambda row: (naive,), output=local)[0]["at"] == naive


def test_rows_without_columns_are_counted() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    one = pa.schema([("n", pa.int64())])
    assert run(lambda row: (1,), batch=batch, output=one) == [{"n": 1}, {"n": 1}]


@pytest.mark.parametrize(
    ("function", "flat", "message"),
    [
        (lambda row: None, False, r"returned None for Row\(x=1, y='a'\);.*flat_map can drop"),
        (lambda row: row.x + 1, False, "returned a int for .*a Row, a tuple or a dictionary"),
        (lambda row: (1,), False, "a row of 1 values; expected x int64, y string"),
        (lambda row: {"x": 1}, False, "expected x int64, y string; got x int"),
        (lambda row: {"x": 1, "z": "a"}, False, "got x int, z str"),
        (lambda row: ("one", "a"), False, "column 'x' is int64 and cannot hold 'one'"),
        (lambda row: (row.x + 0.5, "a"), False, "cannot hold 1.5: it has a fraction; round it"),
        (lambda row: (1 // (row.x - 2), "a"), False, r"failed for Row\(x=2, .*ZeroDivisionError"),
        (lambda row: row, True, "returned a Row for .*it must yield rows, or return a list"),
        (lambda row: {"x": 1, "y": "a"}, True, "returned a dict"),
        (lambda row: "ab", True, "returned a str"),
        (lambda row: None, True, "returned None"),
        (lambda row: (row.x, row.y), True, "the function yielded a int; it must be a Row"),
        (lambda row: (r.z for r in [row]), True, r"failed for Row\(x=1, y='a'\).*z"),
    ],
)
def test_what_is_no_row_of_the_schema_is_refused(function: Any, flat: bool, message: str) -> None:
    with pytest.raises(FiresteelError, match=rf"^Map\(f\): .*{message}"):
        run(function, flat=flat)
