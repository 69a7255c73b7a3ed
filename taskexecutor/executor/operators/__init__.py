"""Operators: from what a program asks for (firesteel.plan.specs) to what runs in a task's chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import pyarrow as pa

from firesteel.connectors import PythonSource, SequenceSource
from firesteel.connectors.python_source import PartitionPlan
from firesteel.errors import FiresteelError
from firesteel.operator import StreamOperator
from firesteel.plan.specs import (
    AssignWatermarksSpec,
    CoMapInArrowSpec,
    CoProcessSpec,
    CustomSpec,
    FilterSpec,
    MapInArrowSpec,
    MapInPandasSpec,
    PartialWindowAggregateSpec,
    RunningAggregateSpec,
    SinkSpec,
    SourceSpec,
    Spec,
    TransformSpec,
    TransformWithStateSpec,
    WindowAggregateSpec,
    WindowApplySpec,
)
from taskexecutor.executor.operator_factory import OpenedOperator


def build(group: Sequence[OpenedOperator]) -> StreamOperator:
    """The operator that does what `group` asks for: one operator, or a linear run of operators that
    run on Spark.

    Raises FiresteelError for a group that cannot be one operator.
    """
    first, specs, schema = group[0], [opened.spec for opened in group], group[-1].output_schema
    if len(group) > 1 and not all(_on_spark(spec) for spec in specs):
        raise FiresteelError(
            f"operators {', '.join(o.operator.name for o in group)} cannot be fused: not all of them run on Spark"
        )
    match first.spec:
        case SourceSpec():
            return _source(first, specs, schema)
        case TransformSpec() | PartialWindowAggregateSpec():
            from taskexecutor.executor.spark.transform_stage import SparkTransformStage

            return SparkTransformStage(specs, schema)
        case MapInArrowSpec():
            from taskexecutor.executor.operators.map_in_arrow import MapInArrow

            return MapInArrow(first.spec)
        case MapInPandasSpec():
            from taskexecutor.executor.operators.map_in_pandas import MapInPandas

            return MapInPandas(first.spec)
        case AssignWatermarksSpec():
            from taskexecutor.executor.operators.assign_watermarks import AssignWatermarks

            return AssignWatermarks(first.spec)
        case FilterSpec():
            from taskexecutor.executor.operators.filter import Filter

            return Filter(first.spec)
        case CoProcessSpec():
            from taskexecutor.executor.operators.co_process import CoProcess

            return CoProcess(first.spec)
        case CoMapInArrowSpec():
            from taskexecutor.executor.operators.map_in_arrow import CoMapInArrow

            return CoMapInArrow(first.spec)
        case WindowAggregateSpec() | WindowApplySpec():
            from taskexecutor.executor.operators.aggregation.window_aggregate import window_operator

            return window_operator(first.spec)
        case RunningAggregateSpec():
            from taskexecutor.executor.operators.aggregation.running_aggregate import (
                RunningAggregate,
            )

            return RunningAggregate(first.spec)
        case TransformWithStateSpec():
            from taskexecutor.executor.operators.stateful import TransformWithState

            return TransformWithState(first.spec)
        case SinkSpec():
            from taskexecutor.executor.connectors import build_sink

            return build_sink(first.spec.sink)
        case CustomSpec():
            from taskexecutor.executor.operators.custom import custom_operator

            return custom_operator(first.spec, first.operator.name)
        case _:
            assert_never(first.spec)


def _source(first: OpenedOperator, specs: list[Spec], schema: pa.Schema | None) -> StreamOperator:
    assert isinstance(first.spec, SourceSpec)
    if isinstance(first.spec.source, SequenceSource) and len(specs) == 1:
        from taskexecutor.executor.connectors.sequence import SequenceReader

        return SequenceReader(first.spec.source, first.spec.watermarks)
    if isinstance(first.spec.source, PythonSource | PartitionPlan):
        from taskexecutor.executor.connectors import python_source

        return python_source.build(first.spec.source)
    from taskexecutor.executor.spark.source_stage import SparkSourceStage

    return SparkSourceStage(first.spec, first.output_schema, specs[1:], schema)


def _on_spark(spec: Spec) -> bool:
    return isinstance(spec, SourceSpec | TransformSpec | PartialWindowAggregateSpec)
