"""Finds every operator's schema and the errors of a program, by making its plans over DataFrames
that cannot be read.

Nothing is executed, except that the schema of CSV and JSON files without a declared one is inferred
from the files, once.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import cloudpickle
import pyarrow as pa

from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.error_report import summary_of
from firesteel.common.ids import OperatorId, VertexId
from firesteel.common.job_graph import JobEdge, JobGraph, JobVertex, Operator, Partitioner
from firesteel.connectors import FileSink
from firesteel.errors import FiresteelError
from firesteel.operator import StreamOperator
from firesteel.operators import (
    SinkSpec,
    Spec,
)
from firesteel.plan.fusion import fused
from taskexecutor.executor.analysis.checks import check_keys
from taskexecutor.executor.analysis.event_time import (
    check_event_time,
    old_times,
    time_advances,
    united,
)
from taskexecutor.executor.analysis.random_numbers import is_repeatable
from taskexecutor.executor.analysis.row_kinds import (
    behind,
    check_not_aggregating,
    check_order,
    keeps_settled,
    retracting,
    united_changes,
    updating,
)
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.columnar.cached_plans import composed
from taskexecutor.executor.columnar.cached_plans.static_tables import schemas_only
from taskexecutor.executor.columnar.jvm.engine import SparkEngine, SparkLost
from taskexecutor.executor.columnar.schemas import shown
from taskexecutor.executor.harness import OperatorHarness
from taskexecutor.executor.operator_factory import OpenedOperator, check_checkpointed
from taskexecutor.executor.operators.registry import create_operator, kind_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzedOperator:
    operator_id: OperatorId
    schema: pa.Schema | None  # None: it has no output, or its schema is unknown
    plan: str = ""  # for users; "" if Spark does not run it, or runs it as part of another plan
    side_schemas: dict[str, pa.Schema] = field(default_factory=dict)  # by tag
    states: StateDescriptions | None = None  # None: unknown before it runs
    repeatable: bool = True  # another attempt produces the same rows from the same input


def analyze(
    graph: JobGraph, engine: SparkEngine, checkpoints: CheckpointStorage | None = None
) -> list[AnalyzedOperator]:
    """Analyzes all operators of the graph, vertex by vertex. `checkpoints` is the job's checkpoint
    storage; None if it takes no checkpoints.

    Raises FiresteelError for the first error. It names the operator's place in the program; its
    cause is the error of Spark or of a function of the program, if any.
    """
    if checkpoints is not None:
        checkpoints.check_writable()
    analysis = _Analysis(graph, engine, checkpoints=checkpoints is not None)
    with schemas_only(engine.session):
        for vertex in graph.vertices:
            for index in range(len(vertex.operators)):
                analysis.visit(vertex, index)
    return [
        AnalyzedOperator(
            operator_id=operator.operator_id,
            schema=output.schema,
            plan=output.plan,
            side_schemas=output.sides,
            states=output.states,
            repeatable=output.repeatable is not False,
        )
        for vertex in graph.vertices
        for operator, output in zip(
            vertex.operators, analysis.outputs[vertex.vertex_id], strict=True
        )
    ]


class _Analysis:
    """Visits the operators in topological order."""

    def __init__(self, graph: JobGraph, engine: SparkEngine, *, checkpoints: bool) -> None:
        self._graph = graph
        self._engine = engine
        self._checkpoints = checkpoints
        self._specs: dict[str, list[Spec]] = {v.vertex_id: [] for v in graph.vertices}
        self.outputs: dict[str, list[AnalyzedOutput]] = {v.vertex_id: [] for v in graph.vertices}
        # By path: the first sink that writes files to it, with their format and columns.
        self._folders: dict[str, tuple[Operator, tuple[str, pa.Schema | None]]] = {}
        # By vertex and operator: the operators that are part of the same plan, in order.
        self._plan_of = {
            (vertex_id, index): group
            for vertex_id, groups in fused(graph).items()
            for group in groups
            for index in group
        }
        self._vertices = {vertex.vertex_id: vertex for vertex in graph.vertices}
        # By vertex and operator.
        self._in_edges: defaultdict[tuple[VertexId, int], list[JobEdge]] = defaultdict(list)
        self._out_edges: defaultdict[tuple[VertexId, int], list[JobEdge]] = defaultdict(list)
        for edge in graph.edges:
            self._in_edges[edge.target_vertex_id, edge.target_operator].append(edge)
            self._out_edges[edge.source_vertex_id, edge.source_operator].append(edge)

    def visit(self, vertex: JobVertex, index: int) -> None:
        operator = vertex.operators[index]
        with self._placed(operator):
            self._visit(vertex, index)
        self._check_out_edges(vertex, index)

    def _visit(self, vertex: JobVertex, index: int) -> None:
        operator = vertex.operators[index]
        spec: Spec = cloudpickle.loads(operator.spec)
        self._specs[vertex.vertex_id].append(spec)
        inputs = [
            self._producers(vertex, index, number)
            for number in range(self._input_count(vertex, index))
        ]
        for producers in inputs:
            _check_union(operator.name, producers)
        step = AnalysisStep(
            operator_name=operator.name,
            place=operator.place,
            inputs=[_united(producers) for producers in inputs],
            engine=self._engine,
            checkpoints=self._checkpoints,
            batch=self._graph.batch,
        )
        check_not_aggregating(step, spec)
        check_event_time(step, spec)
        output = kind_of(type(spec)).analyze(step, spec)
        output.retracting = retracting(step, spec, output)
        output.updating = updating(step, spec, output)
        output.settled |= keeps_settled(step, output)
        output.time_advances = time_advances(step, spec)
        output.old_times = old_times(step, spec, output)
        _declare_side_outputs(step, spec, output)
        if isinstance(spec, SinkSpec) and isinstance(spec.sink, FileSink):
            self._check_files(operator, spec.sink, step.input_schema)
        self.outputs[vertex.vertex_id].append(output)
        ends_plan = self._plan_of[vertex.vertex_id, index][-1] == index
        if ends_plan and self._checkpoints:
            created = self._checkpointed(vertex, self._plan_of[vertex.vertex_id, index])
            if spec.state_in_columns:
                output.states = states_in_columns(created, operator.name, step, output.schema)
        if output.frame is not None and ends_plan and not output.plan:
            output.plan = composed.analyzed_plan(output.frame.frame, output.frame.leaf)
        if output.frame is not None and ends_plan and output.repeatable is None:
            output.repeatable = is_repeatable(output.frame.frame)

    def _checkpointed(self, vertex: JobVertex, plan: Sequence[int]) -> StreamOperator:
        """Returns the operator that runs this plan. Raises FiresteelError if it cannot take part in
        checkpoints.
        """
        specs, outputs = self._specs[vertex.vertex_id], self.outputs[vertex.vertex_id]
        operators = [
            OpenedOperator(vertex.operators[index], specs[index], outputs[index].schema)
            for index in plan
        ]
        created = create_operator(operators)
        check_checkpointed(created, operators[0].operator.name)
        return created

    @contextlib.contextmanager
    def _placed(self, operator: Operator) -> Iterator[None]:
        """Adds the operator's place in the program to its errors."""
        try:
            with self._engine.raising_spark_lost():
                yield
        except SparkLost:
            raise  # an error of the slot
        except Exception as error:
            raise FiresteelError(operator.says(summary_of(error))) from error

    def _check_files(self, operator: Operator, sink: FileSink, schema: pa.Schema | None) -> None:
        """Several sinks may write to one folder if their files can be read together."""
        files = sink.format, schema
        other, others = self._folders.setdefault(sink.path, (operator, files))
        if others != files:
            raise FiresteelError(
                f"FileSink: {sink.path} is the folder of two sinks with different columns or"
                f" formats (the other sink: {other.place or other.name}), so their files could"
                " not be read together; give each sink a separate folder"
            )

    def _input_count(self, vertex: JobVertex, index: int) -> int:
        by_edges = [edge.target_input + 1 for edge in self._in_edges[vertex.vertex_id, index]]
        return max([len(vertex.operators[index].inputs), *by_edges])

    def _producers(self, vertex: JobVertex, index: int, number: int) -> list[AnalyzedOutput]:
        """Returns all producers of one input: chained operators and edges."""
        chained = vertex.operators[index].inputs
        producers = []
        for producer in chained[number] if number < len(chained) else ():
            output = self.outputs[vertex.vertex_id][producer]
            if producer not in self._plan_of[vertex.vertex_id, index]:
                output = replace(output, frame=None)  # a Spark plan ends there
            producers.append(output)
        for edge in self._in_edges[vertex.vertex_id, index]:
            if edge.target_input == number and edge.partitioner is not Partitioner.WATERMARKS:
                output = self.outputs[edge.source_vertex_id][edge.source_operator]
                # Without its frame, because a Spark plan ends at an edge.
                producers.append(
                    AnalyzedOutput(
                        schema=output.sides[edge.side_output_tag],
                        time_advances=output.time_advances,
                        old_times=output.old_times,
                    )
                    if edge.side_output_tag
                    else replace(
                        output, frame=None, updating=behind(edge, vertex.parallelism, output)
                    )
                )
        if not producers:
            raise FiresteelError(f"{vertex.operators[index].name}: input {number} has no producer")
        return producers

    def _check_out_edges(self, vertex: JobVertex, index: int) -> None:
        output = self.outputs[vertex.vertex_id][index]
        for edge in self._out_edges[vertex.vertex_id, index]:
            target = self._vertices[edge.target_vertex_id]
            consumer = target.operators[edge.target_operator]
            with self._placed(consumer):
                schema = output.schema
                if edge.side_output_tag:
                    if edge.side_output_tag not in output.sides:
                        raise FiresteelError(
                            f"{vertex.operators[index].name} has no side output "
                            f"{edge.side_output_tag!r}; "
                            f"it has: {', '.join(sorted(output.sides)) or 'none'}"
                        )
                    schema = output.sides[edge.side_output_tag]
                else:
                    check_order(edge, target.parallelism, output)
                check_keys(schema, edge.key_columns)


def _united(producers: Sequence[AnalyzedOutput]) -> AnalyzedOutput:
    """Returns the known properties of an input with several producers, which must have the schema
    of the first.
    """
    updating = [one.updating for one in producers if one.updating is not None]
    spread = tuple(edge for one in updating for edge in one.spread)
    return replace(
        producers[0],
        retracting=united_changes([one.retracting for one in producers if one.retracting]),
        settled=all(one.settled or one.retracting for one in producers),
        updating=replace(updating[0], spread=spread) if updating else None,
        time_advances=any(one.time_advances for one in producers),
        old_times=united(one.old_times for one in producers),
    )


def _check_union(operator_name: str, producers: Sequence[AnalyzedOutput]) -> None:
    first, *others = [producer.schema for producer in producers]
    for other in others:
        if first is not None and other is not None and not first.equals(other):
            raise FiresteelError(
                f"{operator_name}: the streams that are united have different columns: "
                f"{shown(first)}; {shown(other)}"
            )


def _declare_side_outputs(step: AnalysisStep, spec: Spec, output: AnalyzedOutput) -> None:
    """Adds the side outputs that the analyzer has not found itself."""
    for tag in spec.side_output_tags - output.sides.keys():
        schema = step.declared(spec.side_outputs.get(tag), step.input_schema)
        if schema is None:
            raise FiresteelError(
                f"{step.operator_name}: the schema of its side output {tag!r} is unknown; "
                "declare it"
            )
        output.sides[tag] = schema


def states_in_columns(
    operator: StreamOperator, name: str, step: AnalysisStep, output: pa.Schema | None
) -> StateDescriptions:
    """Returns the states of an operator whose spec has `state_in_columns`."""
    harness = OperatorHarness(
        operator,
        [producer.schema for producer in step.inputs],
        output_schema=output,
        name=name,
        spark=step.session,
    )
    harness.initialize()
    harness.close()
    return harness.state.described_rows
