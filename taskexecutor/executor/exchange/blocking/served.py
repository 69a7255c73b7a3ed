"""A complete partition of a BLOCKING result, as its TaskExecutor serves it.

Consumers may request their channels any number of times and get the complete data each time. A
reader reads its next batch when the previous one has been taken for sending, as far as its consumer
has credit. So its memory is bounded by one chunk and its consumer's window. The streams' writing
threads read the files.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from firesteel.common.logs import get_logger
from firesteel.elements import MAX_WATERMARK, EndOfData, EndOfPartition
from taskexecutor.executor.exchange.blocking.partition_file import PartitionIndex, read_chunk
from taskexecutor.executor.exchange.channels import Parcel, SenderChannel, SenderState
from taskexecutor.executor.exchange.errors import (
    ExchangeError,
    PartitionUnreadable,
    RemoteProtocolError,
)
from taskexecutor.executor.exchange.partition import (
    Carrier,
    PartitionId,
    ScheduledCarrier,
    Wakeup,
)

log = get_logger(__name__)


class ServedPartition:
    """Implements `AttachedPartition`, the part of a partition that carriers use."""

    def __init__(
        self, partition_id: PartitionId, path: Path, *, window_bytes: int, batch_rows: int
    ) -> None:
        self.id = partition_id
        self._path = path
        self._window_bytes = window_bytes
        self._batch_rows = batch_rows
        self._lock = threading.Lock()  # guards the following; no reader's lock is taken under it
        self._readers: dict[int, _Reader] = {}
        self._next_reader = 0
        self._index: PartitionIndex | None = None  # set while there are readers
        self._released = ""  # the reason

    @property
    def aborted_because(self) -> str | None:
        return self._released or None

    def abort(self, reason: str) -> None:
        """Fails current and later readers."""
        with self._lock:
            self._released = self._released or reason
            readers = list(self._readers.values())
        for reader in readers:
            reader.fail(reason)

    def close(self) -> None:
        self.abort("it was released")

    # -- the carriers' side

    def attach(
        self, consumer: int, make_carrier: Callable[[int], Carrier], wakeups: list[Wakeup]
    ) -> None:
        """Opens a consumer's channel and starts to read. Raises RemoteProtocolError."""
        channel = SenderChannel(
            f"{self.id} to consumer subtask {consumer}",
            window_bytes=self._window_bytes,
            batch_rows=self._batch_rows,
        )
        with self._lock:
            number = self._next_reader
            self._next_reader += 1
            reader = self._readers[number] = _Reader(self._path, channel)
            index, problem = self._index, self._released
        if not problem:
            try:
                index = index or PartitionIndex.read(self._path, str(self.id))
                reader.begin(index, consumer)
            except KeyError:
                self._forget(number)
                raise RemoteProtocolError(
                    f"{self.id} has no channel to consumer subtask {consumer}"
                ) from None
            except PartitionUnreadable as error:
                problem = str(error)
                log.warning("a result cannot be read", partition=str(self.id), problem=problem)
        with self._lock:
            self._index = index
            problem = problem or self._released
        reader.connect(make_carrier(number), wakeups)
        if problem:
            reader.fail(problem)

    def take(self, carrier: ScheduledCarrier, index: int) -> Parcel | None:
        with self._lock:
            reader = self._readers.get(index)
        if reader is None:  # its consumer has just disconnected
            carrier.scheduled = False
            return None
        return reader.take(carrier)

    def abort_reason(self, index: int) -> str | None:
        with self._lock:
            reader = self._readers.get(index)
        return None if reader is None else reader.failure

    def granted(self, index: int, size_bytes: int, events: int) -> None:
        self._reader(index).granted(size_bytes, events)

    def consumed(self, index: int) -> None:
        self._reader(index).consumed()
        self._forget(index)

    def abandoned(self, index: int, reason: str) -> None:
        self._forget(index)

    def fail(self, error: ExchangeError) -> None:
        """Fails all readers, because a stream cannot deliver the partition."""
        with self._lock:
            readers = list(self._readers.values())
        for reader in readers:
            reader.fail(str(error))

    # -- inside

    def _reader(self, index: int) -> _Reader:
        with self._lock:
            return self._readers[index]

    def _forget(self, index: int) -> None:
        with self._lock:
            self._readers.pop(index, None)
            if not self._readers:
                self._index = None


class _Reader:
    """Reads one channel once, for one consumer."""

    def __init__(self, path: Path, channel: SenderChannel) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._channel = channel
        self._carrier: Carrier | None = None
        self._chunks: deque[np.void] = deque()  # index entries that are still to be read
        self._batches: deque[tuple[pa.RecordBatch, int]] = deque()  # of the current chunk
        self._data_finished = True
        self._at_end = False  # the end events were offered

    def begin(self, index: PartitionIndex, consumer: int) -> None:
        self._chunks.extend(index.chunks(consumer))
        self._data_finished = index.data_finished

    def connect(self, carrier: Carrier, wakeups: list[Wakeup]) -> None:
        with self._lock:
            self._carrier = carrier
            if not self._channel.over:
                self._channel.open()
            carrier.ready(wakeups)

    def take(self, carrier: ScheduledCarrier) -> Parcel | None:
        with self._lock:
            try:
                self._read_ahead()
                parcel = self._channel.take(coalesce=False)
                self._read_ahead()
            except PartitionUnreadable as error:
                log.warning("a result cannot be read", problem=str(error))
                self._channel.abort(str(error))
                parcel = None
            carrier.scheduled = False
            if self._channel.waiting:
                carrier.ready([])
            return parcel

    def granted(self, size_bytes: int, events: int) -> None:
        with self._lock:
            self._channel.granted(size_bytes, events)
            if not self._at_end and not self._channel.over and self._carrier is not None:
                self._carrier.ready([])

    def consumed(self) -> None:
        with self._lock:
            self._channel.consumed()

    def fail(self, reason: str) -> None:
        with self._lock:
            if self._channel.over:
                return
            self._channel.abort(reason)
            if self._carrier is not None:
                self._carrier.ready([])

    @property
    def failure(self) -> str | None:
        channel = self._channel
        return channel.reason if channel.state is SenderState.ABORTED else None

    def _read_ahead(self) -> None:
        """Offers the next element if none is waiting and there is credit for it."""
        while not self._channel.waiting and not self._at_end and not self._channel.over:
            if self._batches:
                batch, size_bytes = self._batches[0]
                if not self._channel.offer(batch, size_bytes):
                    return
                self._batches.popleft()
            elif self._chunks:
                self._batches.extend(read_chunk(self._path, self._chunks.popleft()))
            else:
                self._at_end = True
                if self._data_finished:
                    self._channel.offer_event(MAX_WATERMARK)
                self._channel.offer_event(EndOfData(self._data_finished))
                self._channel.offer_event(EndOfPartition())
