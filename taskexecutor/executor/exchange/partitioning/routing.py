"""Routes the rows of a batch to consumer subtasks. Pure: a partitioner knows its position, not the
network.

Every partitioner has `targets`, the consumer subtasks its producer feeds, and `route(batch)`, which
yields (index into targets, batch) pairs, none empty unless the batch itself is empty. Cuts are
slices, without a copy; only `hash` moves rows, with one stable sort per batch (rows keep their
order within a channel).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.common.job_graph import Partitioner, pointwise_consumers
from taskexecutor.executor.exchange.errors import UnsupportedKey
from taskexecutor.executor.exchange.partitioning.murmur3 import hash_columns

MIN_SPLIT_ROWS = 1024  # a batch is not split between consumers into pieces smaller than this


class Routing(Protocol):
    targets: tuple[int, ...]

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]: ...


def make_routing(
    partitioner: Partitioner,
    *,
    producer: int,
    producers: int,
    consumers: int,
    max_parallelism: int,
    key_columns: Sequence[str],
    batch_rows: int,
) -> Routing:
    """Returns the routing of producer subtask `producer` of `producers` to `consumers` subtasks."""
    match partitioner:
        case Partitioner.FORWARD | Partitioner.RESCALE:
            return RoundRobin(
                pointwise_consumers(producer, producers, consumers), start=0, batch_rows=batch_rows
            )
        case Partitioner.REBALANCE:
            # Producers start at different consumers, so that many producers with one batch each
            # feed all consumers.
            return RoundRobin(range(consumers), start=producer % consumers, batch_rows=batch_rows)
        case Partitioner.BROADCAST:
            return Broadcast(range(consumers), batch_rows=batch_rows)
        case Partitioner.HASH:
            return HashRouting(
                consumers,
                max_parallelism=max_parallelism,
                key_columns=key_columns,
                batch_rows=batch_rows,
            )
        case Partitioner.WATERMARKS:
            return NoRows(range(consumers))
        case _:
            assert_never(partitioner)


def cut(batch: pa.RecordBatch, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yields the batch itself if it is small enough, else slices of nearly equal length with at
    most `batch_rows` rows.
    """
    rows = batch.num_rows
    if rows <= batch_rows:
        yield batch
    else:
        yield from _cut_into(batch, -(-rows // batch_rows))


def _cut_into(batch: pa.RecordBatch, pieces: int) -> Iterator[pa.RecordBatch]:
    rows = batch.num_rows
    for piece in range(pieces):
        start, end = piece * rows // pieces, (piece + 1) * rows // pieces
        yield batch.slice(start, end - start)


class RoundRobin:
    """Sends batches to the targets in turn, and splits large ones: forward (one target), rescale
    and rebalance.
    """

    __slots__ = ("_batch_rows", "_next", "targets")

    def __init__(self, targets: Sequence[int], *, start: int, batch_rows: int) -> None:
        self.targets = tuple(targets)
        self._next = start
        self._batch_rows = batch_rows

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        for piece in self._pieces(batch):
            index = self._next
            self._next = (index + 1) % len(self.targets)
            yield index, piece

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = batch.num_rows
        if rows <= self._batch_rows:
            return iter((batch,))
        # Every target gets a part of a large batch.
        at_least = min(len(self.targets), rows // MIN_SPLIT_ROWS)
        return _cut_into(batch, max(-(-rows // self._batch_rows), at_least))


class Broadcast:
    """Sends every row to every consumer."""

    __slots__ = ("_batch_rows", "targets")

    def __init__(self, targets: Sequence[int], *, batch_rows: int) -> None:
        self.targets = tuple(targets)
        self._batch_rows = batch_rows

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        for piece in cut(batch, self._batch_rows):
            for index in range(len(self.targets)):
                yield index, piece


class NoRows:
    """Sends no rows: its consumers need only what is not a row, such as watermarks and barriers."""

    __slots__ = ("targets",)

    def __init__(self, targets: Sequence[int]) -> None:
        self.targets = tuple(targets)

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        return iter(())


class HashRouting:
    """Sends rows with equal keys to one consumer: the owner of the key's key group."""

    __slots__ = ("_batch_rows", "_key_columns", "_max_parallelism", "_subtask_of_group", "targets")

    def __init__(
        self, consumers: int, *, max_parallelism: int, key_columns: Sequence[str], batch_rows: int
    ) -> None:
        if not key_columns:
            raise UnsupportedKey("a hash partitioned edge needs at least one key column")
        self.targets = tuple(range(consumers))
        self._max_parallelism = max_parallelism
        self._key_columns = tuple(key_columns)
        self._batch_rows = batch_rows
        # The narrowest type, because numpy sorts bytes and 16-bit words by radix, in linear time.
        narrow = np.uint8 if consumers <= 2**8 else np.uint16 if consumers <= 2**16 else np.uint32
        self._subtask_of_group = subtask_of_group(
            np.arange(max_parallelism), consumers, max_parallelism
        ).astype(narrow)

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        if len(self.targets) == 1 or not batch.num_rows:
            for piece in cut(batch, self._batch_rows):
                yield 0, piece
            return
        subtasks = self._subtask_of_group[
            key_groups(batch, self._key_columns, self._max_parallelism)
        ]
        first = int(subtasks[0])
        if (subtasks == first).all():
            for piece in cut(batch, self._batch_rows):
                yield first, piece
            return
        counts = np.bincount(subtasks, minlength=len(self.targets))
        ends = np.cumsum(counts)
        arranged = batch.take(pa.array(np.argsort(subtasks, kind="stable")))
        for index in np.flatnonzero(counts).tolist():
            count = int(counts[index])
            for piece in cut(arranged.slice(int(ends[index]) - count, count), self._batch_rows):
                yield index, piece


def key_groups(
    batch: pa.RecordBatch, key_columns: Sequence[str], max_parallelism: int
) -> npt.NDArray[np.uint32]:
    """Returns the key group of each row: hash mod max parallelism. Raises UnsupportedKey that names
    the column.
    """
    columns = []
    for name in key_columns:
        index = column_index(batch.schema, name)
        if index < 0:
            raise UnsupportedKey(
                f"there is no single key column {name!r}; the columns are"
                f" {', '.join(batch.schema.names) or 'none'}"
            )
        columns.append(batch.column(index))
    try:
        hashes = hash_columns(columns)
    except UnsupportedKey as error:
        raise UnsupportedKey(f"key column {', '.join(key_columns)}: {error}") from None
    return hashes % np.uint32(max_parallelism)


def subtask_of_group(
    groups: npt.NDArray[np.int64], parallelism: int, max_parallelism: int
) -> npt.NDArray[np.int64]:
    """Returns the subtask that owns each key group."""
    owners: npt.NDArray[np.int64] = groups.astype(np.int64) * parallelism // max_parallelism
    return owners


def groups_of_subtask(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """Returns the key groups that a subtask owns: the inverse of `subtask_of_group`."""
    return range(
        -(-subtask * max_parallelism // parallelism),
        -(-(subtask + 1) * max_parallelism // parallelism),
    )
