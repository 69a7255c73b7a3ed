"""The producer's half of a channel.

WAITING ──open──▶ OPEN ──EndOfPartition taken──▶ ENDED ──consumed──▶ FINISHED
   │                │                              │
   └────────────────┴───────────abort──────────────┴──▶ ABORTED
   └────────────────┴──────────abandon─────────────┴──▶ ABANDONED
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import pyarrow as pa

from firesteel.elements import EndOfPartition, StreamElement, StreamEvent
from taskexecutor.executor.exchange.channels.elements import MAX_WAITING_EVENTS, Parcel, Queued
from taskexecutor.executor.exchange.errors import LocalProtocolError, RemoteProtocolError


class SenderState(Enum):
    WAITING = 0
    OPEN = 1
    ENDED = 2
    FINISHED = 3
    ABORTED = 4
    ABANDONED = 5


_S = SenderState
SENDER_TRANSITIONS: dict[SenderState, frozenset[SenderState]] = {
    _S.WAITING: frozenset(
        {
            _S.OPEN,  # the consumer has asked for the channel
            _S.ABORTED,  # the producer failed or was cancelled first
            _S.ABANDONED,  # the stream broke while the consumer was opening it
        }
    ),
    _S.OPEN: frozenset(
        {
            _S.ENDED,  # EndOfPartition was sent
            _S.ABORTED,
            _S.ABANDONED,  # the consumer closed its gate, or its process died
        }
    ),
    _S.ENDED: frozenset(
        {
            _S.FINISHED,  # the consumer has taken EndOfPartition
            _S.ABORTED,  # cancelled before the consumer was done
            _S.ABANDONED,
        }
    ),
    _S.FINISHED: frozenset(),
    _S.ABORTED: frozenset(),
    _S.ABANDONED: frozenset(),
}

# A tuple, because it is searched for every element, and hashing an Enum member is slow.
_ENDS = tuple(state for state, following in SENDER_TRANSITIONS.items() if not following)


class SenderChannel:
    """The task calls `offer`, `offer_event` and `abort`; the carrier of elements and grants calls
    the other methods.
    """

    __slots__ = (
        "_batch_rows",
        "_coalesce_bytes",
        "_end_offered",
        "_name",
        "_outstanding_bytes",
        "_outstanding_events",
        "_overdraft_bytes",
        "_queue",
        "_sequence",
        "_window_bytes",
        "reason",
        "state",
    )

    def __init__(
        self, name: str, *, window_bytes: int, batch_rows: int, overdraft_bytes: int = 0
    ) -> None:
        """`overdraft_bytes`: how far the task may exceed the window, and at most double the events,
        until it has processed its current element.
        """
        self.state = SenderState.WAITING
        self.reason = ""  # why it was aborted or abandoned
        self._name = name
        self._window_bytes = window_bytes
        self._batch_rows = batch_rows
        self._overdraft_bytes = overdraft_bytes
        # Larger parcels would cost a copy without benefit; smaller ones keep several in flight
        # within the window.
        self._coalesce_bytes = max(1, window_bytes // 4)
        self._queue: deque[Queued] = deque()
        self._sequence = 0  # of the first element in the queue
        self._outstanding_bytes = 0  # offered and not granted back
        self._outstanding_events = 0
        self._end_offered = False

    # -- the task's side

    def offer(self, batch: pa.RecordBatch, size_bytes: int) -> bool:
        """Queues a batch if there is credit for it. If it returns False, wait for a grant and offer
        the batch again.
        """
        self._check_writable()
        limit_bytes = self._window_bytes + self._overdraft_bytes
        if self._outstanding_bytes and self._outstanding_bytes + size_bytes > limit_bytes:
            return False
        self._outstanding_bytes += size_bytes
        self._queue.append(Queued(batch, size_bytes, batch.num_rows))
        return True

    def offer_event(self, event: StreamEvent) -> bool:
        """Queues an event, in order with the batches, unless too many are ahead of the consumer."""
        self._check_writable()
        if self._outstanding_events >= MAX_WAITING_EVENTS * (2 if self._overdraft_bytes else 1):
            return False
        self._outstanding_events += 1
        self._end_offered = isinstance(event, EndOfPartition)
        self._queue.append(Queued(event, 0, -1))
        return True

    def abort(self, reason: str) -> None:
        """Aborts the channel on the producer's behalf. Ignored after the channel's end."""
        self._give_up(SenderState.ABORTED, reason)

    # -- the carrier's side

    def open(self) -> None:
        """Opens the channel for the consumer: queued elements may be sent."""
        if self.state is not SenderState.WAITING:
            raise RemoteProtocolError(
                f"channel {self._name}: opened a second time (it is {self.state.name})"
            )
        self._become(SenderState.OPEN)

    def take(self, *, coalesce: bool = True) -> Parcel | None:
        """Returns the next parcel for the consumer, or None if nothing is waiting. Coalesces
        consecutive small batches.
        """
        if not self._queue or self.state is not SenderState.OPEN:
            return None
        first = self._queue.popleft()
        sequence, self._sequence = self._sequence, self._sequence + 1
        if first.rows < 0:
            event: StreamEvent = first.element
            if isinstance(event, EndOfPartition):
                self._become(SenderState.ENDED)
            return Parcel(sequence=sequence, count=1, size_bytes=0, event=event)
        batches, rows, size_bytes = [first.element], first.rows, first.size_bytes
        while coalesce and self._queue:
            following = self._queue[0]
            if (
                following.rows < 0
                or rows + following.rows > self._batch_rows
                or size_bytes + following.size_bytes > self._coalesce_bytes
            ):
                break
            self._queue.popleft()
            batches.append(following.element)
            rows += following.rows
            size_bytes += following.size_bytes
        self._sequence += len(batches) - 1
        return Parcel(
            sequence=sequence, count=len(batches), size_bytes=size_bytes, batches=tuple(batches)
        )

    def granted(self, size_bytes: int, events: int) -> None:
        """Returns credit for elements that the consumer has taken. Late grants, after the channel's
        end, are ignored.
        """
        if self.over:
            return
        if (
            not 0 <= size_bytes <= self._outstanding_bytes
            or not 0 <= events <= self._outstanding_events
        ):
            raise RemoteProtocolError(
                f"channel {self._name}: {size_bytes} bytes and {events} events granted, but only"
                f" {self._outstanding_bytes} and {self._outstanding_events} are outstanding"
            )
        self._outstanding_bytes -= size_bytes
        self._outstanding_events -= events

    def consumed(self) -> None:
        """Records that the consumer has taken EndOfPartition, and so everything."""
        if self.state in (SenderState.ABORTED, SenderState.ABANDONED):
            return
        if self.state is not SenderState.ENDED:
            raise RemoteProtocolError(
                f"channel {self._name}: acknowledged as consumed while {self.state.name}"
            )
        self._outstanding_bytes = self._outstanding_events = 0
        self._become(SenderState.FINISHED)

    def abandon(self, reason: str) -> None:
        """Records the loss of the consumer. Ignored after the channel's end."""
        self._give_up(SenderState.ABANDONED, reason)

    # -- both sides

    @property
    def over(self) -> bool:
        return self.state in _ENDS

    @property
    def waiting(self) -> bool:
        """Whether `take` would return a parcel."""
        return bool(self._queue) and self.state is SenderState.OPEN

    @property
    def acknowledged(self) -> bool:
        """Whether the consumer has taken everything offered. Certain to become true only after
        EndOfData, a barrier or EndOfPartition.
        """
        return self.state is SenderState.FINISHED or not (
            self._queue or self._outstanding_bytes or self._outstanding_events
        )

    @property
    def overdrawn(self) -> bool:
        """Whether the task must not start another element."""
        return self._overdraft_bytes > 0 and (
            self._outstanding_bytes >= self._window_bytes
            or self._outstanding_events >= MAX_WAITING_EVENTS
        )

    @property
    def outstanding_bytes(self) -> int:
        return self._outstanding_bytes

    @property
    def queue_length(self) -> int:
        return len(self._queue)

    @property
    def queued(self) -> tuple[StreamElement, ...]:
        """The queued elements, oldest first."""
        return tuple(q.element for q in self._queue)

    def _check_writable(self) -> None:
        if self._end_offered or self.over:
            raise LocalProtocolError(
                f"channel {self._name}: nothing may be sent after its end (it is {self.state.name})"
            )

    def _give_up(self, state: SenderState, reason: str) -> None:
        if self.over:
            return
        self.reason = reason
        self._queue.clear()
        self._outstanding_bytes = self._outstanding_events = 0
        self._become(state)

    def _become(self, state: SenderState) -> None:
        if state not in SENDER_TRANSITIONS[self.state]:
            raise LocalProtocolError(
                f"channel {self._name}: {self.state.name} -> {state.name} is not a legal transition"
            )
        self.state = state
