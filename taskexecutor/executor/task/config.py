"""The configuration of a task, and the services of its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from firesteel.common.ids import AttemptId, JobId, OperatorId
from firesteel.common.job_graph import JobEdge, JobVertex, ResultPartitionId, StoredPartition
from firesteel.common.operator_messages import HeldSplit, OperatorEvent
from firesteel.common.states import ExecutionState
from firesteel.common.task_metrics import TaskMetrics
from firesteel.errors import ErrorInfo
from firesteel.operator import TaskInfo
from taskexecutor.executor.exchange import Locations
from taskexecutor.executor.operator_factory import CreateOperator
from taskexecutor.executor.state import (
    CreateKeyedState,
    HashMapKeyedStateBackend,
    RestoredOperatorState,
)
from taskexecutor.executor.task.interfaces import CheckpointServices, Engine, Exchange


class InEdge(NamedTuple):
    edge: JobEdge
    producers: int
    locations: Locations


class OutEdge(NamedTuple):
    edge: JobEdge
    consumers: int
    max_parallelism: int  # of the consumers


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """The configuration of one attempt of one subtask."""

    job_id: JobId
    job_name: str
    vertex: JobVertex
    subtask: int  # 0-based
    attempt: int  # 0-based
    attempt_id: AttemptId
    in_edges: Sequence[InEdge]
    out_edges: Sequence[OutEdge]
    output_schemas: Sequence[pa.Schema | None]  # per operator of the vertex
    config: Mapping[str, str] = field(default_factory=dict)  # of the job
    input_schemas: Sequence[pa.Schema | None] = ()  # per in_edge; () if they are unknown
    # None: the task restores nothing
    restored: Mapping[OperatorId, RestoredOperatorState] | None = None

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


class TaskEnd(NamedTuple):
    """Results of a task that has ended, besides its state."""

    metrics: TaskMetrics  # final values
    partitions: tuple[StoredPartition, ...] = ()  # FINISHED only: its BLOCKING results
    unreadable: ResultPartitionId | None = None  # FAILED only: the partition that could not be read
    # FINISHED only, without checkpoints: the splits that its source has read.
    splits: Mapping[OperatorId, Sequence[HeldSplit]] = MappingProxyType({})


ReportState: TypeAlias = Callable[
    [str, ExecutionState, ErrorInfo | None, TaskEnd | None], None
]  # an attempt; a TaskEnd with a terminal state


@dataclass(frozen=True, slots=True)
class TaskServices:
    """Services of the process. The task's thread may call the callables at any time."""

    exchange: Exchange
    engine: Engine
    create_operator: CreateOperator
    report_state: ReportState
    send_event: Callable[[OperatorEvent], None]
    checkpoints: CheckpointServices | None = None  # None: the job takes no checkpoints
    create_keyed_state: CreateKeyedState = HashMapKeyedStateBackend
    report_metrics: Callable[[], None] = lambda: None  # before the next report is due
    user_code_roots: Sequence[str] = ()  # the user's folders: tracebacks show the frames in them
