"""A task with one, two or more inputs, each fed by one or more gates (spec 001, life of non-source
tasks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

import pyarrow as pa

from firesteel.elements import (
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    StreamElement,
    StreamStatus,
    Watermark,
)
from taskexecutor.executor.exchange import BlockReason
from taskexecutor.executor.task.chain import NodeTarget, OperatorChain
from taskexecutor.executor.task.checkpoints.alignment import (
    Aligned,
    BarrierAlignment,
    Channel,
    GivenUp,
    Hold,
    Outcome,
    Release,
)
from taskexecutor.executor.task.checkpoints.task_checkpoints import TaskCheckpoints
from taskexecutor.executor.task.config import TaskConfig
from taskexecutor.executor.task.input import InputReader
from taskexecutor.executor.task.interfaces import Exchange, InputGate
from taskexecutor.executor.task.metrics import TaskMetricGroup
from taskexecutor.executor.task.step import Step


class InputTask:
    """See `step.TaskKind`."""

    max_wait_s: float | None = None  # gates and mails wake the task

    def __init__(
        self,
        config: TaskConfig,
        exchange: Exchange,
        chain: OperatorChain,
        metrics: TaskMetricGroup,
        wake: Callable[[], None],
        checkpoints: TaskCheckpoints | None = None,
    ) -> None:
        self._config = config
        self._exchange = exchange
        self._chain = chain
        self._metrics = metrics
        self._wake = wake
        self._checkpoints = checkpoints
        self._gates: list[InputGate] = []
        # One per gate: the node that it feeds, and which input of it.
        self._entries = [chain.entry(edge) for edge, _, _ in config.in_edges]
        self._targets = [NodeTarget(node, input_index) for node, input_index in self._entries]
        self._heads = list({id(node): node for node, _ in self._entries}.values())
        # Gates that are not read yet, with the gates that must end first.
        self._held_back: dict[int, list[int]] = {}
        self._reader: InputReader
        self._alignment: BarrierAlignment

    def init(self) -> None:
        """Connects to the producers; they may not be there yet."""
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
        self._reader = InputReader(self._gates)
        self._alignment = BarrierAlignment([gate.channels for gate in self._gates])
        self._hold_back()

    def step(self) -> Step:
        if self._chain.stopped:
            return Step.DRY
        polled = self._reader.poll()
        if polled is None:
            return Step.DRY
        gate, channel, element = polled
        if isinstance(element, pa.RecordBatch):
            self._metrics.records_in += element.num_rows
            self._targets[gate].batch(element)
            return Step.MORE
        self._on_event(gate, channel, element)
        return Step.END if self._reader.all_data_read else Step.MORE

    def step_after_data(self) -> Step:
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

    def trigger_checkpoint(self, barrier: CheckpointBarrier, splits: int) -> None:
        self._carry_out(self._alignment.trigger(barrier))

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        self._carry_out(self._alignment.abort(checkpoint_id))

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

    def _release(self, ended: int) -> None:
        for gate, before in list(self._held_back.items()):
            if ended in before:
                before.remove(ended)
            if not before:
                del self._held_back[gate]
                for channel in range(self._gates[gate].channels):
                    self._gates[gate].unblock(channel, BlockReason.INPUT_ORDER)

    def _carry_out(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            match outcome:
                case Hold((gate, channel)):
                    self._gates[gate].block(channel, BlockReason.BARRIER_ALIGNMENT)
                case Release((gate, channel)):
                    self._gates[gate].unblock(channel, BlockReason.BARRIER_ALIGNMENT)
                case Aligned(barrier):
                    if self._checkpoints is None:
                        raise RuntimeError(
                            f"a checkpoint barrier (checkpoint {barrier.checkpoint_id}) in a job"
                            " without checkpoints"
                        )
                    self._checkpoints.take(barrier)
                case GivenUp():
                    pass
                case _:
                    assert_never(outcome)

    def _on_event(self, gate: int, channel: int, event: StreamElement) -> None:
        reader, target = self._reader, self._targets[gate]
        match event:
            case Watermark() | StreamStatus():
                for outcome in reader.on_event_time(gate, channel, event):
                    target.event(outcome)
            case EndOfData():
                for outcome in reader.on_end_of_data(gate, channel, event):
                    target.event(outcome)
                # An input that ends before the others ends at once; the last ones end when the
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
                self._carry_out(self._alignment.on_barrier(Channel(gate, channel), event))
            case _:
                raise TypeError(f"{type(event).__name__} is not a stream element")
