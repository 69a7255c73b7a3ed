"""The position in a split of files: how far it has been emitted.

A position counts the rows that a file's reader has returned, from a byte on. A reader returns the
same rows of an unchanged file in the same order each time, but may skip rows that the plan does not
need; after a restore, it must skip the same rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from firesteel.common.file_parts import FilePart
from firesteel.connectors import FileSource
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.readers.parts import check_read, unchanged
from taskexecutor.executor.columnar.runners.file_plans import FORMATS_OF_ROWS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

EVERY_ROW = ""  # value of `scan` for readers that skip no rows


class FileState(NamedTuple):
    """The state of a file of which rows have been read."""

    size: int
    modified_ns: int

    @classmethod
    def of(cls, part: FilePart) -> Self:
        return cls(part.size, part.modified_ns)

    def check(self, part: FilePart) -> None:
        """Raises FiresteelError if the file has changed."""
        if FileState.of(part) == self:
            return
        change = "was written to" if part.size == self.size else f"now has {part.size} bytes"
        raise FiresteelError(
            f"{part.path}: the file {change}; it had {self.size} bytes when rows of it were read,"
            " and a restored job continues after them. Restore the file, or start the job without"
            " its earlier state"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePosition:
    """A position in a split that has started and not ended. Parts are identified by their index in
    the split.
    """

    part: int = 0  # the first part that has not been read completely
    start: int = 0  # the byte up to which it has been read, apart from `rows`; 0: its start
    rows: int = 0  # rows read from there on
    file: FileState | None = None  # of that part, if it has started
    scan: str = EVERY_ROW  # which rows the reader of `rows` has skipped: see FilePlan.scan
    # Parts with malformed rows, which are emitted after all others, and their files.
    malformed: tuple[tuple[int, FileState], ...] = ()
    malformed_pass: bool = False  # all rows have been read, and these parts are read again
    latest_us: int | None = None  # the latest event time
    reading: str = ""  # hash of the options and columns: see SplitProgress

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, position: Mapping[str, Any]) -> Self:
        file = position["file"]
        malformed = tuple((number, FileState(*state)) for number, state in position["malformed"])
        state = FileState(*file) if file is not None else None
        return cls(**{**position, "file": state, "malformed": malformed})


class SplitProgress:
    """The split that is being read, and the position in it."""

    def __init__(self, source: FileSource, schema: StructType) -> None:
        self._source = source
        # Rows of text depend on the options and the schema.
        names = [] if source.format in FORMATS_OF_ROWS else schema.jsonValue()
        reading = [source.format, source.malformed, sorted(source.options.items()), names]
        self._reading = hashlib.sha256(json.dumps(reading).encode()).hexdigest()[:16]
        self.position = FilePosition(reading=self._reading)
        self._parts: list[FilePart] = []  # as their files are now

    def begin(self, parts: Sequence[FilePart], at: Mapping[str, Any] | None) -> None:
        """Starts a split at a position. Raises FiresteelError if files have changed."""
        # Ranges and files without bytes have no rows, but readers would return some.
        parts = [part for part in parts if part.length]
        fresh = FilePosition(reading=self._reading)
        self.position = position = fresh if at is None else FilePosition.from_json(at)
        first = len(parts) if position.malformed_pass else position.part
        again = {number for number, _ in position.malformed}
        # Files that were read before the position, and are not read again, may have been removed.
        self._parts = [
            unchanged(part, self._source) if number >= first or number in again else part
            for number, part in enumerate(parts)
        ]
        if position.reading != self._reading and (position.file is not None or position.malformed):
            raise FiresteelError(
                f"{parts[min(position.part, len(parts) - 1)].path}: the restored job was in"
                " the middle of this file, and read it with different options or a different "
                "schema. Restore it with the original ones, or start it without its earlier state"
            )
        self.position = replace(position, reading=self._reading)
        if position.file is not None and not position.malformed_pass:
            position.file.check(self._parts[position.part])
        for number, state in position.malformed:
            state.check(self._parts[number])

    def unread(self) -> list[tuple[int, FilePart]]:
        """Returns the unread parts, or the rest of them, with their indices. Some rows of the first
        one may have been read.
        """
        at = self.position
        numbers: Iterable[int] = range(at.part, len(self._parts))
        if at.malformed_pass:
            numbers = (number for number, _ in at.malformed if number >= at.part)
        return [
            (number, _from_byte(part, at.start) if number == at.part else part)
            for number, part in ((number, self._parts[number]) for number in numbers)
        ]

    def reached(self, number: int, start: int = 0, rows: int = 0, scan: str = EVERY_ROW) -> None:
        """Records that everything before this position has been emitted. See FilePosition. Raises
        FiresteelError if a file has changed while a part of it was read, because a restored source
        could not detect that.
        """
        again = {number for number, _ in self.position.malformed}
        for passed in range(self.position.part, min(number, len(self._parts))):
            if passed in again or not self.position.malformed_pass:
                check_read(self._parts[passed], self._source)
        file = None
        if number < len(self._parts):
            part = self._parts[number]
            if rows or start > part.start:
                file = FileState.of(part)
        self.position = replace(
            self.position,
            part=number,
            start=start if file is not None else 0,
            rows=rows,
            file=file,
            scan=scan if rows else EVERY_ROW,
        )

    def seen(self, latest_us: int | None) -> None:
        known_us = self.position.latest_us
        if latest_us is not None and (known_us is None or latest_us > known_us):
            self.position = replace(self.position, latest_us=latest_us)

    def found_malformed(self, numbers: Iterable[int]) -> None:
        """Records parts that contain malformed rows; they do not precede the recorded ones."""
        known = self.position.malformed
        found = [
            (number, FileState.of(self._parts[number]))
            for number in numbers
            if not known or number > known[-1][0]
        ]
        self.position = replace(self.position, malformed=(*known, *found))

    def begins_malformed_pass(self) -> bool:
        """Starts the pass over malformed rows, after all rows have been read. Returns False if
        there are none.
        """
        if self.position.malformed_pass or not self.position.malformed:
            return False
        self.position = replace(self.position, malformed_pass=True, part=0)
        return True


def _from_byte(part: FilePart, start: int) -> FilePart:
    """Returns the part from this byte on, if it starts before it."""
    end = part.start + part.length
    return part._replace(start=start, length=end - start) if start > part.start else part
