"""Positions within splits: a source that is restored at any of them emits exactly the rest."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq
import pytest

from firesteel import Environment, Watermarks
from firesteel.common.file_parts import to_json
from firesteel.common.operator_messages import SplitAssigned
from firesteel.connectors import MALFORMED_TAG, FileSource, SequenceSource
from firesteel.datastream import DataStream
from firesteel.errors import FiresteelError
from firesteel.operator import SourceOperator
from firesteel.testing import OperatorHarness
from taskexecutor.executor.analyze import analyze
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.readers import csv_blocks, parquet_groups
from taskexecutor.executor.connectors import spark_source
from taskexecutor.executor.connectors.files import stage
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.operators.registry import create_operator
from taskexecutor.executor.timing import bundle_time
from tests.integration.conftest import Slot, session_conf
from tests.integration.file_splits import parts_of, split_of

ROWS = 50  # of a file
CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.columnarReaderBatchSize": "8",
    "spark.sql.orc.columnarReaderBatchSize": "8",
}


@pytest.fixture(scope="module")
def engine(slot: Slot) -> Iterator[SparkEngine]:
    engine = slot.spark()
    with session_conf(engine, CONF):
        yield engine


class Bundles:
    read_s = 0.0

    def __init__(self, **options: Any) -> None: ...

    def took(self, busy_s: float) -> None: ...


@pytest.fixture(autouse=True)
def small_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    """As small as they can be."""
    monkeypatch.setattr(spark_source, "TARGET_S", 0.0)
    monkeypatch.setattr(stage, "BundleTime", Bundles)
    monkeypatch.setattr(Bundles, "read_s", 0.0)
    monkeypatch.setattr(bundle_time, "MOST_BYTES", 100)
    monkeypatch.setattr(csv_blocks, "_BLOCK_BYTES", 60)
    monkeypatch.setattr(parquet_groups, "_BATCH_ROWS", 8)


class Program:
    """A program from which any number of source subtasks can be created."""

    def __init__(
        self,
        engine: SparkEngine,
        source: Any,
        program: Callable[[DataStream], DataStream],
        watermarks: Watermarks | None = None,
    ) -> None:
        env = Environment(parallelism=1)
        program(env.from_source(source, watermarks=watermarks)).print()
        graph = env.job_graph("positions")
        schemas = [operator.schema for operator in analyze(graph, engine)]
        operators = [o for o in graph.vertices[0].operators if o.runs_on_spark]
        self._engine = engine
        self._opened = [
            OpenedOperator(o, cloudpickle.loads(o.spec), s)
            for o, s in zip(operators, schemas, strict=False)
        ]

    def started(self) -> OperatorHarness:
        tags = (MALFORMED_TAG,)
        return OperatorHarness(
            create_operator(self._opened), [], spark=self._engine.session, side_output_tags=tags
        ).open()


def operator_of(harness: OperatorHarness) -> SourceOperator:
    assert isinstance(harness.operator, SourceOperator)
    return harness.operator


def rows_read(harness: OperatorHarness) -> int:
    return operator_of(harness).context.counter("numRecordsIn").value


class Seen:
    """The rows that a source has emitted, and its counters."""

    def __init__(self, harness: OperatorHarness) -> None:
        self.rows = harness.rows()
        self.malformed = [row for b in harness.side(MALFORMED_TAG) for row in b.to_pylist()]
        self.read = rows_read(harness)
        self.watermarks = harness.watermarks_us


def read_to_end(harness: OperatorHarness) -> list[tuple[str, Seen]]:
    """Returns the positions of the run, with the rows that were emitted before each."""
    operator = operator_of(harness)
    found = [(json.dumps(operator.position()), Seen(harness))]
    while not operator.waiting:
        harness.poll()
        operator.flush()
        found.append((json.dumps(operator.position()), Seen(harness)))
    return found


def check(
    program: Program,
    *splits: str,
    aggregated: bool = False,
    every: int = 1,
    by_arrow: int | range | None = None,
) -> int:
    """Restores a source at each position of a run, or at every n-th. Returns their number.

    `by_arrow`: how many rows Arrow reads.
    """
    Bundles.read_s, bundle_time.MOST_BYTES = 0.0, 100
    harness = program.started()
    for number, split in enumerate(splits):
        harness.deliver(SplitAssigned(number=number, split_json=split))
    positions = read_to_end(harness)
    whole = Seen(harness)
    if by_arrow is not None:
        found = operator_of(harness).context.counter(stage.ARROW_COUNTER).value
        assert found in by_arrow if isinstance(by_arrow, range) else found == by_arrow
    harness.close()
    Bundles.read_s, bundle_time.MOST_BYTES = 10.0, 5000  # different from before
    fresh = {len(positions) // every // 2 * every}
    restored: OperatorHarness | None = None
    for number, (position, before) in list(enumerate(positions))[::every]:
        if number in fresh or restored is None:
            if restored is not None:
                restored.close()
            restored = program.started()
        skipped = Seen(restored)
        operator_of(restored).restore(json.loads(position))
        if number == 0:  # the splits were still on their way
            for split_number, split in enumerate(splits):
                restored.deliver(SplitAssigned(number=split_number, split_json=split))
        operator_of(restored).waiting = False
        read_to_end(restored)
        after = Seen(restored)
        rows = before.rows + after.rows[len(skipped.rows) :]
        malformed = before.malformed + after.malformed[len(skipped.malformed) :]
        if aggregated:
            assert totals(rows) == totals(whole.rows), position
        else:
            assert rows == whole.rows, position
        assert malformed == whole.malformed, position
        assert before.read + after.read - skipped.read == whole.read, position
        assert max(whole.watermarks, default=None) == max(after.watermarks, default=None)
    assert restored is not None
    restored.close()
    return len(positions)


def totals(rows: Sequence[dict[str, Any]]) -> dict[Any, int]:
    found: Counter[Any] = Counter()
    for row in rows:
        found[row["k"]] += row["_rows"]
    return found


def write(folder: Path, format: str, file: int) -> Path:
    numbers = range(file * ROWS, (file + 1) * ROWS)
    path = folder / f"{file}.{format}"
    table = pa.table(
        {"n": pa.array(numbers, pa.int64()), "s": [f"s{n}" * (n % 5) for n in numbers]}
    )
    match format:
        case "parquet":
            pq.write_table(table, path, row_group_size=23)
        case "orc":
            pa_orc.write_table(table, path)
        case "json" | "csv" | "text" | "csv.gz" | "mixed.csv" | "xml":
            lines = [
                json.dumps(row) if format == "json" else f"{row['n']},{row['s']}"
                for row in table.to_pylist()
            ]
            if format == "xml":
                lines = [f"<row><n>{row['n']}</n><s>x</s></row>" for row in table.to_pylist()]
                lines = ["<all>", *lines, "</all>"]
            if format == "mixed.csv" and not file:
                lines[17] += '""'  # from here on, Spark reads
            text = "".join(f"{line}\n" for line in lines).encode()
            path.write_bytes(gzip.compress(text) if format == "csv.gz" else text)
    return path


def split_over(paths: Sequence[Path], cut: bool) -> str:
    if not cut:
        return split_of(*paths)
    parts = [part for path in paths for part in parts_of(path, [path.stat().st_size // 3])]
    return json.dumps(to_json(parts))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "format", ["csv", "csv.gz", "mixed.csv", "json", "text", "xml", "parquet", "orc"]
)
def test_a_source_of_files_resumes_at_any_position(
    engine: SparkEngine, tmp_path: Path, format: str
) -> None:
    paths = [write(tmp_path, format, file) for file in range(2)]
    schema = "value STRING" if format == "text" else "n LONG, s STRING"
    options = {"rowTag": "row"} if format == "xml" else {}
    kind = format.removesuffix(".gz").removeprefix("mixed.")
    source = FileSource(str(tmp_path), format=kind, schema=schema, **options)
    n = "CAST(split(value, ',')[0] AS LONG)" if format == "text" else "n"

    def odd(df: Any) -> Any:
        return df.where(f"{n} % 3 < 2").selectExpr(f"explode(sequence(0, {n} % 4)) AS i", "*")

    cut = format not in ("csv.gz", "xml")
    program = Program(engine, source, lambda rows: rows.transform(odd))
    splits = [split_over(paths[:1], cut), split_over(paths[1:], cut)]
    by_arrow = {"csv": 100, "mixed.csv": range(1, 100), "parquet": 100}
    assert check(program, *splits, by_arrow=by_arrow.get(format, 0)) > 6


def test_filters_that_readers_are_given_are_part_of_a_position(
    engine: SparkEngine, tmp_path: Path
) -> None:
    paths = [write(tmp_path, "orc", file) for file in range(2)]
    source = FileSource(str(tmp_path), format="orc")
    program = Program(engine, source, lambda rows: rows.transform(lambda df: df.where("n > 30")))
    assert check(program, split_over(paths, cut=True), by_arrow=0) > 6


def test_unused_rows_are_skipped_after_any_position(engine: SparkEngine, tmp_path: Path) -> None:
    for file in range(2):
        table = pa.table({"n": [(7 * n) // 10 for n in range(100)]})
        pq.write_table(table, tmp_path / f"{file}.parquet", row_group_size=10)
    source = FileSource(str(tmp_path), format="parquet")
    program = Program(
        engine, source, lambda rows: rows.transform(lambda df: df.where("n < 20 OR n = 50"))
    )
    split = split_over([tmp_path / f"{file}.parquet" for file in range(2)], cut=True)
    assert check(program, split, by_arrow=80) > 6


def test_many_small_files_are_one_bundle(engine: SparkEngine, tmp_path: Path) -> None:
    """In folders that give columns, with one plan for each set of them."""
    for number in range(24):
        folder = tmp_path / ("day=1" if number < 12 else "day=1/hour=2")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.csv").write_text(f"{number},a\n{number},b\n" * (number % 3))
        (folder / f"{number:02}.json").write_text(f'{{"n":{number}}}\n' * (number % 3))
    for format, by_arrow in (("csv", 24), ("json", 0)):  # CSV without an hour is too short
        source = FileSource(
            str(tmp_path), format=format, schema="n INT, s STRING, day INT, hour INT", watch="1 s"
        )
        program = Program(
            engine, source, lambda rows: rows.transform(lambda df: df.where("n >= 0"))
        )
        found = sorted(tmp_path.rglob(f"*.{format}"), key=lambda path: path.name)
        assert 3 < check(program, split_of(*found), by_arrow=by_arrow) < 60


def test_what_a_plan_holds_is_emitted_before_a_position(
    engine: SparkEngine, tmp_path: Path
) -> None:
    """Partial aggregates; with event time, which no position may pass."""
    paths = [write(tmp_path, "parquet", file) for file in range(2)]
    source = FileSource(str(tmp_path), format="parquet")

    def counted(rows: DataStream) -> DataStream:
        keyed = rows.transform(
            lambda df: df.selectExpr("n % 7 AS k", "n", "timestamp_seconds(n) AS at")
        )
        return keyed.key_by("k").aggregate("count(*) AS c", "sum(n) AS s")

    program = Program(engine, source, counted)
    assert check(program, split_of(*paths), aggregated=True) > 10


def test_event_time_continues_and_malformed_rows_come_once(
    engine: SparkEngine, tmp_path: Path
) -> None:
    for file in range(2):
        lines = [f"{n},2024-01-01 00:01:{n % 60:02}" if n % 9 else f"x{n}" for n in range(100)]
        (tmp_path / f"{file}.csv").write_text("".join(f"{line}\n" for line in lines))
    split = split_over([tmp_path / "0.csv", tmp_path / "1.csv"], cut=True)
    for malformed in ("side_output", "drop"):
        source = FileSource(
            str(tmp_path),
            format="csv",
            schema="n INT, at TIMESTAMP",
            malformed=malformed,  # type: ignore[arg-type]
        )
        program = Program(
            engine, source, lambda rows: rows.transform(lambda df: df), Watermarks.bounded("at")
        )
        assert check(program, split) > 3


def test_a_sequence_resumes_at_any_position(engine: SparkEngine) -> None:
    splits = [f'{{"start": {at}, "end": {at + 700}}}' for at in (-700, 0)]
    for function in (lambda df: df.where("n % 3 = 0"), lambda df: df.where("rand() < 2")):
        program = Program(
            engine,
            SequenceSource(-700, 700, "n", split_rows=700),
            lambda numbers, function=function: numbers.transform(function, per_bundle=True),
        )
        assert check(program, *splits, every=7) > 2


def test_a_position_in_other_rows_is_refused(engine: SparkEngine, tmp_path: Path) -> None:
    for format in ("json", "csv"):
        path = write(tmp_path, format, 0)
        source = FileSource(str(path), format=format, schema="n LONG, s STRING")
        program, other = (
            Program(
                engine, source, lambda rows, n=n: rows.transform(lambda df: df.where(f"n > {n}"))
            )
            for n in (-1, 5)
        )
        harness = program.started()
        harness.deliver(SplitAssigned(number=0, split_json=split_of(path)))
        harness.poll()
        harness.poll()
        position = json.loads(json.dumps(operator_of(harness).position()))
        harness.close()
        assert len(json.dumps(position)) < 600
        if format == "json":
            with pytest.raises(
                FiresteelError, match="rows of .*0.json were read by a plan with different"
            ):
                restored(other, position)
        else:
            restored(other, position)  # Arrow leaves out no row
        with pytest.raises(FiresteelError, match="position of version 7 cannot be restored, only"):
            restored(program, {**position, "version": 7})
        found = path.stat()
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
        with pytest.raises(FiresteelError, match=f"0.{format}: the file was written to; it had"):
            restored(program, position)
        with path.open("a") as file:
            file.write("1,one more\n")
        with pytest.raises(FiresteelError, match=f"0.{format}: the file now has"):
            restored(program, position)
        path.write_text("1,a\n")
        with pytest.raises(FiresteelError, match=f"0.{format}: the file now has 4 bytes"):
            restored(program, position)


def restored(program: Program, position: Any) -> OperatorHarness:
    harness = program.started()
    operator_of(harness).restore(position)
    harness.poll()
    return harness
