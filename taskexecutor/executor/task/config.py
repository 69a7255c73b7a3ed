"""What a task is told when it is made, and what it uses of its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa

from firesteel.common.ids import AttemptId, JobId, OperatorId
from firesteel.common.job_graph import DistributionPattern, JobEdge, JobVertex, Partitioner
from firesteel.common.operator_messages import OperatorEvent
from firesteel.common.states import ExecutionState
from firesteel.elements import StreamElement, StreamEvent
from firesteel.errors import ErrorInfo
from firesteel.operator import TaskInfo
from taskexecutor.executor.operator_factory import CreateOperator
from taskexecutor.executor.state import RestoredOperatorState

if TYPE_CHECKING:
    from firesteel._proto import common_pb2

InEdge: TypeAlias = tuple[JobEdge, int, Any]  # edge, producers, Locations
OutEdge: TypeAlias = tuple[JobEdge, int, int]  # edge, consumers, the consumers' max parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """One attempt of one subtask."""

    job_id: JobId
    job_name: str
    vertex: JobVertex
    subtask: int  # 0-based
    attempt: int  # 0-based
    attempt_id: AttemptId
    in_edges: Sequence[InEdge]
    out_edges: Sequence[OutEdge]
    output_schemas: Sequence[pa.Schema | None]  # per operator of the vertex
    config: Mapping[str, str] = field(default_factory=dict)  # the job's
    input_schemas: Sequence[pa.Schema | None] = ()  # per in_edge; () if they are not known
    restored: Mapping[OperatorId, RestoredOperatorState] | None = None  # None: a first run

    @property
    def info(self) -> TaskInfo:
        return TaskInfo(
            job_id=self.job_id,
            job_name=self.job_name,
            vertex_id=self.vertex.vertex_id,
            task_name=self.vertex.name,
            subtask=self.subtask,
            parallelism=self.vertex.parallelism,
            max_parallelism=self.vertex.max_parallelism,
            attempt=self.attempt,
            attempt_id=self.attempt_id,
        )


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
    def out_pool_usage(self) -> float: ...

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

    @property
    def channels(self) -> int: ...

    @property
    def in_pool_usage(self) -> float: ...

    def poll(self) -> tuple[int, StreamElement] | None: ...

    def block(self, channel: int) -> None: ...

    def unblock(self, channel: int) -> None: ...

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
        locations: Any,
        on_available: Callable[[], None],
    ) -> InputGate: ...


ReportState: TypeAlias = (
    "Callable[[str, ExecutionState, ErrorInfo | None, common_pb2.TaskMetrics | None], None]"
)


@dataclass(frozen=True, slots=True)
class TaskServices:
    """What a task uses of its process; callables may be called from the task's thread at any time."""

    exchange: Exchange
    engine: Any  # the slot's SparkEngine
    create_operator: CreateOperator
    report_state: ReportState
    send_event: Callable[[OperatorEvent], None]
    user_code_roots: Sequence[
        str
    ] = ()  # where the user's files are, so that tracebacks show the user's own frames
