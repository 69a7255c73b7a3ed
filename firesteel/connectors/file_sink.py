"""FileSink: writes part files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from firesteel.connectors.checks import absolute_path, duration_s, option_texts, size_bytes
from firesteel.connectors.sink import Sink
from firesteel.durations import Duration
from firesteel.errors import InvalidProgram


@dataclass(frozen=True, slots=True)
class FileSink(Sink):
    """Writes part files below `path`; a file appears under its name when it is complete. `options`
    are those of the format.

    `format`: "parquet" (option compression, for all columns; by default, Snappy for the columns
    that it shrinks), "orc" (compression), "csv" (header, sep, escape), "json" (one object per line;
    decimals as strings and bytes in base64, as spark.read expects them; with ignoreNullFields, no
    fields that are null) or "text" (one column of strings, a line each). With the option
    compression, the last three are written through "gzip" or "bzip2". To read CSV with quotes or
    line breaks in strings, pass escape='"' and multiLine=True to spark.read; the former is not
    needed if the option `escape` of the sink is a backslash. With floats that are not finite, pass
    nanValue="nan", positiveInf="inf" and negativeInf="-inf".

    Without rolling, each subtask writes one file, which is complete when its input ends; in
    Parquet, it starts another file where its rows start to repeat, or to compress, that did not
    before. With `rolling_size` ("128m", or bytes), a file that has reached this size is completed
    and a new one started; sizes are those on disk, checked after every few thousand rows. With
    `rolling_interval` ("1 min", or a timedelta), the same applies to a file that has been open for
    this long.

    With `partition_by`, files are in folders such as `day=2024-05-01/country=DE`, named after the
    values of these columns, which the files do not contain: spark.read adds them. Null and empty
    strings are in `__HIVE_DEFAULT_PARTITION__`.

    Complete files are kept, even if the job fails later. A job that restarts from the beginning
    writes its rows again: each subtask then removes its earlier files when it publishes its first
    file, so that the final output contains no row twice.

    Raises InvalidProgram if a size or an interval is invalid, or the path is not local.
    """

    path: str
    format: str = "parquet"
    options: dict[str, str] = field(default_factory=dict)
    rolling_size: str | int | None = None
    rolling_interval: Duration | None = None
    partition_by: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path.removeprefix("file://"))
        object.__setattr__(self, "options", option_texts(self.options))
        if isinstance(self.partition_by, str):
            raise InvalidProgram(
                f"FileSink: partition_by is {self.partition_by!r}; pass a list of columns"
            )
        object.__setattr__(self, "partition_by", tuple(self.partition_by))
        if "://" in self.path:
            scheme = self.path.split("://", 1)[0]
            raise InvalidProgram(
                f"FileSink path {self.path!r}: the file system {scheme!r} is not supported yet; "
                "use a local path"
            )
        _ = self.rolling_size_bytes, self.commit_interval_s  # checks them now

    def resolved(self) -> FileSink:
        return dataclasses.replace(self, path=absolute_path(self.path))

    @property
    def rolling_size_bytes(self) -> int | None:
        """`rolling_size` in bytes; None if it does not limit files."""
        if self.rolling_size is None:
            return None
        return size_bytes("FileSink: rolling_size", self.rolling_size)

    @property
    def commit_interval_s(self) -> float | None:
        if self.rolling_interval is None:
            return None
        return duration_s("FileSink: rolling_interval", self.rolling_interval)
