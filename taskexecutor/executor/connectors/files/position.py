"""How far a split of files has been emitted.

A position counts the rows that the files' readers have given, from a byte on. A reader gives the
same rows of a file that has not changed, in the same order, each time, but may leave out some that
the plan does not want: then it must be the same ones again.
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
from taskexecutor.executor.spark.files.parts import check_read, unchanged
from taskexecutor.executor.spark.files.plans import FORMATS_OF_ROWS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

EVERY_ROW = ""  # as `scan`: a reader that leaves out no row, whatever the plan wants


class FileState(NamedTuple):
    """Of a file of which rows have been read."""

    size: int
    modified_ns: int

    @classmethod
    def of(cls, part: FilePart) -> Self:
        return cls(part.size, part.modified_ns)

    def check(self, part: FilePart) -> None:
        """Raises FiresteelError if the file is in another state now."""
        if FileState.of(part) == self:
            return
        change = "was written to" if part.size == self.size else f"now has {part.size} bytes"
        raise FiresteelError(
            f"{part.path}: the file {change}; it had {self.size} bytes when rows of it were read,"
            " and a restored job goes on behind them. Restore the file, or start the job without"
            " its earlier state"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePosition:
    """In a split that has begun and not ended. Parts are named by their numbers in the split."""

    part: int = 0  # the first one that has not been read to its end
    start: int = 0  # the byte from which on it has not, except for some rows; 0: where it begins
    rows: int = 0  # that have been read of it from there on
    file: FileState | None = None  # of that part, if it has begun
    scan: str = EVERY_ROW  # which rows the reader of `rows` has left out: see FilePlan.scan
    # Parts with malformed rows that are emitted behind all others, and their files.
    malformed: tuple[tuple[int, FileState], ...] = ()
    malformed_pass: bool = False  # all rows have been read, and these parts are, once more
    latest_us: int | None = None  # the latest event time
    reading: str = ""  # by which options and columns: see SplitProgress

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, position: Mapping[str, Any]) -> Self:
        file = position["file"]
        malformed = tuple((number, FileState(*state)) for number, state in position["malformed"])
        state = FileState(*file) if file is not None else None
        return cls(**{**position, "file": state, "malformed": malformed})


class SplitProgress:
    """A split that is being read, and how far it has been."""

    def __init__(self, source: FileSource, schema: StructType) -> None:
        self._source = source
        # Rows of text are what the options and the schema make of it.
        names = [] if source.format in FORMATS_OF_ROWS else schema.jsonValue()
        reading = [source.format, source.malformed, sorted(source.options.items()), names]
        self._reading = hashlib.sha256(json.dumps(reading).encode()).hexdigest()[:16]
        self.position = FilePosition(reading=self._reading)
        self._parts: list[FilePart] = []  # as their files are now

    def begin(self, parts: Sequence[FilePart], at: Mapping[str, Any] | None) -> None:
        """Raises FiresteelError if files have changed."""
        # Ranges without bytes have no rows, and readers would find some.
        parts = [part for part in parts if part.length or not (part.size or self._skips(part, at))]
        fresh = FilePosition(reading=self._reading)
        self.position = position = fresh if at is None else FilePosition.from_json(at)
        first = len(parts) if position.malformed_pass else position.part
        again = {number for number, _ in position.malformed}
        # What has been read before a position, and is not read again, may have gone.
        self._parts = [
            unchanged(part, self._source) if number >= first or number in again else part
            for number, part in enumerate(parts)
        ]
        if position.reading != self._reading and (position.file is not None or position.malformed):
            raise FiresteelError(
                f"{parts[min(position.part, len(parts) - 1)].path}: the job that is restored was in"
                " the middle of this file, and read it with other options or another schema."
                " Restore it with those that it had, or start it without its earlier state"
            )
        self.position = replace(position, reading=self._reading)
        if position.file is not None and not position.malformed_pass:
            position.file.check(self._parts[position.part])
        for number, state in position.malformed:
            state.check(self._parts[number])

    def _skips(self, part: FilePart, at: Mapping[str, Any] | None) -> bool:
        """Whether the file, which has no bytes, is skipped, as Spark skips empty Parquet files.

        Not in a watched folder, where it may be a file that is being written. Raises FiresteelError
        if it has been written to since it was listed, unless reading the split has already started.
        """
        if self._source.watch_s is not None or self._source.format.lower() != "parquet":
            return False
        if at is None:
            unchanged(part, self._source)
        return True

    def unread(self) -> list[tuple[int, FilePart]]:
        """The parts, or what is left of them, and their numbers. Some rows of the first one may
        have been read.
        """
        at = self.position
        numbers: Iterable[int] = range(at.part, len(self._parts))
        if at.malformed_pass:
            numbers = (number for number, _ in at.malformed if number >= at.part)
        return [
            (number, _behind(part, at.start) if number == at.part else part)
            for number, part in ((number, self._parts[number]) for number in numbers)
        ]

    def reached(self, number: int, start: int = 0, rows: int = 0, scan: str = EVERY_ROW) -> None:
        """All before this has been emitted. See FilePosition. Raises FiresteelError if a file has
        changed while a part of it was read: a source that is restored here would not know.
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
        """In some of these parts, which do not precede those that it was found in before."""
        known = self.position.malformed
        found = [
            (number, FileState.of(self._parts[number]))
            for number in numbers
            if not known or number > known[-1][0]
        ]
        self.position = replace(self.position, malformed=(*known, *found))

    def begins_malformed_pass(self) -> bool:
        """All rows have been read. False if there are no others to be read."""
        if self.position.malformed_pass or not self.position.malformed:
            return False
        self.position = replace(self.position, malformed_pass=True, part=0)
        return True


def _behind(part: FilePart, start: int) -> FilePart:
    """The part from this byte on, if it begins before it."""
    end = part.start + part.length
    return part._replace(start=start, length=end - start) if start > part.start else part
