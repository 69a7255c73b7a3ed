"""Failed jobs continue from their latest checkpoint: every row counts once, in state and in files."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.streaming import StatefulProcessor

from firesteel import Environment, Sliding, Tumbling, Watermarks, savepoint
from firesteel import Session as SessionWindow
from firesteel.client.cli import main
from firesteel.common.checkpoints.metadata import read_metadata
from firesteel.common.ids import stable_id
from firesteel.common.states import ExecutionState
from firesteel.connectors import (
    CollectSink,
    EndOfSplit,
    FileSink,
    FileSource,
    PythonSink,
    PythonSource,
    SequenceSource,
    Source,
    SourceReader,
)
from firesteel.datastream import DataStream
from firesteel.errors import FiresteelError, JobFailed, SubmissionRejected
from firesteel.operator import RuntimeContext, StreamOperator
from tests.waiting import eventually

from .conftest import Session, files_below, job_master_pid

Arrow = Iterator[pa.RecordBatch]

ROWS, KEYS = 60_000, 7
BURST_ROWS = 30_000
READ_ROWS, FILE_ROWS = 2_000, 80_000
SLOW_ROWS = 500_000  # some windows of the exchange
CHECKPOINTS = {
    "execution.checkpointing.interval": "200 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "2",
    "restart-strategy.fixed-delay.delay": "0 s",
}


pytestmark = pytest.mark.usefixtures("shipped_module")


class Ledger(StatefulProcessor):
    """Numbers the rows of each key. Fails once by itself, and once because its process is killed,
    each time when the attempt has a complete checkpoint.
    """

    def __init__(self, flags: str, out: str, count: str = "n BIGINT") -> None:
        self.flags = Path(flags)
        self.out = Path(out)
        self.schema = count

    def init(self, handle: object) -> None:
        self.count = handle.getValueState("count", self.schema)  # type: ignore[attr-defined]

    def handleInputRows(self, key, rows, timer_values):  # type: ignore[no-untyped-def]
        (n,) = self.count.get() or (0,)
        for row in rows:
            n += 1
            yield Row(key=key[0], value=row.value, n=n)
        self.count.update((n,))
        if n > ROWS // KEYS // 2 and not self.both_failed():
            time.sleep(0.1)  # a slow machine needs longer until there are checkpoints
        if self.committed(0) and self.first_time("raised"):
            raise RuntimeError("fails once")
        if self.committed(1) and self.first_time("killed"):
            os.kill(os.getpid(), signal.SIGKILL)

    def committed(self, attempt: int) -> bool:
        return any(path.name.split("-")[4] == str(attempt) for path in self.out.glob("part-*"))

    def both_failed(self) -> bool:
        return all((self.flags / flag).exists() for flag in ("raised", "killed"))

    def first_time(self, flag: str) -> bool:
        try:
            (self.flags / flag).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def numbered(
    env: Environment,
    flags: Path,
    out: Path,
    *,
    rate_per_s: float = 10_000,
    count: str = "n BIGINT",
) -> DataStream:
    return (
        env.from_source(SequenceSource(0, ROWS, rate_per_s=rate_per_s))
        .transform(lambda df: df.selectExpr("value", f"value % {KEYS} AS key"))
        .key_by("key")
        .transform_with_state(
            Ledger(str(flags), str(out), count),
            "key BIGINT, value BIGINT, n BIGINT",
            "update",
            "none",
            name="ledger",
        )
    )


@dataclass
class Written(WriterCommitMessage):
    values: list[int]


class Batches(DataSource):
    """A sink that writes each batch to a separate file, including redelivered ones."""

    def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamWriter:
        return BatchesWriter(Path(self.options["folder"]))


class BatchesWriter(DataSourceStreamWriter):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return Written([row.value for row in iterator])

    def commit(self, messages, batchId):  # type: ignore[no-untyped-def]
        keep(self.folder, batchId, [value for message in messages for value in message.values])


def keep(folder: Path, batch_id: int, values: list[int]) -> None:
    """Raises AssertionError if other rows had this id."""
    path, text = folder / str(batch_id), json.dumps(sorted(values))
    if path.exists():
        assert path.read_text() == text, "a batch that is delivered again is the same"
        return
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


def kept(folder: Path) -> list[int]:
    return sorted(value for path in folder.iterdir() for value in json.loads(path.read_text()))


def test_every_row_counts_once_through_a_failed_task_and_a_killed_process(
    session: Session, tmp_path: Path
) -> None:
    names = ("out", "checkpoints", "flags", "batches", "python")
    out, checkpoints, flags, batches, python = (tmp_path / name for name in names)
    for folder in (flags, batches, python):
        folder.mkdir()
    env = Environment(
        parallelism=2,
        configuration={**CHECKPOINTS, "execution.checkpointing.dir": str(checkpoints)},
    )
    stream = numbered(env, flags, out)
    stream.sink_to(FileSink(str(out)))
    stream.sink_to(CollectSink(), uid="collected")
    stream.sink_to(PythonSink(Batches, {"folder": str(python)}))
    stream.foreach_batch(
        lambda df, batch_id: keep(batches, batch_id, [row.value for row in df.collect()])
    )
    job_id = session.submit(env)
    sink = stable_id("uid", "collected")
    collected = [  # while the job runs
        value for found in session.client.fetch_results(job_id, sink) for value in found["value"]
    ]
    details = session.client.wait(job_id)
    assert details.status.name == "FINISHED"
    assert {path.name for path in flags.iterdir()} == {"raised", "killed"}
    rows = ds.dataset(out, format="parquet").to_table().to_pandas()
    assert sorted(rows["value"]) == list(range(ROWS)), "every row once"
    for _, of_key in rows.groupby("key"):
        assert sorted(of_key["n"]) == list(range(1, len(of_key) + 1)), "and counted once"
    attempts = {path.name.split("-")[4] for path in out.glob("part-*")}
    assert attempts == {"0", "1", "2"}, "files of all three attempts: none was taken back"
    assert not list(out.glob(".*")), "nothing is left uncommitted"
    assert sorted(value.as_py() for value in collected) == list(range(ROWS)), "each seen once"
    assert kept(batches) == kept(python) == list(range(ROWS))
    eventually(lambda: not list(files_below(checkpoints)), "the checkpoints are deleted")


def test_a_job_continues_when_its_job_master_is_killed(session: Session, tmp_path: Path) -> None:
    out, flags, checkpoints = (tmp_path / name for name in ("out", "flags", "checkpoints"))
    flags.mkdir()
    for flag in ("raised", "killed"):
        (flags / flag).touch()
    env = Environment(
        parallelism=2,
        configuration={
            "execution.checkpointing.interval": "200 ms",
            "execution.checkpointing.dir": str(checkpoints),
        },
    )
    stream = numbered(env, flags, out)
    stream.sink_to(FileSink(str(out)))
    stream.sink_to(CollectSink(), uid="collected")
    job_id = session.submit(env)
    eventually(lambda: list(out.glob("part-*")), "a checkpoint is complete")
    os.kill(job_master_pid(session, job_id), signal.SIGKILL)
    details = session.client.wait(job_id)
    collected = session.client.fetch_table(job_id, stable_id("uid", "collected"))
    assert sorted(collected["value"].to_pylist()) == list(range(ROWS)), "each collected once"
    rows = ds.dataset(out, format="parquet").to_table().to_pandas()
    assert sorted(rows["value"]) == list(range(ROWS)), "every row once"
    for _, of_key in rows.groupby("key"):
        assert sorted(of_key["n"]) == list(range(1, len(of_key) + 1)), "and counted once"
    last = details.vertices[0].subtasks[0].current
    assert last is not None
    assert last.number == 0, "the second JobMaster has adopted the tasks"
    eventually(lambda: not list(files_below(checkpoints)), "the checkpoints are deleted")


class Numbers(Source):
    """A source of a program's own: numbers, one in each batch. It waits in the middle of a split
    until a checkpoint has committed files to `out`.
    """

    def __init__(self, out: Path) -> None:
        self.out = out

    def output_schema(self) -> str:
        return "value BIGINT"

    def splits(self, parallelism: int) -> list[dict[str, int]]:
        return [{"start": start, "end": start + 100} for start in range(0, READ_ROWS, 100)]

    def create_reader(self, context: RuntimeContext) -> SourceReader:
        return NumbersReader(self.out)


class NumbersReader(SourceReader):
    poll_interval_s = 0.01

    def __init__(self, out: Path) -> None:
        self.out = out

    def begin(self, split: dict[str, int]) -> None:  # type: ignore[override]
        self.next, self.end = split["start"], split["end"]

    def poll(self) -> pa.RecordBatch | None:
        if self.next == self.end:
            raise EndOfSplit
        if self.next + 50 == self.end and not committed(self.out):
            return None
        self.next += 1
        return pa.record_batch({"value": pa.array([self.next - 1], pa.int64())})

    def position(self) -> int:
        return self.next

    def restore(self, position: int) -> None:  # type: ignore[override]
        self.next = position


def committed(out: Path) -> bool:
    return any(out.glob("part-*"))


class Offsets(DataSource):
    """Waits in the middle."""

    def schema(self) -> str:
        return "value BIGINT"

    def simpleStreamReader(self, schema: object) -> SimpleDataSourceStreamReader:
        return OffsetsReader(Path(self.options["out"]))


class OffsetsReader(SimpleDataSourceStreamReader):
    """Reads in one subtask and a separate task, far ahead of its consumers unless it is slow."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start):  # type: ignore[no-untyped-def]
        if start["n"] >= READ_ROWS // 2 and not committed(self.out):
            return iter([]), start
        end = {"n": min(start["n"] + 10, READ_ROWS)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start, end):  # type: ignore[no-untyped-def]
        return iter([(n,) for n in range(start["n"], end["n"])])

    def isFinished(self, end: dict[str, int]) -> bool:
        return end["n"] == READ_ROWS


class Planned(DataSource):
    """Splits each step into partitions, and writes down what is committed. Waits in the middle."""

    def schema(self) -> str:
        return "value BIGINT"

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        return PlannedReader(Path(self.options["calls"]), Path(self.options["out"]))


class PlannedReader(DataSourceStreamReader):
    def __init__(self, calls: Path, out: Path) -> None:
        self.calls = calls
        self.out = out

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start, limit):  # type: ignore[no-untyped-def]
        if start["n"] >= READ_ROWS // 2 and not committed(self.out):
            return start
        return {"n": min(start["n"] + 20, READ_ROWS)}

    def partitions(self, start, end):  # type: ignore[no-untyped-def]
        return [InputPartition(n) for n in range(start["n"], end["n"], 5)]

    def read(self, partition):  # type: ignore[no-untyped-def]
        return iter([(n,) for n in range(partition.value, partition.value + 5)])

    def commit(self, end: dict[str, int]) -> None:
        with self.calls.open("a") as file:
            file.write(f"{end['n']}\n")

    def isFinished(self, end: dict[str, int]) -> bool:
        return end["n"] == READ_ROWS


def csv_files(folder: Path) -> FileSource:
    """Writes files of a megabyte each, which a task reads in parts."""
    folder.mkdir()
    for start in range(0, FILE_ROWS, FILE_ROWS // 4):
        lines = (f"{n},{n:0>40}\n" for n in range(start, start + FILE_ROWS // 4))
        (folder / f"{start}.csv").write_text("".join(lines))
    return FileSource(str(folder), format="csv", schema="value BIGINT, text STRING")


@pytest.mark.parametrize("kind", ["files", "own", "python", "partitions"])
def test_every_source_resumes_where_the_checkpoint_left_it(
    session: Session, tmp_path: Path, kind: str
) -> None:
    out, failed, calls = tmp_path / "out", tmp_path / "failed", tmp_path / "calls"
    sources = {
        "files": lambda: csv_files(tmp_path / "files"),
        "own": lambda: Numbers(out),
        "python": lambda: PythonSource(Offsets, {"out": str(out)}, poll_interval="1 ms"),
        "partitions": lambda: PythonSource(
            Planned, {"calls": str(calls), "out": str(out)}, poll_interval="1 ms"
        ),
    }

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As soon as a checkpoint is complete."""
        for batch in batches:
            if not failed.exists():
                if kind == "files":
                    time.sleep(0.5)
                if committed(out):
                    failed.touch()
                    raise RuntimeError("fails once")
            yield batch

    checkpoints = {"execution.checkpointing.dir": str(tmp_path / "checkpoints")}
    env = Environment(parallelism=2, configuration={**CHECKPOINTS, **checkpoints})
    stream = env.from_source(sources[kind]()).map_in_arrow(fail_once)  # type: ignore[operator]
    stream.sink_to(FileSink(str(out)))
    assert session.run(env).status.name == "FINISHED"
    assert failed.exists()
    values = ds.dataset(out, format="parquet").to_table()["value"].to_pylist()
    assert sorted(values) == list(range(FILE_ROWS if kind == "files" else READ_ROWS))
    assert {path.name.split("-")[4] for path in out.glob("part-*")} == {"0", "1"}
    if kind == "partitions":
        ends = [int(line) for line in calls.read_text().split()]
        assert ends == sorted(ends), "no committed row is read again"
        assert ends[-1] == READ_ROWS


def test_behind_a_slow_sink_checkpoints_overtake_and_every_row_counts_once(
    session: Session, tmp_path: Path
) -> None:
    """The exchange is full: an aligned one would wait for all that is in it, some minutes."""
    out, failed, checkpoints = (tmp_path / name for name in ("out", "failed", "checkpoints"))

    def take(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A thousand rows per second, until some checkpoints are complete; then it fails."""
        for batch in batches:
            if not failed.exists():
                if len(list(out.glob("part-*"))) >= 3:
                    failed.touch()
                    raise RuntimeError("fails once")
                time.sleep(batch.num_rows / 1000)
            yield batch

    configuration = {
        **CHECKPOINTS,
        "execution.checkpointing.dir": str(checkpoints),
        "execution.checkpointing.unaligned.enabled": "true",
    }
    env = Environment(configuration=configuration)
    rows = env.from_source(SequenceSource(0, SLOW_ROWS)).rebalance().map_in_arrow(take)
    rows.sink_to(FileSink(str(out)))
    started = time.monotonic()
    assert session.run(env).status.name == "FINISHED"
    assert time.monotonic() - started < SLOW_ROWS / 1000 / 2, "nothing waited for the sink"
    assert failed.exists()
    values = ds.dataset(out, format="parquet").to_table()["value"].to_pylist()
    assert sorted(values) == list(range(SLOW_ROWS))


def failing(flags: Path, checkpoints: Path) -> Callable[[Arrow], Arrow]:
    """Fails as in `Ledger`, once there is a checkpoint to restore."""
    ledger = Ledger(str(flags), "")

    def fail(batches: Arrow) -> Arrow:
        for batch in batches:
            latest = batch.column("value")[-1].as_py()
            if latest >= BURST_ROWS // 3:
                if not any(checkpoints.rglob("_metadata")):
                    time.sleep(2)  # a slow machine needs longer
                    yield batch
                    continue
                if ledger.first_time("raised"):
                    raise RuntimeError("fails once")
                if latest >= 2 * BURST_ROWS // 3 and ledger.first_time("killed"):
                    os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    return fail


def test_windows_and_aggregates_survive_a_failed_task_and_a_killed_process(
    session: Session, tmp_path: Path
) -> None:
    """Rows come in bursts of two seconds, with a pause of three; each second has 1,000."""
    flags, checkpoints = tmp_path / "flags", tmp_path / "checkpoints"
    flags.mkdir()
    env = Environment(
        parallelism=2,
        configuration={**CHECKPOINTS, "execution.checkpointing.dir": str(checkpoints)},
    )
    rows = (
        env.from_source(SequenceSource(0, BURST_ROWS, rate_per_s=15_000))
        .transform(
            lambda df: df.selectExpr(
                "value",
                f"IF(value % {KEYS} = 0, NULL, concat('k', value % {KEYS})) AS key",
                "timestamp_millis(value + 3000 * (value DIV 2000)) AS at",
                "value DIV 1000 AS second",
            )
        )
        .map_in_arrow(failing(flags, checkpoints))
        .assign_timestamps_and_watermarks(Watermarks.bounded("at"))
    )

    def write(stream: DataStream, name: str) -> None:
        stream.sink_to(FileSink(str(tmp_path / name)))

    keyed = rows.key_by("key")
    counts = "count(*) AS n", "sum(value) AS s", "max_by(value, at) AS last"
    write(keyed.window(Tumbling("1 s")).aggregate(*counts), "tumbling")
    write(keyed.window(Sliding("1 s", "250 ms")).aggregate(*counts), "sliding")
    write(keyed.window(SessionWindow("1 s")).aggregate(*counts), "sessions")
    write(keyed.window(Tumbling("1 s")).top_n(2, by="value"), "top")
    write(keyed.window(Tumbling("5 s")).apply(per_window), "applied")
    write(keyed.aggregate("count(*) AS n", "count(DISTINCT value % 1000) AS d"), "totals")
    write(rows.drop_duplicates("key", "second", within="2 s"), "apart")
    assert session.run(env).status.name == "FINISHED"
    assert {path.name for path in flags.iterdir()} == {"raised", "killed"}

    def found(name: str, columns: str) -> list[tuple[Any, ...]]:
        frame = ds.dataset(tmp_path / name, format="parquet").to_table()
        return sorted(
            zip(*(frame.column(c).to_pylist() for c in columns.split()), strict=True), key=repr
        )

    def expected(of_row: Callable[[int], Iterator[Any]]) -> list[tuple[Any, ...]]:
        """n, s and last, per key and window."""
        groups: dict[Any, list[int]] = {}
        for value in range(BURST_ROWS):
            for window in of_row(value):
                groups.setdefault((name_of(value), window), []).append(value)
        return sorted(
            ((key, len(values), sum(values), max(values)) for (key, _), values in groups.items()),
            key=repr,
        )

    def ends(value: int) -> Iterator[int]:
        """Yields the ends of the sliding windows that contain the value."""
        at = value + 3000 * (value // 2000)
        return iter(range(at - at % 250 + 250, at - at % 250 + 1001, 250))

    seconds, bursts = (expected(lambda value, by=by: iter([value // by])) for by in (1000, 2000))
    assert found("tumbling", "key n s last") == seconds
    assert found("sliding", "key n s last") == expected(ends)
    assert found("sessions", "key n s last") == bursts
    assert found("applied", "key n s") == sorted((row[:3] for row in bursts), key=repr)
    tops = [(k, last - KEYS * rank, rank + 1) for k, *_, last in seconds for rank in (0, 1)]
    assert found("top", "key value rank") == sorted(tops, key=repr)
    one_each = [
        (name_of(v), v // 1000) for s in range(0, BURST_ROWS, 1000) for v in range(s, s + KEYS)
    ]
    assert found("apart", "key second") == sorted(one_each, key=repr)
    totals = found("totals", "key n d")
    assert len(totals) == len(set(totals)), "no update twice"
    for first in range(KEYS):
        n, d = max((n, d) for key, n, d in totals if key == name_of(first))
        assert (n, d) == (len(range(first, BURST_ROWS, KEYS)), 1000)


def name_of(value: int) -> str | None:
    return f"k{value % KEYS}" if value % KEYS else None


def per_window(df: DataFrame) -> DataFrame:
    return df.groupBy("key", "window_start", "window_end").agg(
        F.count("*").alias("n"), F.sum("value").alias("s")
    )


def test_a_watched_folder_resumes_from_a_checkpoint(session: Session, tmp_path: Path) -> None:
    folder, out, failed = (tmp_path / name for name in ("in", "out", "failed"))
    folder.mkdir()

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """In the second file."""
        for batch in batches:
            if 100 in batch["value"].to_pylist() and not failed.exists():
                failed.touch()
                raise RuntimeError("fails once")
            yield batch

    checkpoints = {"execution.checkpointing.dir": str(tmp_path / "checkpoints")}
    env = Environment(parallelism=2, configuration={**CHECKPOINTS, **checkpoints})
    source = FileSource(str(folder), format="csv", schema="value BIGINT", watch="50 ms")
    env.from_source(source).map_in_arrow(fail_once).sink_to(FileSink(str(out)))
    session.submit(env)
    for first in (0, 100, 200):
        part = folder / f".{first}.csv"
        part.write_text("".join(f"{n}\n" for n in range(first, first + 100)))
        part.rename(folder / f"{first}.csv")

        def committed() -> list[int]:
            files = [pq.read_table(path)["value"].to_pylist() for path in out.glob("part-*")]
            return sorted(value for values in files for value in values)

        eventually(lambda: len(committed()) >= first + 100, "the file's rows")  # noqa: B023
        assert committed() == list(range(first + 100))
    assert failed.exists()


class Forgetful(StreamOperator):
    not_checkpointed = "what it counts is in no state"


def test_what_cannot_take_part_is_refused_before_data_flows(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    def program(directory: str) -> Environment:
        configuration = {**CHECKPOINTS, "execution.checkpointing.dir": str(tmp_path / directory)}
        env = Environment(configuration=configuration)
        stream = env.from_source(SequenceSource(0, 10, rate_per_s=10))
        stream.operator("Forget", Forgetful).sink_to(FileSink(str(tmp_path / "out")))
        return env

    with pytest.raises(SubmissionRejected, match=r"cannot be written .execution.checkpointing.dir"):
        session.submit(program("file/checkpoints"))
    job_id = session.submit(program("checkpoints"))
    message = "Forget cannot take part in checkpoints yet: what it counts is in no state"
    with pytest.raises(JobFailed, match=message):
        session.client.wait(job_id)
    details = session.client.job_details(job_id)
    attempts = [s.current for vertex in details.vertices for s in vertex.subtasks]
    assert all(ExecutionState.DEPLOYING not in one.entered_ms for one in attempts if one)
    assert not (tmp_path / "out").exists()


def test_a_job_starts_from_a_savepoint_with_another_parallelism(
    session: Session, tmp_path: Path
) -> None:
    """The first job continues after its first savepoint and ends with its second. The next job has
    another backend, fails twice and restores incremental checkpoints.
    """
    first, second, flags = (tmp_path / name for name in ("first", "second", "flags"))
    flags.mkdir()
    for flag in ("raised", "killed"):
        (flags / flag).touch()
    checkpoints = {
        "execution.checkpointing.interval": "200 ms",
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
    }
    env = Environment(parallelism=1, configuration=checkpoints)
    slowly = numbered(env, flags, first, rate_per_s=2_000, count="n INT")
    slowly.sink_to(FileSink(str(first)))
    job_id = session.submit(env)
    eventually(lambda: list(first.glob("part-*")), "a checkpoint is complete")
    arguments = ["savepoint", "-m", session.address, job_id[:8], str(tmp_path / "savepoints")]
    taken = CliRunner().invoke(main, arguments)  # in this process: the job soon ends
    assert taken.exit_code == 0, taken.output
    earlier = Path(taken.output.splitlines()[-1].removeprefix("Savepoint completed. Path: "))
    assert earlier.parent == tmp_path / "savepoints"
    stopped = CliRunner().invoke(
        main, ["stop", "-m", session.address, job_id, "-p", str(tmp_path / "savepoints")]
    )
    assert stopped.exit_code == 0, stopped.output
    path = Path(stopped.output.splitlines()[-1].removeprefix("Savepoint completed. Path: "))
    assert session.client.job_details(job_id).status.name == "FINISHED"
    eventually(lambda: not list(files_below(tmp_path / "checkpoints")), "only savepoints stay")
    moved = path.rename(tmp_path / "moved")

    restored = {**checkpoints, "execution.state-recovery.path": str(moved)}
    env = Environment(configuration=restored)
    env.from_source(SequenceSource(0, 1)).sink_to(FileSink(str(second)), uid="other")
    with pytest.raises(SubmissionRejected, match=r"which the program has not; .*\(uid other\)"):
        session.submit(env)
    env = Environment(configuration={**restored, "restart-strategy.type": "none"})
    numbered(env, flags, second, count="n STRING").sink_to(FileSink(str(second)))
    with pytest.raises(JobFailed, match=r"state 'count' .* column 'n' was INT .* is STRING now"):
        session.run(env)
    counts = savepoint.read(str(moved))["ledger"]["count"].to_pandas()
    assert (list(counts.columns), len(counts)) == (["key", "n"], KEYS)
    rocksdb = {
        **CHECKPOINTS,
        **restored,
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
    }
    env = Environment(parallelism=2, configuration=rocksdb)
    for flag in ("raised", "killed"):
        (flags / flag).unlink()
    numbered(env, flags, second).sink_to(FileSink(str(second)))
    assert session.run(env).status.name == "FINISHED"
    assert {path.name for path in flags.iterdir()} == {"raised", "killed"}
    before, after = (
        ds.dataset(folder, format="parquet").to_table().to_pandas() for folder in (first, second)
    )
    assert 0 < len(after) < ROWS
    assert sorted([*before["value"], *after["value"]]) == list(range(ROWS)), "every row once"
    assert counts["n"].sum() == len(before)
    for key, of_key in after.groupby("key"):
        counted = len(before[before["key"] == key])
        assert sorted(of_key["n"]) == list(range(counted + 1, counted + len(of_key) + 1))
    for taken_one in (moved, earlier):
        session.client.dispose_savepoint(str(taken_one))
        assert not taken_one.exists()


def test_a_drained_job_fires_its_windows_and_leaves_a_savepoint(
    session: Session, tmp_path: Path
) -> None:
    out, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    env = Environment(
        parallelism=1,  # so that what was read is without gaps
        configuration={
            "execution.checkpointing.interval": "100 ms",
            "execution.checkpointing.dir": str(checkpoints),
            "execution.checkpointing.savepoint-dir": str(tmp_path / "savepoints"),
        },
    )
    rows = env.from_source(SequenceSource(0, 10**9, rate_per_s=2000)).transform(
        lambda df: df.selectExpr("value", f"value % {KEYS} AS key", "timestamp_millis(value) AS at")
    )
    windows = (
        rows.assign_timestamps_and_watermarks(Watermarks.bounded("at"))
        .key_by("key")
        .window(Tumbling("1000 days"))
    )
    windows.aggregate("count(*) AS n", "max(value) AS last").sink_to(FileSink(str(out)))
    job_id = session.submit(env)
    eventually(lambda: any(checkpoints.rglob("_metadata")), "a checkpoint is complete")
    assert not list(out.glob("part-*")), "no window has ended"
    with pytest.raises(FiresteelError, match=r"/dev/null/x cannot be written \(the savepoint's"):
        session.client.stop(job_id, "/dev/null/x", drain=True)
    path = Path(session.client.stop(job_id, drain=True))
    assert session.client.wait(job_id).status.name == "FINISHED"
    assert path.parent == tmp_path / "savepoints"
    assert read_metadata(str(path)).savepoint
    counts = ds.dataset(out, format="parquet").to_table().to_pandas()
    assert len(counts) == KEYS
    assert counts["n"].sum() == counts["last"].max() + 1, "every row that was read"
