"""Builds task configurations and runs tasks, in memory or over a real exchange."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pyarrow as pa

from firesteel.common.ids import AttemptId, JobId, OperatorId, ResultId, VertexId, stable_id
from firesteel.common.job_graph import JobEdge, JobVertex, Operator, Partitioner
from firesteel.common.states import ExecutionState
from firesteel.errors import ErrorInfo
from firesteel.operator import StreamOperator
from firesteel.operators import Spec
from firesteel.testing import MemoryExchange
from taskexecutor.executor.state import RestoredOperatorState
from taskexecutor.executor.task import StreamTask, TaskConfig, TaskServices
from taskexecutor.executor.task.interfaces import CheckpointServices
from tests.waiting import PATIENCE_S

SCHEMA = pa.schema([("value", pa.int64())])
JOB = JobId(stable_id("job"))
UPSTREAM = VertexId(stable_id("upstream"))
DOWNSTREAM = VertexId(stable_id("downstream"))
HERE = VertexId(stable_id("here"))


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


@dataclass(frozen=True)
class Named(Spec):
    name: str


def operator(
    name: str, *inputs: tuple[int, ...], spark: bool = False, coordinator_kind: str = ""
) -> Operator:
    """Returns an operator whose spec has its name: `operators` of `run` maps it to a builder."""
    return Operator(
        operator_id=OperatorId(stable_id(name)),
        name=name,
        kind="Custom",
        spec=cloudpickle.dumps(Named(name)),
        inputs=inputs,
        runs_on_spark=spark,
        coordinator_kind=coordinator_kind,
    )


def vertex(*operators: Operator, parallelism: int = 1, max_parallelism: int = 128) -> JobVertex:
    return JobVertex(
        vertex_id=HERE,
        name=" -> ".join(o.name for o in operators),
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        operators=operators,
    )


def in_edge(
    name: str,
    operator: int = 0,
    input_index: int = 0,
    partitioner: Partitioner = Partitioner.REBALANCE,
) -> JobEdge:
    return JobEdge(
        result_id=ResultId(stable_id(name)),
        source_vertex_id=UPSTREAM,
        source_operator=0,
        target_vertex_id=HERE,
        target_operator=operator,
        target_input=input_index,
        partitioner=partitioner,
    )


def out_edge(
    name: str, operator: int, tag: str = "", partitioner: Partitioner = Partitioner.FORWARD
) -> JobEdge:
    return JobEdge(
        result_id=ResultId(stable_id(name)),
        source_vertex_id=HERE,
        source_operator=operator,
        target_vertex_id=DOWNSTREAM,
        target_operator=0,
        target_input=0,
        partitioner=partitioner,
        side_output_tag=tag,
    )


class Run:
    """One task with everything around it; states and events are recorded."""

    def __init__(
        self,
        task_vertex: JobVertex,
        operators: dict[str, StreamOperator],
        *,
        in_edges: Sequence[tuple[JobEdge, int]] = (),
        out_edges: Sequence[JobEdge] = (),
        exchange: Any = None,
        locations: Any = None,
        on_state: Callable[[ExecutionState], None] = lambda state: None,
        checkpoints: CheckpointServices | None = None,
        restored: Mapping[OperatorId, RestoredOperatorState] | None = None,
    ) -> None:
        self.exchange = MemoryExchange() if exchange is None else exchange
        self.states: list[ExecutionState] = []
        self.errors: list[ErrorInfo] = []
        self.final_metrics: Any = None
        self.end: Any = None  # its TaskEnd
        self.events: list[Any] = []
        self.on_event: Callable[[Any], None] = self.events.append
        self.groups: list[tuple[str, ...]] = []
        self.operators = operators
        self.on_state = on_state
        self._reached = threading.Condition()
        self.config = TaskConfig(
            job_id=JOB,
            job_name="a job",
            vertex=task_vertex,
            subtask=0,
            attempt=0,
            attempt_id=AttemptId(stable_id("attempt")),
            in_edges=[(edge, producers, locations) for edge, producers in in_edges],
            out_edges=[(edge, 1, 128) for edge in out_edges],
            output_schemas=[SCHEMA] * len(task_vertex.operators),
            input_schemas=[SCHEMA] * len(in_edges),
            restored=restored,
        )
        services = TaskServices(
            self.exchange,
            None,
            self._build,
            self._report,
            lambda event: self.on_event(event),
            checkpoints,
        )
        self.task = StreamTask(self.config, services)
        self.thread = threading.Thread(target=self.task.run, name="task under test")

    def _build(self, group: Sequence[Any]) -> StreamOperator:
        keys = [getattr(opened.spec, "name", opened.spec) for opened in group]
        self.groups.append(tuple(keys))
        return self.operators[keys[0]]

    def _report(
        self, attempt_id: str, state: ExecutionState, error: ErrorInfo | None, end: Any
    ) -> None:
        assert attempt_id == self.config.attempt_id
        assert (error is not None) == (state is ExecutionState.FAILED)
        assert end is None or state.terminal
        if error is not None:
            self.errors.append(error)
        self.final_metrics = end.metrics if end is not None else None
        self.end = end
        with self._reached:
            self.states.append(state)
            self._reached.notify_all()
        self.on_state(state)

    def start(self) -> Run:
        self.thread.start()
        return self

    def wait_for(self, state: ExecutionState) -> None:
        with self._reached:
            assert self._reached.wait_for(lambda: state in self.states, PATIENCE_S), (
                f"{state.name} was not reached: {self.states}"
            )

    def join(self) -> Run:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "the task did not end"
        acknowledgement = self.task._acknowledgement
        assert acknowledgement is None or not acknowledgement.waiting, (
            "a thread of the task was left"
        )
        return self

    def run(self) -> Run:
        """To the end, in this thread."""
        self.task.run()
        return self

    def producer(self, edge: JobEdge, subtask: int = 0, producers: int = 1) -> Any:
        """An upstream subtask's result partition."""
        return self.exchange.create_partition(
            job_id=JOB,
            result_id=edge.result_id,
            producer=subtask,
            attempt=0,
            partitioner=edge.partitioner,
            producers=producers,
            consumers=1,
            max_parallelism=128,
            key_columns=(),
        )

    def sent(self, edge: JobEdge) -> list[Any]:
        """Returns the elements that the task sent on an out_edge."""
        sent: list[Any] = self.exchange.partitions[(edge.result_id, 0, 0)].sent
        return sent
