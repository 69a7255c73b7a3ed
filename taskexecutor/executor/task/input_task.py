"""A task with one or more inputs, each fed by one or more gates (spec 001, life of non-source
tasks).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import assert_never

import pyarrow as pa

from firesteel.common.ids import OperatorId
from firesteel.common.job_graph import (
    DistributionPattern,
    JobEdge,
    Partitioner,
    pointwise_producers,
)
from firesteel.elements import (
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    StreamElement,
    StreamStatus,
    Watermark,
)
from firesteel.operators.watermarks import MULTIPLE_WATERMARK_POLICY
from taskexecutor.executor.exchange import BlockReason
from taskexecutor.executor.exchange.partitioning import key_groups, subtask_of_group
from taskexecutor.executor.task.chain import NodeTarget, OperatorChain
from taskexecutor.executor.task.checkpoints.alignment import (
    Aligned,
    BarrierAlignment,
    Channel,
    GivenUp,
    Hold,
    Outcome,
    Overtake,
    Release,
)
from taskexecutor.executor.task.checkpoints.task_checkpoints import InputInFlight, TaskCheckpoints
from taskexecutor.executor.task.config import TaskConfig
from taskexecutor.executor.task.input import InputReader
from taskexecutor.executor.task.interfaces import Exchange, InputGate
from taskexecutor.executor.task.loop import Step
from taskexecutor.executor.task.metrics import TaskMetricGroup
from taskexecutor.executor.timing.watermarks import SettledWatermark, WatermarkValve

# The time and rows of a step where checkpoints may overtake.
TARGET_S = 0.1
FIRST_ROWS = 1000
_MAX_ROWS = 2**20


class StepRows:
    """Limits the rows of a step where checkpoints may overtake: a snapshot waits until the current
    step has ended. Starts small and doubles, so that it recovers quickly from one slow step, such
    as the first run of a plan.
    """

    def __init__(self) -> None:
        self.limit = FIRST_ROWS

    def on_step(self, rows: int, took_s: float) -> bool:
        """Adjusts the limit to a step. Returns True if the limit changed."""
        before = self.limit
        if took_s > 2 * TARGET_S:
            self.limit = max(1, min(rows // 2, int(rows * TARGET_S / took_s)))
        elif rows >= before and took_s < TARGET_S / 2:
            self.limit = min(before * 2, _MAX_ROWS)
        return self.limit != before


class InputTask:
    """See `step.TaskKind`."""

    def __init__(
        self,
        config: TaskConfig,
        exchange: Exchange,
        chain: OperatorChain,
        metrics: TaskMetricGroup,
        wake: Callable[[], None],
        checkpoints: TaskCheckpoints | None = None,
        *,
        overtakes: bool = False,
    ) -> None:
        """`overtakes`: checkpoints may overtake, so a step must not take long."""
        self._config = config
        self._exchange = exchange
        self._chain = chain
        self._metrics = metrics
        self._wake = wake
        self._checkpoints = checkpoints
        self._gates: list[InputGate] = []
        # Per gate: the node that it feeds, and the index of that node's input.
        self._entries = [chain.entry(edge) for edge, _, _ in config.in_edges]
        self._targets = [NodeTarget(node, input_index) for node, input_index in self._entries]
        self._heads = list({id(node): node for node, _ in self._entries}.values())
        # Per gate: the producer subtask of each channel.
        self._producers = [
            pointwise_producers(config.subtask, producers, config.vertex.parallelism)
            if edge.pattern is DistributionPattern.POINTWISE
            else range(producers)
            for edge, producers, _ in config.in_edges
        ]
        self._step_rows = StepRows() if overtakes else None
        # Gates that are blocked, with the gates that must end first.
        self._held_back: dict[int, list[int]] = {}
        self._on_initialized: Callable[[], None] | None = None
        self._reader: InputReader
        self._alignment: BarrierAlignment

    def init(self) -> None:
        """Connects to the producers, which may not have started yet. Restored in-flight data is
        read before new data.
        """
        config = self._config
        for edge, producers, locations in config.in_edges:
            self._gates.append(
                self._exchange.create_gate(
                    job_id=config.job_id,
                    result_id=edge.result_id,
                    consumer=config.subtask,
                    producers=producers,
                    consumers=config.vertex.parallelism,
                    pattern=edge.pattern,
                    locations=locations,
                    on_available=self._wake,
                )
            )
        self._metrics.gates = list(self._gates)
        settles = self._checkpoints is not None and MULTIPLE_WATERMARK_POLICY in config.config
        self._reader = InputReader(self._gates, SettledWatermark if settles else WatermarkValve)
        self._alignment = BarrierAlignment([gate.channels for gate in self._gates])
        self._hold_back()
        self._restore_in_flight()
        if self._step_rows is not None:
            self._limit_rows(self._step_rows.limit)

    @property
    def max_wait_s(self) -> float | None:
        """Returns None, or the time until an alignment times out. Gates and mails wake the task."""
        deadline = self._alignment.deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def step(self) -> Step:
        self._handle_barriers()
        if self._chain.stopped:
            return Step.DRY
        if self._chain.overdrawn:
            return Step.BLOCKED
        if self._chain.full:
            return Step.FULL
        polled = self._reader.poll()
        if polled is None:
            return Step.DRY
        gate, channel, element = polled
        if isinstance(element, pa.RecordBatch):
            self._metrics.records_in += element.num_rows
            if self._step_rows is None:
                self._targets[gate].batch(element)
            else:
                self._process_in_time(gate, element, self._step_rows)
            return Step.MORE
        self._on_event(gate, channel, element)
        return Step.END if self._reader.all_data_read else Step.MORE

    def step_after_data(self) -> Step:
        self._handle_barriers()
        if self._reader.all_partitions_ended:
            return Step.END
        polled = self._reader.poll()
        if polled is None:
            return Step.DRY
        gate, channel, element = polled
        if isinstance(element, (pa.RecordBatch, Watermark, StreamStatus, EndOfData)):
            raise RuntimeError(
                f"channel {channel} of gate {gate} sent {type(element).__name__} after EndOfData"
            )
        self._on_event(gate, channel, element)
        return Step.END if self._reader.all_partitions_ended else Step.MORE

    @property
    def open_checkpoints(self) -> list[int]:
        return []  # their barrier tells the task which checkpoint

    @property
    def stops_with(self) -> int | None:
        return None

    def drain(self) -> None:
        """Does nothing: the inputs end by themselves."""

    def stop(self) -> None:
        """Does nothing: the inputs end by themselves."""

    def trigger_checkpoint(self, barrier: CheckpointBarrier, splits: int, *, stops: bool) -> None:
        self._carry_out(self._alignment.trigger(barrier, time.monotonic()))

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        self._carry_out(self._alignment.abort(checkpoint_id))

    @property
    def caught_up(self) -> int:
        return 0

    @property
    def drained(self) -> bool:
        return self._reader.drained

    def watermark_us(self) -> int:
        return min(node.watermark_us for node in self._heads)

    def cleanup(self) -> None:
        gates, self._gates = self._gates, []
        for gate in gates:
            gate.close()

    def _hold_back(self) -> None:
        """Blocks the inputs of operators that read another input first."""
        for gate, (node, input_index) in enumerate(self._entries):
            first = node.operator.reads_first
            before = [
                i
                for i, entry in enumerate(self._entries)
                if first is not None and entry == (node, first)
            ]
            if before and input_index != first:
                self._held_back[gate] = before
                for channel in range(self._gates[gate].channels):
                    self._gates[gate].block(channel, BlockReason.INPUT_ORDER)

    def when_initialized(self, action: Callable[[], None]) -> None:
        if self._held_back:  # a barrier could not pass
            self._on_initialized = action
        else:
            action()

    def _release(self, ended: int) -> None:
        for gate, before in list(self._held_back.items()):
            if ended in before:
                before.remove(ended)
            if not before:
                del self._held_back[gate]
                for channel in range(self._gates[gate].channels):
                    self._gates[gate].unblock(channel, BlockReason.INPUT_ORDER)
        if self._on_initialized is not None and not self._held_back:
            initialized, self._on_initialized = self._on_initialized, None
            initialized()

    def _restore_in_flight(self) -> None:
        """Puts the restored checkpoint's in-flight data before everything that arrives."""
        restored = self._config.restored or {}
        for (edge, _, _), (node, _), gate, producers in zip(
            self._config.in_edges, self._entries, self._gates, self._producers, strict=True
        ):
            for state in (s for i, s in restored.items() if i in node.member_ids):
                for part in state.in_flight:
                    if part.result_id != edge.result_id:
                        continue
                    # If the producers changed, any channel will do, as long as it is always the
                    # same one for a producer.
                    by_channel: dict[int, list[pa.RecordBatch]] = {}
                    for producer, batch in part.batches:
                        known = producer in producers
                        channel = producers.index(producer) if known else producer % gate.channels
                        by_channel.setdefault(channel, []).append(self._own_rows(edge, batch))
                    for channel, batches in by_channel.items():
                        gate.restore(channel, [batch for batch in batches if batch.num_rows])

    def _own_rows(self, edge: JobEdge, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows whose key belongs to this subtask. These are all rows, unless the
        parallelism changed.
        """
        if edge.partitioner is not Partitioner.HASH:
            return batch
        vertex = self._config.vertex
        groups = key_groups(batch, edge.key_columns, vertex.max_parallelism)
        owners = subtask_of_group(
            groups.astype("int64"), vertex.parallelism, vertex.max_parallelism
        )
        return batch.filter(pa.array(owners == self._config.subtask))

    def _process_in_time(self, gate: int, batch: pa.RecordBatch, rows: StepRows) -> None:
        """Processes a batch, and lowers the row limit if that took long."""
        started = time.monotonic()
        self._targets[gate].batch(batch)
        if rows.on_step(batch.num_rows, time.monotonic() - started):
            self._limit_rows(rows.limit)

    def _limit_rows(self, rows: int) -> None:
        for gate in self._gates:
            gate.max_rows = rows

    def _handle_barriers(self) -> None:
        """Handles barriers when they arrive, before they are taken from the channel: they may
        overtake data.
        """
        for gate in self._gates:
            while gate.arrived:
                _, barrier = gate.arrived.popleft()
                self._checkpointing(barrier).barrier_came(barrier.checkpoint_id)
                self._carry_out(self._alignment.on_arrival(barrier, time.monotonic()))
        deadline = self._alignment.deadline
        if deadline is not None and deadline <= time.monotonic():
            self._carry_out(self._alignment.on_time(time.monotonic()))
        if self._checkpoints is not None and self._checkpoints.overtaking:
            self._handle_recordings(self._checkpoints)

    def _overtake(self, barrier: CheckpointBarrier, channels: Sequence[Channel]) -> None:
        """Starts recording at the gates first: elements that the snapshot emits may arrive at a
        gate of this process.
        """
        for number, gate in enumerate(self._gates):
            gate.record([c for g, c in channels if g == number], barrier.checkpoint_id)
        self._checkpointing(barrier).overtake(barrier)

    def _handle_recordings(self, checkpoints: TaskCheckpoints) -> None:
        in_flight = []
        for number, gate in enumerate(self._gates):
            recorded = gate.recorded()
            if recorded is None:
                return
            (edge, _, _), (node, _) = self._config.in_edges[number], self._entries[number]
            producers = self._producers[number]
            in_flight.append(
                InputInFlight(
                    OperatorId(node.member_ids[0]),
                    edge,
                    {producers[channel]: batches for channel, batches in recorded.items()},
                )
            )
        for gate in self._gates:
            gate.record((), 0)
        checkpoints.overtaken(in_flight)

    def _checkpointing(self, barrier: CheckpointBarrier) -> TaskCheckpoints:
        if self._checkpoints is None:
            raise RuntimeError(
                f"a checkpoint barrier (checkpoint {barrier.checkpoint_id}) in a job"
                " without checkpoints"
            )
        return self._checkpoints

    def _carry_out(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case Hold((gate, channel)):
                    self._gates[gate].block(channel, BlockReason.BARRIER_ALIGNMENT)
                case Release((gate, channel)):
                    self._gates[gate].unblock(channel, BlockReason.BARRIER_ALIGNMENT)
                case Aligned(barrier):
                    self._settle()
                    self._checkpointing(barrier).take(barrier)
                case Overtake(barrier, channels):
                    self._settle()
                    self._overtake(barrier, channels)
                case GivenUp():
                    pass
                case _:
                    assert_never(outcome)

    def _settle(self) -> None:
        """Advances event time to what the channels have reached."""
        if self._reader.all_data_read:
            return
        for state, target in zip(self._reader.states, self._targets, strict=True):
            for outcome in state.valve.settle():
                target.event(outcome)

    def _on_event(self, gate: int, channel: int, event: StreamElement) -> None:
        reader, target = self._reader, self._targets[gate]
        match event:
            case Watermark() | StreamStatus():
                for outcome in reader.on_event_time(gate, channel, event):
                    target.event(outcome)
            case EndOfData():
                for outcome in reader.on_end_of_data(gate, channel, event):
                    target.event(outcome)
                # An input that ends before the others ends immediately; the last ones end when the
                # timers are quiesced.
                if (
                    reader.gate_ended(gate)
                    and reader.states[gate].drained
                    and not reader.all_data_read
                ):
                    target.finished()
                if self._held_back and reader.gate_ended(gate):
                    self._release(gate)
            case EndOfPartition():
                reader.on_end_of_partition(gate, channel, event)
                self._carry_out(self._alignment.on_end(Channel(gate, channel)))
            case CheckpointBarrier():
                self._checkpointing(event).barrier_came(event.checkpoint_id)
                self._carry_out(self._alignment.on_barrier(Channel(gate, channel), event))
            case _:
                raise TypeError(f"{type(event).__name__} is not a stream element")
