"""Sources and sinks, as a program names them: descriptions only, opened in the slots.

`FileSource` and `SequenceSource` go to `Environment.from_source`, the sinks to `DataStream.sink_to`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, get_args

from firesteel.errors import InvalidProgram

CORRUPT_RECORD = "_corrupt_record"  # Spark's name for the text of a row that does not fit
MALFORMED_TAG = "malformed"  # the side output of a FileSource with malformed="side_output"
MALFORMED_FORMATS = ("csv", "json")
Malformed = Literal["fail", "drop", "side_output"]


@dataclass(frozen=True, slots=True)
class FileSource:
    """Reads files that `spark.read` can read, each file one split, in sorted order.

    `paths`: absolute paths, directories or globs; relative ones are resolved where the program runs. Folders named `key=value`
    below them are columns, as with spark.read. `schema`: a DDL string, such as "origin STRING, dep_delay DOUBLE"; without one,
    CSV and JSON schemas are inferred once over all files, before data flows. `options` are those of spark.read.

    `watch` makes it unbounded: so often ("1 s", a timedelta) the paths are listed for files that are new, which are read in the
    order of their modification times, then names. A path is read once, whatever becomes of the file; so write files elsewhere, or
    under a name that begins with a dot or underscore, and rename them. The job fails if a watched directory vanishes.

    `malformed` says what becomes of CSV and JSON rows that do not fit the schema in any column: "fail" the job, naming row and
    file; "drop" them, counted as numMalformedRecordsDropped; "side_output": send them to the side output MALFORMED_TAG,
    with columns `_corrupt_record` (the row's text) and `path`. Without it, the option `mode` decides, as with spark.read: by
    default, what cannot be parsed is null.

    Raises InvalidProgram for a `watch` or `malformed` that is none.
    """

    paths: tuple[str, ...]
    format: str
    schema: str | None = None
    watch_s: float | None = None
    malformed: Malformed | None = None
    options: dict[str, str] = field(default_factory=dict)

    def __init__(
        self,
        *paths: str,
        format: str,
        schema: str | None = None,
        watch: str | timedelta | None = None,
        malformed: Malformed | None = None,
        **options: object,
    ) -> None:
        from firesteel.windows import duration_us

        watch_s = None if watch is None else duration_us(watch, "watch") / 1_000_000
        if watch_s is not None and watch_s < MIN_WATCH_S:
            raise InvalidProgram(f"FileSource: watch is {watch!r}; it must be at least {MIN_WATCH_S * 1000:.0f} ms")
        if malformed is not None:
            _check_malformed(malformed, format, options)
        object.__setattr__(self, "paths", tuple(paths))
        object.__setattr__(self, "format", format)
        object.__setattr__(self, "schema", schema)
        object.__setattr__(self, "watch_s", watch_s)
        object.__setattr__(self, "malformed", malformed)
        object.__setattr__(self, "options", {k: _option_text(v) for k, v in options.items()})

    def at(self, paths: Iterable[str]) -> FileSource:
        """The same source elsewhere."""
        other = copy.copy(self)
        object.__setattr__(other, "paths", tuple(paths))
        return other


MIN_WATCH_S = 0.01


def _check_malformed(malformed: str, format: str, options: dict[str, object]) -> None:
    if malformed not in get_args(Malformed):
        raise InvalidProgram(f"FileSource: malformed is {malformed!r}; allowed: {', '.join(get_args(Malformed))}")
    if format not in MALFORMED_FORMATS:
        raise InvalidProgram(
            f"FileSource: malformed={malformed!r} is for {' and '.join(MALFORMED_FORMATS)}; "
            f"a {format} file is read whole or not at all"
        )
    taken = [name for name in options if name.lower() in ("mode", "columnnameofcorruptrecord")]
    if taken:
        raise InvalidProgram(f"FileSource: malformed={malformed!r} and the option {taken[0]} exclude each other")


@dataclass(frozen=True, slots=True)
class SequenceSource:
    """The numbers start <= n < end, as an int64 column; without `end`, they go on for ever.

    `rate_per_s`: so many of them per second, by all subtasks together, let go every 10 ms or so. A source that was held up by
    back-pressure makes up for at most one second of it.
    """

    start: int
    end: int | None = None
    column: str = "value"
    split_rows: int = 1_000_000  # numbers per split
    rate_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.end is not None and self.end < self.start:
            raise InvalidProgram(f"{self}: end must not be before start")
        if self.split_rows < 1:
            raise InvalidProgram(f"{self}: split_rows must be at least 1")
        if self.rate_per_s is not None and not 0 < self.rate_per_s < float("inf"):
            raise InvalidProgram(f"{self}: rate_per_s must be a positive number")


@dataclass(frozen=True, slots=True)
class FileSink:
    """Writes part files below `path`; a file appears under its name when it is complete. `options` are the format's.

    `format`: "parquet" (option compression), "csv" (header, sep) or "json" (one object per line).

    Without rolling, each subtask writes one file, complete when its input ends. `rolling_size` ("128m", or bytes): a file
    that has become so large is completed and the next one begun; sizes are those on disk, and are looked at after every few
    thousand rows. `rolling_interval` ("1 min", or a timedelta): so is a file that has been open for so long. What is
    complete stays, also if the job fails later: without checkpoints, its rows are written again when it restarts.

    Raises InvalidProgram for a size or an interval that is none.
    """

    path: str
    format: str = "parquet"
    options: dict[str, str] = field(default_factory=dict)
    rolling_size: str | int | None = None
    rolling_interval: str | timedelta | None = None

    def __post_init__(self) -> None:
        for what, value in (("rolling_size", self.rolling_size_bytes), ("rolling_interval", self.rolling_interval_s)):
            if value is not None and value <= 0:
                raise InvalidProgram(f"FileSink: {what} is {getattr(self, what)!r}; it must be positive")

    @property
    def rolling_size_bytes(self) -> int | None:
        from firesteel.config import parse_size_bytes

        if self.rolling_size is None:
            return None
        try:
            return parse_size_bytes(str(self.rolling_size))
        except ValueError:
            raise InvalidProgram(
                f"FileSink: rolling_size is {self.rolling_size!r}; give a size such as '128m', or bytes"
            ) from None

    @property
    def rolling_interval_s(self) -> float | None:
        from firesteel.windows import duration_us

        return None if self.rolling_interval is None else duration_us(self.rolling_interval, "rolling_interval") / 1_000_000


@dataclass(frozen=True, slots=True)
class CollectSink:
    """Streams the rows to the client that runs the job: see `DataStream.execute_and_collect`."""


@dataclass(frozen=True, slots=True)
class PrintSink:
    """Prints the rows to the slot's log and, attached, to nothing else."""

    prefix: str = ""


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
