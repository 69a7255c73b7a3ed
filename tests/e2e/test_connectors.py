"""Sources and sinks end to end."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)

from firesteel import Environment, Tumbling, Watermarks
from firesteel.client.client import JobFailed
from firesteel.common.states import JobStatus
from firesteel.connectors import (
    MALFORMED_TAG,
    CollectSink,
    FileSink,
    FileSource,
    PostgresSink,
    PythonSink,
    PythonSource,
    SequenceSource,
)
from firesteel.errors import JobCanceled
from tests.waiting import eventually

from .conftest import Session

pytestmark = pytest.mark.usefixtures("shipped_module")


def write(folder: Path, name: str, text: str) -> None:
    """Writes a file that appears under its name in one step, as a watched directory requires."""
    (folder / f".{name}").write_text(text)
    os.rename(folder / f".{name}", folder / name)


def rows_below(folder: Path) -> list[dict[str, Any]]:
    files = list(folder.glob("part-*.parquet")) if folder.is_dir() else []
    return [row for path in files for row in pq.read_table(path).to_pylist()]


def test_new_files_of_a_watched_directory_are_read_once(session: Session, tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    write(source, "0.csv", "0\nnonsense\n")
    env = Environment(parallelism=2)
    (
        env.from_source(
            FileSource(str(source), format="csv", schema="n INT", watch="50 ms", malformed="drop")
        )
        .transform(lambda df: df.selectExpr("n * 10 AS n"))
        .sink_to(FileSink(str(out), rolling_interval="100 ms"))
    )
    job_id = session.submit(env)
    for number in range(1, 6):
        eventually(lambda number=number: len(rows_below(out)) == number, f"{number} rows")  # type: ignore[misc]
        write(source, f"{number}.csv", f"{number}\n")
    eventually(lambda: len(rows_below(out)) == 6, "6 rows")
    (source / "0.csv").write_text("77\n")
    for path in source.iterdir():
        path.unlink()
    time.sleep(0.2)
    assert session.client.job_details(job_id).status is JobStatus.RUNNING
    source.rmdir()
    with pytest.raises(JobFailed, match=rf"the directory '{source}' does not exist"):
        session.client.wait(job_id)
    assert sorted(row["n"] for row in rows_below(out)) == [0, 10, 20, 30, 40, 50]


def test_each_row_of_a_large_file_and_of_many_small_ones_is_read_once(
    session: Session, in_session: None, tmp_path: Path
) -> None:
    rows, files = 2_000_000, 300
    large = tmp_path / "large.csv"
    large.write_text("".join(f"{number}\n" for number in range(rows)))
    for number in range(files):
        (tmp_path / f"{number}.json").write_text(f'{{"n": {number}}}\n')
    env = Environment(parallelism=2)
    lines, objects = (
        env.from_source(FileSource(f"{tmp_path}/*.{format}", format=format, schema="n LONG"))
        for format in ("csv", "json")
    )
    counted = (
        lines.union(objects)
        .transform(lambda df: df.selectExpr("n % 3 AS k", "n"))
        .key_by("k")
        .window(Tumbling("1 day", processing_time=True))
        .aggregate("count(*) AS rows", "sum(n) AS total")
    )
    found = counted.execute_and_collect("once").to_pandas()[["rows", "total"]].sum()
    assert found["rows"] == rows + files
    assert found["total"] == sum(range(rows)) + sum(range(files))


def test_windows_over_a_watched_directory_fire_despite_empty_subtasks(
    session: Session, in_session: None, tmp_path: Path
) -> None:
    env = Environment(parallelism=2)
    counts = (
        env.from_source(
            FileSource(
                str(tmp_path), format="csv", schema="at TIMESTAMP, key STRING", watch="50 ms"
            ),
            watermarks=Watermarks.bounded("at"),
        )
        .key_by("key")
        .window(Tumbling("1 hour"))
        .aggregate("count(*) AS n")
    )
    write(
        tmp_path, "0.csv", "2024-03-01 00:10:00,a\n2024-03-01 00:20:00,a\n2024-03-01 00:59:00,b\n"
    )
    with counts.execute_and_collect(iterate="arrow") as batches:
        session.wait_until(
            batches.job_id, lambda details: details.vertices[1].metrics.records_in == 2
        )
        write(tmp_path, "1.csv", "2024-03-01 01:00:01,a\n")
        rows: list[dict[str, Any]] = []
        while len(rows) < 2:
            rows += next(batches).to_pylist()
    assert {(row["key"], row["n"]) for row in rows} == {("a", 2), ("b", 1)}


def test_malformed_rows_are_a_stream_of_their_own(
    session: Session, in_session: None, tmp_path: Path
) -> None:
    for number in range(4):
        write(tmp_path, f"{number}.json", f'{{"n": {number}}}\nbroken {number}\n')
    env = Environment(parallelism=2)
    source = env.from_source(
        FileSource(f"{tmp_path}/*.json", format="json", schema="n INT", malformed="side_output")
    )
    bad = source.side_output(MALFORMED_TAG).transform(
        lambda df: df.selectExpr("upper(_corrupt_record) AS row", "path")
    )
    good = source.transform(lambda df: df.selectExpr("n + 1 AS n")).sink_to(CollectSink())
    bad_sink = bad.sink_to(CollectSink())
    result = env.execute("malformed")
    assert sorted(result.table(good)["n"].to_pylist()) == [1, 2, 3, 4]
    rows = sorted(result.table(bad_sink).to_pylist(), key=lambda row: str(row["row"]))
    assert rows == [{"row": f"BROKEN {n}", "path": f"{tmp_path}/{n}.json"} for n in range(4)]


class Numbers(DataSource):
    def schema(self) -> str:
        return "n LONG, text STRING"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return NumbersReader(int(self.options["end"]))


class NumbersPartition(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class NumbersReader(DataSourceStreamReader):
    def __init__(self, end: int) -> None:
        self.end = end

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"n": min(self.end, start["n"] + 250)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [NumbersPartition(n, min(n + 50, end["n"])) for n in range(start["n"], end["n"], 50)]

    def read(self, partition: Any) -> Iterator[tuple[int, str]]:
        return ((n, f"number {n}") for n in range(partition.start, partition.end))

    def isFinished(self, end: dict[str, int]) -> bool:
        return end["n"] == self.end


class Lines(DataSource):
    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return LinesWriter(self.options["path"])


class LinesMessage(WriterCommitMessage):
    def __init__(self, path: str, lines: int) -> None:
        self.path, self.lines = path, lines


class LinesWriter(DataSourceStreamWriter):
    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        path = f"{self.path}.{TaskContext.get().partitionId()}"  # type: ignore[union-attr]
        with open(path, "w") as file:
            lines = sum(1 for row in iterator if file.write(f"{row.text}\n"))
        return LinesMessage(path, lines)

    def commit(self, messages: list[Any], batchId: int) -> None:
        with open(self.path, "w") as file:
            for message in messages:
                file.write(Path(message.path).read_text())

    def abort(self, messages: list[Any], batchId: int) -> None:
        Path(f"{self.path}.aborted").write_text(str(len(messages)))


def test_python_data_sources_are_taken_as_they_are(session: Session, tmp_path: Path) -> None:
    env = Environment(parallelism=2)
    (
        env.from_source(PythonSource(Numbers, {"end": 1010}))
        .transform(lambda df: df.where("n % 2 = 0"))
        .sink_to(PythonSink(Lines, {"path": str(tmp_path / "lines")}))
    )
    session.run(env)
    assert sorted((tmp_path / "lines").read_text().splitlines()) == sorted(
        f"number {n}" for n in range(0, 1010, 2)
    )
    assert len(list(tmp_path.glob("lines.*"))) == 2, "both subtasks wrote"

    env = Environment(parallelism=2)

    def raising(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 700 in batch["n"].to_pylist():
                raise ValueError("700")
            yield batch

    path = str(tmp_path / "failed")
    env.from_source(PythonSource(Numbers, {"end": 1010})).map_in_arrow(raising).sink_to(
        PythonSink(Lines, {"path": path})
    )
    with pytest.raises(JobFailed, match="700"):
        session.run(env)
    eventually(Path(f"{path}.aborted").exists, "abort() was called")
    assert not Path(path).exists()


class Appended(Lines):
    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return AppendingWriter(self.options["path"])


class AppendingWriter(LinesWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        path = f"{self.path}.{uuid.uuid4().hex}"
        with open(path, "w") as file:
            lines = sum(1 for row in iterator if file.write(f"{row.n}\n"))
        return LinesMessage(path, lines)

    def commit(self, messages: list[Any], batchId: int) -> None:
        with open(self.path, "a") as file:
            for message in messages:
                file.write(Path(message.path).read_text())


def test_what_an_endless_stream_brings_is_committed_at_intervals(
    session: Session, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    env = Environment(parallelism=2)
    (
        env.from_source(SequenceSource(0, column="n", rate_per_s=500))
        .rebalance()
        .sink_to(PythonSink(Appended, {"path": str(lines)}, commit_interval="100 ms"))
    )
    job_id = session.submit(env)
    eventually(
        lambda: lines.exists() and len(lines.read_text().splitlines()) > 300, "committed rows"
    )
    session.client.cancel(job_id)
    with pytest.raises(JobCanceled):
        session.client.wait(job_id)
    numbers = [int(line) for line in lines.read_text().splitlines()]
    assert len(set(numbers)) == len(numbers)
    eventually(Path(f"{lines}.aborted").exists, "abort() of the uncommitted rows")


def test_foreach_batch_gets_dataframes(session: Session, tmp_path: Path) -> None:
    def write_batch(df: DataFrame, batch_id: int) -> None:
        df.write.parquet(
            f"{tmp_path}/out/batch={batch_id}"
        )  # subtasks write at the same time, so not into one folder

    env = Environment(parallelism=2)
    env.from_sequence(0, 100_000).rebalance().foreach_batch(write_batch)
    session.run(env)
    table = pq.read_table(tmp_path / "out")
    assert sorted(table["value"].to_pylist()) == list(range(100_000))
    batches = set(table["batch"].to_pylist())
    assert {batch % 2 for batch in batches} == {0, 1}, "each subtask has separate ids"


def test_upserts_into_postgres(session: Session, postgres: str) -> None:
    env = Environment(parallelism=2)
    (
        env.from_source(SequenceSource(0, 3_000, rate_per_s=6_000))
        .transform(lambda df: df.selectExpr("value % 10 AS k", "value AS v"))
        .key_by("k")
        .sink_to(PostgresSink(postgres, "upserted", mode="upsert", key=["k"]))
    )
    begin = time.monotonic()
    session.run(env)
    assert time.monotonic() - begin > 0.4, "at the given rate"
    connection = psycopg2.connect(postgres)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT k, v FROM upserted ORDER BY k")
            rows = cursor.fetchall()
            cursor.execute("DROP TABLE upserted")
        connection.commit()
    finally:
        connection.close()
    assert [k for k, _ in rows] == list(range(10))
    env = Environment()
    env.from_sequence(0, 10).sink_to(PostgresSink("postgresql://127.0.0.1:1/none", "t"))
    with pytest.raises(JobFailed, match="PostgresSink: cannot connect"):
        session.run(env)


def test_rows_can_be_read_while_the_job_runs(session: Session, in_session: None) -> None:
    env = Environment(parallelism=2)
    numbers = env.from_source(SequenceSource(0, rate_per_s=500))
    seen: list[int] = []
    begin = time.monotonic()
    with numbers.execute_and_collect("endless", iterate="arrow") as batches:
        for batch in batches:
            seen += batch["value"].to_pylist()
            if len(seen) >= 500:
                break
        assert time.monotonic() - begin > 0.9, "at the given rate"
    assert len(set(seen)) == len(seen)
    assert session.client.job_details(batches.job_id).status is JobStatus.CANCELED
    assert list(batches) == []

    frames = list(Environment().from_sequence(0, 100_000).execute_and_collect(iterate="pandas"))
    assert sorted(n for frame in frames for n in frame["value"]) == list(range(100_000))

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("no")

    with pytest.raises(JobFailed, match="no"):
        list(
            Environment()
            .from_sequence(0, 10)
            .map_in_arrow(failing)
            .execute_and_collect(iterate="arrow")
        )


def test_a_job_that_starts_over_publishes_its_rows_once(session: Session, tmp_path: Path) -> None:
    out, failed = tmp_path / "out", tmp_path / "failed"

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """In the first subtask that has rows, once the other one has published some."""
        for batch in batches:
            try:
                failed.touch(exist_ok=False)
            except FileExistsError:
                yield batch
                continue
            while not list(out.glob("part-*")):
                time.sleep(0.01)
            raise RuntimeError("once")

    env = Environment(
        parallelism=2,
        configuration={
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.delay": "10 ms",
        },
    )
    numbers = env.from_source(SequenceSource(0, 1_000, rate_per_s=500.0))
    sink = FileSink(str(out), rolling_interval="100 ms")
    numbers.map_in_arrow(fail_once).sink_to(sink)
    assert session.run(env).status is JobStatus.FINISHED
    assert failed.exists()
    assert sorted(row["value"] for row in rows_below(out)) == list(range(1_000))
