"""Rows of a program, as a stream reads them and as spark.createDataFrame does."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import IntegerType, StringType, StructType

from firesteel import DataStream, Environment
from firesteel.common.operator_messages import SplitAssigned, SplitsExhausted
from firesteel.connectors.table_source import TableSource
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.schemas import declared, to_arrow
from taskexecutor.executor.connectors.split_source import SplitReading
from tests.integration.conftest import session_conf

ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "Europe/Berlin")
TIME = dt.datetime(2024, 7, 1, 12, 30, 15, 123456)


class Point(NamedTuple):
    x: int
    y: float


ROWS: list[tuple[list[Any], Any]] = [
    ([(1, "a"), (2, None)], "n INT, s STRING"),
    ([(1, "a"), (2, None)], ["n", "s"]),
    ([(1, "a"), (2, None)], None),
    ([[1, "a"], [None, "b"]], ["n"]),
    ([{"b": 1, "a": "x"}, {"a": "y"}, {"c": 2.5}], None),
    ([{"b": 1, "a": "x"}, {"a": "y"}], "a STRING, b BIGINT"),
    ([Row(n=1, at=TIME), Row(n=2, at=None)], None),
    ([Point(1, 2.0), Point(3, float("nan"))], None),
    ([(TIME.replace(tzinfo=ZoneInfo("Asia/Tokyo")), TIME)], "a TIMESTAMP, b TIMESTAMP_NTZ"),
    ([(TIME, TIME.date())], None),
    ([([1, None], {"k": TIME}, Row(a=1, b=[{"z": 1.5}]))], None),
    ([([], {}, (None,))], "a ARRAY<INT>, m MAP<STRING, TIMESTAMP>, s STRUCT<x: TIMESTAMP>"),
    ([(Decimal("1.50"), b"\x00\xff", True)], None),
    ([(Decimal("1.5"), 1)], "d DECIMAL(10, 2), b TINYINT"),
    ([1, 2, None], "INT"),
    (["x", "y"], StringType()),
    ([], "n INT, at TIMESTAMP"),
    ([(1,)], StructType().add("n", IntegerType())),
]


def rows_of(stream: DataStream, zone: str, *, parallelism: int = 1) -> pa.Table:
    """Returns the rows that the source's subtasks emit in a slot whose session has this zone."""
    source = cloudpickle.loads(cloudpickle.dumps(stream._node.spec.source))  # type: ignore[union-attr]
    assert isinstance(source, TableSource)
    schema = declared(source.output_schema(), None)
    assert schema is not None
    splits = source.splits(parallelism)
    batches: list[pa.RecordBatch] = []
    for subtask in range(parallelism):
        harness = OperatorHarness(
            SplitReading(source.create_reader, schema),
            [],
            output_schema=schema,
            config={"spark.sql.session.timeZone": zone},
        ).open()
        for number, split in enumerate(splits[subtask::parallelism]):
            harness.deliver(SplitAssigned(number=number, split_json=json.dumps(split)))
        harness.deliver(SplitsExhausted())
        while harness.poll():
            pass
        batches += harness.batches
        harness.close()
    return pa.Table.from_batches(batches, schema=schema)


@pytest.fixture(params=ZONES)
def zone(engine: SparkEngine, request: pytest.FixtureRequest) -> Iterator[str]:
    with session_conf(engine, {"spark.sql.session.timeZone": request.param}):
        yield request.param


def expected(engine: SparkEngine, data: Any, schema: Any) -> pa.Table:
    frame = engine.session.createDataFrame(data, schema)
    target = to_arrow(frame.schema)
    return pa.Table.from_batches(
        [batch.cast(target) for batch in frame.toArrow().to_batches()], schema=target
    )


def different(stream: DataStream, engine: SparkEngine, zone: str, data: Any, schema: Any) -> str:
    """How the rows of the stream differ from those of createDataFrame; "" if they do not."""
    try:
        found = rows_of(stream, zone)
        wanted = expected(engine, data, schema)
    except Exception as error:
        return f"{data!r} as {schema!r}: {error!r}"
    if not found.schema.equals(wanted.schema):
        return f"{data!r} as {schema!r}: {found.schema} instead of {wanted.schema}"
    rows, others = repr(found.to_pylist()), repr(wanted.to_pylist())
    return f"{data!r} as {schema!r}:\n{rows}\ninstead of\n{others}" if rows != others else ""


def test_rows_are_those_of_create_data_frame(engine: SparkEngine, zone: str) -> None:
    found = [
        different(Environment().from_collection(data, schema), engine, zone, data, schema)
        for data, schema in ROWS
    ]
    assert not any(found), "\n".join(filter(None, found))


def test_frames_are_those_of_create_data_frame(engine: SparkEngine, zone: str) -> None:
    ambiguous = pd.Timestamp("2024-11-03 01:30:00")  # twice in New York
    times = [pd.Timestamp("2024-01-01 12:00:00.123456"), pd.NaT, ambiguous]
    frame = pd.DataFrame(
        {
            "n": [1, 2, 3],
            "x": [1.5, np.nan, np.inf],
            "s": ["a", None, "c"],
            "at": times,
            "zoned": pd.Series(times).dt.tz_localize("Asia/Tokyo"),
            "b": pd.array([True, None, False], dtype="boolean"),
            "list": [[1, 2], None, []],
            "date": [dt.date(2024, 1, 1), None, dt.date(1969, 1, 1)],
        }
    )
    for schema in (
        None,
        "n INT, x FLOAT, s STRING, at TIMESTAMP, zoned TIMESTAMP, b BOOLEAN, list ARRAY<INT>,"
        " date DATE",
        "n BIGINT, x DOUBLE, s STRING, at TIMESTAMP_NTZ, zoned TIMESTAMP, b BOOLEAN,"
        " list ARRAY<BIGINT>, date DATE",
    ):
        stream = Environment().from_pandas(frame, schema)
        assert not different(stream, engine, zone, frame, schema)
    empty = Environment().from_pandas(frame.iloc[:0], schema)
    assert rows_of(empty, zone).num_rows == 0


def test_tables_are_those_of_create_data_frame(engine: SparkEngine, zone: str) -> None:
    table = pa.table(
        {
            "at": pa.array([TIME, None], pa.timestamp("ns")),
            "zoned": pa.array([TIME, None], pa.timestamp("s", "Asia/Tokyo")),
            "nested": pa.array(
                [[{"t": TIME}], None], pa.list_(pa.struct([("t", pa.timestamp("us"))]))
            ),
            "large": pa.array(["a", None], pa.large_string()),
            "n": pa.array([1, 2], pa.int16()),
        }
    )
    for data in (table, table.slice(1), table.slice(0, 1)):
        stream = Environment().from_arrow(data)
        copy = data.take(list(range(data.num_rows)))  # PySpark's own conversion takes no slices
        assert not different(stream, engine, zone, copy, None)
    assert rows_of(Environment().from_arrow(table.schema.empty_table()), zone).num_rows == 0


def test_several_subtasks_share_the_rows() -> None:
    stream = Environment().from_collection([(n,) for n in range(100)], "n INT")
    assert rows_of(stream, "UTC")["n"].to_pylist() == list(range(100))
    found = rows_of(stream, "UTC", parallelism=3)["n"].to_pylist()
    assert sorted(found) == list(range(100))
    assert found != list(range(100))
