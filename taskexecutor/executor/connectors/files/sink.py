"""FileSink: part files that get their final names when they are complete.

    <path>/.inprogress-<attempt>-part-<subtask>-<job>-<sink>-<n>.parquet   while it is written
    <path>/.complete-<attempt>-part-<subtask>-<job>-<sink>-<n>.parquet     until its checkpoint is
    <path>/part-<subtask>-<job>-<sink>-<n>.parquet                         once it is committed

No two writers share a name, not even two sinks of one task with the same path.

With `partition_by`, the committed files are in folders below, and all others directly in <path>.

A subtask without rows writes no file. A failed or cancelled task removes its uncommitted files; the
uncommitted files of a killed task are removed when the sink is opened again. A task's process locks
the file that it is writing, so that another job that writes to the same folder with the same
program does not mistake it for an abandoned file.

The names of committed files contain the job, but not the attempt. A job that restarts from the
beginning finds the files of its earlier attempts and removes them with its first commit, because it
writes all rows again. With checkpoints, <n> and the <attempt> of complete files start with the
attempt's number. Once everything in a checkpoint is committed, complete files of earlier attempts
are removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from firesteel.common.failpoints import Failpoint, reached
from firesteel.connectors import Committer, FileSink, SinkWriter
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext
from taskexecutor.executor.columnar.jvm.session import session_zone
from taskexecutor.executor.connectors.checks import check_writable, known_schema
from taskexecutor.executor.connectors.files.formats import (
    TableWriter,
    check_format,
    extension_of,
    new_writer,
)
from taskexecutor.executor.connectors.files.partitions import partitions_of, without_partitions
from taskexecutor.executor.connectors.writer_sink import WriterSink

_UNFINISHED = ".inprogress-"
_COMPLETE = ".complete-"
GROUP_BYTES = 32 * 2**20  # Parquet row groups: small batches are written together up to this size
GROUP_ROWS = 2**20
OPEN_FILES = 64  # of partitions, per subtask


class FileSinkRuntime(WriterSink[FileSink]):
    def analyze(self, schema: pa.Schema | None) -> None:
        sink = self.sink
        if sink.partition_by:
            schema = without_partitions(known_schema("FileSink", schema), sink.partition_by)
        check_format(sink.format, sink.options, schema)
        check_writable("FileSink", Path(self.sink.path))

    def create_writer(self, context: RuntimeContext) -> SinkWriter:
        return FileWriter(self.sink, context)

    def create_committer(self, context: RuntimeContext) -> Committer:
        return FileCommitter(self.sink, context)


@dataclass(frozen=True, slots=True)
class CompleteFile:
    """A committable: the file is completely on disk, under its in-progress name."""

    in_progress: Path
    final: Path


class FileWriter(SinkWriter):
    def __init__(self, sink: FileSink, context: RuntimeContext) -> None:
        self._sink = sink
        self._context = context
        self._folder = Path(sink.path)
        self._extension = extension_of(sink.format, sink.options)
        self._count = 0
        # By the folder of its partition: the file that is written, the oldest first.
        self._files: dict[str, _PartFile] = {}
        self._complete: list[CompleteFile] = []
        # The rows to write next, by the folder of their partition.
        self._gathered: dict[str, list[pa.RecordBatch]] = {}
        self._gathered_bytes = self._gathered_rows = 0
        self._zone = session_zone(context) if sink.partition_by else ""
        self._limit_bytes = sink.rolling_size_bytes
        self._group_bytes = min(GROUP_BYTES, self._limit_bytes or GROUP_BYTES)

    def open(self) -> None:
        with _explained(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        if self._context.task.subtask == 0:
            _remove_abandoned(self._folder, _sink_id(self._context))

    def write(self, batch: pa.RecordBatch) -> None:
        if not self._sink.partition_by:
            self._gather("", batch)
        else:
            for folder, rows in partitions_of(batch, self._sink.partition_by, self._zone):
                self._gather(folder, rows)
        if self._gathered_bytes >= self._group_bytes or self._gathered_rows >= GROUP_ROWS:
            self._write_gathered()
            self.commit_now = self._limit_bytes is not None and any(
                file.size_bytes >= self._limit_bytes for file in self._files.values()
            )

    def _gather(self, folder: str, batch: pa.RecordBatch) -> None:
        gathered = self._gathered.setdefault(folder, [])
        if gathered and batch.schema != gathered[0].schema:
            self._write_gathered()
            gathered = self._gathered.setdefault(folder, [])
        gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        self._gathered_rows += batch.num_rows

    def prepare(self) -> Sequence[CompleteFile]:
        self._write_gathered()
        self._complete_files()
        complete, self._complete = self._complete, []
        if self._context.checkpoints:  # the file must outlive this task
            complete = [self._kept(file) for file in complete]
        self.commit_now = False
        return complete

    def _kept(self, file: CompleteFile) -> CompleteFile:
        path = self._folder / f"{_COMPLETE}{self._context.task.attempt}-{file.final.name}"
        with _explained(path):
            os.rename(file.in_progress, path)
        return CompleteFile(path, file.final)

    def close(self) -> None:
        self._gathered = {}
        files, self._files = self._files, {}
        for open_file in files.values():
            open_file.discard()
        for file in self._complete:
            _discard(file)
        self._complete = []

    def _write_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        self._gathered_bytes = self._gathered_rows = 0
        for folder, batches in gathered.items():
            self._write_table(folder, pa.Table.from_batches(batches))
            if len(self._files) > OPEN_FILES:
                self._complete_files(len(self._files) - OPEN_FILES)

    def _write_table(self, folder: str, table: pa.Table) -> None:
        file = self._files.get(folder)
        if file is not None and not file.suits(table):
            self._complete.append(self._files.pop(folder).complete())
            file = None
        if file is None:
            file = self._files[folder] = self._new_file(folder, table)
        file.write(table)

    def _new_file(self, folder: str, first: pa.Table) -> _PartFile:
        number = f"{self._count}"
        if self._context.checkpoints:  # keep files of earlier attempts
            number = f"{self._context.task.attempt}-{number}"
        name = f"{_committed_prefix(self._context)}{number}{self._extension}"
        self._count += 1
        attempt = self._context.task.attempt_id[:12]
        return _PartFile(
            self._folder / f"{_UNFINISHED}{attempt}-{name}",
            self._folder / folder / name,
            first,
            self._sink,
        )

    def _complete_files(self, count: int | None = None) -> None:
        """Completes the oldest files, or all."""
        for folder in list(self._files)[:count]:
            self._complete.append(self._files.pop(folder).complete())


class FileCommitter(Committer):
    def __init__(self, sink: FileSink, context: RuntimeContext) -> None:
        self._folder = Path(sink.path)
        self._pattern = f"{'**/' if sink.partition_by else ''}{_committed_prefix(context)}*"
        self._context = context
        self._superseded: list[Path] = []

    def start_over(self) -> None:
        self._superseded = list(self._folder.glob(self._pattern))

    def commit(self, committables: Sequence[CompleteFile]) -> None:
        superseded, self._superseded = self._superseded, []
        for path in superseded:
            with _explained(path):
                path.unlink(missing_ok=True)
        for file in committables:
            try:
                with _explained(file.final):
                    file.final.parent.mkdir(parents=True, exist_ok=True)
                    os.rename(file.in_progress, file.final)
            except FiresteelError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                self._check_committed(file)
            reached(Failpoint.FILE_AFTER)

    def _check_committed(self, file: CompleteFile) -> None:
        """Raises FiresteelError if the rows are missing, because they cannot be written again."""
        if not file.final.exists():
            raise FiresteelError(
                f"FileSink: {file.final} belongs to the checkpoint that the job is restored from, "
                f"but neither it nor {file.in_progress.name}, from which it is made, exists. Put it"
                " back (an empty file will do if its rows have been used), and leave files where"
                " they are until a newer checkpoint is complete"
            )

    def recovered(self) -> None:
        task = self._context.task
        if task.subtask != 0:
            return
        job_and_sink = f"{task.job_id[:12]}-{_sink_id(self._context)}"
        for path in self._folder.glob(f"{_COMPLETE}*-part-*-{job_and_sink}-*"):
            attempt = path.name.removeprefix(_COMPLETE).partition("-")[0]
            if attempt.isdigit() and int(attempt) < task.attempt:
                with contextlib.suppress(OSError):
                    path.unlink()

    def abort(self, committables: Sequence[CompleteFile]) -> None:
        for file in committables:
            _discard(file)


def _sink_id(context: RuntimeContext) -> str:
    return context.operator_id[:6]


def _committed_prefix(context: RuntimeContext) -> str:
    """Returns the common prefix of the names of all files that this subtask of the job ever
    commits.
    """
    return f"part-{context.task.subtask}-{context.task.job_id[:12]}-{_sink_id(context)}-"


def _discard(file: CompleteFile) -> None:
    with contextlib.suppress(OSError):
        file.in_progress.unlink(missing_ok=True)


class _PartFile:
    """A file that is being written, under its in-progress name."""

    def __init__(self, path: Path, final: Path, first: pa.Table, sink: FileSink) -> None:
        """`first` is the table that is written first."""
        self._schema = first.schema
        self._path = path
        self._final = final
        self._stream: BinaryIO | None = None
        self._writer: TableWriter | None = None
        try:
            with _explained(path):
                self._stream = _create_locked(path)
                self._writer = new_writer(sink.format, self._stream, first, sink.options)
        except BaseException:
            self.discard()  # nothing else refers to it yet
            raise

    @property
    def size_bytes(self) -> int:
        """The size on disk so far."""
        return self._stream.tell() if self._stream is not None else 0

    def suits(self, table: pa.Table) -> bool:
        assert self._writer is not None
        return bool(table.schema == self._schema) and self._writer.suits(table)

    def write(self, table: pa.Table) -> None:
        assert self._writer is not None
        with _explained(self._path):
            self._writer.write_table(table)

    def complete(self) -> CompleteFile:
        assert self._writer is not None and self._stream is not None
        with _explained(self._path):
            self._writer.close()
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
        return CompleteFile(self._path, self._final)

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
    """Creates a file that is locked until it is closed or its process ends."""
    while True:
        stream = open(path, "xb")  # noqa: SIM115 - closed by complete or discard
        # On a file system without locks, no file is ever removed as abandoned.
        with contextlib.suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX)
        if path.exists():
            return stream
        stream.close()  # it was removed as abandoned before it was locked


def _remove_abandoned(folder: Path, sink_id: str) -> None:
    """Removes unfinished files of this sink, from any subtask, whose processes have ended."""
    for path in folder.glob(f"{_UNFINISHED}*-part-*-*-{sink_id}-*"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise FiresteelError(
                f"FileSink: cannot write {path}: the disk is full; "
                "free some space or write elsewhere"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise FiresteelError(
                f"FileSink: cannot write {path}: permission denied; "
                "choose a folder that the cluster can write to"
            ) from error
        raise FiresteelError(f"FileSink: cannot write {path}: {error.strerror or error}") from error
