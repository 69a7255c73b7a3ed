"""Functions of the program: their schemas are declared, or found by applying them to no rows."""

from __future__ import annotations

from firesteel.plan.specs import (
    AssignWatermarksSpec,
    CoMapInArrowSpec,
    CoProcessSpec,
    CustomSpec,
    FilterSpec,
    MapInArrowSpec,
    MapInPandasSpec,
    TransformSpec,
    TransformWithStateSpec,
)
from taskexecutor.executor.analysis.checks import (
    KeyedInput,
    check_same_key_types,
    check_time_column,
)
from taskexecutor.executor.analysis.row_by_row import check_row_by_row
from taskexecutor.executor.analysis.row_kinds import check_transform
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.spark import plans


def analyze_transform(step: AnalysisStep, spec: TransformSpec) -> AnalyzedOutput:
    frame = step.frame()
    result = plans.transform(frame.frame, spec)
    if not spec.per_bundle:
        check_row_by_row(step.operator_name, frame, result)
    check_transform(step, frame.frame, result)
    return AnalyzedOutput.on_spark(frame.with_plan(result))


def analyze_map(
    step: AnalysisStep, spec: MapInArrowSpec | MapInPandasSpec | CustomSpec
) -> AnalyzedOutput:
    return AnalyzedOutput(schema=step.declared(spec.schema, step.input_schema))


def analyze_co_map(step: AnalysisStep, spec: CoMapInArrowSpec) -> AnalyzedOutput:
    return AnalyzedOutput(schema=step.declared(spec.schema))


def analyze_filter(step: AnalysisStep, spec: FilterSpec) -> AnalyzedOutput:
    return AnalyzedOutput(schema=step.input_schema)


def analyze_watermarks(step: AnalysisStep, spec: AssignWatermarksSpec) -> AnalyzedOutput:
    if spec.column and step.input_schema is not None:
        check_time_column(f"watermarks of {step.operator_name!r}", spec.column, step.input_schema)
    return AnalyzedOutput(schema=step.input_schema)


def analyze_co_process(step: AnalysisStep, spec: CoProcessSpec) -> AnalyzedOutput:
    check_same_key_types(
        step.operator_name,
        KeyedInput("the first stream", step.inputs[0].schema, spec.first_key_columns),
        KeyedInput("the second", step.inputs[1].schema, spec.second_key_columns),
    )
    return AnalyzedOutput(schema=step.declared(spec.schema))


def analyze_transform_with_state(
    step: AnalysisStep, spec: TransformWithStateSpec
) -> AnalyzedOutput:
    """Runs the processor's `init`, as PySpark does, to find its errors before data flows."""
    from taskexecutor.executor.operators.stateful.checks import check_processor

    schema = step.declared(spec.output_schema)
    if spec.initial_key_columns is not None:
        check_same_key_types(
            step.operator_name,
            KeyedInput("the stream", step.inputs[0].schema, spec.key_columns),
            KeyedInput("initial_state", step.inputs[1].schema, spec.initial_key_columns),
        )
    check_processor(spec, step.operator_name)
    return AnalyzedOutput(schema=schema)
