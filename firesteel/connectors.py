"""Sources and sinks, as a program names them: descriptions only, opened in the slots.

`FileSource` and `SequenceSource` go to `Environment.from_source`, the sinks to `DataStream.sink_to`.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FileSource:
    """Reads files that `spark.read` can read, each file one split, in sorted order.

    `paths`: absolute paths or globs; relative ones are resolved where the program runs. `schema`: a DDL string, such as
    "origin STRING, dep_delay DOUBLE"; without one, CSV and JSON schemas are inferred once over all files, before data flows.
    `options` are those of spark.read.
    """

    paths: tuple[str, ...]
    format: str
    schema: str | None = None
    options: dict[str, str] = field(default_factory=dict)

    def __init__(self, *paths: str, format: str, schema: str | None = None, **options: object) -> None:
        object.__setattr__(self, "paths", tuple(paths))
        object.__setattr__(self, "format", format)
        object.__setattr__(self, "schema", schema)
        object.__setattr__(self, "options", {k: _option_text(v) for k, v in options.items()})


@dataclass(frozen=True, slots=True)
class SequenceSource:
    """The numbers start <= n < end, as an int64 column."""

    start: int
    end: int
    column: str = "value"
    split_rows: int = 1_000_000  # numbers per split


@dataclass(frozen=True, slots=True)
class FileSink:
    """Writes part files below `path`; a file appears under its name when it is complete. `options` are the format's."""

    path: str
    format: str = "parquet"
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CollectSink:
    """Streams the rows to the client that runs the job: see `DataStream.execute_and_collect`."""


@dataclass(frozen=True, slots=True)
class PrintSink:
    """Prints the rows to the slot's log and, attached, to nothing else."""

    prefix: str = ""


def _option_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
