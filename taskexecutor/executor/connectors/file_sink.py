"""FileSink: part files that appear under their names when they are complete.

    <path>/.inprogress-part-<subtask>-<attempt>-<sink>-<n>.parquet   while it is written
    <path>/part-<subtask>-<attempt>-<sink>-<n>.parquet                once the task has finished, or the file was rolled

No two writers share a name, not even two sinks of one task with the same path.

A subtask without rows writes no file. A failed or cancelled task removes what it has not completed;
what one that was killed has left is removed when the sink is opened again. A file that is being
written is locked by its task's process, so that nobody else's, who writes to the same folder with
the same program, is taken for such. (Which complete files of an earlier attempt count is decided
when a job has checkpoints.)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from firesteel.connectors import FileSink
from firesteel.errors import FiresteelError
from firesteel.operator import StreamOperator
from taskexecutor.executor.connectors.json_values import json_form

_UNFINISHED = ".inprogress-"
FORMATS = ("csv", "json", "parquet")
GROUP_BYTES = 32 * 2**20  # Parquet row groups: small batches are written together up to this
GROUP_ROWS = 2**20


class FileWriter(StreamOperator):
    def __init__(self, sink: FileSink) -> None:
        if sink.format not in FORMATS:
            raise FiresteelError(
                f"FileSink cannot write format {sink.format!r}; allowed: {', '.join(FORMATS)}"
            )
        self._sink = sink
        self._count = 0
        self._file: _PartFile | None = None
        self._complete: list[_PartFile] = []
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = self._gathered_rows = 0
        self._limit_bytes, self._interval_s = sink.rolling_size_bytes, sink.commit_interval_s
        self._group_bytes = min(GROUP_BYTES, self._limit_bytes or GROUP_BYTES)
        self._deadline_ms: int | None = (
            None  # of what has been gathered and written since the last file was completed
        )

    def open(self) -> None:
        with _explained(Path(self._sink.path)):
            os.makedirs(self._sink.path, exist_ok=True)
        if self.context.task.subtask == 0:
            _remove_abandoned(Path(self._sink.path), self._sink_id)

    @property
    def _sink_id(self) -> str:
        return self.context.operator_id[:6]

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        if self._gathered and batch.schema != self._gathered[0].schema:
            self._write_gathered()
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        self._gathered_rows += batch.num_rows
        if self._interval_s is not None and self._deadline_ms is None:
            self._deadline_ms = time.time_ns() // 1_000_000 + max(1, round(self._interval_s * 1000))
            self.context.timers.register_processing_time(self._deadline_ms)
        if self._gathered_bytes >= self._group_bytes or self._gathered_rows >= GROUP_ROWS:
            self._write_gathered()
            if (
                self._limit_bytes is not None
                and self._file is not None
                and self._file.size_bytes >= self._limit_bytes
            ):
                self._roll()

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        if (
            timestamp_ms == self._deadline_ms
        ):  # else the file has been rolled for its size meanwhile
            self._write_gathered()
            self._roll()

    def _roll(self) -> None:
        """Whatever is written becomes visible. (With checkpoints: once one of them contains it.)"""
        self._deadline_ms = None
        self._publish()

    def finish(self) -> None:
        self._write_gathered()
        self._publish()

    def _publish(self) -> None:
        if self._file is not None:
            self._file.finish()
            self._complete.append(self._file)
            self._file = None
        for file in self._complete:
            file.publish()
        self._complete.clear()

    def close(self) -> None:
        self._gathered = []
        for file in (*self._complete, *([self._file] if self._file else [])):
            file.discard()
        self._complete, self._file = [], None

    def _write_gathered(self) -> None:
        if not self._gathered:
            return
        table = pa.Table.from_batches(self._gathered)
        self._gathered, self._gathered_bytes, self._gathered_rows = [], 0, 0
        if self._file is not None and self._file.schema != table.schema:
            self._file.finish()
            self._complete.append(self._file)
            self._file = None
        if self._file is None:
            task = self.context.task
            name = f"part-{task.subtask}-{task.attempt_id[:12]}-{self._sink_id}-{self._count}.{self._sink.format}"
            self._count += 1
            self._file = _PartFile(Path(self._sink.path), name, table.schema, self._sink)
        self._file.write(table)


class _PartFile:
    """One file under its in-progress name."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema, sink: FileSink) -> None:
        self.schema = schema
        self._final = folder / name
        self._path = folder / f"{_UNFINISHED}{name}"
        self._stream: BinaryIO | None = None
        self._writer: _TableWriter | None = None
        try:
            with _explained(self._path):
                self._stream = _create_locked(self._path)
                self._writer = _WRITERS[sink.format](self._stream, schema, sink.options)
        except BaseException:
            self.discard()  # nobody else knows of it yet
            raise

    @property
    def size_bytes(self) -> int:
        """On disk, so far."""
        return self._stream.tell() if self._stream is not None else 0

    def write(self, table: pa.Table) -> None:
        assert self._writer is not None
        with _explained(self._path):
            self._writer.write_table(table)

    def finish(self) -> None:
        """Everything is on disk, under the in-progress name still."""
        assert self._writer is not None and self._stream is not None
        with _explained(self._path):
            self._writer.close()
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()

    def publish(self) -> None:
        with _explained(self._final):
            os.rename(self._path, self._final)

    def discard(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError, pa.ArrowException, ValueError):
                self._writer.close()
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def _create_locked(path: Path) -> BinaryIO:
    """Locked as long as it is open, or its process lives."""
    while True:
        stream = open(path, "xb")  # noqa: SIM115 - closed by finish or discard
        with contextlib.suppress(
            OSError
        ):  # a file system without locks: nothing is ever removed there
            fcntl.flock(stream, fcntl.LOCK_EX)
        if path.exists():
            return stream
        stream.close()  # it was taken for abandoned before it was locked


def _remove_abandoned(folder: Path, sink_id: str) -> None:
    """Unfinished files of this sink, of whichever subtask, whose processes are no more."""
    for path in folder.glob(f"{_UNFINISHED}part-*-*-{sink_id}-*"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


class _TableWriter(Protocol):
    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


def _parquet(stream: BinaryIO, schema: pa.Schema, options: dict[str, str]) -> _TableWriter:
    writer: _TableWriter = pq.ParquetWriter(
        stream, schema, compression=options.get("compression", "snappy")
    )
    return writer


class _CsvWriter:
    def __init__(self, stream: BinaryIO, schema: pa.Schema, options: dict[str, str]) -> None:
        written = pa_csv.WriteOptions(
            include_header=options.get("header", "true").lower() != "false",
            delimiter=options.get("sep", options.get("delimiter", ",")),
        )
        self._schema = pa.schema([csv_field(field) for field in schema])
        self._writer = pa_csv.CSVWriter(stream, self._schema, write_options=written)

    def write_table(self, table: pa.Table) -> None:
        self._writer.write_table(
            pa.table([_csv_column(c) for c in table.columns], schema=self._schema)
        )

    def close(self) -> None:
        self._writer.close()


def csv_field(field: pa.Field) -> pa.Field:
    """What is written for a column. Raises FiresteelError if CSV cannot hold it."""
    if pa.types.is_nested(field.type):
        raise FiresteelError(
            f"FileSink csv: column {field.name!r} is {field.type}, which CSV cannot hold; use parquet or json"
        )
    return pa.field(field.name, pa.string()) if pa.types.is_timestamp(field.type) else field


def _csv_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_timestamp(column.type):
        return column
    import pyarrow.compute as pc

    shape = "%Y-%m-%dT%H:%M:%SZ" if column.type.tz else "%Y-%m-%dT%H:%M:%S"
    utc = column.cast(pa.timestamp("us", "UTC")) if column.type.tz else column
    return pc.strftime(utc, format=shape)


class _JsonWriter:
    """One object per line, as Spark writes and reads it."""

    def __init__(self, stream: BinaryIO, schema: pa.Schema, options: dict[str, str]) -> None:
        self._stream = stream
        self._forms = {
            field.name: form for field in schema if (form := json_form(field.type)) is not None
        }

    def write_table(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            for name, form in self._forms.items():
                if row[name] is not None:
                    row[name] = form(row[name])
            self._stream.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None: ...


_WRITERS: dict[str, Callable[[BinaryIO, pa.Schema, dict[str, str]], _TableWriter]] = {
    "parquet": _parquet,
    "csv": _CsvWriter,
    "json": _JsonWriter,
}


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise FiresteelError(
                f"FileSink: cannot write {path}: the disk is full; free some space or write elsewhere"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise FiresteelError(
                f"FileSink: cannot write {path}: permission denied; choose a folder that the cluster may write"
            ) from error
        raise FiresteelError(f"FileSink: cannot write {path}: {error.strerror or error}") from error
