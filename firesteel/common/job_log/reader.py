"""Reads a job's lines from all logs of one service. Blocking I/O: call `step` in a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from firesteel.common.config import options
from firesteel.common.job_log.lines import JobLines, Line, Selection, begins_over_us, job_of
from firesteel.common.job_log.merge import Merge
from firesteel.common.job_log.tail import LogTail

_FIRST_CHUNKS = 4
SETTLED_AFTER_S = 0.5  # a line is in its log within this time of its timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    origin: str = ""  # the TaskExecutor that it belongs to
    one_job: bool = False  # it is a log of one job alone
    # It belongs to the process that serves it. Its absence is reported: somebody has deleted it.
    own: bool = False


FindLogs = Callable[[], Mapping[Path, LogFile]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    lines: list[Line]
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
        found = self._find()
        for path in self._logs.keys() - found.keys():  # another process reads it now
            self._merge.end(path)
            del self._logs[path]
        for path, file in found.items():
            if path not in self._logs and path not in self._done:
                self._logs[path] = _Log(path, file, self._selection)
                self._merge.add(path)
        deleted = [
            path
            for path, file in found.items()
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
        self.lines = JobLines(selection, origin=file.origin)
        self._name = f"{path.stem} of TaskExecutor {file.origin}" if file.origin else path.stem
        self._one_job = file.one_job
        self._started_us = selection.started_us
        self._first = True
        self._missing = ""

    def read(self) -> list[Line]:
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
        return self._found(read)

    def last(self) -> list[Line]:
        return self._found(self.tail.last())

    def notices(self) -> list[str]:
        problem, self._missing = self._missing, ""
        if not problem or self.is_another_jobs:
            return []
        return [f"the log {self._name} is limited to a length: {problem} ({_LIMIT})"]

    @property
    def is_another_jobs(self) -> bool:
        return self._one_job and self.lines.other_job

    def _found(self, lines: list[bytes]) -> list[Line]:
        return [found for line in lines if (found := self.lines.find(line)) is not None]


_LIMIT = options.LOG_MAX_SIZE.key
