"""The producer's end of one edge: partitions the task's output, and holds it until its consumers
have taken it.

The task's thread calls `emit`, `emit_event`, `finish`; any thread calls `abort` and `close`;
carriers (a Flight stream, or the consumer's gate in this process) call the rest. One lock guards
the sender halves of all channels. A gate's lock may be taken under it, but not the other way round,
and callbacks are called after its release.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from firesteel.elements import StreamElement, StreamEvent
from taskexecutor.executor.exchange.channels import Parcel, SenderChannel, SenderState
from taskexecutor.executor.exchange.errors import (
    ExchangeClosed,
    ExchangeError,
    PartitionAbandoned,
    RemoteProtocolError,
)
from taskexecutor.executor.exchange.partitioning import Routing
from taskexecutor.executor.exchange.schema import StreamSchema

# With an overdraft: how far the output of one element may exceed the windows of all channels, or
# one window if that is more. Beyond that, the task waits in the middle of the element, and delays
# checkpoints.
OVERDRAFT_BYTES = 32 * 2**20

Wakeup = Callable[[], None]


@dataclass(frozen=True, slots=True)
class PartitionId:
    job_id: str
    result_id: str
    producer: int
    attempt: int

    def __str__(self) -> str:
        return (
            f"partition of producer subtask {self.producer}, attempt {self.attempt}, of result"
            f" {self.result_id}"
        )


class Carrier(Protocol):
    """Delivers one channel's elements to its consumer."""

    def ready(self, wakeups: list[Wakeup]) -> None:
        """Called when elements are waiting in the channel, or when it was aborted. Called under the
        partition's lock: add callbacks to `wakeups` to have them called after its release.
        """


class ScheduledCarrier(Carrier, Protocol):
    """A carrier whose own thread takes the waiting elements."""

    scheduled: bool  # its thread is going to take; guarded by the partition's lock


class AttachedPartition(Protocol):
    """The part of a partition that carriers and the registry use, whether it is being written or
    complete.
    """

    id: PartitionId

    @property
    def aborted_because(self) -> str | None:
        """The reason that later consumers get; None if the partition was not aborted."""

    def abort(self, reason: str) -> None: ...

    def close(self) -> None: ...

    def attach(
        self, consumer: int, make_carrier: Callable[[int], Carrier], wakeups: list[Wakeup]
    ) -> None: ...

    def take(self, carrier: ScheduledCarrier, index: int) -> Parcel | None: ...

    def abort_reason(self, index: int) -> str | None: ...

    def granted(self, index: int, size_bytes: int, events: int) -> None: ...

    def consumed(self, index: int) -> None: ...

    def abandoned(self, index: int, reason: str) -> None: ...

    def fail(self, error: ExchangeError) -> None: ...


class ResultPartition:
    stored = None  # a partition of a stream is not stored

    def __init__(
        self,
        partition_id: PartitionId,
        routing: Routing,
        *,
        window_bytes: int,
        batch_rows: int,
        on_close: Callable[[ResultPartition], None] = lambda partition: None,
        on_credit: Callable[[], None] | None = None,
    ) -> None:
        """`on_credit` wakes the task, which checks `overdrawn` before each element and sleeps while
        it is true. With it, the output of one element may exceed the credit.
        """
        self.id = partition_id
        self.records_out = 0
        self.bytes_out = 0
        self.write_ns = 0  # partitioning and queueing, without waiting for credit
        self._routing = routing
        self._window_bytes = window_bytes
        self._on_close = on_close
        # Waiting for credit: the total of past waits, and the start of the current one (0: none).
        # One tuple, so that a reader sees a consistent pair.
        self._blocked: tuple[int, int] = (0, 0)
        self._schema = StreamSchema(partition_id)
        self._lock = threading.Lock()
        # Credit arrived, a channel ended, or the partition broke.
        self._changed = threading.Condition(self._lock)
        self._changes = 0
        self._broken: ExchangeError | None = None  # raised by every further emit
        self._indices = {consumer: index for index, consumer in enumerate(routing.targets)}
        self._on_credit = on_credit
        self._overdrawn: set[int] = set()  # indices of channels
        overdraft_bytes = (
            0 if on_credit is None else max(window_bytes, OVERDRAFT_BYTES // len(routing.targets))
        )
        self._channels = [
            SenderChannel(
                f"{partition_id} to consumer subtask {consumer}",
                window_bytes=window_bytes,
                batch_rows=batch_rows,
                overdraft_bytes=overdraft_bytes,
            )
            for consumer in routing.targets
        ]
        self._carriers: list[Carrier | None] = [None] * len(self._channels)

    # -- the task's side

    def emit(self, batch: pa.RecordBatch) -> None:
        """Partitions a batch and queues it; blocks while a channel that receives a part of it has
        no credit.

        Raises ExchangeClosed after abort(), PartitionAbandoned when a consumer is gone,
        SchemaChanged.
        """
        started_ns = time.perf_counter_ns()
        blocked_before_ns, _ = self._blocked
        self._schema.check(batch)
        offers = [
            (index, piece, self._schema.size_bytes(piece))
            for index, piece in self._routing.route(batch)
        ]
        self._offer_all(offers)
        self.records_out += batch.num_rows
        self.bytes_out += sum(size_bytes for _, _, size_bytes in offers)
        self.write_ns += (
            time.perf_counter_ns() - started_ns - (self._blocked[0] - blocked_before_ns)
        )

    def emit_event(self, event: StreamEvent) -> None:
        """Sends an event to every channel, after everything emitted before. Raises like `emit`."""
        self._offer_all([(index, event, -1) for index in range(len(self._channels))])

    def await_acknowledged(self) -> None:
        """Returns when every consumer has taken EndOfData, and so all data. Raises like `emit`."""
        with self._lock:
            while self._broken is None and not all(
                channel.acknowledged for channel in self._channels
            ):
                self._changed.wait()
            self._raise_if_broken()

    def finish(self) -> None:
        """Returns when every consumer has taken EndOfPartition, and so everything. Raises like
        `emit`.
        """
        with self._lock:
            while self._broken is None and not all(
                channel.state is SenderState.FINISHED for channel in self._channels
            ):
                self._changed.wait()
            self._raise_if_broken()

    def abort(self, reason: str = "its task failed or was cancelled") -> None:
        """Unblocks the task, and fails the consumers that have not received everything. May be
        called from any thread.
        """
        self._break(ExchangeClosed(f"{self.id} was aborted: {reason}"), reason)

    def close(self) -> None:
        """Frees all resources. Consumers that have not consumed everything see a failed
        partition.
        """
        self.abort("it was closed before it was consumed")
        self._on_close(self)

    @property
    def aborted_because(self) -> str | None:
        """The reason that later consumers get; None if the partition was not aborted."""
        with self._lock:
            return next(
                (
                    channel.reason
                    for channel in self._channels
                    if channel.state is SenderState.ABORTED
                ),
                None,
            )

    @property
    def blocked_ns(self) -> int:
        """The time that the task has waited for credit, including the current wait."""
        waited_ns, since_ns = self._blocked
        return waited_ns + (time.perf_counter_ns() - since_ns if since_ns else 0)

    @property
    def blocked(self) -> bool:
        """Whether the task is waiting for credit."""
        return self._blocked[1] != 0

    @property
    def overdrawn(self) -> bool:
        """Whether the task must not start another element, because a channel has no credit left."""
        return bool(self._overdrawn) and self._broken is None

    @property
    def channels(self) -> int:
        return len(self._channels)

    @property
    def out_pool_usage(self) -> float:
        """The used share of all windows, 0 to 1 (more while a batch larger than its window is in
        transit).
        """
        return sum(channel.outstanding_bytes for channel in self._channels) / (
            len(self._channels) * self._window_bytes or 1
        )

    @property
    def queue_length(self) -> int:
        """The number of elements that were not sent yet."""
        return sum(channel.queue_length for channel in self._channels)

    def queued(self, channel: int) -> tuple[StreamElement, ...]:
        """Returns the elements of a channel that were not sent yet, oldest first."""
        with self._lock:
            return self._channels[channel].queued

    # -- the carriers' side

    def attach(
        self, consumer: int, make_carrier: Callable[[int], Carrier], wakeups: list[Wakeup]
    ) -> None:
        """Attaches a consumer to its channel; `make_carrier` gets the channel's index. Raises
        RemoteProtocolError.
        """
        index = self._indices.get(consumer)
        if index is None:
            raise RemoteProtocolError(f"{self.id} has no channel to consumer subtask {consumer}")
        with self._lock:
            channel = self._channels[index]
            if channel.state is not SenderState.ABORTED:
                channel.open()
            carrier = self._carriers[index] = make_carrier(index)
            if channel.waiting or channel.state is SenderState.ABORTED:
                carrier.ready(wakeups)

    def take(self, carrier: ScheduledCarrier, index: int) -> Parcel | None:
        """Returns the next parcel for a scheduled carrier, and schedules it again if more elements
        are waiting.
        """
        with self._lock:
            channel = self._channels[index]
            parcel = channel.take(coalesce=self._schema.coalesces)
            carrier.scheduled = False
            if channel.waiting:
                carrier.ready([])
            return parcel

    def take_locked(self, index: int) -> Parcel | None:
        """Like `take`, without coalescing, for a carrier within `Carrier.ready`."""
        return self._channels[index].take(coalesce=False)

    def abort_reason(self, index: int) -> str | None:
        """Returns why the channel was aborted; None if it was not. Needs no lock, since an abort is
        final.
        """
        channel = self._channels[index]
        return channel.reason if channel.state is SenderState.ABORTED else None

    def granted(self, index: int, size_bytes: int, events: int) -> None:
        with self._lock:
            channel = self._channels[index]
            channel.granted(size_bytes, events)
            self._notify()
            credit = index in self._overdrawn and not channel.overdrawn
            if credit:
                self._overdrawn.discard(index)
        if credit and self._on_credit is not None:
            self._on_credit()

    def consumed(self, index: int) -> None:
        with self._lock:
            self._channels[index].consumed()
            self._notify()

    def abandoned(self, index: int, reason: str) -> None:
        """Records the loss of a channel's consumer: the current or next emit raises."""
        with self._lock:
            channel = self._channels[index]
            if channel.over:
                return
            channel.abandon(reason)
            if self._broken is None:
                self._broken = PartitionAbandoned(
                    result_id=self.id.result_id,
                    producer=self.id.producer,
                    consumer=self._routing.targets[index],
                    reason=reason,
                )
            self._notify()
        if self._on_credit is not None:
            self._on_credit()

    def fail(self, error: ExchangeError) -> None:
        """Fails the partition because a carrier cannot continue: the task's next emit raises
        `error`.
        """
        self._break(error, str(error))

    # -- inside

    def _offer_all(self, offers: list[tuple[int, pa.RecordBatch | StreamEvent, int]]) -> None:
        """Offers everything, waiting for credit if necessary. A full channel does not delay the
        others.
        """
        while True:
            wakeups: list[Wakeup] = []
            with self._lock:
                self._raise_if_broken()
                offers = self._offer_what_fits(offers, wakeups)
                seen = self._changes
            for wakeup in wakeups:
                wakeup()
            if not offers:
                return
            waited_ns, started_ns = self._blocked[0], time.perf_counter_ns()
            self._blocked = (waited_ns, started_ns)
            with self._lock:
                if self._changes == seen:
                    self._changed.wait()
            self._blocked = (waited_ns + time.perf_counter_ns() - started_ns, 0)

    def _offer_what_fits(
        self, offers: list[tuple[int, pa.RecordBatch | StreamEvent, int]], wakeups: list[Wakeup]
    ) -> list[tuple[int, pa.RecordBatch | StreamEvent, int]]:
        refused: list[tuple[int, pa.RecordBatch | StreamEvent, int]] = []
        full: set[int] = set()
        for offer in offers:
            index, element, size_bytes = offer
            channel = self._channels[index]
            # No element may overtake a refused one.
            if index in full or not (
                channel.offer_event(element)
                if size_bytes < 0
                else channel.offer(element, size_bytes)
            ):
                full.add(index)
                refused.append(offer)
                continue
            if channel.overdrawn:
                self._overdrawn.add(index)
            carrier = self._carriers[index]
            if carrier is not None:
                carrier.ready(wakeups)
        return refused

    def _break(self, error: ExchangeError, reason: str) -> None:
        wakeups: list[Wakeup] = []
        with self._lock:
            if self._broken is None:
                self._broken = error
            for channel, carrier in zip(self._channels, self._carriers, strict=True):
                if not channel.over:
                    channel.abort(reason)
                    if carrier is not None:
                        carrier.ready(wakeups)
            self._notify()
        for wakeup in wakeups:
            wakeup()
        if self._on_credit is not None:
            self._on_credit()

    def _notify(self) -> None:
        self._changes += 1
        self._changed.notify_all()

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            raise self._broken
