"""Functions of the program over batches and rows, on the task's thread."""

from __future__ import annotations

from firesteel.operators import (
    CoMapInArrowSpec,
    FilterSpec,
    MapInArrowSpec,
    MapInPandasSpec,
    MapRowsSpec,
)
from taskexecutor.executor.analysis.dropped_changes import dropped_by_function
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.operators.map.batches import (
    CoMapInArrow,
    Filter,
    MapInArrow,
    MapInPandas,
)
from taskexecutor.executor.operators.map.rows import MapRows
from taskexecutor.executor.operators.registry import OperatorKind, alone


def _analyze_map(
    step: AnalysisStep, spec: MapInArrowSpec | MapInPandasSpec | MapRowsSpec
) -> AnalyzedOutput:
    return AnalyzedOutput(schema=step.declared(spec.schema, step.input_schema))


def _analyze_co_map(step: AnalysisStep, spec: CoMapInArrowSpec) -> AnalyzedOutput:
    return AnalyzedOutput(schema=step.declared(spec.schema))


def _analyze_filter(step: AnalysisStep, spec: FilterSpec) -> AnalyzedOutput:
    dropped = None
    if step.inputs[0].retracting:
        dropped = dropped_by_function(step.operator_name, spec.function)
    return AnalyzedOutput(schema=step.input_schema, dropped=dropped)


KINDS = (
    OperatorKind(MapInArrowSpec, _analyze_map, alone(MapInArrow)),
    OperatorKind(CoMapInArrowSpec, _analyze_co_map, alone(CoMapInArrow)),
    OperatorKind(MapInPandasSpec, _analyze_map, alone(MapInPandas)),
    OperatorKind(MapRowsSpec, _analyze_map, alone(MapRows)),
    OperatorKind(FilterSpec, _analyze_filter, alone(Filter)),
)
