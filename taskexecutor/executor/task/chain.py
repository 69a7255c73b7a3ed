"""The operators of one task, wired into a DAG.

Adjacent operators that run on Spark become one runtime operator (firesteel.plan.fusion). Everything
up to `open` goes from the last to the first, so that whoever starts finds its consumers ready;
everything from `finish` on goes from the first to the last, so that whoever ends finds them still
there (spec 000).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import cloudpickle
import pyarrow as pa

from firesteel.common.job_graph import JobEdge, JobVertex
from firesteel.elements import EndOfData, EndOfPartition, StreamEvent
from firesteel.plan.fusion import chained_consumers, group_operators
from firesteel.plan.specs import AssignWatermarksSpec, SourceSpec
from taskexecutor.executor.operator_factory import CreateOperator, OpenedOperator
from taskexecutor.executor.state import HashMapKeyedStateBackend, TaskOperatorState, key_group_range
from taskexecutor.executor.task.config import TaskConfig
from taskexecutor.executor.task.interfaces import ResultPartition
from taskexecutor.executor.task.metrics import TaskMetricGroup
from taskexecutor.executor.task.node import ChainNode, ChainOutput, NodeTarget, PartitionTarget
from taskexecutor.executor.task.runtime_context import OperatorContext, TaskEnvironment
from taskexecutor.executor.timing.timers import TaskTimers


class OperatorChain:
    """Nodes in topological order, and where each in_edge enters."""

    def __init__(self, nodes: Sequence[ChainNode], partitions: Sequence[ResultPartition]) -> None:
        self.nodes = tuple(nodes)
        self.partitions = tuple(partitions)
        self._node_of_operator = {
            operator_id: node for node in self.nodes for operator_id in node.member_ids
        }
        self._alignments = [node.alignment for node in self.nodes if node.alignment is not None]
        self._node_of_index = {index: node for node in self.nodes for index in node.members}

    def entry(self, edge: JobEdge) -> tuple[ChainNode, int]:
        """The node and input that an in_edge feeds."""
        return self._node_of_index[edge.target_operator], edge.target_input

    @property
    def stopped(self) -> bool:
        """The task shall take no input now: it is ahead of its alignment group."""
        return any(alignment.stopped for alignment in self._alignments)

    def node_of(self, operator_id: str) -> ChainNode | None:
        return self._node_of_operator.get(operator_id)

    # -- last to first

    def setup(self, check: Callable[[], None]) -> None:
        for node in reversed(self.nodes):
            check()
            node.setup()

    def initialize_state(
        self, config: TaskConfig, key_group_of: Callable[[object], int], check: Callable[[], None]
    ) -> None:
        key_groups = key_group_range(
            config.subtask, config.vertex.parallelism, config.vertex.max_parallelism
        )
        for node in reversed(self.nodes):
            check()
            restored = None
            if config.restored is not None:
                restored = next(
                    (state for i, state in config.restored.items() if i in node.member_ids), None
                )
            node.initialize_state(
                TaskOperatorState(HashMapKeyedStateBackend(key_groups, key_group_of), restored)
            )

    def open(self, check: Callable[[], None]) -> None:
        for node in reversed(self.nodes):
            check()
            node.operator.open()

    # -- first to last

    def flush(self) -> None:
        """Input has run dry: nothing is held back any longer."""
        for node in self.nodes:
            node.operator.flush()

    def advance_to_end_of_event_time(self) -> None:
        """MAX_WATERMARK: every event-time timer fires. Where it has arrived already, nothing
        happens.
        """
        for node in self.nodes:
            node.advance_to_end_of_event_time()

    def finish(self, check: Callable[[], None]) -> None:
        for node in self.nodes:
            check()
            node.finish()

    def emit_end_of_data(self, finished: bool) -> None:
        self._emit_event(EndOfData(finished))

    def emit_end_of_partition(self) -> None:
        self._emit_event(EndOfPartition())

    def close(self) -> list[BaseException]:
        """Closes every operator that was set up and is not closed yet, whatever the others raise;
        returns what they raised.
        """
        failures: list[BaseException] = []
        for node in self.nodes:
            try:
                node.close()
            except BaseException as error:
                failures.append(error)
        return failures

    def _emit_event(self, event: StreamEvent) -> None:
        for partition in self.partitions:
            partition.emit_event(event)


def build_chain(
    config: TaskConfig,
    *,
    environment: TaskEnvironment,
    timers: TaskTimers,
    metrics: TaskMetricGroup,
    create_operator: CreateOperator,
    partitions: Sequence[ResultPartition],
) -> OperatorChain:
    """Makes the operators and connects them. `partitions`: one per out_edge."""
    vertex = config.vertex
    in_edges = [edge for edge, _, _ in config.in_edges]
    out_edges = [edge for edge, _, _ in config.out_edges]
    nodes: list[ChainNode] = []
    node_of: dict[int, ChainNode] = {}
    for group in group_operators(vertex, in_edges, out_edges):
        node = _build_node(config, group, in_edges, environment, timers, metrics, create_operator)
        nodes.append(node)
        node_of.update(dict.fromkeys(group, node))
    for node in nodes:
        last = node.members[-1]
        for consumer, input_index in chained_consumers(vertex, last):
            node.output.add(NodeTarget(node_of[consumer], input_index))
        for edge, partition in zip(out_edges, partitions, strict=True):
            if edge.source_operator == last or (
                edge.side_output_tag and edge.source_operator in node.members
            ):
                node.output.add(PartitionTarget(partition, environment.clock), edge.side_output_tag)
        if node.alignment is not None:
            node.output.add(node.alignment)  # behind all others: what it reports has been handed on
    metrics.partitions = list(partitions)
    return OperatorChain(nodes, partitions)


def _build_node(
    config: TaskConfig,
    group: tuple[int, ...],
    in_edges: Sequence[JobEdge],
    environment: TaskEnvironment,
    timers: TaskTimers,
    metrics: TaskMetricGroup,
    create_operator: CreateOperator,
) -> ChainNode:
    vertex = config.vertex
    members = [vertex.operators[index] for index in group]
    opened = [
        OpenedOperator(
            vertex.operators[index],
            cloudpickle.loads(vertex.operators[index].spec),
            config.output_schemas[index],
        )
        for index in group
    ]
    operator = create_operator(opened)
    # Its coordinator, if it has one, knows it by the id of the member that asked for it.
    leader = next((member for member in members if member.coordinator_kind), members[0])
    operator_metrics = metrics.operator(
        leader.operator_id, " -> ".join(member.name for member in members)
    )
    inputs = _input_count(vertex, group[0], in_edges)
    node = ChainNode(
        members=group,
        member_ids=tuple(member.operator_id for member in members),
        operator=operator,
        inputs=inputs,
        metrics=operator_metrics,
        output=ChainOutput(environment, operator_metrics),
    )
    node.timers = timers.for_operator(operator.on_event_time, operator.on_processing_time)
    node.context = OperatorContext(
        environment,
        metrics=operator_metrics,
        timers=node.timers,
        input_schemas=tuple(_input_schema(config, group[0], index) for index in range(inputs)),
        output_schema=config.output_schemas[group[-1]],
    )
    for spec in (o.spec for o in opened):
        if isinstance(spec, SourceSpec | AssignWatermarksSpec) and spec.alignment is not None:
            node.align(spec.alignment, timers)
    return node


def _input_count(vertex: JobVertex, operator: int, in_edges: Sequence[JobEdge]) -> int:
    by_edges = [edge.target_input + 1 for edge in in_edges if edge.target_operator == operator]
    return max([len(vertex.operators[operator].inputs), *by_edges])


def _input_schema(config: TaskConfig, operator: int, input_index: int) -> pa.Schema | None:
    return next(
        (
            schema
            for schema in _producer_schemas(config, operator, input_index)
            if schema is not None
        ),
        None,
    )


def _producer_schemas(
    config: TaskConfig, operator: int, input_index: int
) -> Iterator[pa.Schema | None]:
    inputs = config.vertex.operators[operator].inputs
    if input_index < len(inputs):
        for producer in inputs[input_index]:
            yield config.output_schemas[producer]
    for (edge, _, _), schema in zip(config.in_edges, config.input_schemas, strict=False):
        if edge.target_operator == operator and edge.target_input == input_index:
            yield schema
