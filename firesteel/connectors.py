"""Sources and sinks, as a program names them: descriptions only, opened in the slots.

Sources go to `Environment.from_source`, sinks to `DataStream.sink_to`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from firesteel.errors import InvalidProgram

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

CORRUPT_RECORD = "_corrupt_record"  # Spark's name for the text of a row that does not fit
MALFORMED_TAG = "malformed"  # the side output of a FileSource with malformed="side_output"
MALFORMED_FORMATS = ("csv", "json")  # in whose files a row may be wrong, and types are guessed
Malformed = Literal["fail", "drop", "side_output"]


@dataclass(frozen=True, slots=True)
class FileSource:
    """Reads files that `spark.read` can read, each file one split, in sorted order.

    `paths`: absolute paths, directories or globs; relative ones are resolved where the program
    runs. Folders named `key=value` below them are columns, as with spark.read. `schema`: a DDL
    string, such as "origin STRING, dep_delay DOUBLE", a StructType or an Arrow schema; without one,
    CSV and JSON schemas are inferred once over all files, before data flows. `options` are those of
    spark.read.

    `watch` makes it unbounded: so often ("1 s", a timedelta) the paths are listed for files that
    are new, which are read in the order of their modification times, then names. A path is read
    once, whatever becomes of the file; so write files elsewhere, or under a name that begins with a
    dot or underscore, and rename them. The job fails if a watched directory vanishes.

    `malformed` says what becomes of CSV and JSON rows that do not fit the schema in any column:
    "fail" the job, naming row and file; "drop" them, counted as numMalformedRecordsDropped;
    "side_output": send them to the side output MALFORMED_TAG, with columns `_corrupt_record` (the
    row's text) and `path`. Without it, the option `mode` decides, as with spark.read: by default,
    what cannot be parsed is null.

    Raises InvalidProgram for a `watch` or `malformed` that is none.
    """

    paths: tuple[str, ...]
    format: str
    schema: str | StructType | pa.Schema | None = None
    watch_s: float | None = None
    malformed: Malformed | None = None
    options: dict[str, str] = field(default_factory=dict)

    def __init__(
        self,
        *paths: str,
        format: str,
        schema: str | StructType | pa.Schema | None = None,
        watch: str | timedelta | None = None,
        malformed: Malformed | None = None,
        **options: object,
    ) -> None:
        from firesteel.windows import duration_us

        watch_s = None if watch is None else duration_us(watch, "watch") / 1_000_000
        if watch_s is not None and watch_s < MIN_WATCH_S:
            raise InvalidProgram(
                f"FileSource: watch is {watch!r}; it must be at least {MIN_WATCH_S * 1000:.0f} ms"
            )
        if format.lower() in MALFORMED_FORMATS:  # Spark does not mind the case
            format = format.lower()
        if malformed is not None:
            _check_malformed(malformed, format, options)
        object.__setattr__(self, "paths", tuple(paths))
        object.__setattr__(self, "format", format)
        object.__setattr__(self, "schema", schema)
        object.__setattr__(self, "watch_s", watch_s)
        object.__setattr__(self, "malformed", malformed)
        object.__setattr__(self, "options", {k: _option_text(v) for k, v in options.items()})

    @property
    def side_output_tags(self) -> frozenset[str]:
        return frozenset({MALFORMED_TAG} if self.malformed == "side_output" else ())

    def at(self, paths: Iterable[str]) -> FileSource:
        """The same source elsewhere."""
        other = copy.copy(self)
        object.__setattr__(other, "paths", tuple(paths))
        return other


MIN_WATCH_S = 0.01


def _check_malformed(malformed: str, format: str, options: dict[str, object]) -> None:
    if malformed not in get_args(Malformed):
        raise InvalidProgram(
            f"FileSource: malformed is {malformed!r}; allowed: {', '.join(get_args(Malformed))}"
        )
    if format not in MALFORMED_FORMATS:
        raise InvalidProgram(
            f"FileSource: malformed={malformed!r} is for {' and '.join(MALFORMED_FORMATS)}; "
            f"a {format} file is read whole or not at all"
        )
    taken = [name for name in options if name.lower() in ("mode", "columnnameofcorruptrecord")]
    if taken:
        raise InvalidProgram(
            f"FileSource: malformed={malformed!r} and the option {taken[0]} exclude each other"
        )


@dataclass(frozen=True, slots=True)
class SequenceSource:
    """The numbers start <= n < end, as an int64 column; without `end`, they go on for ever.

    `rate_per_s`: so many of them per second, by all subtasks together, let go every 10 ms or so. A
    source that was held up by back-pressure makes up for at most one second of it.

    Without a rate, Spark operators that follow at once, with nothing between, have the numbers
    generated inside Spark. `split_rows`: numbers per split, which one subtask reads at a time;
    None: 1 M, or up to 10 M where Spark generates them.
    """

    start: int
    end: int | None = None
    column: str = "value"
    split_rows: int | None = None
    rate_per_s: float | None = None
    side_output_tags: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        if self.end is not None and self.end < self.start:
            raise InvalidProgram(f"{self}: end must not be before start")
        if self.split_rows is not None and self.split_rows < 1:
            raise InvalidProgram(f"{self}: split_rows must be at least 1")
        if self.rate_per_s is not None and not 0 < self.rate_per_s < float("inf"):
            raise InvalidProgram(f"{self}: rate_per_s must be a positive number")


class _PythonDataSource:
    """A DataSource class with its options."""

    data_source: type[DataSource]
    options: dict[str, str]

    @property
    def name(self) -> str:
        return self.data_source.__name__

    def _overrides(self, method: str) -> bool:
        from pyspark.sql.datasource import DataSource

        return getattr(self.data_source, method) is not getattr(DataSource, method)

    def _check(self, where: str) -> None:
        from pyspark.sql.datasource import DataSource

        if not (isinstance(self.data_source, type) and issubclass(self.data_source, DataSource)):
            raise InvalidProgram(
                f"{where} takes a subclass of pyspark.sql.datasource.DataSource, not {self.data_source!r}; pass the class itself"
            )


@dataclass(frozen=True, slots=True)
class PythonSource(_PythonDataSource):
    """Reads a stream of PySpark's Python DataSource, the class taken as it is:
    `PythonSource(MySource, {"topic": "t"})`.

    A `streamReader` is asked for offsets and partitions in one subtask, every `poll_interval`, and
    its partitions are read by all subtasks; a `simpleStreamReader` reads in one. A reader with a
    method `isFinished(end) -> bool`, called with the offset up to which everything has been
    planned, is bounded; any other goes on for ever. `commit(end)` is called when a checkpoint that
    contains everything before `end` is complete.

    `schema` (DDL string or StructType) overrides that of the class. Raises InvalidProgram if the
    class has no stream reader.
    """

    data_source: type[DataSource]
    options: dict[str, str] = field(default_factory=dict)
    schema: str | StructType | None = None
    poll_interval: str | timedelta = "100 ms"

    def __post_init__(self) -> None:
        self._check("PythonSource")
        if not self._overrides("streamReader") and not self._overrides("simpleStreamReader"):
            raise InvalidProgram(
                f"{self.name} cannot be read as a stream: it implements neither streamReader() nor simpleStreamReader()"
            )
        if self.poll_interval_s <= 0:
            raise InvalidProgram(
                f"PythonSource: poll_interval is {self.poll_interval!r}; it must be positive"
            )
        object.__setattr__(self, "options", {k: _option_text(v) for k, v in self.options.items()})

    @property
    def is_simple(self) -> bool:
        """It plans and reads in one call."""
        return not self._overrides("streamReader")

    @property
    def poll_interval_s(self) -> float:
        from firesteel.windows import duration_us

        return duration_us(self.poll_interval, "poll_interval") / 1_000_000


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The planning half of a PythonSource, an operator of its own; `Environment.from_source` makes
    it.
    """

    source: PythonSource
    marked: bool = False  # watermarks, counted from 1, are behind the partitions of each call


@dataclass(frozen=True, slots=True)
class PythonSink(_PythonDataSource):
    """Writes a stream with PySpark's Python DataSource, the class taken as it is:
    `PythonSink(MySink, {"path": "p"})`.

    `streamWriter(schema, overwrite)` is called once; its `write` runs in every subtask, over Rows
    or, of a DataSourceStreamArrowWriter, over RecordBatches; `commit(messages, batchId)` in one,
    when the input has ended, with what all of them returned. If the job fails or is cancelled
    before, `abort(messages, batchId)` is called, where that is possible.

    `commit_interval` ("1 s", a timedelta) is for streams that do not end: `write` gets the rows of
    so long, and what it has returned is committed soon after. Without checkpoints, such rows are
    written again when the job restarts.

    Raises InvalidProgram if the class has no stream writer, and for an interval that is none.
    """

    data_source: type[DataSource]
    options: dict[str, str] = field(default_factory=dict)
    overwrite: bool = False
    commit_interval: str | timedelta | None = None

    def __post_init__(self) -> None:
        self._check("PythonSink")
        if not self._overrides("streamWriter"):
            raise InvalidProgram(
                f"{self.name} cannot be written as a stream: it does not implement streamWriter()"
            )
        if self.commit_interval_s is not None and self.commit_interval_s <= 0:
            raise InvalidProgram(
                f"PythonSink: commit_interval is {self.commit_interval!r}; it must be positive"
            )
        object.__setattr__(self, "options", {k: _option_text(v) for k, v in self.options.items()})

    @property
    def commit_interval_s(self) -> float | None:
        from firesteel.windows import duration_us

        return (
            None
            if self.commit_interval is None
            else duration_us(self.commit_interval, "commit_interval") / 1_000_000
        )


@dataclass(frozen=True, slots=True)
class PythonCommit:
    """The committing half of a PythonSink, an operator of its own; `DataStream.sink_to` makes it."""

    sink: PythonSink


@dataclass(frozen=True, slots=True)
class FileSink:
    """Writes part files below `path`; a file appears under its name when it is complete. `options`
    are the format's.

    `format`: "parquet" (option compression), "csv" (header, sep) or "json" (one object per line;
    decimals as texts and bytes in base64, as spark.read takes them). Of CSV with quotes or line
    breaks in texts, spark.read must be told escape='"' and multiLine=True; of floats that are no
    numbers, nanValue="nan", positiveInf="inf" and negativeInf="-inf".

    Without rolling, each subtask writes one file, complete when its input ends. `rolling_size`
    ("128m", or bytes): a file that has become so large is completed and the next one begun; sizes
    are those on disk, and are looked at after every few thousand rows. `rolling_interval` ("1 min",
    or a timedelta): so is a file that has been open for so long. What is complete stays, also if
    the job fails later: without checkpoints, its rows are written again when it restarts.

    Raises InvalidProgram for a size or an interval that is none, and for a path that is not local.
    """

    path: str
    format: str = "parquet"
    options: dict[str, str] = field(default_factory=dict)
    rolling_size: str | int | None = None
    rolling_interval: str | timedelta | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path.removeprefix("file://"))
        object.__setattr__(self, "options", {k: _option_text(v) for k, v in self.options.items()})
        if "://" in self.path:
            scheme = self.path.split("://", 1)[0]
            raise InvalidProgram(
                f"FileSink path {self.path!r}: the file system {scheme!r} is not supported yet; use a local path"
            )
        for what, value in (
            ("rolling_size", self.rolling_size_bytes),
            ("rolling_interval", self.rolling_interval_s),
        ):
            if value is not None and value <= 0:
                raise InvalidProgram(
                    f"FileSink: {what} is {getattr(self, what)!r}; it must be positive"
                )

    @property
    def rolling_size_bytes(self) -> int | None:
        from firesteel.common.units import parse_size_bytes

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

        return (
            None
            if self.rolling_interval is None
            else duration_us(self.rolling_interval, "rolling_interval") / 1_000_000
        )


@dataclass(frozen=True, slots=True)
class CollectSink:
    """Streams the rows to the client that runs the job: see `DataStream.execute_and_collect`."""


@dataclass(frozen=True, slots=True)
class PrintSink:
    """Prints the rows to the slot's log and, attached, to nothing else."""

    prefix: str = ""


@dataclass(frozen=True, slots=True)
class ForeachBatchSink:
    """What `DataStream.foreach_batch` makes of its function."""

    function: Callable[[DataFrame, int], None]


PostgresMode = Literal["append", "upsert"]


@dataclass(frozen=True, slots=True)
class PostgresSink:
    """Writes rows into a table of PostgreSQL: `PostgresSink("postgresql://me@host/db", "daily",
    mode="upsert", key=["day"])`.

    `url` is SQLAlchemy's or libpq's form; leave the password to ~/.pgpass or PGPASSWORD on the
    cluster's machines, or write it in: it is not shown in errors. `table` may have a schema in
    front of a dot. Columns are matched by name; one that the stream lacks gets its default. A table
    that does not exist is created, with types that hold the stream's (nested ones as jsonb) and,
    for upserts, with `key` as primary key.

    `mode`: "append" inserts; "upsert" replaces the row with the same `key`, which a unique index or
    the primary key must cover; of several rows with one key, the last counts. Rows go in batches by
    COPY, each in a transaction of its own: at most `batch_rows`, less when the input runs dry.
    Delivery is at least once: when a job fails and restarts, "append" may write rows again,
    "upsert" writes the same.

    Raises InvalidProgram for a mode or key that makes no sense.
    """

    url: str = field(repr=False)
    table: str
    mode: PostgresMode = "append"
    key: Sequence[str] = ()
    batch_rows: int = 50_000

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "key", (self.key,) if isinstance(self.key, str) else tuple(self.key)
        )
        if self.mode not in get_args(PostgresMode):
            raise InvalidProgram(
                f"PostgresSink: mode is {self.mode!r}; allowed: {', '.join(get_args(PostgresMode))}"
            )
        if (self.mode == "upsert") != bool(self.key):
            raise InvalidProgram(
                'PostgresSink: key=["column", ...] belongs to mode="upsert", and is needed there'
            )
        if self.batch_rows < 1:
            raise InvalidProgram(
                f"PostgresSink: batch_rows is {self.batch_rows!r}; it must be at least 1"
            )


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
