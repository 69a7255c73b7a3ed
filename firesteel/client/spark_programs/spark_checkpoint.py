"""Reads the checkpoint of a query that ran on Spark's own engine: how far it has read its sources.

    CHECKPOINT/metadata                {"id": ...}
               offsets/N               the ends of the sources in batch N, which is planned
               commits/N               batch N is complete
               sources/I/N, N.compact  the files that source I has found
               state/OPERATOR/         state of an operator

Only checkpoints without state can be taken over: its formats are those of Spark's state stores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from firesteel.client.spark_programs.uris import resolved
from firesteel.common.units import counted
from firesteel.errors import FiresteelError

VERSION = "v1"
_FILES = {"logOffset"}
_BATCH = re.compile(r"\d+")
_COMPACT = ".compact"


class NotTakenOver(FiresteelError):
    """A checkpoint of Spark from which Firesteel cannot continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """How far a query has read one source: the files that it has read, or the offsets of Kafka's
    partitions from which it continues.
    """

    files: tuple[str, ...] | None = None
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        if self.files is not None:
            return f"{counted(len(self.files), 'file')} read"
        return ", ".join(
            f"{topic} from {', '.join(f'{each}:{at}' for each, at in sorted(partitions.items()))}"
            for topic, partitions in sorted(self.offsets.items())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCheckpoint:
    """A checkpoint, as of its last complete batch."""

    query_id: str
    batch: int
    planned: int | None  # a later batch, which is not complete
    sources: tuple[SourcePosition, ...]


def read_spark_checkpoint(folder: Path) -> SparkCheckpoint:
    """Raises NotTakenOver for a checkpoint with state, or with sources other than files and Kafka,
    and for a folder that is not a checkpoint of Spark.
    """
    if not (folder / "offsets").is_dir() or not (folder / "metadata").is_file():
        raise NotTakenOver(
            f"{folder} is not a checkpoint of Spark: it has no folder offsets and file metadata."
            " Name the folder that the query on Spark had as its checkpointLocation"
        )
    refuse_state(folder)
    planned, committed = _batches(folder / "offsets"), _batches(folder / "commits")
    complete = sorted(set(planned) & set(committed))
    if not complete:
        raise NotTakenOver(
            f"{folder} has no complete batch, so there is nothing to take over: start the query"
            " with a new checkpointLocation"
        )
    batch = complete[-1]
    lines = _lines(folder / "offsets" / str(batch))[1:]
    return SparkCheckpoint(
        query_id=_query_id(folder / "metadata"),
        batch=batch,
        planned=planned[-1] if planned[-1] > batch else None,
        sources=tuple(_position(folder, index, line) for index, line in enumerate(lines)),
    )


def refuse_state(folder: Path) -> None:
    """Raises NotTakenOver, naming the operators that have state."""
    state = folder / "state"
    operators = sorted(path for path in state.iterdir()) if state.is_dir() else []
    found = [path for path in operators if path.is_dir() and any(path.iterdir())]
    if found:
        names = ", ".join(f"operator {path.name} ({_operator_name(path)})" for path in found)
        raise NotTakenOver(
            f"{folder} has the state of {names}, which only Spark reads: start the query with a new"
            " checkpointLocation, from rows that are old enough to compute the state again"
        )


def _operator_name(folder: Path) -> str:
    metadata = folder / "_metadata"
    for path in (metadata / "metadata", *sorted((metadata / "v2").glob("*"))):
        if path.is_file():
            for line in path.read_text().splitlines():
                if line.startswith("{"):
                    return str(json.loads(line)["operatorInfo"]["operatorName"])
    return "of unknown kind"


def _query_id(path: Path) -> str:
    try:
        return str(json.loads(path.read_text())["id"])
    except (ValueError, KeyError, TypeError):
        raise NotTakenOver(
            f'{path} is damaged: it has the id of the query as {{"id": ...}}'
        ) from None


def _position(folder: Path, index: int, line: str) -> SourcePosition:
    try:
        offset = json.loads(line)
    except ValueError:
        offset = None
    if isinstance(offset, dict) and set(offset) == _FILES:
        log = folder / "sources" / str(index)
        return SourcePosition(files=tuple(files_of(log, int(offset["logOffset"]))))
    if isinstance(offset, dict) and offset and all(map(_is_topic, offset.values())):
        return SourcePosition(
            offsets={
                topic: {int(partition): int(at) for partition, at in partitions.items()}
                for topic, partitions in offset.items()
            }
        )
    if line == "-":  # the source had no rows yet
        return SourcePosition()
    raise NotTakenOver(
        f"source {index} of {folder} is at {line}, which is a position neither in files nor in"
        " Kafka: start the query with a new checkpointLocation"
    )


def _is_topic(partitions: object) -> bool:
    return isinstance(partitions, dict) and all(
        isinstance(at, int) and name.isdigit() for name, at in partitions.items()
    )


def files_of(log: Path, last: int) -> Iterator[str]:
    """Yields the paths that the log of a folder's files has up to its batch `last`."""
    for line in read_log(log, last):
        yield resolved(str(json.loads(line)["path"]))


def read_log(log: Path, last: int) -> Iterator[str]:
    """Yields the entries of a compacted log up to its batch `last`."""
    compacted = [
        int(path.name.removesuffix(_COMPACT)) for path in log.glob(f"*{_COMPACT}") if _is_log(path)
    ]
    start = max((number for number in compacted if number <= last), default=None)
    names = [] if start is None else [f"{start}{_COMPACT}"]
    names += [str(number) for number in range(0 if start is None else start + 1, last + 1)]
    for name in names:
        path = log / name
        if not path.is_file():
            raise NotTakenOver(f"{path} is missing, so the log {log} is incomplete")
        yield from _lines(path)


def _is_log(path: Path) -> bool:
    return _BATCH.fullmatch(path.name.removesuffix(_COMPACT)) is not None


def _batches(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if _BATCH.fullmatch(path.name))


def _lines(path: Path) -> Sequence[str]:
    """Returns the lines of a log of Spark, after that of its version."""
    version, *lines = path.read_text().splitlines()
    if version != VERSION:
        raise NotTakenOver(
            f"{path} has the version {version!r}, and {VERSION!r} is supported: start the query"
            " with a new checkpointLocation"
        )
    return lines
