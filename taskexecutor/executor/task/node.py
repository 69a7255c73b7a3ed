"""One runtime operator in a task's chain, with what surrounds it: its inputs, its timers, its
output.

Calls go forward: a node's operator emits into its output, which calls the next nodes or hands over
to result partitions.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from firesteel.common.operator_messages import Resend, ToOperator, WatermarkLimit
from firesteel.elements import MAX_WATERMARK, MIN_TIMESTAMP_US, StreamStatus, Watermark
from firesteel.operator import StreamOperator, TaskCancelled
from firesteel.plan.specs import WatermarkAlignmentSpec
from taskexecutor.executor.state import TaskOperatorState
from taskexecutor.executor.task.interfaces import ResultPartition
from taskexecutor.executor.task.metrics import OperatorMetrics
from taskexecutor.executor.task.runtime_context import OperatorContext, TaskEnvironment
from taskexecutor.executor.timing.clock import TaskClock, TimeKind
from taskexecutor.executor.timing.timers import OperatorTimers, TaskTimers
from taskexecutor.executor.timing.watermark_alignment import Alignment
from taskexecutor.executor.timing.watermarks import ValveEvent, WatermarkValve


class Target(Protocol):
    """Where one output leads to."""

    def batch(self, batch: pa.RecordBatch) -> None: ...

    def event(self, event: ValveEvent) -> None: ...

    def finished(self) -> None:
        """The producing operator has finished; end of data is on its way."""


class NodeTarget:
    """An input of another operator of the chain. Several targets may lead to one input: a union."""

    __slots__ = ("_channel", "_input_index", "_node")

    def __init__(self, node: ChainNode, input_index: int) -> None:
        self._node = node
        self._input_index = input_index
        self._channel = node.add_producer(input_index)

    def batch(self, batch: pa.RecordBatch) -> None:
        self._node.process_batch(batch, self._input_index)

    def event(self, event: ValveEvent) -> None:
        self._node.on_event(self._channel, event)

    def finished(self) -> None:
        self._node.producer_ended(self._input_index)


class PartitionTarget:
    """A result partition: whatever leaves the task."""

    __slots__ = ("_clock", "partition")

    def __init__(self, partition: ResultPartition, clock: TaskClock) -> None:
        self.partition = partition
        self._clock = clock

    def batch(self, batch: pa.RecordBatch) -> None:
        self._clock.enter(TimeKind.EXCHANGE)
        try:
            self.partition.emit(batch)
        finally:
            self._clock.leave()

    def event(self, event: ValveEvent) -> None:
        self._clock.enter(TimeKind.EXCHANGE)
        try:
            self.partition.emit_event(event)
        finally:
            self._clock.leave()

    def finished(self) -> None:
        """EndOfData is the task's to send, once all its operators have finished."""


class ChainOutput:
    """The `firesteel.operator.Output` of a node. Watermarks only go forward; empty batches go
    nowhere.
    """

    __slots__ = (
        "_environment",
        "_idle",
        "_metrics",
        "_name",
        "_sealed_by",
        "_side",
        "_targets",
        "watermark_us",
    )

    def __init__(self, environment: TaskEnvironment, metrics: OperatorMetrics) -> None:
        self._environment = environment
        self._metrics = metrics
        self._name = metrics.operator_name
        self._targets: list[Target] = []
        self._side: dict[str, list[Target]] = {}
        self._idle = False
        self._sealed_by = ""  # what has been called after which nothing may be emitted
        self.watermark_us = MIN_TIMESTAMP_US

    def add(self, target: Target, side_output_tag: str = "") -> None:
        if side_output_tag:
            self._side.setdefault(side_output_tag, []).append(target)
        else:
            self._targets.append(target)

    @property
    def targets(self) -> list[Target]:
        return [*self._targets, *(target for targets in self._side.values() for target in targets)]

    def emit(self, batch: pa.RecordBatch) -> None:
        self._send(batch, self._targets)

    def emit_side(self, tag: str, batch: pa.RecordBatch) -> None:
        self._send(batch, self._side.get(tag, ()))

    def emit_watermark(self, watermark: Watermark) -> None:
        self._before_emission()
        if watermark.timestamp_us <= self.watermark_us:
            return
        if self._idle:
            self._forward_status(StreamStatus(False))
        self.watermark_us = watermark.timestamp_us
        for target in self.targets:
            target.event(watermark)

    def emit_status(self, status: StreamStatus) -> None:
        self._before_emission()
        if status.idle != self._idle:
            self._forward_status(status)

    def seal(self, called: str) -> None:
        """From now on, to emit is an error of the operator."""
        self._sealed_by = called

    def _send(self, batch: pa.RecordBatch, targets: list[Target] | tuple[()]) -> None:
        self._before_emission()
        if batch.num_rows == 0:
            return
        if self._idle:
            self._forward_status(StreamStatus(False))
        self._metrics.records_out += batch.num_rows
        for target in targets:
            target.batch(batch)

    def _before_emission(self) -> None:
        if self._environment.cancelled:
            raise TaskCancelled
        if self._sealed_by:
            raise RuntimeError(
                f"operator {self._name} emits after {self._sealed_by}(); emit what is left in finish()"
            )

    def _forward_status(self, status: StreamStatus) -> None:
        self._idle = status.idle
        for target in self.targets:
            target.event(status)


class ChainNode:
    """A runtime operator: one operator of the vertex, or a run of them that Spark executes as one
    plan.
    """

    def __init__(
        self,
        *,
        members: tuple[int, ...],
        member_ids: tuple[str, ...],
        operator: StreamOperator,
        inputs: int,
        metrics: OperatorMetrics,
        output: ChainOutput,
    ) -> None:
        self.members = members  # indices into the vertex' operators
        self.member_ids = member_ids
        self.operator = operator
        self.metrics = metrics
        self.output = output
        self.context: OperatorContext
        self.timers: OperatorTimers
        self.alignment: Alignment | None = (
            None  # it tells the event time of a source in an alignment group
        )
        self.state: TaskOperatorState | None = None
        self._valve = WatermarkValve(0)  # one channel per producer, whichever input it feeds
        self._producers = [0] * inputs  # per input: those that have not ended
        self._ended = [False] * inputs
        self._must_close = False

    @property
    def name(self) -> str:
        return self.metrics.operator_name

    @property
    def watermark_us(self) -> int:
        """The operator's event time, as far as its inputs say."""
        return self._valve.watermark_us if self._producers else self.output.watermark_us

    def add_producer(self, input_index: int) -> int:
        """One more feeds this input; returns its number for `on_event`."""
        self._producers[input_index] += 1
        return self._valve.add_channel()

    def align(self, spec: WatermarkAlignmentSpec, task_timers: TaskTimers) -> None:
        """Its output is that of a source in an alignment group, and the alignment is to be one of
        that output's targets.
        """
        timers = task_timers.for_operator(
            _no_event_time, lambda timestamp_ms, key, namespace: alignment.on_timer()
        )
        alignment = Alignment(
            spec, self.context.send_to_coordinator, timers.register_processing_time
        )
        self.alignment = self.context.alignment = self.metrics.alignment = alignment

    # -- life

    def setup(self) -> None:
        self._must_close = True  # even if it raises: it may have acquired something by then
        self.operator.setup(self.context, self.output)

    def initialize_state(self, state: TaskOperatorState) -> None:
        self.state = state
        self.operator.initialize_state(state)

    def finish(self) -> None:
        for input_index, ended in enumerate(self._ended):
            if not ended:
                self._end_input(input_index)
        self.operator.flush()
        self.operator.finish()
        self.output.seal("finish")
        for target in self.output.targets:
            target.finished()

    def close(self) -> None:
        """Closes the operator if it was set up and is not closed yet."""
        if not self._must_close:
            return
        self._must_close = False
        self.output.seal("close")
        try:
            self.operator.close()
        finally:
            if self.state is not None:
                self.state.close()

    # -- data

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        self.metrics.records_in += batch.num_rows
        self.operator.process_batch(batch, input_index)

    def on_event(self, channel: int, event: ValveEvent) -> None:
        """A producer's watermark or status."""
        if isinstance(event, Watermark):
            combined = self._valve.on_watermark(channel, event.timestamp_us)
        else:
            combined = self._valve.on_status(channel, event.idle)
        for outcome in combined:
            if isinstance(outcome, Watermark):
                self.advance_watermark(outcome)
            else:
                self.operator.flush()
                self.output.emit_status(outcome)

    def advance_watermark(self, watermark: Watermark) -> None:
        """Event time advances; what is held back as a bundle belongs before it."""
        self.operator.flush()
        self.timers.advance_watermark(watermark.timestamp_us)
        self.operator.process_watermark(watermark)

    def advance_to_end_of_event_time(self) -> None:
        if self.timers.current_watermark_us < MAX_WATERMARK.timestamp_us:
            self.advance_watermark(MAX_WATERMARK)
        self.output.emit_watermark(MAX_WATERMARK)  # even if the operator keeps watermarks to itself

    def handle_coordinator_event(self, event: ToOperator) -> None:
        alignment = self.alignment
        if alignment is not None and isinstance(event, WatermarkLimit):
            alignment.limit(event.limit_us)
            return
        if alignment is not None and isinstance(event, Resend):
            alignment.report()
        self.operator.handle_coordinator_event(event)

    def producer_ended(self, input_index: int) -> None:
        """One of the input's producers has ended; the input ends with the last of them."""
        self._producers[input_index] -= 1
        if self._producers[input_index] == 0 and not self._ended[input_index]:
            self._end_input(input_index)

    def _end_input(self, input_index: int) -> None:
        self._ended[input_index] = True
        self.operator.flush()
        self.operator.end_input(input_index)


def _no_event_time(timestamp_us: int, key: Any, namespace: Any) -> None:
    raise AssertionError("an alignment has no timers in event time")
