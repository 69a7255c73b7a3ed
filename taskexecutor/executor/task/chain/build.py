"""Builds a task's chain from its configuration. Adjacent operators that run on Spark become one
node (firesteel.plan.fusion).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import cloudpickle
import pyarrow as pa

from firesteel.common.job_graph import JobEdge, JobVertex
from firesteel.operators import WatermarkAlignmentSpec
from firesteel.plan.fusion import chained_consumers, group_operators
from taskexecutor.executor.operator_factory import CreateOperator, OpenedOperator
from taskexecutor.executor.task.chain.chain import OperatorChain
from taskexecutor.executor.task.chain.node import ChainNode, NodeTarget, create_node
from taskexecutor.executor.task.chain.output import PartitionTarget
from taskexecutor.executor.task.config import TaskConfig
from taskexecutor.executor.task.environment import TaskEnvironment
from taskexecutor.executor.task.interfaces import ResultPartition
from taskexecutor.executor.task.metrics import TaskMetricGroup
from taskexecutor.executor.timing.timers import TaskTimers


def build_chain(
    config: TaskConfig,
    *,
    environment: TaskEnvironment,
    timers: TaskTimers,
    metrics: TaskMetricGroup,
    create_operator: CreateOperator,
    partitions: Sequence[ResultPartition],
) -> OperatorChain:
    """Creates the operators and connects them. `partitions`: one per out_edge."""
    vertex = config.vertex
    in_edges = [edge for edge, _, _ in config.in_edges]
    out_edges = [edge for edge, _, _ in config.out_edges]
    nodes: list[ChainNode] = []
    node_of: dict[int, ChainNode] = {}
    consumers = chained_consumers(vertex)
    for group in group_operators(vertex, in_edges, out_edges):
        node = _build_node(
            config,
            group,
            in_edges,
            environment,
            timers,
            metrics,
            create_operator,
            chained=bool(consumers[group[-1]]),
        )
        nodes.append(node)
        node_of.update(dict.fromkeys(group, node))
    for node in nodes:
        last = node.members[-1]
        for consumer, input_index in consumers[last]:
            node.output.add(NodeTarget(node_of[consumer], input_index))
        for edge, partition in zip(out_edges, partitions, strict=True):
            if edge.source_operator == last or (
                edge.side_output_tag and edge.source_operator in node.members
            ):
                node.output.add(PartitionTarget(partition, environment.clock), edge.side_output_tag)
        if node.watermark_alignment is not None:
            # Last, so that everything that it reports has been emitted.
            node.output.add(node.watermark_alignment)
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
    *,
    chained: bool,
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
    # The coordinator is registered under the id of the member that requested it.
    leader = next((member for member in members if member.coordinator_kind), members[0])
    inputs = range(_input_count(vertex, group[0], in_edges))
    return create_node(
        create_operator(opened),
        members=group,
        member_ids=tuple(member.operator_id for member in members),
        metrics=metrics.operator(
            leader.operator_id, " -> ".join(member.name for member in members)
        ),
        environment=environment,
        timers=timers,
        input_schemas=[_input_schema(config, group[0], index) for index in inputs],
        output_schema=config.output_schemas[group[-1]],
        watermark_alignment=_watermark_alignment(opened),
        chained=chained,
    )


def _watermark_alignment(opened: Sequence[OpenedOperator]) -> WatermarkAlignmentSpec | None:
    """Returns the spec of the last operator that has one: its watermarks are those that leave the
    node.
    """
    alignments = (operator.spec.watermark_alignment for operator in reversed(opened))
    return next((alignment for alignment in alignments if alignment is not None), None)


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
