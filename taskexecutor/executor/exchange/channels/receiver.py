"""The consumer's half of a channel.

OPENING ──first element──▶ OPEN ──EndOfPartition received──▶ ENDED ──it is taken──▶ FINISHED
   │                         │                                 │
   ├──────────fail───────────┴──▶ FAILED (not from ENDED: all was received, the producer may go)
   └──────────close──────────┴──────────close──────────────────┴──▶ CLOSED
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum

import pyarrow as pa

from firesteel.elements import CheckpointBarrier, EndOfData, EndOfPartition, StreamElement
from taskexecutor.executor.exchange.channels.elements import MAX_WAITING_EVENTS, Grant, Queued
from taskexecutor.executor.exchange.errors import LocalProtocolError, RemoteProtocolError


class ReceiverState(Enum):
    OPENING = 0
    OPEN = 1
    ENDED = 2
    FINISHED = 3
    FAILED = 4
    CLOSED = 5


class BlockReason(Enum):
    """Why no elements are taken from a channel for now."""

    INPUT_ORDER = 0  # the operator reads another input to its end first
    BARRIER_ALIGNMENT = 1  # its barrier was taken, those of other channels were not


_R = ReceiverState
RECEIVER_TRANSITIONS: dict[ReceiverState, frozenset[ReceiverState]] = {
    _R.OPENING: frozenset(
        {
            _R.OPEN,  # the first element is there
            _R.FAILED,  # there is no such partition, or its process is unreachable
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

# A tuple, because it is searched for every element, and hashing an Enum member is slow.
_ENDS = tuple(state for state, following in RECEIVER_TRANSITIONS.items() if not following)


class Recording:
    """The batches ahead of a checkpoint's barrier in a channel, which belong to a checkpoint that
    overtakes them: those in the queue, and those that arrive before the barrier.
    """

    __slots__ = ("batches", "checkpoint_id", "complete")

    def __init__(self, checkpoint_id: int) -> None:
        self.checkpoint_id = checkpoint_id
        self.batches: list[pa.RecordBatch] = []
        self.complete = False  # nothing more is ahead of the barrier

    def add(self, element: StreamElement) -> bool:
        """Adds the next element. Returns True if it completes the recording."""
        if self.complete:
            return False
        match element:
            case pa.RecordBatch():
                self.batches.append(element)
            case CheckpointBarrier(checkpoint_id=checkpoint_id):
                self.complete = checkpoint_id == self.checkpoint_id
            case EndOfPartition():
                self.complete = True  # counts as the barrier of every later checkpoint
        return self.complete


class ReceiverChannel:
    """The task calls `restore`, `take`, `block`, `unblock`, `record` and `close`; the carrier of
    elements calls the other methods.
    """

    __slots__ = (
        "_blocks",
        "_due_bytes",
        "_due_events",
        "_expected",
        "_grant_step_bytes",
        "_name",
        "_queue",
        "_queued_bytes",
        "reason",
        "recording",
        "state",
    )

    def __init__(self, name: str, *, window_bytes: int) -> None:
        self.state = ReceiverState.OPENING
        self.recording: Recording | None = None  # for the checkpoint that overtakes data
        self.reason = ""  # why it failed
        self._name = name
        self._blocks: set[BlockReason] = set()
        self._grant_step_bytes = max(1, window_bytes // 4)
        self._queue: deque[Queued] = deque()
        self._queued_bytes = 0
        self._expected = 0  # number of the next element
        self._due_bytes = 0  # taken, and not granted yet
        self._due_events = 0

    # -- the carrier's side

    def receive(
        self, element: StreamElement, *, sequence: int, count: int, size_bytes: int
    ) -> bool:
        """Queues elements `sequence` to `sequence + count - 1`, with batches joined into one.
        Returns True if this completes a recording.
        """
        if self.over:
            return False  # sent before the sender knew that this half was closed
        if self.state is ReceiverState.ENDED:
            raise RemoteProtocolError(
                f"channel {self._name}: element {sequence} was sent after EndOfPartition"
            )
        if sequence != self._expected or count < 1:
            raise RemoteProtocolError(
                f"channel {self._name}: expected element {self._expected}, received {sequence}"
                f" (count {count})"
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
        return self.recording is not None and self.recording.add(element)

    def fail(self, reason: str) -> bool:
        """Records the loss of the producer. Returns False if that is harmless (everything was
        received) or already known.
        """
        if self.state not in (ReceiverState.OPENING, ReceiverState.OPEN):
            return False
        self.reason = reason
        self._drop()
        self._become(ReceiverState.FAILED)
        return True

    # -- the task's side

    def restore(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Puts a checkpoint's in-flight batches before everything that arrives. They use no
        credit.
        """
        self._queue.extendleft(Queued(b, 0, b.num_rows) for b in reversed(batches))

    def record(self, checkpoint_id: int) -> None:
        """Starts a recording and replaces an earlier one."""
        recording = Recording(checkpoint_id)
        for queued in self._queue:
            recording.add(queued.element)
        recording.complete |= self.state is ReceiverState.FINISHED
        self.recording = recording

    def take(self, max_rows: int | None = None) -> tuple[StreamElement, Grant | None]:
        """Returns the next element, and the credit to send back now, if any. Call it only if
        `available`. Takes at most `max_rows` rows of a larger batch; the other rows stay in the
        queue.
        """
        queued = self._queue.popleft()
        if max_rows is not None and queued.rows > max_rows:
            queued = self._split(queued, max_rows)
        self._queued_bytes -= queued.size_bytes
        if queued.rows < 0:
            self._due_events += 1
            if isinstance(queued.element, EndOfPartition):
                self._become(ReceiverState.FINISHED)  # acknowledged as consumed, not by a grant
                return queued.element, None
        self._due_bytes += queued.size_bytes
        if (
            self._due_bytes >= self._grant_step_bytes
            or self._due_events >= MAX_WAITING_EVENTS // 4
            or (self._due_bytes and not self._queue)
            # The producer waits until everything up to EndOfData, or a barrier after it, is taken.
            or isinstance(queued.element, EndOfData | CheckpointBarrier)
        ):
            grant = Grant(size_bytes=self._due_bytes, events=self._due_events)
            self._due_bytes = self._due_events = 0
            return queued.element, grant
        return queued.element, None

    def block(self, reason: BlockReason) -> None:
        """Blocks the channel while there is a reason; it may fill up to its window."""
        self._blocks.add(reason)

    def unblock(self, reason: BlockReason) -> None:
        self._blocks.discard(reason)

    def close(self) -> bool:
        """Closes the channel. Returns True if the sender must be notified."""
        if self.over:
            return False
        self._drop()
        self._become(ReceiverState.CLOSED)
        return True

    # -- both sides

    @property
    def available(self) -> bool:
        return bool(self._queue) and not self._blocks

    @property
    def over(self) -> bool:
        return self.state in _ENDS

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    @property
    def queue_length(self) -> int:
        return len(self._queue)

    @property
    def queued(self) -> tuple[StreamElement, ...]:
        """The elements that were not taken yet, oldest first."""
        return tuple(q.element for q in self._queue)

    def _split(self, queued: Queued, rows: int) -> Queued:
        """Returns the first rows and puts the others back."""
        assert isinstance(queued.element, pa.RecordBatch)
        size_bytes = queued.size_bytes * rows // queued.rows
        rest = Queued(
            queued.element.slice(rows), queued.size_bytes - size_bytes, queued.rows - rows
        )
        self._queue.appendleft(rest)
        return Queued(queued.element.slice(0, rows), size_bytes, rows)

    def _drop(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0

    def _become(self, state: ReceiverState) -> None:
        if state not in RECEIVER_TRANSITIONS[self.state]:
            raise LocalProtocolError(
                f"channel {self._name}: {self.state.name} -> {state.name} is not a legal transition"
            )
        self.state = state
