"""FileSource: files in formats that Spark reads."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from firesteel.connectors.checks import absolute_path, check_choice, duration_s, option_texts
from firesteel.connectors.read_options import check_read_options
from firesteel.connectors.source import CoordinatorOptions, Source, SparkRead
from firesteel.durations import Duration
from firesteel.errors import InvalidProgram

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Spark's name for the text of a row that does not fit the schema.
CORRUPT_RECORD = "_corrupt_record"
MALFORMED_TAG = "malformed"  # the side output of a FileSource with malformed="side_output"
# Formats in which rows may be malformed, and types are inferred.
MALFORMED_FORMATS = ("csv", "json")
MIN_WATCH_S = 0.01

# Replacements for data that is not in files of Spark's formats.
_CONNECTOR = (
    "there is no connector for it yet: use PythonSource with a Python data source, or a"
    " custom Source (firesteel.connectors)"
)
_TABLES = (
    "a folder of files does not describe the table's versions: export it as parquet, or use"
    " PythonSource with a Python data source"
)
_NOT_FILES = {
    "kafka": "use KafkaSource.from_spark_options({...}), or KafkaSource(...)",
    "kinesis": _CONNECTOR,
    "pulsar": _CONNECTOR,
    "rabbitmq": _CONNECTOR,
    "socket": "use SocketSource(host, port)",
    "mongodb": _CONNECTOR,
    "jdbc": _CONNECTOR,
    "postgres": f"{_CONNECTOR}; to write to PostgreSQL there is PostgresSink",
    "postgresql": f"{_CONNECTOR}; to write to PostgreSQL there is PostgresSink",
    "rate": "use SequenceSource(0, rate_per_s=...)",
    "rate-micro-batch": "use SequenceSource(0, rate_per_s=...)",
    "delta": _TABLES,
    "iceberg": _TABLES,
    "hudi": _TABLES,
}
# Spark can read files of these formats from any position, unless an option prevents it.
_CUT_FORMATS = ("csv", "json", "orc", "parquet", "text")
# Options that make Spark omit files, which works only if Spark lists the files itself.
LISTING_OPTIONS = frozenset({"pathglobfilter", "modifiedbefore", "modifiedafter"})
Malformed = Literal["fail", "drop", "side_output"]


@dataclass(frozen=True, slots=True)
class FileSource(Source):
    """Reads files that `spark.read` can read, in sorted order. Small files share a split; a large
    file has several if its format can be read from any position.

    `paths` are absolute paths, directories or globs; relative ones are resolved where the program
    runs. Folders named `key=value` below them become columns, as with spark.read. `schema` is a DDL
    string, such as "origin STRING, dep_delay DOUBLE", a StructType or an Arrow schema; without one,
    CSV and JSON schemas are inferred once over all files, before data flows. `options` are those of
    spark.read.

    `watch` ("1 s", or a timedelta) makes the source unbounded: the paths are listed at this
    interval, and new files are read in order of modification time, then name. A path is read once,
    even if the file changes later; so write files elsewhere, or under a name that starts with a dot
    or underscore, and rename them. The job fails if a watched directory disappears.

    `malformed` sets how CSV and JSON rows are handled that do not fit the schema in any column:
    "fail" the job, naming row and file; "drop" them, counted as numMalformedRecordsDropped;
    "side_output": send them to the side output MALFORMED_TAG, with the columns `_corrupt_record`
    (the row's text) and `path`. Without it, the option `mode` applies, as with spark.read: by
    default, values that cannot be parsed are null, and the job continues.

    Raises InvalidProgram if `watch` or `malformed` is invalid, `format` is not a file format, or
    the format has no such option.
    """

    finds_event_time: ClassVar[bool] = True

    paths: tuple[str, ...]
    format: str
    schema: str | StructType | pa.Schema | None = None
    watch_s: float | None = None
    malformed: Malformed | None = None
    options: dict[str, str] = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()
    subfolders: bool = True  # False: see `of_partitions`

    def __init__(
        self,
        *paths: str,
        format: str,
        schema: str | StructType | pa.Schema | None = None,
        watch: Duration | None = None,
        malformed: Malformed | None = None,
        **options: object,
    ) -> None:
        watch_s = None if watch is None else duration_s("FileSource: watch", watch)
        if watch_s is not None and watch_s < MIN_WATCH_S:
            raise InvalidProgram(
                f"FileSource: watch is {watch!r}; it must be at least {MIN_WATCH_S * 1000:.0f} ms"
            )
        if (instead := _NOT_FILES.get(format.lower())) is not None:
            raise InvalidProgram(
                f"FileSource: format={format!r}: FileSource reads files (parquet, orc, csv, json,"
                f" xml, text, binaryFile), and {format} is not one of these formats; {instead}"
            )
        if format.lower() in MALFORMED_FORMATS:  # Spark ignores the case
            format = format.lower()
        check_read_options(format, options)
        if malformed is not None:
            _check_malformed(malformed, format, options)
        object.__setattr__(self, "paths", tuple(paths))
        object.__setattr__(self, "format", format)
        object.__setattr__(self, "schema", schema)
        object.__setattr__(self, "watch_s", watch_s)
        object.__setattr__(self, "malformed", malformed)
        object.__setattr__(self, "options", option_texts(options))
        object.__setattr__(self, "skipped", frozenset())
        object.__setattr__(self, "subfolders", True)

    def resolved(self) -> FileSource:
        if not self.paths:
            raise InvalidProgram("FileSource has no path; name at least one file or glob")
        other = copy.copy(self)
        object.__setattr__(other, "paths", tuple(map(absolute_path, self.paths)))
        return other

    def skipping(self, paths: Iterable[str]) -> FileSource:
        """Returns a source that does not read the files with these absolute paths."""
        other = copy.copy(self)
        object.__setattr__(other, "skipped", frozenset(paths))
        return other

    def of_partitions(self) -> FileSource:
        """Returns a source that reads no files in folders below its paths, except in partitions:
        folders named `key=value`.
        """
        other = copy.copy(self)
        object.__setattr__(other, "subfolders", False)
        return other

    @property
    def spark_read(self) -> SparkRead:
        """Whether Spark reads the rows as part of the plan that follows."""
        return SparkRead.ALWAYS

    @property
    def side_output_tags(self) -> frozenset[str]:
        """The side outputs of the source."""
        return frozenset({MALFORMED_TAG} if self.malformed == "side_output" else ())

    @property
    def can_be_cut(self) -> bool:
        """Whether several subtasks may read one file, each a range of its bytes.

        False if a record may be longer than a line, or an end of line is not a single byte that
        occurs nowhere else.
        """
        options = {key.lower(): value.lower() for key, value in self.options.items()}
        encoding = options.get("encoding", options.get("charset", "utf-8"))
        return (
            self.format.lower() in _CUT_FORMATS
            and options.get("multiline", "false") == "false"
            and options.get("wholetext", "false") == "false"
            and encoding in ("utf-8", "utf8", "us-ascii", "iso-8859-1")
            and len(options.get("linesep", "")) <= 1
            # Spark looks for the header after comments, but not beyond the first range.
            and not ("comment" in options and options.get("header", "false") != "false")
            and not LISTING_OPTIONS.intersection(options)
        )

    def coordinator(self, parallelism: int, *, read_by_spark: bool) -> CoordinatorOptions:
        options: dict[str, object] = {
            "paths": list(self.paths),
            "parallelism": parallelism,
            "cut": self.can_be_cut,
        }
        if self.skipped:
            options["skipped"] = sorted(self.skipped)
        if not self.subfolders:
            options["subfolders"] = False
        if self.watch_s is not None:
            return CoordinatorOptions("file-source", {**options, "watch_s": self.watch_s})
        return CoordinatorOptions("file-source", options)


def _check_malformed(malformed: str, format: str, options: dict[str, object]) -> None:
    check_choice("FileSource: malformed", malformed, get_args(Malformed))
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
