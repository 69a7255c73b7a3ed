"""Messages of the client as Arrow columns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from taskexecutor.executor.connectors.kafka.partitions import Partition
from taskexecutor.executor.connectors.kafka.records import HEADERS, RECORDS, RECORDS_WITH_HEADERS

if TYPE_CHECKING:
    from confluent_kafka import Message

_LOG_APPEND_TIME = 2  # the client's timestamp type; 1: set by the producer, 0: none
_TOPIC, _PARTITION, _OFFSET = map(RECORDS.get_field_index, ("topic", "partition", "offset"))


class Run(NamedTuple):
    """Consecutive records of one partition."""

    partition: Partition
    start: int
    stop: int  # exclusive


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    batch: pa.RecordBatch  # with the columns of RECORDS, and possibly headers
    runs: Sequence[Run]  # cover the batch, in order

    @property
    def offsets(self) -> np.ndarray[Any, Any]:
        offsets: np.ndarray[Any, Any] = self.batch.column(_OFFSET).to_numpy()
        return offsets

    @property
    def size_bytes(self) -> int:
        """The size of keys and values."""
        return sum(_bytes_of(self.batch.column(index)) for index in (0, 1))

    def slice(self, start: int, stop: int) -> Records:
        runs = [
            Run(run.partition, max(run.start, start) - start, min(run.stop, stop) - start)
            for run in self.runs
            if run.start < stop and run.stop > start
        ]
        return Records(batch=self.batch.slice(start, stop - start), runs=runs)


def records_of_batch(batch: pa.RecordBatch) -> Records:
    """Finds the runs of a batch of records."""
    partitions = batch.column(_PARTITION).to_numpy()
    return Records(batch=batch, runs=_runs(batch.column(_TOPIC), partitions))


def records_of(messages: Sequence[Message], *, headers: bool) -> Records:
    """Converts messages, at least one and without errors."""
    times = np.array([message.timestamp() for message in messages], dtype=np.int64)
    partitions = np.fromiter((m.partition() for m in messages), np.int32, len(messages))
    topics = pa.array([message.topic() for message in messages], pa.string())
    columns = [
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        topics,
        pa.array(partitions),
        pa.array([message.offset() for message in messages], pa.int64()),
        _timestamps(times),
        pa.array(times[:, 0] == _LOG_APPEND_TIME).cast(pa.int32()),
    ]
    schema = RECORDS
    if headers:
        schema = RECORDS_WITH_HEADERS
        columns.append(pa.array([m.headers() for m in messages], schema.field(HEADERS).type))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    return Records(batch=batch, runs=_runs(topics, partitions))


def _timestamps(times: np.ndarray[Any, Any]) -> pa.Array:
    """Returns null for messages without a timestamp."""
    missing = times[:, 0] == 0
    return pa.array(times[:, 1] * 1_000, mask=missing if missing.any() else None).cast(
        pa.timestamp("us", "UTC")
    )


def _runs(topics: pa.Array, partitions: np.ndarray[Any, Any]) -> list[Run]:
    changed = partitions[1:] != partitions[:-1]
    if not pc.all(pc.equal(topics, topics[0])).as_py():
        numbers = topics.dictionary_encode().indices.to_numpy()
        changed |= numbers[1:] != numbers[:-1]
    bounds = [0, *(np.flatnonzero(changed) + 1).tolist(), len(partitions)]
    return [
        Run(Partition(topics[start].as_py(), int(partitions[start])), start, stop)
        for start, stop in itertools.pairwise(bounds)
    ]


def _bytes_of(column: pa.Array) -> int:
    if not len(column):
        return 0
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)
    return int(offsets[column.offset + len(column)] - offsets[column.offset])
