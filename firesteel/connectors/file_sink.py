"""FileSink: part files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

from firesteel.connectors.checks import absolute_path, duration_s, option_texts, size_bytes
from firesteel.connectors.sink import Sink
from firesteel.durations import Duration
from firesteel.errors import InvalidProgram


@dataclass(frozen=True, slots=True)
class FileSink(Sink):
    """Writes part files below `path`; a file appears under its name when it is complete. `options`
    are the format's.

    `format`: "parquet" (option compression, for all columns; by default, Snappy for those that it
    shrinks), "csv" (header, sep) or "json" (one object per line; decimals as texts and bytes in
    base64, as spark.read takes them). To read CSV with quotes or line breaks in texts, give
    spark.read escape='"' and multiLine=True; with floats that are not finite, nanValue="nan",
    positiveInf="inf" and negativeInf="-inf".

    Without rolling, each subtask writes one file, complete when its input ends; Parquet another one
    where its rows begin to repeat, or to shrink, that did not do so before. `rolling_size`
    ("128m", or bytes): a file that has reached this size is completed and the next one begun; sizes
    are those on disk, and are checked after every few thousand rows. `rolling_interval` ("1 min",
    or a timedelta): so is a file that has been open for this long.

    What is complete stays, also if the job fails later. A job that restarts from its beginning
    writes its rows again: each subtask then removes what it published before when it publishes its
    first file, so that no row is there twice in the end.

    Raises InvalidProgram if a size or an interval is invalid, or the path is not local.
    """

    runtime: ClassVar[str] = "taskexecutor.executor.connectors.files.sink:FileSinkRuntime"

    path: str
    format: str = "parquet"
    options: dict[str, str] = field(default_factory=dict)
    rolling_size: str | int | None = None
    rolling_interval: Duration | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path.removeprefix("file://"))
        object.__setattr__(self, "options", option_texts(self.options))
        if "://" in self.path:
            scheme = self.path.split("://", 1)[0]
            raise InvalidProgram(
                f"FileSink path {self.path!r}: the file system {scheme!r} is not supported yet; "
                "use a local path"
            )
        _ = self.rolling_size_bytes, self.commit_interval_s  # checked now

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
