"""A process dies at each edge of the checkpoints' protocol, one after the other, in one job with a
sink of every kind; the ledger is right all the time.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

from firesteel import Environment
from firesteel.common.failpoints import Failpoint
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
from firesteel.operator import OperatorState, RuntimeContext, StreamOperator

from .conftest import PATIENCE_S, Session, eventually, files_below

SPLITS, SPLIT_ROWS, KEYS = 300, 200, 5
SCHEMA = "split INT, n BIGINT, key BIGINT"
COUNTED = f"{SCHEMA}, count BIGINT"


@pytest.fixture(autouse=True, scope="module")
def _ship_this_module() -> Iterator[None]:
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


class Numbers(Source):
    """Numbers the rows of each split: many, or one if the file `end` is there when it begins."""

    def __init__(self, end: Path) -> None:
        self.end = end

    def output_schema(self) -> str:
        return SCHEMA

    def splits(self, parallelism: int) -> list[dict[str, int]]:
        return [{"split": split} for split in range(SPLITS)]

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
            }
        )

    def position(self) -> list[int]:
        return [self.next, self.rows]

    def restore(self, position: list[int]) -> None:  # type: ignore[override]
        self.next, self.rows = position


class Counting(StreamOperator):
    """Counts the rows of each key."""

    def initialize_state(self, state: OperatorState) -> None:
        self.state = state.keyed

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        counts = []
        for key in batch["key"].to_pylist():
            counts.append((self.state.get("count", key) or 0) + 1)
            self.state.put("count", key, counts[-1])
        self.output.emit(batch.append_column("count", pa.array(counts, pa.int64())))


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
    """The rows that a reader sees, who looks again and again."""

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

    def check_all(self) -> None:
        """All of each split, and each row counted once."""
        numbers: dict[int, list[int]] = {}
        for split, n, _, _ in sorted(self.rows):
            numbers.setdefault(split, []).append(n)
        for split in range(SPLITS):
            assert numbers[split] in ([0], list(range(SPLIT_ROWS)))
        for key in range(KEYS):
            counts = sorted(count for _, _, k, count in self.rows if k == key)
            assert counts == list(range(1, len(counts) + 1))


def test_rows_count_once_wherever_a_process_dies(
    session: Session, tmp_path: Path, postgres: str, failpoints: Path
) -> None:
    names = ("files", "python", "batches", "checkpoints")
    files, python, batches, checkpoints = folders = [tmp_path / name for name in names]
    for folder in folders:
        folder.mkdir()
    end = tmp_path / "end"
    env = Environment(
        parallelism=2,
        configuration={
            "execution.checkpointing.interval": "100 ms",
            "execution.checkpointing.dir": str(checkpoints),
            "execution.checkpointing.unaligned.enabled": "true",
            "execution.checkpointing.aligned-checkpoint-timeout": "20 ms",  # so there are both
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "100",
            "restart-strategy.fixed-delay.delay": "0 s",
        },
    )
    stream = env.from_source(Numbers(end)).key_by("key").operator("count", Counting, COUNTED)
    stream.sink_to(FileSink(str(files)))
    stream.sink_to(PythonSink(Batches, {"folder": str(python)}))
    stream.sink_to(CollectSink(), uid="collected")
    stream.sink_to(PostgresSink(postgres, "ledger"))
    stream.foreach_batch(
        lambda df, batch_id: keep(batches, batch_id, [list(row) for row in df.collect()])
    )
    job_id = session.submit(env)
    collected: list[Any] = []
    reader = threading.Thread(
        target=lambda: collected.extend(
            session.client.fetch_results(job_id, stable_id("uid", "collected"))
        )
    )
    reader.start()
    ledger = Ledger()

    def progress(what: str) -> None:
        before = len(ledger.rows)

        def more() -> bool:
            ledger.look(files.glob("part-*"))
            return len(ledger.rows) > before

        # A slot's JVM starts anew.
        eventually(more, f"rows after {what}", patience_s=3 * PATIENCE_S)

    try:
        progress("the start")
        for point in Failpoint:
            armed = failpoints / point.value
            armed.touch()
            eventually(lambda armed=armed: not armed.exists(), f"somebody dies at {point}")
            progress(f"the death at {point}")
        eventually(
            lambda: len(list(checkpoints.glob("*/chk-*"))) <= 2,  # the latest, the next
            "what the dead have left is deleted",
        )
    finally:
        end.touch()
        for point in Failpoint:
            (failpoints / point.value).unlink(missing_ok=True)
    details = session.client.wait(job_id)
    reader.join()
    assert details.status.name == "FINISHED"
    ledger.look(files.glob("part-*"))
    ledger.check_all()
    for folder in (python, batches):
        other = Ledger()
        other.look(folder.glob("*.json"))
        assert sorted(other.rows) == sorted(ledger.rows)
    columns = pa.Table.from_batches(collected).to_pydict().values()
    assert sorted(zip(*columns, strict=True)) == sorted(ledger.rows), "a client sees each row once"
    with contextlib.closing(psycopg2.connect(postgres)) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT split, n, key, count FROM ledger")
        assert sorted(cursor.fetchall()) == sorted(ledger.rows)
        cursor.execute("SELECT count(*) FROM ledger_firesteel")
        assert cursor.fetchall() == [(0,)], "no row is left that nobody will commit"
        cursor.execute("DROP TABLE ledger, ledger_firesteel")
        connection.commit()
    assert not list(files.glob(".*")), "no file is left that nobody will commit"
    eventually(lambda: not list(files_below(checkpoints)), "nobody will restore the job")
