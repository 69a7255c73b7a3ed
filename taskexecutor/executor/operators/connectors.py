"""Sources and sinks."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.operator import SourceOperator, StreamOperator
from firesteel.operators import SinkSpec, SourceSpec
from taskexecutor.executor.analysis.checks import check_time_column
from taskexecutor.executor.analysis.row_kinds import check_last_update
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput, Frame
from taskexecutor.executor.columnar.cached_plans.composed import unread_frame
from taskexecutor.executor.connectors.runtime import sink_runtime, source_runtime
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.operators.registry import OperatorKind, alone


def analyze_source(step: AnalysisStep, spec: SourceSpec) -> AnalyzedOutput:
    found = source_runtime(spec.source).analyze(step.engine)
    if spec.watermarks is not None:
        check_time_column(
            step, f"watermarks of {step.operator_name!r}", spec.watermarks.column, found.schema
        )
    frame = None
    if found.spark_schema is not None:
        frame = Frame(unread_frame(step.session, found.spark_schema), found.leaf)
    return AnalyzedOutput(schema=found.schema, frame=frame, sides=dict(found.side_schemas))


def analyze_sink(step: AnalysisStep, spec: SinkSpec) -> AnalyzedOutput:
    check_last_update(step, spec.sink)
    runtime = sink_runtime(spec.sink)
    runtime.checkpoints = step.checkpoints
    return AnalyzedOutput(schema=runtime.analyze(step.input_schema))


def _create_source(group: Sequence[OpenedOperator]) -> StreamOperator:
    spec = group[0].spec
    assert isinstance(spec, SourceSpec)
    operator = source_runtime(spec.source).operator(group)
    if isinstance(operator, SourceOperator):
        operator.reports_idle = spec.reports_idle
    return operator


KINDS = (
    OperatorKind(SourceSpec, analyze_source, _create_source),
    OperatorKind(SinkSpec, analyze_sink, alone(lambda spec: sink_runtime(spec.sink).operator())),
)
