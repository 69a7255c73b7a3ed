"""The interfaces of a task to its process: the exchange and the slot's Spark.

`taskexecutor.executor.exchange` implements the exchange; the test harness implements it in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from firesteel.common.checkpoints.messages import CheckpointAnswer
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.job_graph import DistributionPattern, Partitioner, StoredPartition
from firesteel.elements import CheckpointBarrier, StreamElement, StreamEvent
from taskexecutor.executor.exchange import BlockReason, Locations


class ResultPartition(Protocol):
    """The part of taskexecutor.executor.exchange.ResultPartition that a task uses."""

    records_out: int
    bytes_out: int
    write_ns: int

    @property
    def blocked_ns(self) -> int:
        """Time spent waiting for credit, including the current wait."""

    @property
    def blocked(self) -> bool:
        """Whether the task is waiting for credit."""

    @property
    def overdrawn(self) -> bool:
        """Whether a channel has no credit for the output of another element."""

    @property
    def out_pool_usage(self) -> float: ...

    @property
    def queue_length(self) -> int: ...

    @property
    def stored(self) -> StoredPartition | None:
        """The stored partition of a BLOCKING result, once `finish` has returned."""

    def emit(self, batch: pa.RecordBatch) -> None: ...

    def emit_event(self, event: StreamEvent) -> None: ...

    def await_acknowledged(self) -> None:
        """Returns when the consumers have taken everything emitted so far. Raises after `abort`."""

    def finish(self) -> None:
        """Returns when the consumers have taken EndOfPartition. Raises after `abort`."""

    def abort(self) -> None: ...

    def close(self) -> None: ...


class InputGate(Protocol):
    """The part of taskexecutor.executor.exchange.InputGate that a task uses."""

    bytes_in: int
    max_rows: int | None
    arrived: deque[tuple[int, CheckpointBarrier]]

    @property
    def channels(self) -> int: ...

    @property
    def in_pool_usage(self) -> float: ...

    @property
    def queue_length(self) -> int: ...

    def poll(self) -> tuple[int, StreamElement] | None: ...

    def block(self, channel: int, reason: BlockReason) -> None: ...

    def unblock(self, channel: int, reason: BlockReason) -> None: ...

    def restore(self, channel: int, batches: Sequence[pa.RecordBatch]) -> None: ...

    def record(self, channels: Sequence[int], checkpoint_id: int) -> None: ...

    def recorded(self) -> dict[int, list[pa.RecordBatch]] | None: ...

    def close(self) -> None: ...


class Exchange(Protocol):
    """The part of taskexecutor.executor.exchange.Exchange that a task uses."""

    def create_partition(
        self,
        *,
        job_id: str,
        result_id: str,
        producer: int,
        attempt: int,
        partitioner: Partitioner,
        producers: int,
        consumers: int,
        max_parallelism: int,
        key_columns: tuple[str, ...],
        on_credit: Callable[[], None] | None,
        blocking: bool,
    ) -> ResultPartition: ...

    def create_gate(
        self,
        *,
        job_id: str,
        result_id: str,
        consumer: int,
        producers: int,
        consumers: int,
        pattern: DistributionPattern,
        locations: Locations,
        on_available: Callable[[], None],
    ) -> InputGate: ...


class Engine(Protocol):
    """The part of taskexecutor.executor.columnar.jvm.engine.SparkEngine that operators use."""

    @property
    def session(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class CheckpointServices:
    """Services of the process for a task's checkpoints."""

    storage: CheckpointStorage  # the job's checkpoint directory
    answer: Callable[[CheckpointAnswer], None]  # callable from any thread
    # Barriers may overtake data, so tasks can take part at any time, however long their input
    # takes.
    unaligned: bool = False
    # A subtask's keyed state of an operator up to this size is part of the answer instead of a
    # file.
    inline_bytes: int = 0
