"""One runtime operator in a task's chain, with its inputs, its timers and its output.

Calls go forward: a node's operator emits into its output, which calls the next nodes or writes to
result partitions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from firesteel.common.checkpoints.key_group_content import (
    EVENT_TIME_TIMERS,
    PROCESSING_TIME_TIMERS,
)
from firesteel.common.ids import OperatorId
from firesteel.common.operator_messages import Resend, ToOperator, WatermarkLimit
from firesteel.elements import MAX_WATERMARK, MIN_TIMESTAMP_US, StreamStatus, Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import SourceOperator, StreamOperator
from firesteel.operators import WatermarkAlignmentSpec
from firesteel.operators.watermarks import MULTIPLE_WATERMARK_POLICY
from taskexecutor.executor.operator_factory import check_checkpointed
from taskexecutor.executor.state import OperatorStateSnapshot, TaskOperatorState
from taskexecutor.executor.task.chain.context import OperatorContext
from taskexecutor.executor.task.chain.output import ChainOutput
from taskexecutor.executor.task.environment import TaskEnvironment
from taskexecutor.executor.task.metrics import OperatorMetrics
from taskexecutor.executor.timing.timers import OperatorTimers, TaskTimers, Timer
from taskexecutor.executor.timing.watermark_alignment import WatermarkAlignment
from taskexecutor.executor.timing.watermarks import ValveEvent, valve_of_inputs

_POSITION = "firesteel.position"  # the list state that holds a source's position

P = ParamSpec("P")
T = TypeVar("T")


def _attributed(
    method: Callable[Concatenate[ChainNode, P], T],
) -> Callable[Concatenate[ChainNode, P], T]:
    """Attributes errors of the method to the node's operator. Operators call each other through
    these methods, so that the first attribution of an error is the right one.
    """

    @functools.wraps(method)
    def attributed(node: ChainNode, /, *arguments: P.args, **named: P.kwargs) -> T:
        try:
            return method(node, *arguments, **named)
        except BaseException as error:
            node.environment.attribute(error, node.metrics.operator_id)
            raise

    return attributed


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
        environment: TaskEnvironment,
        metrics: OperatorMetrics,
        output: ChainOutput,
        timers: OperatorTimers,
        context: OperatorContext,
        watermark_alignment: WatermarkAlignment | None,
    ) -> None:
        self.members = members  # indices into the vertex's operators
        self.member_ids = member_ids
        self.operator = operator
        self.environment = environment
        self.metrics = metrics
        self.output = output
        self.timers = timers
        self.context = context
        self.watermark_alignment = watermark_alignment  # of the source whose output this is
        self.state: TaskOperatorState | None = None
        # One channel per producer, over all inputs.
        self._valve = valve_of_inputs(environment.config.get(MULTIPLE_WATERMARK_POLICY, ""))
        self._producers = [0] * inputs  # per input: the number of producers that have not ended
        self._ended = [False] * inputs
        self._must_close = False
        self._restored_us = MIN_TIMESTAMP_US  # earlier watermarks are ignored

    @property
    def name(self) -> str:
        return self.metrics.operator_name

    @property
    def watermark_us(self) -> int:
        """Returns the operator's event time: of its combined inputs, or of its output for a
        source.
        """
        return self._valve.watermark_us if self._producers else self.output.watermark_us

    def add_producer(self, input_index: int) -> int:
        """Adds a producer to an input and returns the producer's number for `on_event`."""
        self._producers[input_index] += 1
        return self._valve.add_channel()

    # -- life cycle

    @_attributed
    def setup(self) -> None:
        self._must_close = True  # even if it raises: it may have acquired resources
        self.operator.setup(self.context, self.output)

    @_attributed
    def initialize_state(self, state: TaskOperatorState) -> None:
        self.state = state
        self.metrics.state_statistics = state.keyed.statistics
        if state.restored_watermark_us is not None:
            self._restored_us = state.restored_watermark_us
            self.timers.restore_watermark(self._restored_us)
        saved = not self.operator.keeps_timers
        self.timers.keep_in(
            state.keyed.timers(EVENT_TIME_TIMERS, saved=saved),
            state.keyed.timers(PROCESSING_TIME_TIMERS, saved=saved),
        )
        self.operator.initialize_state(state)

    @_attributed
    def open(self) -> None:
        self.operator.open()
        if self.state is not None and (left := self.state.not_taken):
            raise FiresteelError(
                f"{self.name} does not know the state {', '.join(map(repr, left))}, which an"
                " operator of another kind stored under its uid; give it a unique uid"
            )
        if not isinstance(self.operator, SourceOperator) or self.state is None:
            return
        positions = self.state.list_state(_POSITION)
        if positions:
            one = positions[0] if len(positions) == 1 else self.operator.merged(positions)
            self.operator.restore(one)

    @property
    def finished_before(self) -> bool:
        """Returns whether all subtasks had finished in the restored checkpoint. Such an operator
        has emitted everything; only its end is signalled again (spec 001).
        """
        return self.state is not None and self.state.finished_before

    @_attributed
    def finish(self) -> None:
        for input_index, ended in enumerate(self._ended):
            if not ended:
                self._end_input(input_index)
        if not self.finished_before:
            self.operator.flush()
            self.operator.finish()
        if self.operator.emits_at_end:
            self.output.emit_watermark(MAX_WATERMARK)
        self.output.seal("finish")
        for target in self.output.targets:
            target.finished()

    @_attributed
    def stop(self) -> None:
        self.operator.stop()

    @_attributed
    def close(self) -> None:
        """Closes the operator if it was set up and is not closed."""
        if not self._must_close:
            return
        self._must_close = False
        self.output.seal("close")
        try:
            self.operator.close()
        finally:
            if self.state is not None:
                self.state.close()

    # -- checkpoints

    def check_checkpointed(self) -> None:
        check_checkpointed(self.operator, self.name)

    @_attributed
    def prepare_barrier(self, checkpoint_id: int) -> None:
        self.operator.flush()
        self.operator.prepare_barrier(checkpoint_id)

    @_attributed
    def snapshot(self, checkpoint_id: int) -> tuple[OperatorId, OperatorStateSnapshot]:
        """Returns the node's state, under the id of its first member."""
        assert self.state is not None
        if self.finished_before:
            return OperatorId(self.member_ids[0]), self.state.snapshot()
        self.operator.snapshot_state(checkpoint_id)
        if isinstance(self.operator, SourceOperator):
            self.state.list_state(_POSITION)[:] = [self.operator.position()]
        reached_us = self.timers.current_watermark_us
        # The end of event time is not stored: after a restore, rows may follow.
        ended = reached_us >= MAX_WATERMARK.timestamp_us
        watermark_us = reached_us if self.operator.keeps_event_time and not ended else None
        return OperatorId(self.member_ids[0]), self.state.snapshot(watermark_us)

    @_attributed
    def notify_checkpoint(self, checkpoint_id: int, *, completed: bool) -> None:
        if completed:
            self.operator.notify_checkpoint_complete(checkpoint_id)
        else:
            self.operator.notify_checkpoint_aborted(checkpoint_id)

    # -- data

    @_attributed
    def poll(self) -> bool:
        """Lets a source emit rows. Returns whether more may follow."""
        assert isinstance(self.operator, SourceOperator)
        return self.operator.poll(0.0)

    @_attributed
    def report_idle(self) -> None:
        """Marks the output of a source as idle, after all rows that it has read."""
        self.operator.flush()
        self.output.emit_status(StreamStatus(True))

    @_attributed
    def flush(self) -> None:
        self.operator.flush()

    @_attributed
    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        self.metrics.records_in += batch.num_rows
        self.operator.process_batch(batch, input_index)

    @_attributed
    def on_event(self, channel: int, event: ValveEvent) -> None:
        """Handles a producer's watermark or status."""
        if isinstance(event, Watermark):
            combined = self._valve.on_watermark(channel, event.timestamp_us)
        else:
            combined = self._valve.on_status(channel, event.idle)
        for outcome in combined:
            if isinstance(outcome, Watermark):
                self.advance_watermark(outcome)
            else:
                self.operator.flush()
                self.operator.process_status(outcome)

    @_attributed
    def advance_watermark(self, watermark: Watermark) -> None:
        """Advances event time, after flushing the current bundle."""
        if watermark.timestamp_us <= self._restored_us:
            return
        self.operator.flush()
        self.timers.advance_watermark(watermark.timestamp_us)
        self.operator.process_watermark(watermark)

    @_attributed
    def advance_to_end_of_event_time(self) -> None:
        if self.timers.current_watermark_us < MAX_WATERMARK.timestamp_us:
            self.advance_watermark(MAX_WATERMARK)
        if not self.operator.emits_at_end:
            self.output.emit_watermark(MAX_WATERMARK)  # even if the operator forwards none

    @_attributed
    def handle_coordinator_event(self, event: ToOperator) -> None:
        alignment = self.watermark_alignment
        if alignment is not None and isinstance(event, WatermarkLimit):
            alignment.limit(event.limit_us)
            return
        if alignment is not None and isinstance(event, Resend):
            alignment.report()
        self.operator.handle_coordinator_event(event)

    @_attributed
    def producer_ended(self, input_index: int) -> None:
        """Counts an ended producer of the input; the input ends with the last of them."""
        self._producers[input_index] -= 1
        if self._producers[input_index] == 0 and not self._ended[input_index]:
            self._end_input(input_index)

    def _end_input(self, input_index: int) -> None:
        self._ended[input_index] = True
        if self.finished_before:
            return
        self.operator.flush()
        self.operator.end_input(input_index)


class NodeTarget:
    """An input of another operator of the chain. Several targets may lead to one input: a union."""

    __slots__ = ("_channel", "_input_index", "node")

    def __init__(self, node: ChainNode, input_index: int) -> None:
        self.node = node
        self._input_index = input_index
        self._channel = node.add_producer(input_index)

    def batch(self, batch: pa.RecordBatch) -> None:
        self.node.process_batch(batch, self._input_index)

    def event(self, event: ValveEvent) -> None:
        self.node.on_event(self._channel, event)

    def finished(self) -> None:
        self.node.producer_ended(self._input_index)


def create_node(
    operator: StreamOperator,
    *,
    members: tuple[int, ...],
    member_ids: tuple[str, ...],
    metrics: OperatorMetrics,
    environment: TaskEnvironment,
    timers: TaskTimers,
    input_schemas: Sequence[pa.Schema | None],  # one per input
    output_schema: pa.Schema | None,
    watermark_alignment: WatermarkAlignmentSpec | None,
    chained: bool,
) -> ChainNode:
    """Creates a node with everything around its operator, except targets. The watermark alignment,
    if there is one, becomes the last target of the output.
    """
    metrics.plan_counts.computes = operator.computes
    operator_timers = timers.for_operator(
        operator.on_event_times,  # inside advance_watermark
        environment.attributed(metrics.operator_id, operator.on_processing_time),
    )
    alignment = None
    if watermark_alignment is not None:
        alignment = _align(watermark_alignment, environment, metrics.operator_id, timers)
        metrics.watermark_alignment = alignment
    return ChainNode(
        members=members,
        member_ids=member_ids,
        operator=operator,
        inputs=len(input_schemas),
        environment=environment,
        metrics=metrics,
        output=ChainOutput(environment, metrics),
        timers=operator_timers,
        context=OperatorContext(
            environment,
            metrics=metrics,
            timers=operator_timers,
            input_schemas=tuple(input_schemas),
            output_schema=output_schema,
            watermark_alignment=alignment,
            chained=chained,
        ),
        watermark_alignment=alignment,
    )


def _align(
    spec: WatermarkAlignmentSpec,
    environment: TaskEnvironment,
    operator_id: str,
    task_timers: TaskTimers,
) -> WatermarkAlignment:
    timers = task_timers.for_operator(
        _no_event_time, lambda timestamp_ms, key, namespace: alignment.on_timer()
    )
    alignment = WatermarkAlignment(
        spec,
        lambda report: environment.send_message(operator_id, report),
        timers.register_processing_time,
    )
    return alignment


def _no_event_time(due: Iterator[Timer]) -> None:
    raise AssertionError("a watermark alignment has no timers in event time")
