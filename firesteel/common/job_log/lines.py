"""Decides which lines of a log belong to a job.

A line of Firesteel's own names its process, and its job if there is one. Any other line (Spark's, a
traceback, or what functions print, which has a prefix) has the job of the line of Firesteel's
before it in the same log, and its time unless it starts with its own: a slot's process serves one
job at a time, names it in every line, and writes such a line before others at least once a second
(see output.mark_output).
Only the lines of a traceback also have its vertex and subtask. The prefix of a printed line names
the task in whose thread it was printed; Spark's Python workers do not know theirs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from firesteel.common.logs import LOG_STARTS_OVER, OUTPUT_FOLLOWS
from firesteel.common.output import OUTPUT_PREFIX, TASK_PREFIX

LINE_MAX_BYTES = 16_384  # of one line that is shown

_OURS = re.compile(rb"timestamp=(\d\S+Z) level=\w+ process=(\S+) ")
_JOB = re.compile(rb" job_id=([0-9a-f]{32})")
_SUBTASK = re.compile(rb" subtask=(\d+)")
_VERTEX = re.compile(rb' vertex=(?:"((?:[^"\\]|\\.)*)"|(\S+))')
_SPARK = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z ")
_INTERNAL = tuple(f'event="{event}"'.encode() for event in (OUTPUT_FOLLOWS, LOG_STARTS_OVER))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a job in the log of one of the cluster's processes, or a notice about missing
    lines.
    """

    text: str  # as in the log, without the prefix of printed lines
    time_us: int = 0  # since 1970; for a line without a time, that of the previous line
    process: str = ""  # for example, "slot-0[4711]"; empty: a notice
    task_executor_id: str = ""  # empty: another kind of process

    @property
    def is_notice(self) -> bool:
        return not self.process


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The requested lines."""

    job_id: str
    started_us: int = 0  # when the job started
    after_us: int = 0  # no lines before this time
    vertices: frozenset[str] = frozenset()  # only lines that name one of these; empty: all lines
    subtask: int | None = None  # only lines that name it; None: all lines
    output: bool = False  # only what the job has printed

    @property
    def of_tasks(self) -> bool:
        return bool(self.vertices) or self.subtask is not None


class JobLines:
    """Finds the job's lines in one log. Requires every line of the log, in order."""

    def __init__(self, selection: Selection, *, task_executor_id: str = "") -> None:
        self.time_us = 0  # of the last line
        self.other_job = False  # the log has lines of another job
        self._job_id = selection.job_id.encode()
        self._selection = selection
        self._vertices = {vertex.encode() for vertex in selection.vertices}
        self._task_executor_id = task_executor_id
        self._ours = False  # the last line of Firesteel's is the job's
        self._task = False  # and names one of the requested tasks
        self._process = ""

    def find(self, line: bytes) -> LogLine | None:
        printed = True
        if by_task := TASK_PREFIX.match(line):
            of_task = self._of_task(by_task[0])
            line = line[by_task.end() :]
        elif line.startswith(OUTPUT_PREFIX):
            line, of_task = line[len(OUTPUT_PREFIX) :], False
        else:
            printed = False
            if ours := _OURS.match(line):
                of_task = self._firesteel_line(line, ours)
                if any(event in line for event in _INTERNAL):
                    return None
            elif line.startswith(b"  "):  # of a traceback
                of_task = self._task
            else:
                of_task = False
                if _SPARK.match(line):
                    self._advance(line.partition(b" ")[0])
        if not self._ours or self.time_us < self._selection.after_us:
            return None
        if (self._selection.of_tasks and not of_task) or (self._selection.output and not printed):
            return None
        return LogLine(
            time_us=self.time_us,
            process=self._process,
            task_executor_id=self._task_executor_id,
            text=_shortened(line),
        )

    def _firesteel_line(self, line: bytes, ours: re.Match[bytes]) -> bool:
        """Returns whether the line names a requested task."""
        self._advance(ours[1])
        self._process = ours[2].decode(errors="replace")
        job = _JOB.search(line)
        self._ours = job is not None and job[1] == self._job_id
        self.other_job = self.other_job or (job is not None and not self._ours)
        self._task = self._ours and self._selection.of_tasks and self._of_task(line)
        return self._task

    def _of_task(self, line: bytes) -> bool:
        if self._selection.subtask is not None:
            subtask = _SUBTASK.search(line)
            if subtask is None or int(subtask[1]) != self._selection.subtask:
                return False
        if self._vertices:
            vertex = _VERTEX.search(line)
            if vertex is None:
                return False
            quoted = re.sub(rb"\\(.)", rb"\1", vertex[1]) if vertex[1] is not None else None
            return (vertex[2] if quoted is None else quoted) in self._vertices
        return True

    def _advance(self, timestamp: bytes) -> None:
        """Advances the time. The order of lines in a log is kept, whatever their clocks say."""
        self.time_us = max(self.time_us, parse_us(timestamp))


def job_of(line: bytes) -> str:
    """Returns the job that a line of Firesteel's names; empty if none."""
    match = _JOB.search(line) if _OURS.match(line) else None
    return "" if match is None else match[1].decode()


def parse_us(timestamp: bytes) -> int:
    """Returns microseconds since 1970; 0 if it is not a time."""
    try:
        at = datetime.fromisoformat(timestamp.decode())
    except ValueError:
        return 0
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1_000_000)


def begins_over_us(first_line: bytes) -> int | None:
    """Returns when the log with this first line started over; None if it is complete."""
    ours = _OURS.match(first_line)
    if ours is None or f'event="{LOG_STARTS_OVER}"'.encode() not in first_line:
        return None
    return parse_us(ours[1])


def _shortened(line: bytes) -> str:
    text = line[:LINE_MAX_BYTES].decode(errors="replace")
    left = len(line) - LINE_MAX_BYTES
    return f"{text} ... ({left:,} more bytes)" if left > 0 else text
