"""The two halves of a logical channel: pure state, no I/O, no locks, no clock.

A channel leads from one producer subtask (and attempt) to one consumer subtask. `SenderChannel`
lives in the producer's `ResultPartition`, `ReceiverChannel` in the consumer's `InputGate`. Shells
carry what one half gives to the other: over Arrow Flight (server.py, client.py) or by a call
(partition.py, when both are in one process).

Sender:

    WAITING ──open──▶ OPEN ──EndOfPartition taken──▶ ENDED ──consumed──▶ FINISHED
       │                │                              │
       └────────────────┴───────────abort──────────────┴──▶ ABORTED
       └────────────────┴──────────abandon─────────────┴──▶ ABANDONED

Receiver:

    OPENING ──first element──▶ OPEN ──EndOfPartition received──▶ ENDED ──EndOfPartition taken──▶ FINISHED
       │                         │                                 │
       ├──────────fail───────────┴──▶ FAILED ◀── (never from ENDED: all was received, the producer may go)
       └──────────close──────────┴──────────close──────────────────┴──▶ CLOSED

Credit: a sender may be `window_bytes` ahead of its consumer: the bytes of everything offered and
not yet granted back stay within the window. A batch larger than the window is admitted when nothing
is outstanding. Events have a credit of their own, counted in elements, so that a barrier is not
held up by data that it does not need to wait for, and a flood of watermarks is bounded all the
same. What waits, travels or lies in the receiver's queue counts alike; so memory is bounded by
channels times window, wherever the elements are.

The receiver grants when an element is taken: in steps of a quarter of the window, and all that is
due whenever its queue runs empty. The latter makes sure that a sender which needs the whole window
for one large batch gets it. All that is due is granted at EndOfData too: its producer waits until
all data was taken (spec 001).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import pyarrow as pa

from firesteel.elements import EndOfData, EndOfPartition, StreamElement, StreamEvent

from .errors import LocalProtocolError, RemoteProtocolError

MAX_WAITING_EVENTS = (
    1024  # per channel; a sender that is that many events ahead of its consumer must wait
)


class SenderState(Enum):
    WAITING = 0
    OPEN = 1
    ENDED = 2
    FINISHED = 3
    ABORTED = 4
    ABANDONED = 5


class ReceiverState(Enum):
    OPENING = 0
    OPEN = 1
    ENDED = 2
    FINISHED = 3
    FAILED = 4
    CLOSED = 5


_S = SenderState
SENDER_TRANSITIONS: dict[SenderState, frozenset[SenderState]] = {
    _S.WAITING: frozenset(
        {
            _S.OPEN,  # the consumer has asked for the channel
            _S.ABORTED,  # the producer failed or was cancelled first
            _S.ABANDONED,  # the stream broke while it was asking
        }
    ),
    _S.OPEN: frozenset(
        {
            _S.ENDED,  # EndOfPartition is on its way
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

_R = ReceiverState
RECEIVER_TRANSITIONS: dict[ReceiverState, frozenset[ReceiverState]] = {
    _R.OPENING: frozenset(
        {
            _R.OPEN,  # the first element is there
            _R.FAILED,  # no such partition, or its process cannot be reached
            _R.CLOSED,  # the consumer was cancelled
        }
    ),
    _R.OPEN: frozenset(
        {
            _R.ENDED,  # EndOfPartition was received; elements may still wait to be taken
            _R.FAILED,  # the producer aborted, died, or broke the protocol
            _R.CLOSED,
        }
    ),
    _R.ENDED: frozenset(
        {
            _R.FINISHED,  # the consumer has taken EndOfPartition
            _R.CLOSED,
        }
    ),
    _R.FINISHED: frozenset(),
    _R.FAILED: frozenset(),
    _R.CLOSED: frozenset(),
}

# Tuples: they are looked into for every element, and hashing an Enum's member is slow.
_SENDER_ENDS = tuple(state for state, following in SENDER_TRANSITIONS.items() if not following)
_RECEIVER_ENDS = tuple(state for state, following in RECEIVER_TRANSITIONS.items() if not following)

State = TypeVar("State", SenderState, ReceiverState)


def _checked(name: str, table: dict[State, frozenset[State]], old: State, new: State) -> State:
    if new not in table[old]:
        raise LocalProtocolError(
            f"channel {name}: {old.name} -> {new.name} is not a legal transition"
        )
    return new


@dataclass(slots=True)
class Queued:
    """An element with what it weighs; `rows` is -1 for events."""

    element: StreamElement
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """What the sender hands over next: one event, or one batch, or several small batches to be sent
    as one.
    """

    sequence: int  # number of the first element
    count: int  # elements in it
    size_bytes: int  # of the batches; 0 for an event
    event: StreamEvent | None = None
    batches: tuple[pa.RecordBatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Credit that goes back to the sender."""

    size_bytes: int
    events: int


class SenderChannel:
    """The producer's half. `offer*` are for the task, the rest for whoever carries elements and
    grants.
    """

    __slots__ = (
        "_batch_rows", "_coalesce_bytes", "_end_offered", "_name", "_outstanding_bytes", "_outstanding_events", "_queue",
        "_sequence", "_window_bytes", "reason", "state",
    )  # fmt: skip

    def __init__(self, name: str, *, window_bytes: int, batch_rows: int) -> None:
        self.state = SenderState.WAITING
        self.reason = ""  # why it was aborted or abandoned
        self._name = name
        self._window_bytes = window_bytes
        self._batch_rows = batch_rows
        # Larger parcels would cost the copy and gain nothing; smaller ones keep several in flight
        # within the window.
        self._coalesce_bytes = max(1, window_bytes // 4)
        self._queue: deque[Queued] = deque()
        self._sequence = 0  # of the first element in the queue
        self._outstanding_bytes = 0  # offered and not granted back
        self._outstanding_events = 0
        self._end_offered = False

    # -- the task's side

    def offer(self, batch: pa.RecordBatch, size_bytes: int) -> bool:
        """Takes a batch if there is credit for it. False: wait for a grant, then offer again."""
        self._check_writable()
        if self._outstanding_bytes and self._outstanding_bytes + size_bytes > self._window_bytes:
            return False
        self._outstanding_bytes += size_bytes
        self._queue.append(Queued(batch, size_bytes, batch.num_rows))
        return True

    def offer_event(self, event: StreamEvent) -> bool:
        """Takes an event, in order with the batches, unless too many are ahead of the consumer."""
        self._check_writable()
        if self._outstanding_events >= MAX_WAITING_EVENTS:
            return False
        self._outstanding_events += 1
        self._end_offered = isinstance(event, EndOfPartition)
        self._queue.append(Queued(event, 0, -1))
        return True

    def abort(self, reason: str) -> None:
        """The producer gives up. Nothing happens if the channel is over already."""
        self._give_up(SenderState.ABORTED, reason)

    # -- the carrier's side

    def open(self) -> None:
        """The consumer asks for the channel: what waits may go."""
        if self.state is not SenderState.WAITING:
            raise RemoteProtocolError(
                f"channel {self._name}: opened a second time (it is {self.state.name})"
            )
        self._become(SenderState.OPEN)

    def take(self, *, coalesce: bool = True) -> Parcel | None:
        """What goes to the consumer next, small batches that wait behind each other together; None:
        nothing waits.
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
        """The consumer has taken this much. Late grants for a channel that is over are nobody's
        fault.
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
        """The consumer has taken EndOfPartition, so everything."""
        if self.state in (SenderState.ABORTED, SenderState.ABANDONED):
            return
        if self.state is not SenderState.ENDED:
            raise RemoteProtocolError(
                f"channel {self._name}: acknowledged as consumed while {self.state.name}"
            )
        self._outstanding_bytes = self._outstanding_events = 0
        self._become(SenderState.FINISHED)

    def abandon(self, reason: str) -> None:
        """The consumer is gone. Nothing happens if the channel is over already."""
        self._give_up(SenderState.ABANDONED, reason)

    # -- for everybody

    @property
    def over(self) -> bool:
        return self.state in _SENDER_ENDS

    @property
    def waiting(self) -> bool:
        """Whether `take` would return something."""
        return bool(self._queue) and self.state is SenderState.OPEN

    @property
    def acknowledged(self) -> bool:
        """Whether the consumer has taken all that was offered. Certain to become true only behind
        EndOfData or EndOfPartition.
        """
        return self.state is SenderState.FINISHED or not (
            self._queue or self._outstanding_bytes or self._outstanding_events
        )

    @property
    def outstanding_bytes(self) -> int:
        return self._outstanding_bytes

    @property
    def queued(self) -> tuple[StreamElement, ...]:
        """What still waits here, oldest first: what an unaligned checkpoint stores of this side."""
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
        self.state = _checked(self._name, SENDER_TRANSITIONS, self.state, state)


class ReceiverChannel:
    """The consumer's half. `take`, `blocked` and `close` are for the task, the rest for whoever
    carries elements.
    """

    __slots__ = (
        "_due_bytes", "_due_events", "_expected", "_grant_step_bytes", "_name", "_queue", "_queued_bytes", "blocked", "reason",
        "state",
    )  # fmt: skip

    def __init__(self, name: str, *, window_bytes: int) -> None:
        self.state = ReceiverState.OPENING
        self.reason = ""  # why it failed
        self.blocked = False  # a barrier's alignment holds it: it may fill up to its window, but is not taken from
        self._name = name
        self._grant_step_bytes = max(1, window_bytes // 4)
        self._queue: deque[Queued] = deque()
        self._queued_bytes = 0
        self._expected = 0  # number of the next element
        self._due_bytes = 0  # taken and not granted yet
        self._due_events = 0

    # -- the carrier's side

    def receive(
        self, element: StreamElement, *, sequence: int, count: int, size_bytes: int
    ) -> None:
        """Elements `sequence` to `sequence + count - 1`, the batches among them put together into
        one.
        """
        if self.over:
            return  # it was under way when this side gave up
        if self.state is ReceiverState.ENDED:
            raise RemoteProtocolError(
                f"channel {self._name}: element {sequence} was sent after EndOfPartition"
            )
        if sequence != self._expected or count < 1:
            raise RemoteProtocolError(
                f"channel {self._name}: element {self._expected} was expected, {sequence} came ({count} of them)"
            )
        self._expected += count
        if self.state is ReceiverState.OPENING:
            self._become(ReceiverState.OPEN)
        if isinstance(element, EndOfPartition):
            self._become(ReceiverState.ENDED)
        self._queued_bytes += size_bytes
        self._queue.append(
            Queued(
                element, size_bytes, element.num_rows if isinstance(element, pa.RecordBatch) else -1
            )
        )

    def fail(self, reason: str) -> bool:
        """The producer is lost; False: that does no harm (all was received) or is known already."""
        if self.state not in (ReceiverState.OPENING, ReceiverState.OPEN):
            return False
        self.reason = reason
        self._drop()
        self._become(ReceiverState.FAILED)
        return True

    # -- the task's side

    def take(self) -> tuple[StreamElement, Grant | None]:
        """The next element, and the credit to send back now, if any. Only when `available`."""
        queued = self._queue.popleft()
        self._queued_bytes -= queued.size_bytes
        if queued.rows < 0:
            self._due_events += 1
            if isinstance(queued.element, EndOfPartition):
                self._become(
                    ReceiverState.FINISHED
                )  # the carrier says "consumed" instead of granting
                return queued.element, None
        self._due_bytes += queued.size_bytes
        if (
            self._due_bytes >= self._grant_step_bytes
            or self._due_events >= MAX_WAITING_EVENTS // 4
            or (self._due_bytes and not self._queue)
            or isinstance(
                queued.element, EndOfData
            )  # its producer waits to hear that all data was taken
        ):
            grant = Grant(size_bytes=self._due_bytes, events=self._due_events)
            self._due_bytes = self._due_events = 0
            return queued.element, grant
        return queued.element, None

    def close(self) -> bool:
        """Gives up; True if the sender has to be told."""
        if self.over:
            return False
        self._drop()
        self._become(ReceiverState.CLOSED)
        return True

    # -- for everybody

    @property
    def available(self) -> bool:
        return bool(self._queue) and not self.blocked

    @property
    def over(self) -> bool:
        return self.state in _RECEIVER_ENDS

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    @property
    def queued(self) -> tuple[StreamElement, ...]:
        """What was received and not taken, oldest first: what an unaligned checkpoint stores of
        this side.
        """
        return tuple(q.element for q in self._queue)

    def _drop(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0

    def _become(self, state: ReceiverState) -> None:
        self.state = _checked(self._name, RECEIVER_TRANSITIONS, self.state, state)
