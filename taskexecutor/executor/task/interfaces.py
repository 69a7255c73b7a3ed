"""What a task needs of its process: the exchange and the slot's Spark.

The exchange is implemented by taskexecutor.executor.exchange and, in memory, by the test harness.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from firesteel.common.checkpoints.state import OperatorSnapshot
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.ids import AttemptId, OperatorId
from firesteel.common.job_graph import DistributionPattern, Partitioner
from firesteel.common.operator_messages import HeldSplit
from firesteel.common.results import StoredPartition
from firesteel.elements import CheckpointBarrier, StreamElement, StreamEvent
from taskexecutor.executor.exchange import BlockReason, Locations


class ResultPartition(Protocol):
    """What the task needs of taskexecutor.executor.exchange.ResultPartition."""

    records_out: int
    bytes_out: int
    write_ns: int

    @property
    def blocked_ns(self) -> int:
        """Waiting for credit, the present wait included."""

    @property
    def blocked(self) -> bool:
        """The task waits for credit now."""

    @property
    def overdrawn(self) -> bool:
        """There is no credit for what another element leads to."""

    @property
    def out_pool_usage(self) -> float: ...

    @property
    def stored(self) -> StoredPartition | None:
        """Of a BLOCKING result, once `finish` has returned."""

    def emit(self, batch: pa.RecordBatch) -> None: ...

    def emit_event(self, event: StreamEvent) -> None: ...

    def await_acknowledged(self) -> None:
        """Returns when the consumers have taken everything that was emitted so far; raises after
        abort.
        """

    def finish(self) -> None:
        """Returns when the consumers have taken EndOfPartition; raises after abort."""

    def abort(self) -> None: ...

    def close(self) -> None: ...


class InputGate(Protocol):
    """What the task needs of taskexecutor.executor.exchange.InputGate."""

    bytes_in: int
    max_rows: int | None
    arrived: deque[tuple[int, CheckpointBarrier]]

    @property
    def channels(self) -> int: ...

    @property
    def in_pool_usage(self) -> float: ...

    def poll(self) -> tuple[int, StreamElement] | None: ...

    def block(self, channel: int, reason: BlockReason) -> None: ...

    def unblock(self, channel: int, reason: BlockReason) -> None: ...

    def restore(self, channel: int, batches: Sequence[pa.RecordBatch]) -> None: ...

    def record(self, channels: Sequence[int], checkpoint_id: int) -> None: ...

    def recorded(self) -> dict[int, list[pa.RecordBatch]] | None: ...

    def close(self) -> None: ...


class Exchange(Protocol):
    """What the task needs of taskexecutor.executor.exchange.Exchange."""

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
    """What operators get of the slot's taskexecutor.executor.spark.jvm.engine.SparkEngine."""

    @property
    def session(self) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The task's part of a checkpoint is written."""

    attempt_id: AttemptId
    checkpoint_id: int
    operators: tuple[OperatorSnapshot, ...]
    operators_finished: bool  # finish() was called on all of them before
    start_delay_ms: float  # from the trigger, on the master's clock, to the first barrier
    alignment_ms: float  # from the first barrier to the snapshot
    sync_ms: float
    async_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Declined:
    """The task has no part of it: nothing of it is left."""

    attempt_id: AttemptId
    checkpoint_id: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataEnded:
    """The task has called finish(): only a checkpoint is missing until it can end."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the task has from earlier JobMasters, for one that adopts it."""

    attempt_id: AttemptId
    splits: Mapping[OperatorId, Sequence[HeldSplit]]  # by source
    open_checkpoints: Sequence[int]  # that it takes part in, and does not know the end of
    stops_with: int | None  # its source waits for the end of this savepoint
    data_ended: bool
    stops_into: str  # the job is being stopped with a savepoint there; empty: not that it knows
    drains: bool  # after its sources have ended


CheckpointAnswer: TypeAlias = Acknowledged | Declined | DataEnded | Held


@dataclass(frozen=True, slots=True)
class CheckpointServices:
    """What a task's checkpoints use of its process."""

    storage: CheckpointStorage  # the job's directory
    answer: Callable[[CheckpointAnswer], None]  # from any thread
    # Barriers may overtake: tasks can take part at any time, however long what is ahead of them is.
    unaligned: bool = False
    # Keyed state of an operator's subtask up to this size is in the answer, not in a file.
    inline_bytes: int = 0
