"""A job with a sink of every kind, and ledgers that convict every row that is lost, doubled, taken
back or shown before its epoch is whole. Rows are numbered in splits, and counted by key in state.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

from firesteel import Environment, Watermarks
from firesteel.common.checkpoints.savepoint import open_checkpoint
from firesteel.common.checkpoints.state import is_shared, writer_of
from firesteel.common.checkpoints.storage import StorageError
from firesteel.common.ids import stable_id
from firesteel.connectors import (
    CollectSink,
    EndOfSplit,
    FileSink,
    PostgresSink,
    PythonSink,
    Source,
    SourceReader,
)
from firesteel.errors import FiresteelError
from firesteel.operator import OperatorState, RuntimeContext, StreamOperator
from tests.waiting import PATIENCE_S, eventually

from . import every_state, every_trigger
from .conftest import Session, files_below
from .every_state import DISORDER, event_time_ms

SPLIT_ROWS, KEYS = 200, 5
SPLITS_PER_S = 2  # that the job reads
SCHEMA = "split INT, n BIGINT, key BIGINT, at TIMESTAMP"
FLOWING = "flowing"
COUNTED = "split INT, n BIGINT, key BIGINT, count BIGINT"
_TABLES = itertools.count(1)


class Numbers(Source):
    """Numbers the rows of each split: many, or one if the file `end` exists when it starts."""

    def __init__(self, splits: int, end: Path) -> None:
        self.count, self.end = splits, end

    def output_schema(self) -> str:
        return SCHEMA

    def splits(self, parallelism: int) -> list[dict[str, int]]:
        return [{"split": split} for split in range(self.count)]

    def create_reader(self, context: RuntimeContext) -> SourceReader:
        return NumbersReader(self.end)


class NumbersReader(SourceReader):
    def __init__(self, end: Path) -> None:
        self.end = end

    def begin(self, split: dict[str, int]) -> None:  # type: ignore[override]
        self.split, self.next = split["split"], 0
        self.rows = 1 if self.end.exists() else SPLIT_ROWS

    def poll(self) -> pa.RecordBatch:
        if self.next >= self.rows:
            raise EndOfSplit
        numbers = range(self.next, min(self.next + 10, self.rows))
        if len(numbers) > 1:
            time.sleep(0.05)
        self.next = numbers.stop
        return pa.record_batch(
            {
                "split": pa.array([self.split] * len(numbers), pa.int32()),
                "n": pa.array(numbers, pa.int64()),
                "key": pa.array([n % KEYS for n in numbers], pa.int64()),
                "at": pa.array(
                    [event_time_ms(self.split, n) * 1000 for n in numbers],
                    pa.timestamp("us", "UTC"),
                ),
            }
        )

    def position(self) -> list[int]:
        return [self.next, self.rows]

    def restore(self, position: list[int]) -> None:  # type: ignore[override]
        self.next, self.rows = position


class Counting(StreamOperator):
    """Counts the rows of each key. Fails when there is a file `poison`, which it removes; touches
    the file `flowing` beside it with each batch.
    """

    def __init__(self, poison: Path) -> None:
        self.poison = poison

    def initialize_state(self, state: OperatorState) -> None:
        self.state = state.keyed

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.poison.unlink()
            raise RuntimeError("poisoned")
        self.poison.with_name(FLOWING).touch()
        counts = []
        for key in batch["key"].to_pylist():
            counts.append((self.state.get("count", key) or 0) + 1)
            self.state.put("count", key, counts[-1])
        counted = batch.drop_columns(["at"])
        self.output.emit(counted.append_column("count", pa.array(counts, pa.int64())))


@dataclass
class Written(WriterCommitMessage):
    rows: list[list[int]]


class Batches(DataSource):
    def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamWriter:
        return BatchesWriter(Path(self.options["folder"]))


class BatchesWriter(DataSourceStreamWriter):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return Written([list(row) for row in iterator])

    def commit(self, messages, batchId):  # type: ignore[no-untyped-def]
        keep(self.folder, batchId, [row for message in messages for row in message.rows])


def keep(folder: Path, batch_id: int, rows: list[list[int]]) -> None:
    """A file per batch, whatever is delivered again. Raises AssertionError if other rows had its
    id.
    """
    path, text = folder / f"{batch_id}.json", json.dumps(sorted(rows))
    if path.exists():
        assert path.read_text() == text, "a batch that is delivered again is the same"
        return
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


class Ledger:
    """The rows that a polling reader sees."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.rows: list[tuple[int, ...]] = []

    def look(self, files: Iterator[Path]) -> None:
        names = {path.name: path for path in files}
        assert names.keys() >= self.seen, "what was committed is never taken back"
        for name in names.keys() - self.seen:
            if name.endswith(".json"):
                self.rows += [tuple(row) for row in json.loads(names[name].read_text())]
            else:
                columns = pq.read_table(names[name]).to_pydict().values()
                self.rows += list(zip(*columns, strict=True))
        self.seen = set(names)
        assert len(set(self.rows)) == len(self.rows), "no row twice"

    def check_all(self, splits: int) -> None:
        """All of each split, and each row counted once."""
        numbers: dict[int, list[int]] = {}
        for split, n, _, _ in sorted(self.rows):
            numbers.setdefault(split, []).append(n)
        for split in range(splits):
            assert numbers[split] in ([0], list(range(SPLIT_ROWS)))
        for key in range(KEYS):
            counts = sorted(count for _, _, k, count in self.rows if k == key)
            assert counts == list(range(1, len(counts) + 1))


class TableReader(threading.Thread):
    """Polls a PostgreSQL table. A key's rows are counted in their order, and each epoch is committed
    atomically: every read sees a complete prefix of the rows.
    """

    def __init__(self, url: str, table: str) -> None:
        super().__init__(name="reader of a table")
        self._url, self._table = url, table
        self._over = threading.Event()
        self.looks = 0
        self.problem = ""

    def run(self) -> None:
        known: Counter[int] = Counter()
        query = f'SELECT key, count(*), max("count") FROM {self._table} GROUP BY key'
        with contextlib.closing(psycopg2.connect(self._url)) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            while not (self._over.wait(0.02) or self.problem):
                try:
                    cursor.execute(query)
                except psycopg2.errors.UndefinedTable:
                    continue  # no sink has made it yet
                except psycopg2.Error as error:
                    self.problem = str(error)
                    return
                found = cursor.fetchall()
                self.looks += 1
                for key, rows, last in found:
                    if rows != last:
                        self.problem = f"of key {key} there are {rows} rows, up to {last}"
                    if rows < known[key]:
                        self.problem = f"of key {key} there were {known[key]} rows, then {rows}"
                    known[key] = rows

    def stop(self) -> None:
        self._over.set()
        self.join()


class ExactlyOnceJob:
    """The job in a session, and who reads what it commits."""

    parts = False  # all of its tasks run at the same time

    def __init__(
        self,
        session: Session,
        folder: Path,
        postgres: str,
        *,
        enough_for_s: float = 150.0,
        operators: ModuleType | None = None,
        **configuration: str,
    ) -> None:
        """`enough_for_s`: how long there is something to read; `operators`: the module of further
        operators with state, `every_state` or `every_trigger`; `configuration`: with __ for dots.
        """
        self._session, self._postgres = session, postgres
        self._operators = operators
        self._splits = round(enough_for_s * SPLITS_PER_S)
        names = ("files", "python", "batches", "states", "checkpoints")
        self._files, self._python, self._batches, self._states, self._checkpoints = folders = [
            folder / name for name in names
        ]
        for made in folders:
            made.mkdir()
        self._end, self._poison = folder / "end", folder / "poison"
        self._table_name = f"ledger_{next(_TABLES)}"  # what a failed test leaves is its own
        self.job_id = session.submit(self._program(), **configuration)
        self._ledger = Ledger()
        self._collected: list[Any] = []
        self._unread: FiresteelError | None = None
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()
        self._table = TableReader(postgres, self._table_name)
        self._table.start()

    def _program(self) -> Environment:
        env = Environment(
            parallelism=2,
            configuration={
                "execution.checkpointing.interval": "100 ms",
                "execution.checkpointing.dir": str(self._checkpoints),
                "execution.checkpointing.unaligned.enabled": "true",
                # So there are both.
                "execution.checkpointing.aligned-checkpoint-timeout": "20 ms",
                "execution.checkpointing.data-inline-threshold": "2 kb",
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "1000",
                "restart-strategy.fixed-delay.delay": "0 s",
            },
        )
        poison, batches = self._poison, self._batches
        rows = env.from_source(
            Numbers(self._splits, self._end),
            watermarks=Watermarks.bounded("at", max_out_of_orderness=DISORDER),
        )
        if self._operators is not None:
            self._operators.add_to(rows, self._states)
        stream = rows.key_by("key").operator("count", lambda: Counting(poison), COUNTED)
        stream.sink_to(FileSink(str(self._files)))
        stream.sink_to(PythonSink(Batches, {"folder": str(self._python)}))
        stream.sink_to(CollectSink(), uid="collected")
        stream.sink_to(PostgresSink(self._postgres, self._table_name))
        stream.foreach_batch(
            lambda df, batch_id: keep(batches, batch_id, [list(row) for row in df.collect()])
        )
        return env

    def _collect(self) -> None:
        results = self._session.client.fetch_results(self.job_id, stable_id("uid", "collected"))
        try:
            self._collected.extend(results)
        except FiresteelError as error:  # of the client, or of a job that has failed
            self._unread = error

    @property
    def committed(self) -> int:
        """How many rows are in files."""
        self._ledger.look(self._files.glob("part-*"))
        return len(self._ledger.rows)

    @property
    def latest_attempt(self) -> int:
        """Returns the latest attempt that has committed files."""
        attempts = [int(path.name.split("-")[4]) for path in self._files.glob("part-*")]
        return max(attempts, default=-1)

    def progress(self, what: str) -> None:
        before = self.committed
        self.wait(lambda: self.committed > before, f"rows after {what}")

    def progress_of_attempt(self, number: int, what: str) -> None:
        """Waits for rows of this attempt or a later one."""
        self.wait(lambda: self.latest_attempt >= number, f"rows after {what}")
        assert self.committed

    def flows(self, what: str) -> None:
        """Waits until rows pass that cannot have been committed yet."""
        now_ns = time.time_ns()
        flowing = self._poison.with_name(FLOWING)
        eventually(lambda: flowing.stat().st_mtime_ns > now_ns, f"rows pass: {what}")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        try:  # The JVM of a slot may have to restart.
            eventually(lambda: self._problem() or condition(), what, patience_s=3 * PATIENCE_S)
        except AssertionError as error:
            error.add_note(str(self._session.client.job_details(self.job_id)))
            raise
        assert not (problem := self._problem()), problem

    def _problem(self) -> str:
        """Why it is in vain to wait."""
        if not self._table.problem and not self._reader.is_alive():
            with contextlib.suppress(FiresteelError):  # a Dispatcher that comes back
                details = self._session.client.job_details(self.job_id)
                if details.status.globally_terminal:
                    return f"the job is {details.status.name}: {details.exceptions}"
        return self._table.problem

    def newest_metadata(self) -> int:
        """The newest checkpoint whose metadata is written."""
        found = self._checkpoints.glob("*/chk-*/_metadata")
        return max(int(path.parent.name.removeprefix("chk-")) for path in found)

    def await_few_checkpoints(self) -> None:
        eventually(
            lambda: len(list(self._checkpoints.glob("*/chk-*"))) <= 2,  # the latest, the next
            "what the dead have left is deleted",
        )

    def await_few_shared_files(self) -> None:
        """Waits until the shared files are those of the latest checkpoint and of the next: none is
        missing, and the files of dead processes are deleted.
        """
        eventually(self._few_shared_files, "shared files are those of the latest checkpoints")

    def _few_shared_files(self) -> bool:
        (of_job,) = self._checkpoints.iterdir()
        found = {f"shared/{path.name}" for path in of_job.glob("shared/*")}
        checkpoints = sorted(of_job.glob("chk-*/_metadata"), key=lambda at: int(at.parent.name[4:]))
        with contextlib.suppress(StorageError):  # it may just have been deleted
            latest = open_checkpoint(str(checkpoints[-1].parent)).metadata
            reachable = {
                file.path
                for operator in latest.operators
                for part in operator.subtasks.values()
                for file in part.files
                if is_shared(file.path)
            }
            newer = {path for path in found if (writer_of(path) or 0) >= latest.checkpoint_id}
            return bool(reachable) and found - newer <= reachable
        return False

    def poison(self) -> None:
        """Fails a task."""
        self._poison.touch()
        eventually(lambda: not self._poison.exists(), "a task has failed")

    def end(self) -> None:
        self._end.touch()

    def close(self) -> None:
        """Nobody looks any more."""
        self._table.stop()

    def check(self) -> None:
        """Waits for the job's end. Everybody has seen each row once; nothing is left over."""
        details = self._session.client.wait(self.job_id)
        self._reader.join()
        self._table.stop()
        assert not self._table.problem, self._table.problem
        assert self._table.looks, "it has seen something"
        assert details.status.name == "FINISHED"
        assert self.committed
        ledger = self._ledger
        ledger.check_all(self._splits)
        for folder in (self._python, self._batches):
            other = Ledger()
            other.look(folder.glob("*.json"))
            assert sorted(other.rows) == sorted(ledger.rows)
        if self._operators is not None:
            self._operators.check(self._states, [row[:3] for row in ledger.rows])
        assert self._unread is None, self._unread
        columns = pa.Table.from_batches(self._collected).to_pydict().values()
        seen = sorted(zip(*columns, strict=True))
        assert seen == sorted(ledger.rows), "a client sees each once"
        with contextlib.closing(psycopg2.connect(self._postgres)) as connection:
            cursor, table = connection.cursor(), self._table_name
            cursor.execute(f"SELECT split, n, key, count FROM {table}")
            assert sorted(cursor.fetchall()) == sorted(ledger.rows)
            cursor.execute(f"SELECT count(*) FROM {table}_firesteel")
            assert cursor.fetchall() == [(0,)], "no uncommitted row is left"
            cursor.execute(f"DROP TABLE {table}, {table}_firesteel")
            connection.commit()
        for folder in (self._files, self._states):
            assert not list(folder.glob(".*")), "no uncommitted file is left"
        eventually(lambda: not list(files_below(self._checkpoints)), "the checkpoints are deleted")


@contextlib.contextmanager
def exactly_once_job(
    session: Session, folder: Path, postgres: str, **options: Any
) -> Iterator[ExactlyOnceJob]:
    """Runs, then ends and is checked."""
    shipped = (sys.modules[__name__], every_state, every_trigger)
    for module in shipped:
        cloudpickle.register_pickle_by_value(module)
    try:
        job = ExactlyOnceJob(session, folder, postgres, **options)
    finally:
        for module in shipped:
            cloudpickle.unregister_pickle_by_value(module)
    try:
        yield job
        job.end()
        job.check()
    finally:
        job.end()
        job.close()
