"""A split of a file source: parts of files, in the state in which they were listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

# Spark treats a text file with such a name as compressed, and decompresses the whole file.
COMPRESSED = (".gz", ".gzip", ".bz2", ".deflate", ".snappy", ".lz4", ".zst", ".zstd")


class ListedFile(NamedTuple):
    path: str  # absolute
    size: int  # in bytes
    modified_ns: int


class FilePart(NamedTuple):
    """The bytes `start` to `start + length` of a file: for text, the lines that begin there; for
    Parquet and ORC, the row groups or stripes that Spark assigns to them.
    """

    path: str
    start: int
    length: int
    size: int  # of the file
    modified_ns: int

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.length == self.size


def to_json(parts: Sequence[FilePart]) -> dict[str, Any]:
    """Returns the split as JSON: whole files without their ranges."""
    return {
        "parts": [
            [part.path, part.size, part.modified_ns]
            if part.whole
            else [part.path, part.size, part.modified_ns, part.start, part.length]
            for part in parts
        ]
    }


def from_json(split: Any) -> list[FilePart]:
    parts = []
    for path, size, modified_ns, *bounds in split["parts"]:
        start, length = bounds or (0, size)
        parts.append(FilePart(path, start, length, size, modified_ns))
    return parts
