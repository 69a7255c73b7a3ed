"""The base of operators whose keys expire with the watermark of a query, by Spark's rules.

The watermark is state, because forgotten keys must stay late after a restore. A subtask that
continues keeps its watermark. If the parallelism has changed, all continue at the latest one: keys
up to it may have been forgotten.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from firesteel.elements import MAX_WATERMARK, StreamStatus, Watermark
from firesteel.operator import OperatorState, Output, RuntimeContext, StreamOperator, TaskInfo

FIRST_WATERMARK_US = 0  # Spark's watermark before any row

_Kept = tuple[int, int, int]  # subtask, parallelism, watermark


class QueryOperator(StreamOperator):
    """With `at_barriers`, rows and then the watermark are emitted only before barriers. Without
    `expires`, no key expires, and the watermark is not stored. The end of event time expires
    nothing.
    """

    def __init__(self, *, expires: bool = True, at_barriers: bool = False) -> None:
        self._has_expiry = expires
        self._at_barriers = at_barriers
        self._watermark_us = FIRST_WATERMARK_US
        self._watermarks: list[_Kept] = []
        self._held: Watermark | None = None
        self._idle = False
        self._has_due = False  # there may be restored keys of a subtask with an earlier watermark

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._late = context.counter("numLateRecordsDropped")

    @abstractmethod
    def expire(self) -> None:
        """Forgets the keys that the watermark has reached."""

    def emit_held(self) -> None:
        """Emits the rows that are held back until a barrier."""

    def initialize_state(self, state: OperatorState) -> None:
        if self._has_expiry:
            self._watermarks = state.union_list_state("watermarks")
            self._watermark_us = _restored(self._watermarks, self.context.task)
            self._has_due = bool(self._watermarks)

    def snapshot_state(self, checkpoint_id: int) -> None:
        task = self.context.task
        self._watermarks[:] = [(task.subtask, task.parallelism, self._watermark_us)]

    def process_watermark(self, watermark: Watermark) -> None:
        later = watermark != MAX_WATERMARK and watermark.timestamp_us > self._watermark_us
        if later:
            self._watermark_us = watermark.timestamp_us
        if self._has_expiry and (later or self._has_due):
            self._has_due = False
            self.expire()
        if self._at_barriers:
            self._held = watermark
        else:
            self.output.emit_watermark(watermark)

    def process_status(self, status: StreamStatus) -> None:
        self._idle = status.idle
        self.output.emit_status(status)

    def prepare_barrier(self, checkpoint_id: int) -> None:
        if self._has_expiry:
            self._has_due = False
            self.expire()
        self.emit_held()
        held, self._held = self._held, None
        if held is not None:
            self.output.emit_watermark(held)
        if self._idle:
            self.output.emit_status(StreamStatus(True))  # again, after rows


def _restored(items: Sequence[_Kept], task: TaskInfo) -> int:
    """Returns the watermark at which the subtask continues."""
    mine = (task.subtask, task.parallelism)
    own = [watermark_us for *of, watermark_us in items if tuple(of) == mine]
    every = [watermark_us for *_, watermark_us in items]
    return max(own or every, default=FIRST_WATERMARK_US)
