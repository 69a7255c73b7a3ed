"""Standard output and error of a process, in which no line causes a failure.

The output of a process is its log. A full disk, or a closed pipe, loses lines and nothing else:
`tolerate_failures` replaces sys.stdout and sys.stderr, so `print`, `logging`, warnings and
tracebacks never raise. Lines that cannot be written are dropped and counted; as soon as the log is
writable again, a line reports how many are missing.

The rows of a PrintSink are results: `write_results` raises if they cannot be written.

After `mark_output`, each line of standard output has `OUTPUT_PREFIX`, which distinguishes it from
other lines of the log, and follows a line with a time that is at most a second older. Inside
`printed_by`, the prefix names the task, and the text starts with the number of the subtask.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

OUTPUT_PREFIX = b"stdout: "
# Replaces OUTPUT_PREFIX in a line that a task has printed.
TASK_PREFIX = re.compile(rb'stdout vertex=(?:"((?:[^"\\]|\\.)*)"|([^\s"]\S*)) subtask=(\d+): ')
_MARK_INTERVAL_S = 1.0
_OWN_LINE = re.compile(rb"timestamp=\d\S+Z level=\w+ process=")  # matches a line with its time
_time_mark: Callable[[], bytes] | None = None
_marked_at = -_MARK_INTERVAL_S  # when a line with a time was written last

# For both streams, which usually are one file. A signal handler may write while its thread does.
_writing = threading.RLock()
# For a stream whose lines have prefixes: no thread writes the text of another one. A thread that
# holds it takes `_writing`, never the other way round.
_printing = threading.RLock()


def _after_fork() -> None:
    """Replaces the locks: a thread that held them does not exist in the child."""
    global _writing, _printing
    _writing = threading.RLock()
    _printing = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pauses the output of this process."""
    with _writing:
        yield


@dataclass(frozen=True, slots=True)
class _Task:
    names: bytes  # vertex="Source -> Map" subtask=0
    number: bytes  # "1> " of the first of several subtasks, and empty of a single one


_task: ContextVar[_Task | None] = ContextVar("task", default=None)


@contextlib.contextmanager
def printed_by(names: str, number: str) -> Iterator[None]:
    """Attributes the output of this thread or asyncio task to a task; `names` are as in its log
    lines. Printed lines start with `number`.
    """
    token = _task.set(_Task(names.encode(errors="backslashreplace"), number.encode()))
    try:
        yield
    finally:
        _task.reset(token)


class Output(io.RawIOBase):
    """A file descriptor for output. No write raises."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lost_lines = 0  # since the last line that was written
        self._partial_line = False  # the last line ends in the middle
        self.prefix = b""  # of every line
        self.failures = 0
        self.last_failure: OSError | None = None

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Writes all of it, as far as the caller can see."""
        content = bytes(data)
        with _writing:
            try:
                if self._lost_lines:
                    self._write_all(self._notice())
                    self._lost_lines = 0
                self._write_all(self._time_mark(content))
                self._write_all(self._prefixed(content))
            except OSError as error:
                self._lost_lines += max(1, content.count(b"\n"))
                self.failures += 1
                self.last_failure = error
        return len(content)

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            written = os.write(self._fd, left)
            self._partial_line = left[written - 1] != ord("\n")
            left = left[written:]

    def _prefixed(self, content: bytes) -> bytes:
        if not self.prefix or not content:
            return content
        task = _task.get()
        prefix = self.prefix
        if task is not None:
            prefix = b"stdout %b: %b" % (task.names, task.number)
        lines = content[:-1].replace(b"\n", b"\n" + prefix) + content[-1:]
        return lines if self._partial_line else prefix + lines

    def _time_mark(self, content: bytes) -> bytes:
        """Returns what to write before `content`, so that its time is known."""
        global _marked_at
        if _time_mark is None or self._partial_line:
            return b""
        now = time.monotonic()
        if not self.prefix and _OWN_LINE.match(content):
            _marked_at = now
        elif now - _marked_at >= _MARK_INTERVAL_S:
            _marked_at = now
            return _time_mark()
        return b""

    def _notice(self) -> bytes:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        reason = self.last_failure.strerror if self.last_failure is not None else ""
        line = (
            f'timestamp={now} level=warning event="the log could not be written; lines are missing"'
            f' lines={self._lost_lines} reason="{reason}"\n'
        )
        return (b"\n" if self._partial_line else b"") + line.encode()


class _Stream(io.TextIOWrapper):
    def __init__(self, output: Output, encoding: str) -> None:
        super().__init__(
            io.BufferedWriter(output),
            encoding=encoding,
            errors="backslashreplace",
            line_buffering=True,
        )
        self.output = output
        self._unended = threading.local()  # `text`: the unfinished line of this thread

    def write(self, text: str) -> int:
        """Writes text. Threads do not mix their lines: `print` writes a line in pieces."""
        if not self.output.prefix:
            return super().write(text)
        lines, newline, rest = (self._take_unended() + text).rpartition("\n")
        if rest:
            self._unended.text = rest
        if newline:
            with _printing:
                super().write(lines + newline)
        return len(text)

    def flush(self) -> None:
        with _printing:
            if rest := self._take_unended():
                super().write(rest)
            super().flush()

    def _take_unended(self) -> str:
        unended = getattr(self, "_unended", None)  # None during construction
        text: str = unended.__dict__.pop("text", "") if unended is not None else ""
        return text


def tolerate_failures() -> None:
    """Replaces sys.stdout and sys.stderr with streams that never raise."""
    sys.stdout = _tolerant(sys.stdout, 1)
    sys.stderr = _tolerant(sys.stderr, 2)


def mark_output(line: Callable[[], bytes]) -> None:
    """Adds `OUTPUT_PREFIX` to each line of sys.stdout, and before it, at least once a second, a
    `line` with the time.
    """
    global _time_mark
    _time_mark = line
    if isinstance(sys.stdout, _Stream):
        sys.stdout.output.prefix = OUTPUT_PREFIX


def print_to(fd: int) -> None:
    """Redirects sys.stdout to this log, with `OUTPUT_PREFIX` and without ever raising."""
    stream = _Stream(Output(fd), sys.stdout.encoding)
    stream.output.prefix = OUTPUT_PREFIX
    sys.stdout = stream


def _tolerant(stream: TextIO | None, fd: int) -> TextIO:
    if stream is None:  # the process was started without it
        return open(os.devnull, "w")
    with contextlib.suppress(OSError):
        stream.flush()
    return _Stream(Output(fd), stream.encoding)


def write_results(lines: str) -> None:
    """Writes whole lines to standard output, without the number of the subtask. Raises OSError if
    any line is lost during the call.
    """
    stream = sys.stdout
    before = stream.output.failures if isinstance(stream, _Stream) else 0
    task = _task.get()
    token = _task.set(None if task is None else _Task(task.names, b""))
    try:
        stream.write(lines)
        stream.flush()
    finally:
        _task.reset(token)
    if isinstance(stream, _Stream) and stream.output.failures > before:
        failure = stream.output.last_failure
        assert failure is not None
        raise OSError(failure.errno, failure.strerror, _name(stream.fileno()))


def _name(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return "standard output"
