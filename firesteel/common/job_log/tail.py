"""Reads a log from its oldest line on, while it grows and starts over.

A log that starts over is copied to NAME.1 and then emptied (see process.log_files). It is a new log
as soon as its start differs, since every log starts with a time. The unread part of the previous
log is then in NAME.1, at the same position.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
