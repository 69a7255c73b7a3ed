"""The sinks of streaming queries in a slot: batches and their ids, and partitioned files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from firesteel.connectors import FileSink, ForeachBatchSink, ForeachRowsSink
from firesteel.operators.batches import BATCH, CHECKPOINT, BatchesSpec
from firesteel.spark_connect.functions import Console
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.connectors.files.formats import WRITERS
from taskexecutor.executor.connectors.foreach_batch import ForeachBatch, ForeachRows
from taskexecutor.executor.connectors.runtime import sink_runtime
from taskexecutor.executor.operators.batches import Batches as BatchesOperator
from taskexecutor.executor.state import RestoredOperatorState
from tests.integration.conftest import Slot

NUMBERS = pa.schema([("n", pa.int64())])


@pytest.fixture
def engine(slot: Slot) -> SparkEngine:
    return slot.spark()


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=NUMBERS)


class Batches:
    """The calls of a function: batch id, and values."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[int]]] = []

    def __call__(self, frame: Any, batch_id: int) -> None:
        self.calls.append((batch_id, [row.n for row in frame.collect()]))


@pytest.fixture
def opened(engine: SparkEngine) -> Callable[..., tuple[OperatorHarness, Batches]]:
    def opened(
        completed: str = "", restored: RestoredOperatorState | None = None, attempt: int = 0
    ) -> tuple[OperatorHarness, Batches]:
        batches = Batches()
        operator = ForeachBatch(ForeachBatchSink(batches, True, completed))
        harness = OperatorHarness(
            operator,
            [NUMBERS],
            spark=engine.session,
            checkpoints=True,
            restored=restored,
            attempt=attempt,
        )
        return harness.open(), batches

    return opened


def complete(harness: OperatorHarness, checkpoint_id: int) -> RestoredOperatorState:
    """Takes a checkpoint, and notifies the operator of its end."""
    state = harness.checkpoint(checkpoint_id)
    harness.complete(checkpoint_id)
    return state


def test_ids_are_consecutive_and_empty_batches_are_not_passed(opened: Any) -> None:
    harness, batches = opened()
    harness.process(numbers(1))
    harness.process(numbers(2, 3))
    complete(harness, 5)
    complete(harness, 6)
    harness.process(numbers(4))
    harness.checkpoint(8)
    assert batches.calls == [(0, [1, 2, 3])], "checkpoint 8 is not complete"
    harness.complete(8)
    assert batches.calls == [(0, [1, 2, 3]), (1, [4])]


def test_a_restored_batch_is_passed_again_unless_it_is_recorded(
    opened: Any, tmp_path: Path
) -> None:
    for completed, again in (("", [(0, [1])]), (str(tmp_path / "completed"), [])):
        harness, batches = opened(completed)
        harness.process(numbers(1))
        restored = complete(harness, 1)
        assert batches.calls == [(0, [1])]
        harness, batches = opened(completed, restored, attempt=1)
        assert batches.calls == again
        harness.process(numbers(2))
        complete(harness, 2)
        assert batches.calls[len(again) :] == [(1, [2])], "ids continue"


def test_a_batch_that_was_not_passed_is_passed_when_it_is_restored(
    opened: Any, tmp_path: Path
) -> None:
    completed = str(tmp_path / "completed")
    harness, _ = opened(completed)
    harness.process(numbers(1))
    first = complete(harness, 1)
    harness.process(numbers(2))
    second = harness.checkpoint(2)
    _, batches = opened(completed, second, attempt=1)
    assert batches.calls == [(1, [2])]
    # After a restore of the first checkpoint, the same id stands for other rows.
    harness, batches = opened(completed, first, attempt=2)
    harness.process(numbers(3))
    complete(harness, 3)
    assert batches.calls == [(1, [3])]


def test_rows_reach_foreach_with_their_partition_and_epoch(engine: SparkEngine) -> None:
    calls: list[Any] = []
    sink = ForeachRowsSink(lambda rows, partition, epoch: calls.append((rows, partition, epoch)))
    harness = OperatorHarness(
        ForeachRows(sink),
        [NUMBERS],
        spark=engine.session,
        checkpoints=True,
        subtask=1,
        parallelism=2,
    ).open()
    harness.process(numbers(1, 2))
    complete(harness, 7)
    (rows, partition, epoch), *rest = calls
    assert ([row.n for row in rows], partition, epoch, rest) == ([1, 2], 1, 7, [])


def test_the_console_prints_as_spark_does(
    engine: SparkEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = engine.session.sql("SELECT 1 AS n, 'a long text of thirty letters.' AS text")
    Console(20, True)(frame, 3)
    assert capsys.readouterr().out == (
        "-------------------------------------------\n"
        "Batch: 3\n"
        "-------------------------------------------\n"
        "+---+--------------------+\n"
        "|  n|                text|\n"
        "+---+--------------------+\n"
        "|  1|a long text of th...|\n"
        "+---+--------------------+\n"
        "\n"
    )


@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
def test_spark_reads_partitioned_files(engine: SparkEngine, tmp_path: Path, format: str) -> None:
    spark = engine.session
    table = spark.sql(
        "SELECT id AS n, IF(id % 3 = 0, NULL, concat('k ', id % 3, '/%')) AS k,"
        " date '2024-05-01' + CAST(id % 2 AS int) AS day, id * 0.5D AS d FROM range(1000)"
    ).toArrow()
    options = {"header": "true"} if format == "csv" else {}
    sink = FileSink(
        str(tmp_path / "out"), format=format, options=options, partition_by=["day", "k"]
    ).resolved()
    runtime = sink_runtime(sink)
    runtime.analyze(table.schema)
    harness = OperatorHarness(
        runtime.operator(), [table.schema], spark=spark, checkpoints=True
    ).open()
    for batch in table.to_batches(max_chunksize=300):
        harness.process(batch)
    harness.checkpoint(1)
    assert not list(tmp_path.glob("out/day=*")), "the checkpoint is not complete"
    harness.complete(1)
    read = spark.read.format(format).options(header="true", inferSchema="true")
    found = read.load(str(tmp_path / "out")).selectExpr("n", "k", "day", "d")
    key = [("n", "ascending")]
    assert found.toArrow().sort_by(key).to_pylist() == table.sort_by(key).to_pylist()
    harness.close()


@pytest.mark.parametrize("columns", [1, 2])
def test_spark_reads_any_string_from_csv(engine: SparkEngine, tmp_path: Path, columns: int) -> None:
    values = ["".join(each) for n in (1, 2, 3) for each in itertools.product('a"\\,', repeat=n)]
    table = pa.table({"s": [*values, None, " x ", "é"]})
    if columns == 2:
        table = table.append_column("d", pa.array([*map(float, range(len(values))), None, 0.1, 1]))
    with (tmp_path / "part.csv").open("wb") as stream:
        writer = WRITERS["csv"](stream, table, {"header": "true", "escape": "\\"})
        writer.write_table(table.slice(0, 1))  # has nothing to escape
        writer.write_table(table.slice(1))
        writer.close()
    schema = "s STRING, d DOUBLE" if columns == 2 else "s STRING"
    read = engine.session.read.schema(schema).csv(str(tmp_path), header=True)
    assert read.toArrow().to_pylist() == table.to_pylist()


@pytest.mark.parametrize("escape", ['"', "\\"])
def test_spark_reads_special_numbers_from_csv(
    engine: SparkEngine, tmp_path: Path, escape: str
) -> None:
    special = [math.inf, -math.inf, math.nan, 2.5, None]
    table = pa.table(
        {
            "d": pa.array(special, pa.float64()),
            "f": pa.array(special[::-1], pa.float32()),
            "s": ["nan", "inf", 'a"b', "c\\d", None],
        }
    )
    with (tmp_path / "part.csv").open("wb") as stream:
        writer = WRITERS["csv"](stream, table, {"header": "false", "escape": escape})
        writer.write_table(table)
        writer.write_table(table.slice(3, 1))
        writer.close()
    read = engine.session.read.schema("d DOUBLE, f FLOAT, s STRING")
    found = read.csv(str(tmp_path), escape=escape).toArrow().to_pylist()
    assert repr(found) == repr([*table.to_pylist(), *table.slice(3, 1).to_pylist()])


def test_spark_reads_the_first_times_that_orc_may_have(engine: SparkEngine, tmp_path: Path) -> None:
    times = [
        datetime(1582, 10, 15),
        datetime(1900, 1, 1, 1, 2, 3),
        datetime(1970, 1, 1, 0, 0, 0, 7),
    ]
    table = pa.table(
        {
            "t": pa.array([*times, None], pa.timestamp("us", "UTC")),
            "d": pa.array([*map(datetime.date, times), None], pa.date32()),
        }
    )
    with (tmp_path / "part.orc").open("wb") as stream:
        writer = WRITERS["orc"](stream, table, {})
        writer.write_table(table)
        writer.close()
    read = engine.session.read.orc(str(tmp_path))
    assert read.toArrow().to_pylist() == table.to_pylist()


def test_text_files_have_one_column_of_strings(engine: SparkEngine, tmp_path: Path) -> None:
    batch = pa.record_batch({"line": ["a", None, "ü"], "day": [1, 1, 2]})
    sink = FileSink(str(tmp_path / "out"), format="text", partition_by=["day"]).resolved()
    runtime = sink_runtime(sink)
    runtime.analyze(batch.schema)
    harness = OperatorHarness(
        runtime.operator(), [batch.schema], spark=engine.session, checkpoints=True
    ).open()
    harness.process(batch)
    complete(harness, 1)
    rows = engine.session.read.text(str(tmp_path / "out")).collect()
    assert sorted((row.day, row.value) for row in rows) == [(1, ""), (1, "a"), (2, "ü")]
    harness.close()
    with pytest.raises(Exception, match="writes exactly one"):
        sink_runtime(FileSink("/tmp", format="text")).analyze(batch.schema)


# ---- batches

MARKED = pa.schema([("n", pa.int64()), (BATCH, pa.int64()), (CHECKPOINT, pa.int64())])


def rows(harness: OperatorHarness) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in harness.rows()]


def test_marks_follow_the_rows_of_a_batch(engine: SparkEngine) -> None:
    def opened(restored: RestoredOperatorState | None = None) -> OperatorHarness:
        return OperatorHarness(
            BatchesOperator(BatchesSpec(marks=True)),
            [NUMBERS],
            output_schema=MARKED,
            spark=engine.session,
            checkpoints=True,
            restored=restored,
        ).open()

    harness = opened()
    harness.process(numbers(1))
    harness.process(numbers(2))
    harness.checkpoint(3)
    state = harness.checkpoint(4)
    assert rows(harness) == [
        *[(1, None, None), (2, None, None), (None, 0, 3)],
        (None, None, 4),
    ]
    harness = opened(state)
    harness.process(numbers(5))
    harness.checkpoint(6)
    harness.process(numbers(6))
    harness.end()
    assert rows(harness) == [(5, None, None), (None, 1, 6), (6, None, None), (None, 2, None)]


def test_a_function_gets_all_rows_of_a_batch(engine: SparkEngine) -> None:
    spec = BatchesSpec(function=lambda frame: frame.orderBy("n").limit(2))
    harness = OperatorHarness(
        BatchesOperator(spec),
        [NUMBERS],
        output_schema=NUMBERS,
        spark=engine.session,
        checkpoints=True,
    ).open()
    harness.process(numbers(3, 9))
    harness.process(numbers(1))
    assert rows(harness) == []
    harness.checkpoint(1)
    harness.checkpoint(2)
    assert rows(harness) == [(1,), (3,)]
    harness.process(numbers(7))
    harness.end()
    assert rows(harness) == [(1,), (3,), (7,)]
