"""The consumer's end of one edge: what has arrived on each channel, taken by the task in turn.

The task's thread polls; carriers (a Flight stream's reader, or a producer's task in this process)
deliver. One lock guards the receiver halves. No call leaves this module under it: credit is
returned, and `on_available` called, once it is free.

    OPEN ──a producer is lost──▶ FAILED ──close──▶ CLOSED
      └──────────────────close─────────────────────▲
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import pyarrow as pa

from firesteel.elements import CheckpointBarrier, EndOfPartition, StreamElement
from taskexecutor.executor.exchange.channels import BlockReason, ReceiverChannel
from taskexecutor.executor.exchange.errors import (
    ExchangeClosed,
    LocalProtocolError,
    PartitionFailed,
)


class GateState(Enum):
    OPEN = 0
    FAILED = 1
    CLOSED = 2


_S = GateState
GATE_TRANSITIONS: dict[GateState, frozenset[GateState]] = {
    _S.OPEN: frozenset(
        {
            _S.FAILED,  # a producer is lost before all of it was received
            _S.CLOSED,  # the task has taken everything, or ends early
        }
    ),
    _S.FAILED: frozenset({_S.CLOSED}),  # the task ends
    _S.CLOSED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """The producing end of a channel."""

    subtask: int
    attempt: int
    address: str


class Upstream(Protocol):
    """The way back to one channel's producer. No call blocks, or raises because the producer is
    gone.
    """

    def grant(self, size_bytes: int, events: int) -> None: ...

    def consumed(self) -> None: ...

    def close(self) -> None: ...


class InputGate:
    """Channel i is fed by `producers[i]`."""

    def __init__(
        self,
        *,
        job_id: str,
        result_id: str,
        consumer: int,
        producers: Sequence[Producer],
        window_bytes: int,
        on_available: Callable[[], None],
        on_close: Callable[[InputGate], None] = lambda gate: None,
    ) -> None:
        self.job_id = job_id
        self.result_id = result_id
        self.consumer = consumer
        self.producers = tuple(producers)
        self.bytes_in = 0
        # Batches with more rows are polled in parts: a step of the task then ends in time.
        self.max_rows: int | None = None
        # Barriers that may overtake, with their channels, as they arrive. The task takes them from
        # here to decide; they stay in their channels, too.
        self.arrived: deque[tuple[int, CheckpointBarrier]] = deque()
        self.on_available = on_available
        self._on_close = on_close
        self._window_bytes = window_bytes
        self._lock = threading.Lock()
        self._channels = [
            ReceiverChannel(
                f"of result {result_id} from producer subtask {producer.subtask}, attempt"
                f" {producer.attempt}, to consumer subtask {consumer}",
                window_bytes=window_bytes,
            )
            for producer in producers
        ]
        self._upstreams: list[Upstream | None] = [None] * len(self._channels)
        self._ready: deque[int] = deque()  # channels to poll, in turn
        self._in_ready = [False] * len(self._channels)
        self._state = GateState.OPEN
        self._failure: PartitionFailed | None = None  # the first, once FAILED

    # -- the task's side

    @property
    def channels(self) -> int:
        return len(self._channels)

    @property
    def closed(self) -> bool:
        return self._state is GateState.CLOSED

    def poll(self) -> tuple[int, StreamElement] | None:
        """The next element with its channel, or None if nothing is there; channels take turns.

        Raises PartitionFailed as soon as a producer is lost, ahead of what is still queued;
        ExchangeClosed after close().
        """
        with self._lock:
            if self._state is not GateState.OPEN:
                raise self._failure or ExchangeClosed(
                    f"the gate of consumer subtask {self.consumer} to result {self.result_id} is"
                    " closed"
                )
            while self._ready:
                index = self._ready.popleft()
                self._in_ready[index] = False
                channel = self._channels[index]
                if channel.available:
                    break
            else:
                return None
            element, grant = channel.take(self.max_rows)
            if channel.available:
                self._put_ready(index)
            upstream = self._upstreams[index]
        if upstream is not None:
            if isinstance(element, EndOfPartition):
                upstream.consumed()
            elif grant is not None:
                upstream.grant(grant.size_bytes, grant.events)
        return index, element

    def block(self, channel: int, reason: BlockReason) -> None:
        """Holds a channel back; its producer may go on until the window is full."""
        with self._lock:
            self._channels[channel].block(reason)

    def unblock(self, channel: int, reason: BlockReason) -> None:
        """Takes a reason back. The channel goes on when no other is left."""
        with self._lock:
            self._channels[channel].unblock(reason)
            available = self._channels[channel].available and self._put_ready(channel)
        if available:
            self.on_available()

    def restore(self, channel: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Puts batches that a checkpoint has overtaken before everything else of the channel."""
        with self._lock:
            self._channels[channel].restore(batches)
            available = self._channels[channel].available and self._put_ready(channel)
        if available:
            self.on_available()

    def record(self, channels: Sequence[int], checkpoint_id: int) -> None:
        """Begins to record what these channels have ahead of the checkpoint's barrier; an earlier
        recording ends.
        """
        with self._lock:
            for channel in self._channels:
                channel.recording = None
            for index in channels:
                self._channels[index].record(checkpoint_id)

    def recorded(self) -> dict[int, list[pa.RecordBatch]] | None:
        """The batches by channel; None until the last of the barriers has arrived, which makes
        something available.
        """
        with self._lock:
            recordings = {
                index: channel.recording
                for index, channel in enumerate(self._channels)
                if channel.recording is not None
            }
            if not all(recording.complete for recording in recordings.values()):
                return None
            return {index: recording.batches for index, recording in recordings.items()}

    def queued(self, channel: int) -> tuple[StreamElement, ...]:
        """The elements of a channel that were not polled yet, oldest first."""
        with self._lock:
            return self._channels[channel].queued

    def close(self) -> None:
        """Gives up what was not consumed; notifies the producers that have not ended."""
        with self._lock:
            if self._state is GateState.CLOSED:
                return
            self._become(GateState.CLOSED)
            unfinished = [i for i, channel in enumerate(self._channels) if channel.close()]
            upstreams = [
                upstream for i in unfinished if (upstream := self._upstreams[i]) is not None
            ]
            self._ready.clear()
        for upstream in upstreams:
            upstream.close()
        self._on_close(self)

    @property
    def in_pool_usage(self) -> float:
        """The share of all windows that is queued here, 0 to 1 (more while a batch larger than its
        window is).
        """
        return sum(channel.queued_bytes for channel in self._channels) / (
            len(self._channels) * self._window_bytes or 1
        )

    # -- the carriers' side

    def disconnect(self) -> None:
        """Notifies all producers that this gate is closed, again for those that were connected
        after it was.
        """
        for upstream in self._upstreams:
            if upstream is not None:
                upstream.close()

    def connect(self, index: int, upstream: Upstream) -> None:
        """Sets the way back for a channel, before its first element arrives."""
        self._upstreams[index] = upstream

    def receive(
        self, index: int, element: StreamElement, *, sequence: int, count: int, size_bytes: int
    ) -> bool:
        """Takes an element that arrived. True: the caller must call `on_available`, under no lock.
        Raises RemoteProtocolError.
        """
        with self._lock:
            channel = self._channels[index]
            recorded = channel.receive(
                element, sequence=sequence, count=count, size_bytes=size_bytes
            )
            self.bytes_in += size_bytes
            wake = channel.available and self._put_ready(index)
            if isinstance(element, CheckpointBarrier) and element.overtakes:
                self.arrived.append((index, element))
                return True
            return wake or recorded

    def fail(self, index: int, reason: str) -> bool:
        """A producer is lost. True: the caller must call `on_available`, under no lock."""
        with self._lock:
            if not self._channels[index].fail(reason):
                return False
            if self._state is GateState.OPEN:
                self._become(GateState.FAILED)
                producer = self.producers[index]
                self._failure = PartitionFailed(
                    result_id=self.result_id,
                    producer=producer.subtask,
                    attempt=producer.attempt,
                    address=producer.address,
                    reason=reason,
                )
            return True

    def _become(self, state: GateState) -> None:
        if state not in GATE_TRANSITIONS[self._state]:
            raise LocalProtocolError(
                f"the gate of consumer subtask {self.consumer} to result {self.result_id}:"
                f" {self._state.name} -> {state.name} is not a legal transition"
            )
        self._state = state

    def _put_ready(self, index: int) -> bool:
        """True if the task may have to be woken: until now `poll` had nothing."""
        if self._in_ready[index]:
            return False
        self._in_ready[index] = True
        self._ready.append(index)
        return len(self._ready) == 1
