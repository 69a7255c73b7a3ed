"""An in-memory exchange: result partitions and input gates of one process, without a network."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import pyarrow as pa

from firesteel.common.job_graph import DistributionPattern, Partitioner, pointwise_producers
from firesteel.elements import CheckpointBarrier, EndOfPartition, StreamElement, StreamEvent
from taskexecutor.executor.exchange import BlockReason, Locations
from taskexecutor.executor.exchange.channels.receiver import Recording
from taskexecutor.executor.exchange.errors import (
    ExchangeClosed,
    PartitionAbandoned,
    PartitionFailed,
)
from taskexecutor.executor.exchange.partitioning.routing import Routing, make_routing


class _Channel:
    """A channel from one producer subtask to one consumer subtask."""

    def __init__(self) -> None:
        self.queue: deque[StreamElement] = deque()
        self.gate: MemoryGate | None = None
        self.index = 0  # its number in the gate
        self.blocks: set[BlockReason] = set()
        self.recording: Recording | None = None


class MemoryExchange:
    """Result partitions and input gates of one process, connected by result, producer and attempt.

    A producer may be up to `capacity` elements ahead of its consumer. By default, elements for a
    channel without a consumer count as consumed, so that a task can run without its consumers;
    `await_consumers=True` waits for them instead. `MemoryPartition.sent` keeps every emitted
    element.
    """

    def __init__(self, capacity: int = 16, await_consumers: bool = False) -> None:
        self.capacity = capacity
        self.await_consumers = await_consumers
        self.changed = threading.Condition()
        self.partitions: dict[tuple[str, int, int], MemoryPartition] = {}
        self.gates: list[MemoryGate] = []
        self._channels: dict[tuple[str, int, int, int], _Channel] = {}

    def create_partition(
        self,
        *,
        job_id: str,
        result_id: str,
        producer: int,
        attempt: int,
        partitioner: Partitioner,
        producers: int,
        consumers: int,
        max_parallelism: int,
        key_columns: tuple[str, ...],
        on_credit: Callable[[], None] | None = None,
        blocking: bool = False,
    ) -> MemoryPartition:
        routing = make_routing(
            partitioner,
            producer=producer,
            producers=producers,
            consumers=consumers,
            max_parallelism=max_parallelism,
            key_columns=key_columns,
            batch_rows=65536,
        )
        with self.changed:
            channels = [
                self._channel(result_id, producer, attempt, consumer)
                for consumer in routing.targets
            ]
            partition = MemoryPartition(self, result_id, producer, attempt, routing, channels)
            self.partitions[(result_id, producer, attempt)] = partition
            return partition

    def create_gate(
        self,
        *,
        job_id: str,
        result_id: str,
        consumer: int,
        producers: int,
        consumers: int,
        pattern: DistributionPattern,
        locations: Locations | None,
        on_available: Callable[[], None],
    ) -> MemoryGate:
        """`locations` may be None: every producer's attempt is then 0."""
        pointwise = pattern is DistributionPattern.POINTWISE
        from_producers = (
            pointwise_producers(consumer, producers, consumers) if pointwise else range(producers)
        )
        attempts = [
            0 if locations is None else locations.attempts[producer] for producer in from_producers
        ]
        with self.changed:
            sources = zip(from_producers, attempts, strict=True)
            channels = [
                self._channel(result_id, producer, attempt, consumer)
                for producer, attempt in sources
            ]
            gate = MemoryGate(self, channels, on_available)
            self.gates.append(gate)
        return gate

    def _channel(self, result_id: str, producer: int, attempt: int, consumer: int) -> _Channel:
        return self._channels.setdefault((result_id, producer, attempt, consumer), _Channel())


class MemoryPartition:
    """See taskexecutor.executor.exchange.ResultPartition."""

    stored = None

    def __init__(
        self,
        exchange: MemoryExchange,
        result_id: str,
        producer: int,
        attempt: int,
        routing: Routing,
        channels: list[_Channel],
    ) -> None:
        self.records_out = self.bytes_out = self.blocked_ns = self.write_ns = 0
        self.blocked = False
        self.overdrawn = False
        self.out_pool_usage = 0.0
        self.queue_length = 0
        self.sent: list[StreamElement] = []  # everything emitted, in order
        self.closed = False
        self.aborted = False
        self._error: Exception | None = None
        self._exchange = exchange
        self._result_id = result_id
        self._producer = producer
        self._attempt = attempt
        self._routing = routing
        self._channels = channels

    def emit(self, batch: pa.RecordBatch) -> None:
        for index, piece in self._routing.route(batch):
            self._offer(self._channels[index], piece)
        self.sent.append(batch)
        self.records_out += batch.num_rows
        self.bytes_out += batch.nbytes

    def emit_event(self, event: StreamEvent) -> None:
        for channel in self._channels:
            self._offer(channel, event)
        self.sent.append(event)

    def await_acknowledged(self) -> None:
        self._wait(lambda: all(self._consumed(channel) for channel in self._channels))

    def finish(self) -> None:
        if not self.sent or not isinstance(self.sent[-1], EndOfPartition):
            raise ValueError("finish() comes after EndOfPartition")
        self.await_acknowledged()

    def abort(self) -> None:
        with self._exchange.changed:
            if self.closed or self.aborted:
                return
            self.aborted = True
            self._error = self._error or ExchangeClosed("the partition was aborted")
            gates = [channel.gate for channel in self._channels if channel.gate is not None]
            for gate in gates:
                gate.failure = PartitionFailed(
                    result_id=self._result_id,
                    producer=self._producer,
                    attempt=self._attempt,
                    address="memory",
                    reason="aborted",
                )
            self._exchange.changed.notify_all()
        for gate in gates:
            gate.on_available()

    def close(self) -> None:
        self.closed = True

    def abandoned(self, reason: str) -> None:
        """Records that a consumer closed its gate early. Called with the exchange's lock held."""
        if not self.closed and self._error is None:
            self._error = PartitionAbandoned(
                result_id=self._result_id, producer=self._producer, consumer=0, reason=reason
            )

    def feeds(self, channel: _Channel) -> bool:
        return channel in self._channels

    def _offer(self, channel: _Channel, element: StreamElement) -> None:
        self._wait(lambda: len(channel.queue) < self._exchange.capacity or self._unread(channel))
        with self._exchange.changed:
            channel.queue.append(element)
            if channel.recording is not None:
                channel.recording.add(element)
            gate = channel.gate
            if gate is not None and isinstance(element, CheckpointBarrier) and element.overtakes:
                gate.arrived.append((channel.index, element))
        if gate is not None:
            gate.on_available()

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._exchange.changed:
            self._exchange.changed.wait_for(lambda: self._error is not None or condition())
            if self._error is not None:
                raise self._error

    def _unread(self, channel: _Channel) -> bool:
        return channel.gate is None and not self._exchange.await_consumers

    def _consumed(self, channel: _Channel) -> bool:
        return not channel.queue or self._unread(channel)


class MemoryGate:
    """See taskexecutor.executor.exchange.InputGate."""

    def __init__(
        self, exchange: MemoryExchange, channels: list[_Channel], on_available: Callable[[], None]
    ) -> None:
        self.bytes_in = 0
        self.in_pool_usage = 0.0
        self.queue_length = 0
        self.max_rows: int | None = None  # ignored: elements are few and small
        self.arrived: deque[tuple[int, CheckpointBarrier]] = deque()
        self.on_available = on_available
        self.failure: PartitionFailed | None = None
        self.closed = False
        self._exchange = exchange
        self._channels = channels
        self._turn = 0
        self._ended: set[int] = set()
        for index, channel in enumerate(channels):
            channel.gate, channel.index = self, index
            for element in channel.queue:
                if isinstance(element, CheckpointBarrier) and element.overtakes:
                    self.arrived.append((index, element))

    @property
    def channels(self) -> int:
        return len(self._channels)

    def poll(self) -> tuple[int, StreamElement] | None:
        with self._exchange.changed:
            if self.failure is not None:
                raise self.failure
            for _ in self._channels:
                index = self._turn
                self._turn = (index + 1) % len(self._channels)
                channel = self._channels[index]
                if channel.queue and not channel.blocks:
                    element = channel.queue.popleft()
                    if isinstance(element, pa.RecordBatch):
                        self.bytes_in += element.nbytes
                    elif isinstance(element, EndOfPartition):
                        self._ended.add(index)
                    self._exchange.changed.notify_all()
                    return index, element
        return None

    def block(self, channel: int, reason: BlockReason) -> None:
        self._channels[channel].blocks.add(reason)

    def unblock(self, channel: int, reason: BlockReason) -> None:
        self._channels[channel].blocks.discard(reason)
        self.on_available()

    def restore(self, channel: int, batches: Sequence[pa.RecordBatch]) -> None:
        self._channels[channel].queue.extendleft(reversed(batches))
        self.on_available()

    def record(self, channels: Sequence[int], checkpoint_id: int) -> None:
        with self._exchange.changed:
            for index, channel in enumerate(self._channels):
                channel.recording = Recording(checkpoint_id) if index in channels else None
                if channel.recording is None:
                    continue
                for element in channel.queue:
                    channel.recording.add(element)
                channel.recording.complete |= index in self._ended

    def recorded(self) -> dict[int, list[pa.RecordBatch]] | None:
        with self._exchange.changed:
            recordings = {
                index: channel.recording
                for index, channel in enumerate(self._channels)
                if channel.recording is not None
            }
            if not all(recording.complete for recording in recordings.values()):
                return None
            return {index: recording.batches for index, recording in recordings.items()}

    def close(self) -> None:
        with self._exchange.changed:
            if self.closed:
                return
            self.closed = True
            for index, channel in enumerate(self._channels):
                if index not in self._ended:
                    for partition in self._exchange.partitions.values():
                        if partition.feeds(channel):
                            partition.abandoned("the consumer closed its gate")
            self._exchange.changed.notify_all()
