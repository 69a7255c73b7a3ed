"""The consumer's end of one edge: the task takes the elements that have arrived, from its channels
in turn.

The task's thread polls; carriers (a Flight stream's reader, or a producer's task in this process)
deliver. One lock guards the receiver halves. No call leaves this module while the lock is held:
credit is returned and `on_available` is called after its release.

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
            _S.FAILED,  # a producer was lost before all of it was received
            _S.CLOSED,  # the task has taken everything, or ended early
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
    """Sends credit and acknowledgements to one channel's producer. Calls never block, and do not
    raise if the producer is gone.
    """

    def grant(self, size_bytes: int, events: int) -> None: ...

    def consumed(self) -> None: ...

    def close(self) -> None: ...


class InputGate:
    """`producers[i]` feeds channel i."""

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
        # Batches with more rows are polled in parts, so that a step of the task does not take long.
        self.max_rows: int | None = None
        # Barriers that may overtake data, with their channels, as they arrive. The task takes them
        # from here to decide; they also stay in their channels.
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
        self._failure: PartitionFailed | None = None  # the first failure, set once FAILED

    # -- the task's side

    @property
    def channels(self) -> int:
        return len(self._channels)

    @property
    def closed(self) -> bool:
        return self._state is GateState.CLOSED

    def poll(self) -> tuple[int, StreamElement] | None:
        """Returns the next element with its channel, or None if nothing is available; channels take
        turns.

        Raises PartitionFailed as soon as a producer is lost, ahead of queued elements, and
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
        """Blocks a channel; its producer may continue until the window is full."""
        with self._lock:
            self._channels[channel].block(reason)

    def unblock(self, channel: int, reason: BlockReason) -> None:
        """Removes a reason. The channel resumes when no reason is left."""
        with self._lock:
            self._channels[channel].unblock(reason)
            available = self._channels[channel].available and self._put_ready(channel)
        if available:
            self.on_available()

    def restore(self, channel: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Puts a checkpoint's in-flight batches before everything else of the channel."""
        with self._lock:
            self._channels[channel].restore(batches)
            available = self._channels[channel].available and self._put_ready(channel)
        if available:
            self.on_available()

    def record(self, channels: Sequence[int], checkpoint_id: int) -> None:
        """Starts to record the data ahead of the checkpoint's barrier in these channels; ends an
        earlier recording.
        """
        with self._lock:
            for channel in self._channels:
                channel.recording = None
            for index in channels:
                self._channels[index].record(checkpoint_id)

    def recorded(self) -> dict[int, list[pa.RecordBatch]] | None:
        """Returns the recorded batches by channel, or None until the last of the barriers has
        arrived, which wakes the task.
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
        """Returns the elements of a channel that were not polled yet, oldest first."""
        with self._lock:
            return self._channels[channel].queued

    def close(self) -> None:
        """Drops unconsumed elements and notifies the producers that have not ended."""
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
        """Returns the queued share of all windows, 0 to 1 (more while a batch larger than its
        window is queued).
        """
        return sum(channel.queued_bytes for channel in self._channels) / (
            len(self._channels) * self._window_bytes or 1
        )

    @property
    def queue_length(self) -> int:
        """Returns the number of elements that were not polled yet."""
        return sum(channel.queue_length for channel in self._channels)

    # -- the carriers' side

    def disconnect(self) -> None:
        """Notifies all producers that this gate is closed, including those connected after it was
        closed.
        """
        for upstream in self._upstreams:
            if upstream is not None:
                upstream.close()

    def connect(self, index: int, upstream: Upstream) -> None:
        """Sets a channel's upstream before its first element arrives."""
        self._upstreams[index] = upstream

    def receive(
        self, index: int, element: StreamElement, *, sequence: int, count: int, size_bytes: int
    ) -> bool:
        """Queues an element that arrived. If it returns True, the caller must call `on_available`,
        without holding a lock. Raises RemoteProtocolError.
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
        """Records the loss of a producer. If it returns True, the caller must call `on_available`,
        without holding a lock.
        """
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
        """Queues the channel for polling. Returns True if `poll` had nothing until now, so the task
        may have to be woken.
        """
        if self._in_ready[index]:
            return False
        self._in_ready[index] = True
        self._ready.append(index)
        return len(self._ready) == 1
