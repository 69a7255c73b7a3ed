"""Rows pass a Spark transform unchanged, whatever their types, by either way into the JVM."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.connectors import FileSink, ForeachBatchSink
from firesteel.errors import FiresteelError
from firesteel.operators import TransformSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.transfer import LOCAL_ROWS, local_frame
from taskexecutor.executor.columnar.schemas import declared, from_ddl, to_arrow, to_spark
from taskexecutor.executor.columnar.stages.transform_stage import SparkTransformStage
from taskexecutor.executor.connectors.foreach_batch import ForeachBatch
from taskexecutor.executor.connectors.runtime import sink_runtime
from taskexecutor.executor.state import RestoredOperatorState
from tests.unit.operators.test_odd_schemas import rows, streams, texts


@pytest.mark.parametrize("way", ["few rows", "many rows"])
@settings(max_examples=8)
@given(batches=streams())
def test_a_transform_gives_back_what_it_was_given(
    engine: SparkEngine, way: str, batches: list[pa.RecordBatch]
) -> None:
    schema = to_arrow(to_spark(batches[0].schema))  # as everywhere between tasks
    batches = [batch.cast(schema) for batch in batches]
    if way == "many rows":
        whole = pa.Table.from_batches(batches).combine_chunks().to_batches()
        batches = [
            batch.take([n % batch.num_rows for n in range(LOCAL_ROWS + 1)])
            for batch in whole
            if batch.num_rows
        ]
    stage = SparkTransformStage([TransformSpec(function=lambda df: df.where("true"))], schema)
    harness = OperatorHarness(stage, [schema], output_schema=schema, spark=engine.session).open()
    for batch in batches:
        harness.process(batch)
    harness.end()
    assert all(batch.schema.equals(schema) for batch in harness.batches)
    assert texts(harness.rows()) == texts(rows(batches))


@settings(max_examples=10)
@given(
    batches=streams(),
    dry=st.sets(st.integers(0, 3)),
    subtask=st.integers(0, 1),
    limit=st.sampled_from(["1", "64m"]),
)
def test_foreach_batch_passes_every_row_once_whatever_it_is(
    engine: SparkEngine, batches: list[pa.RecordBatch], dry: set[int], subtask: int, limit: str
) -> None:
    schema = to_arrow(to_spark(batches[0].schema))
    got: list[tuple[int, pa.Table]] = []
    harness = OperatorHarness(
        ForeachBatch(ForeachBatchSink(lambda df, batch_id: got.append((batch_id, df.toArrow())))),
        [schema],
        spark=engine.session,
        config={"python.fn-execution.bundle.bytes": limit},
        subtask=subtask,
        parallelism=2,
    ).open()
    for number, batch in enumerate(batches):
        harness.process(batch.cast(schema))
        if number in dry:
            harness.flush()
    harness.end()
    assert [row for _, table in got for row in table.to_pylist()] == rows(batches)
    assert all(table.num_rows and table.schema.equals(schema) for _, table in got)
    assert [batch_id for batch_id, _ in got] == [2 * number + subtask for number in range(len(got))]


def test_rows_of_a_batch_wait_for_their_checkpoint_in_a_file(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("n", pa.int64())])
    batch = pa.record_batch([pa.array(range(100_000), pa.int64())], schema=schema)
    got: list[tuple[int, int]] = []

    def attempt(restored: RestoredOperatorState | None = None) -> OperatorHarness:
        return OperatorHarness(
            ForeachBatch(ForeachBatchSink(lambda df, batch_id: got.append((batch_id, df.count())))),
            [schema],
            spark=engine.session,
            checkpoints=True,
            restored=restored,
        ).open()

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = attempt()
    held_bytes = pa.total_allocated_bytes()
    for _ in range(8):
        first.process(batch)
    assert pa.total_allocated_bytes() - held_bytes < batch.nbytes, "however many there are"
    (spooled,) = tmp_path.glob("rows-*")
    assert spooled.stat().st_size > 7 * batch.nbytes
    restored = first.checkpoint(1)
    first.process(batch)
    first.close()
    assert not list(tmp_path.glob("rows-*")), "an open file stays readable"
    second = attempt(restored)
    ((batch_id, count),) = got
    assert count == 800_000
    second.process(batch)
    second.checkpoint(2)
    assert len(got) == 1
    second.complete(2)
    assert got[1:] == [(batch_id + 128, 100_000)]
    second.close()


def test_dictionaries_are_decoded_where_they_are_declared(engine: SparkEngine) -> None:
    words = pa.dictionary(pa.int32(), pa.string())
    schema = declared(
        pa.schema([("d", words), ("l", pa.list_(words)), ("s", pa.struct([("d", words)]))]), None
    )
    assert schema == pa.schema(
        [("d", pa.string()), ("l", pa.list_(pa.string())), ("s", pa.struct([("d", pa.string())]))]
    )
    stage = SparkTransformStage(
        [TransformSpec(function=lambda df: df.where("d <> 'b'"))], pa.schema([("d", pa.string())])
    )
    plain = pa.schema([("d", pa.string())])
    harness = OperatorHarness(stage, [plain], output_schema=plain, spark=engine.session).open()
    harness.process(
        pa.record_batch([pa.array(["a", "b", "c", None]).dictionary_encode()], names=["d"])
    )
    harness.end()
    assert [row["d"] for row in harness.rows()] == ["a", "c"]


@settings(max_examples=8)
@given(batches=streams())
def test_spark_reads_written_parquet_as_if_it_had_written_it(
    engine: SparkEngine, tmp_path: Path, batches: list[pa.RecordBatch]
) -> None:
    """Infers the same types and rows without a given schema."""
    schema = to_arrow(to_spark(batches[0].schema))
    batches = [batch.cast(schema) for batch in batches if batch.num_rows]
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    harness = OperatorHarness(
        sink_runtime(FileSink(str(folder / "ours"))).operator(), [schema]
    ).open()
    for batch in batches:
        harness.process(batch)
    harness.end()
    if not batches:
        assert list((folder / "ours").iterdir()) == []
        return
    frame = local_frame(engine.session, batches, to_spark(schema).json())
    frame.write.parquet(str(folder / "sparks"))
    ours, sparks = (engine.session.read.parquet(str(folder / each)) for each in ("ours", "sparks"))
    assert ours.schema == sparks.schema
    assert texts(ours.toArrow().to_pylist()) == texts(sparks.toArrow().to_pylist())


def test_texts_of_a_collation_do_not_leave_spark(engine: SparkEngine) -> None:
    for kind in (
        "STRING COLLATE UTF8_LCASE",
        "ARRAY<STRING COLLATE UNICODE_CI>",
        "STRUCT<a: MAP<INT, STRING COLLATE UTF8_BINARY_RTRIM>>",
    ):
        with pytest.raises(FiresteelError, match=r"'k' is .*collate\(k, 'UTF8_BINARY'\)"):
            to_arrow(from_ddl(f"n INT, k {kind}"))
    assert to_arrow(from_ddl("k STRING COLLATE UTF8_BINARY")).field("k").type == pa.string()
