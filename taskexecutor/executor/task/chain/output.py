"""Routes an operator's results to other operators of the chain and to result partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from firesteel.elements import MIN_TIMESTAMP_US, StreamStatus, Watermark
from firesteel.operator import TaskCancelled
from taskexecutor.executor.task.environment import TaskEnvironment
from taskexecutor.executor.task.interfaces import ResultPartition
from taskexecutor.executor.task.metrics import OperatorMetrics
from taskexecutor.executor.timing.clock import TaskClock, TimeKind
from taskexecutor.executor.timing.watermarks import ValveEvent


class Target(Protocol):
    """A destination of an output."""

    def batch(self, batch: pa.RecordBatch) -> None: ...

    def event(self, event: ValveEvent) -> None: ...

    def finished(self) -> None:
        """Called when the producing operator has finished; EndOfData follows."""


class PartitionTarget:
    """Writes to a result partition, which leads out of the task. Any thread may set `tap`, which
    sees each batch and must not raise.
    """

    __slots__ = ("_clock", "partition", "tap")

    def __init__(self, partition: ResultPartition, clock: TaskClock) -> None:
        self.partition = partition
        self.tap: Callable[[pa.RecordBatch], None] | None = None
        self._clock = clock

    def batch(self, batch: pa.RecordBatch) -> None:
        if (tap := self.tap) is not None:
            tap(batch)
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
        """Does nothing: the task sends EndOfData once all of its operators have finished."""


class ChainOutput:
    """Implements `firesteel.operator.Output` for a node. Watermarks only advance; empty batches are
    dropped.
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
        self._sealed_by = ""  # the call after which nothing may be emitted
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
        """Makes every later emission an error of the operator."""
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
                f"operator {self._name} emits after {self._sealed_by}(); emit remaining rows in"
                " finish()"
            )

    def _forward_status(self, status: StreamStatus) -> None:
        self._idle = status.idle
        for target in self.targets:
            target.event(status)
