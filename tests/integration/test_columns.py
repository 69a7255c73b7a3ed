"""Rows leave Spark's plans in columns: the same rows as by Spark's own conversion, whatever their
types, nulls and lengths.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame

from taskexecutor.executor.columnar.columns import slabs
from taskexecutor.executor.columnar.columns.sink import BATCH_ROWS, ColumnSink
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.transfer import collect
from taskexecutor.executor.columnar.schemas import to_arrow
from taskexecutor.executor.timing.clock import PlanMeter, TaskClock
from tests.integration.conftest import session_conf

FLAT = [
    "id", "id % 2 = 0 AS flag", "CAST(id % 100 AS TINYINT) AS tiny", "CAST(id % 9999 AS SMALLINT) AS small",
    "CAST(-id AS INT) AS number", "CAST(id / 7 AS FLOAT) AS ratio", "id / 7 AS precise",
    "CAST(id / 8 AS DECIMAL(12, 3)) AS price", "-CAST(id AS DECIMAL(38, 4)) * 12345678901234567890 AS huge",
    "CAST(IF(id % 2 = 0, 1, -1) * (999999999999999999 + id % 3) AS DECIMAL(30, 0)) AS large",
    "repeat('ü', CAST(id % 50 AS INT)) AS text", "CAST(repeat('x', CAST(id % 3 AS INT)) AS BINARY) AS raw",
    "date_from_unix_date(CAST(id AS INT)) AS day", "timestamp_micros(-id) AS at",
    "CAST(timestamp_micros(id) AS TIMESTAMP_NTZ) AS local", "make_dt_interval(id) AS lasts",
]  # fmt: skip
NESTED = [
    "array(id, NULL, -id) AS numbers", "array_repeat(array('a', NULL), CAST(id % 4 AS INT)) AS arrays",
    "named_struct('a', id, 'b', IF(id % 3 = 0, NULL, named_struct('c', CAST(id AS STRING)))) AS record",
    "map(CAST(id AS STRING), id / 2, '', NULL) AS pairs",
]  # fmt: skip


def with_nulls(columns: list[str]) -> list[str]:
    """One row in three is null, another one in each column."""
    named = [
        column.rpartition(" AS ") if " AS " in column else (column, "", column)
        for column in columns
    ]
    return [
        f"IF(id % 3 = {index % 3}, NULL, {value}) AS {name}"
        for index, (value, _, name) in enumerate(named)
    ]


@pytest.fixture
def before() -> int:
    """Shared memory that others still hold, in bytes."""
    gc.collect()
    return slabs.total_bytes()


@contextmanager
def sunk(
    engine: SparkEngine, frame: DataFrame, group: str = "test", **options: Any
) -> Iterator[Iterator[pa.RecordBatch]]:
    with (
        closing(ColumnSink(engine, frame.schema, **options)) as sink,
        run(engine, sink, fused(sink, frame), group) as batches,
    ):
        yield batches


def fused(sink: ColumnSink, frame: DataFrame) -> Any:
    return sink.fuse(frame._jdf.queryExecution().executedPlan()).execute()


@contextmanager
def run(
    engine: SparkEngine, sink: ColumnSink, rdd: Any, group: str = "test"
) -> Iterator[Iterator[pa.RecordBatch]]:
    with engine.local_tasks.task(group, engine.session_properties()) as task:
        with task:
            rows = rdd.iterator(rdd.partitions()[0], task.context)
        yield sink.batches(rows, task)


def oracle(frame: DataFrame) -> pa.Table:
    schema = to_arrow(frame.schema)
    return pa.Table.from_batches(list(collect(frame, schema, PlanMeter(TaskClock()))), schema)


@pytest.mark.parametrize(
    "columns",
    [FLAT, with_nulls(FLAT), NESTED, with_nulls(NESTED), [f"id + {n} AS c{n}" for n in range(300)]],
    ids=["flat", "nulls", "nested", "nested nulls", "more columns than a method has arguments"],
)
@pytest.mark.parametrize("generated", ["true", "false"], ids=["", "interpreted"])
def test_rows_of_every_type(engine: SparkEngine, columns: list[str], generated: str) -> None:
    with session_conf(engine, {"spark.sql.codegen.wholeStage": generated}):
        frame = engine.session.range(0, 5003, 1, 1).selectExpr(*columns)
        with sunk(engine, frame, batch_rows=1000) as batches:
            found = pa.Table.from_batches(list(batches))
    found.validate(full=True)
    assert found.equals(oracle(frame))
    assert {len(chunk) for chunk in found.column(0).chunks} == {1000, 3}


def test_types_that_are_not_taken_say_so(engine: SparkEngine) -> None:
    for column in ("make_ym_interval(1, 2)", "NULL", "array(parse_json('1'))"):
        assert not ColumnSink.suits(
            engine, engine.session.range(1).selectExpr(f"{column} AS c").schema
        )
    assert not ColumnSink.suits(engine, engine.session.range(1).select().schema)
    assert ColumnSink.suits(engine, engine.session.range(1).selectExpr(*FLAT, *NESTED).schema)


def test_one_row_becomes_more_than_a_batch(engine: SparkEngine) -> None:
    """Spark's generated loop does not pause within an input row."""
    frame = engine.session.range(0, 3, 1, 1).selectExpr(
        "explode(sequence(0, 70000)) AS n",
        "IF(id = 1, NULL, id % 2 = 0) AS flag",
        "CAST(id AS STRING) AS text",
    )
    with sunk(engine, frame, batch_rows=100) as batches:
        found = pa.Table.from_batches(list(batches))
    found.validate(full=True)
    assert found.equals(oracle(frame))
    assert max(len(chunk) for chunk in found.column(0).chunks) == BATCH_ROWS


def test_long_texts_end_a_batch_early(engine: SparkEngine, before: int) -> None:
    """One of 20 MB, among short ones."""
    frame = engine.session.range(0, 4000, 1, 1).selectExpr(
        "id",
        "repeat('text', CASE WHEN id = 1500 THEN 5000000 WHEN id < 3000 THEN 1 ELSE 10000 END) AS text",
    )
    with sunk(engine, frame) as batches:
        sizes = []
        texts = 0
        for batch in batches:
            batch.validate(full=True)
            sizes.append(batch.num_rows)
            texts += sum(pc.binary_length(batch["text"]).to_pylist())
    assert sizes[0] == 1501  # it ends with the long one
    assert len(sizes) > 4 and sum(sizes) == 4000
    assert texts == 2999 * 4 + 20_000_000 + 1000 * 40_000
    del batch, batches
    assert slabs.total_bytes() == before


def test_a_batch_beyond_the_limit_is_refused_and_the_plan_continues(
    engine: SparkEngine, before: int
) -> None:
    frame = engine.session.range(0, 3, 1, 1).selectExpr("explode(sequence(0, 5000000)) AS n")
    with closing(ColumnSink(engine, frame.schema, limit_bytes=10 * 2**20)) as sink:
        rdd = fused(sink, frame)
        for _ in range(2):
            with (
                run(engine, sink, rdd) as batches,
                pytest.raises(
                    Exception,
                    match="more than 10485760 bytes: one input row became too many or too long output rows",
                ),
            ):
                next(batches)
    assert slabs.total_bytes() == before


def test_batches_keep_their_rows_however_long_they_are_held(
    engine: SparkEngine, before: int
) -> None:
    frame = engine.session.range(0, 400_000, 1, 1).selectExpr("id", "CAST(id AS STRING) AS text")
    with closing(ColumnSink(engine, frame.schema)) as sink:
        rdd = fused(sink, frame)
        held = []
        for _ in range(3):
            with run(engine, sink, rdd) as batches:
                held.append(list(batches))
        made = len(sink._slabs)
        assert made == slabs.MOST
        assert 0 < slabs.total_bytes() - before < made * 2 * 2**20
        right = oracle(frame)
        assert all(pa.Table.from_batches(each).equals(right) for each in held)
        del held
        gc.collect()
        with run(engine, sink, rdd) as batches:
            assert sum(each.num_rows for each in batches) == 400_000  # of which none is held
        assert len(sink._slabs) == made
        with run(engine, sink, rdd) as batches:
            last = next(batches)
    assert last["id"].to_pylist() == list(range(65_536))
    assert slabs.total_bytes() > before
    del last, batches
    gc.collect()
    assert slabs.total_bytes() == before


@pytest.mark.parametrize("rows", [10**12, 1], ids=["rows", "one row"])
def test_cancelled_in_the_middle(engine: SparkEngine, rows: int) -> None:
    frame = engine.session.range(0, rows, 1, 1).selectExpr("id", "explode(sequence(0, 20000)) AS m")
    frame = frame.selectExpr("m", "explode(sequence(0, 20000)) AS n")
    with sunk(engine, frame, limit_bytes=2**34) as batches:
        timer = threading.Timer(0.1, lambda: engine.local_tasks.interrupt("test"))
        timer.start()
        with pytest.raises(Exception, match="the task was cancelled"):
            for _ in batches:
                pass
        timer.join()
    assert engine.local_tasks.used_bytes == 0
