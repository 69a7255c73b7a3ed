"""Reads a job's lines from all logs of one service. Blocking I/O: call `step` in a thread.

A log grows and starts over. A log that starts over is copied to NAME.1 and then emptied (see
process.log_files). It is a new log as soon as its start differs, since every log starts with a
time. The unread part of the previous log is then in NAME.1, at the same position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from firesteel.common.config import options
from firesteel.common.job_log.lines import JobLines, LogLine, Selection, begins_over_us, job_of
from firesteel.common.job_log.merge import Merge
from firesteel.common.process.log_files import old

CHUNK_BYTES = 262_144
_HEAD_BYTES = 96


class LogTail:
    def __init__(self, path: Path) -> None:
        self.at_end = False  # everything was read at the last look
        self.missing = False  # lines were dropped before they could be read
        self._paths = (old(path), path)  # the former log, and the current one
        self._begun = False
        self._current = 1
        self._position = 0
        self._head = b""
        self._rest = b""  # of the line that is not complete yet

    def read(self) -> list[bytes]:
        """Returns the next lines without their ends, possibly none. All were read once `at_end`."""
        data = self._next_data()
        if not data:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > CHUNK_BYTES:  # not a line of Firesteel's
            lines.append(self._rest)
            self._rest = b""
        return lines

    def last(self) -> list[bytes]:
        """Returns the last line if it has no end."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []

    def _next_data(self) -> bytes:
        self.at_end = False
        if not self._begun:
            self._begin(self._oldest())
        data = self._data(self._current)
        if data is None:
            self._has_started_over()
        elif data:
            return data
        elif self._current == 1:
            self.at_end = True
        else:  # the former log is read
            self._begin(1)
        return b""

    def _has_started_over(self) -> None:
        if self._current == 1:
            rest = self._data(0)
            if rest is not None:  # it has the rest of the log that was read
                self._current = 0
                return
            # The log does not exist yet, or was deleted.
            if self._position == 0 or not self._paths[1].exists():
                self.at_end = True
                return
        self.missing = True
        self._begin(self._oldest())

    def _oldest(self) -> int:
        """Returns 0 if there is a previous log that is not the one being emptied just now."""
        former, current = (self._head_of(path) for path in self._paths)
        return 0 if former and former != current else 1

    def _head_of(self, path: Path) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read(_HEAD_BYTES)
        except FileNotFoundError:
            return b""

    def _begin(self, part: int) -> None:
        self._begun = True
        self._current, self._position, self._head = part, 0, b""

    def _data(self, part: int) -> bytes | None:
        """Returns the rest of this file; None if it is not the file that was read before."""
        try:
            with open(self._paths[part], "rb") as file:
                head = file.read(_HEAD_BYTES)
                if not head.startswith(self._head):
                    return None
                file.seek(self._position)
                data = file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return None
        if part == self._current:
            self._position += len(data)
            self._head = head[: min(self._position, _HEAD_BYTES)]
        return data


def all_lines(tail: LogTail) -> Iterator[bytes]:
    """Yields the lines up to the present end of the log."""
    while not tail.at_end:
        yield from tail.read()
    yield from tail.last()


_FIRST_CHUNKS = 4
SETTLED_AFTER_S = 0.5  # a line is in its log within this time of its timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    task_executor_id: str = ""  # the TaskExecutor that it belongs to
    one_job: bool = False  # it is a log of one job alone
    # It belongs to the process that serves it. Its absence is reported: somebody has deleted it.
    own: bool = False


FindLogs = Callable[[], Mapping[Path, LogFile]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    lines: list[LogLine]
    complete_us: int  # no older line follows
    notices: list[str]  # what is missing
    at_end: bool  # everything was read; look again later


class JobLogReader:
    """Reads a job's lines. `find` returns the logs; with `follow`, it is called for each step."""

    def __init__(self, selection: Selection, find: FindLogs, *, follow: bool) -> None:
        self._selection = selection
        self._find = find
        self._follow = follow
        self._logs: dict[Path, _Log] = {}
        self._done: set[Path] = set()
        self._deleted: set[Path] = set()  # logs whose absence was reported
        self._merge: Merge[Path] = Merge()
        self._began = False

    def finish(self) -> None:
        """Follows no longer: the lines that the logs have now are the last ones."""
        self._follow = False

    def step(self) -> Step | None:
        """Returns the next lines, possibly none; None once all were read, unless it follows."""
        notices: list[str] = []
        if self._follow or not self._began:
            notices += self._look()
        lag_s = 0.0 if self._selection.output else SETTLED_AFTER_S  # print() returns after writing
        settled_us = round((time.time() - lag_s) * 1_000_000)
        at_end = True
        for path, log in list(self._logs.items()):
            if not self._merge.wants(path):
                at_end = False
                continue
            lines = log.read()
            notices += log.notices()
            ended = log.tail.at_end
            if ended and not self._follow:
                lines += log.last()
            self._merge.feed(path, lines, settled_us if ended else log.lines.time_us)
            if (ended and not self._follow) or log.is_another_jobs:
                self._end(path)
            at_end = at_end and ended
        taken = self._merge.take()
        if not self._logs and not taken and not notices and not self._follow:
            return None
        complete_us = self._merge.complete_us
        return Step(
            lines=taken,
            complete_us=settled_us if complete_us is None else complete_us,
            notices=notices,
            at_end=at_end,
        )

    def _look(self) -> list[str]:
        """Adds the logs that were found since the last call. Returns notices about deleted ones."""
        self._began = True
        files = self._find()
        for path in self._logs.keys() - files.keys():  # another process reads it now
            self._merge.end(path)
            del self._logs[path]
        for path, file in files.items():
            if path not in self._logs and path not in self._done:
                self._logs[path] = _Log(path, file, self._selection)
                self._merge.add(path)
        deleted = [
            path
            for path, file in files.items()
            if file.own and path not in self._deleted and not path.exists()
        ]
        self._deleted.update(deleted)
        return [f"the log {path} was deleted: lines are missing" for path in deleted]

    def _end(self, path: Path) -> None:
        self._merge.end(path)
        self._done.add(path)
        del self._logs[path]


def first_job(path: Path) -> str:
    """Returns the job of the first line that names one; empty if there is none near the start."""
    tail = LogTail(path)
    for _ in range(_FIRST_CHUNKS):
        for line in tail.read():
            if job_id := job_of(line):
                return job_id
    return ""


class _Log:
    def __init__(self, path: Path, file: LogFile, selection: Selection) -> None:
        self.tail = LogTail(path)
        self.lines = JobLines(selection, task_executor_id=file.task_executor_id)
        self._name = (
            f"{path.stem} of TaskExecutor {file.task_executor_id}"
            if file.task_executor_id
            else path.stem
        )
        self._one_job = file.one_job
        self._started_us = selection.started_us
        self._first = True
        self._missing = ""

    def read(self) -> list[LogLine]:
        read = self.tail.read()
        if self._first and read:
            self._first = False
            over_us = begins_over_us(read[0])
            if over_us is not None and over_us > self._started_us:
                at = datetime.fromtimestamp(over_us / 1_000_000, UTC)
                self._missing = f"what it had before {at:%Y-%m-%dT%H:%M:%SZ} is gone"
        if self.tail.missing:
            self.tail.missing = False
            self._missing = "it started over twice before it could be read: lines are missing"
        return self._parsed(read)

    def last(self) -> list[LogLine]:
        return self._parsed(self.tail.last())

    def notices(self) -> list[str]:
        problem, self._missing = self._missing, ""
        if not problem or self.is_another_jobs:
            return []
        return [f"the log {self._name} is limited to a length: {problem} ({_LIMIT})"]

    @property
    def is_another_jobs(self) -> bool:
        return self._one_job and self.lines.other_job

    def _parsed(self, lines: list[bytes]) -> list[LogLine]:
        return [parsed for line in lines if (parsed := self.lines.find(line)) is not None]


_LIMIT = options.LOG_MAX_SIZE.key
