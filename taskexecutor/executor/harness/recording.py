"""Operators that record the order of a task's calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from firesteel.common.operator_messages import SplitAssigned, ToOperator
from firesteel.elements import MAX_TIMESTAMP_US, StreamStatus, Watermark
from firesteel.operator import (
    OperatorState,
    Output,
    RuntimeContext,
    SourceOperator,
    StreamOperator,
)
from taskexecutor.executor.timing.watermarks import ValveEvent


class Journal:
    """The calls in order, as "<operator>.<call>". A hook runs inside its call and may raise or
    block.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.hooks: dict[str, Callable[[], None]] = {}

    def note(self, operator: str, call: str) -> None:
        name = f"{operator}.{call}"
        self.calls.append(name)
        hook = self.hooks.get(name)
        if hook is not None:
            hook()

    def fail_in(self, name: str, error: BaseException) -> None:
        def fail() -> None:
            raise error

        self.hooks[name] = fail

    def of(self, *calls: str) -> list[str]:
        """Returns only these kinds of calls, such as "open" or "close"."""
        return [name for name in self.calls if name.split(".", 1)[1].split("(", 1)[0] in calls]


class _Recording(StreamOperator):
    """Records each life-cycle call in the journal."""

    def __init__(self, name: str, journal: Journal) -> None:
        self.name = name
        self.journal = journal

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self.journal.note(self.name, "setup")

    def initialize_state(self, state: OperatorState) -> None:
        self.state = state
        self.journal.note(self.name, "initialize_state")

    def open(self) -> None:
        self.journal.note(self.name, "open")

    def process_watermark(self, watermark: Watermark) -> None:
        at = "max" if watermark.timestamp_us == MAX_TIMESTAMP_US else watermark.timestamp_us
        self.journal.note(self.name, f"process_watermark({at})")
        super().process_watermark(watermark)

    def on_event_time(self, timestamp_us: int, key: Any, namespace: Any) -> None:
        self.journal.note(self.name, f"on_event_time({timestamp_us})")

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        self.journal.note(self.name, "on_processing_time")

    def handle_coordinator_event(self, event: ToOperator) -> None:
        self.journal.note(self.name, f"handle_coordinator_event({type(event).__name__})")

    def end_input(self, input_index: int) -> None:
        self.journal.note(self.name, f"end_input({input_index})")

    def finish(self) -> None:
        self.journal.note(self.name, "finish")

    def close(self) -> None:
        self.journal.note(self.name, "close")


class RecordingOperator(_Recording):
    """Forwards its batches after calling `on_batch(operator, batch, input)`, which may register
    timers, for example.
    """

    def __init__(
        self,
        name: str,
        journal: Journal,
        inputs: int = 1,
        on_batch: Callable[[RecordingOperator, pa.RecordBatch, int], None] | None = None,
    ) -> None:
        super().__init__(name, journal)
        self.inputs = inputs
        self.on_batch = on_batch

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        self.journal.note(self.name, f"process_batch({input_index})")
        if self.on_batch is not None:
            self.on_batch(self, batch, input_index)
        self.output.emit(batch)


class RecordingSource(_Recording, SourceOperator):
    """Emits its elements, one per poll, and then ends, or if `endless` waits for mails."""

    inputs = 0
    poll_interval_s = None

    def __init__(
        self,
        name: str,
        journal: Journal,
        elements: Sequence[pa.RecordBatch | ValveEvent],
        endless: bool = False,
    ) -> None:
        super().__init__(name, journal)
        self.elements = deque(elements)
        self.endless = endless
        self._polled = 0
        self.splits = 0  # assigned splits

    def poll(self, max_wait_s: float) -> bool:
        self.waiting = False
        if not self.elements:
            self.waiting = self.endless
            self.journal.note(self.name, "exhausted" if not self.endless else "waits")
            return self.endless
        self.journal.note(self.name, "poll")
        self._polled += 1
        element = self.elements.popleft()
        if isinstance(element, Watermark):
            self.output.emit_watermark(element)
        elif isinstance(element, StreamStatus):
            self.output.emit_status(element)
        else:
            self.output.emit(element)
        return True

    @property
    def splits_received(self) -> int:
        return self.splits

    def handle_coordinator_event(self, event: ToOperator) -> None:
        super().handle_coordinator_event(event)
        if isinstance(event, SplitAssigned):
            self.splits += 1

    def position(self) -> list[int]:
        """Returns the number of emitted elements and of assigned splits."""
        return [self._polled, self.splits]

    def restore(self, position: list[int]) -> None:
        """Continues after the emitted elements."""
        polled, self.splits = position
        for _ in range(polled):
            self.elements.popleft()
        self._polled = polled
