"""A split of a file source: parts of files, as they were when they were listed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

# Spark takes a file of lines with such a name for compressed as a whole, and decompresses it.
COMPRESSED = (".gz", ".gzip", ".bz2", ".deflate", ".snappy", ".lz4", ".zst", ".zstd")


class ListedFile(NamedTuple):
    path: str  # absolute
    size: int  # in bytes
    modified_ns: int


class FilePart(NamedTuple):
    """Bytes `start` to `start + length` of a file: of text, the lines that begin there; of Parquet
    and ORC, the row groups or stripes that Spark counts as theirs.
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
    """The split, as JSON can hold it: whole files without their ranges."""
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
