"""Standard output and error of a process, where nothing fails because of a line.

What a process prints is its log. A full disk, or a reader that is gone, costs lines and nothing
else: `tolerate_failures` replaces sys.stdout and sys.stderr, so `print`, `logging`, warnings and
tracebacks never raise. Lines that cannot be written are dropped and counted; as soon as the log can
be written again, a line says how many are missing.

The rows of a PrintSink are results: `write_results` raises if they cannot be written.

What functions print has no times. After `mark_times`, a line with the time stands before it, at
most one per second.
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
from datetime import UTC, datetime
from typing import Any, TextIO

_MARK_INTERVAL_S = 1.0
_OWN_LINE = re.compile(rb"timestamp=\d\S+Z level=\w+ process=")  # begins a line with its time
_time_mark: Callable[[], bytes] | None = None
_marked_at = -_MARK_INTERVAL_S  # when a line with its time was written last

# For both streams, which are one file as a rule. A signal handler may write while its thread does.
_writing = threading.RLock()


def _after_fork() -> None:
    """Another thread may have held the lock, and does not exist in the child."""
    global _writing
    _writing = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """This process writes nothing to its output meanwhile."""
    with _writing:
        yield


class Output(io.RawIOBase):
    """A file descriptor to write to. No write raises."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lost_lines = 0  # since the last line that was written
        self._partial_line = False  # the last line ends in the middle
        self.failures = 0
        self.last_failure: OSError | None = None

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Always all of it, as far as the caller can see."""
        content = bytes(data)
        with _writing:
            try:
                if self._lost_lines:
                    self._write_all(self._notice())
                    self._lost_lines = 0
                self._write_all(self._time_mark(content))
                self._write_all(content)
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

    def _time_mark(self, content: bytes) -> bytes:
        """What to write before `content`, so that its time is known."""
        global _marked_at
        if _time_mark is None or self._partial_line:
            return b""
        now = time.monotonic()
        if _OWN_LINE.match(content):
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


def tolerate_failures() -> None:
    """From now on, writing to sys.stdout and sys.stderr of this process never raises."""
    sys.stdout = _tolerant(sys.stdout, 1)
    sys.stderr = _tolerant(sys.stderr, 2)


def mark_times(line: Callable[[], bytes]) -> None:
    """From now on, what this process prints follows a `line` that is at most a second older."""
    global _time_mark
    _time_mark = line


def _tolerant(stream: TextIO | None, fd: int) -> TextIO:
    if stream is None:  # the process was started without it
        return open(os.devnull, "w")
    with contextlib.suppress(OSError):
        stream.flush()
    return _Stream(Output(fd), stream.encoding)


def write_results(lines: str) -> None:
    """Writes whole lines to standard output. Raises OSError if any line is lost meanwhile."""
    stream = sys.stdout
    before = stream.output.failures if isinstance(stream, _Stream) else 0
    stream.write(lines)
    stream.flush()
    if isinstance(stream, _Stream) and stream.output.failures > before:
        failure = stream.output.last_failure
        assert failure is not None
        raise OSError(failure.errno, failure.strerror, _name(stream.fileno()))


def _name(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return "standard output"
