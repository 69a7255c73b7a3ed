"""Creates the operators of a task's chain from the program's specs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Any

from firesteel.errors import FiresteelError
from firesteel.operator import StreamOperator
from firesteel.operators import (
    ApplySpec,
    AssignWatermarksSpec,
    BroadcastProcessSpec,
    CoMapInArrowSpec,
    CoProcessSpec,
    CustomSpec,
    DropDuplicatesSpec,
    FilterSpec,
    JoinSpec,
    MapAsyncSpec,
    MapInArrowSpec,
    MapInPandasSpec,
    MapRowsSpec,
    PartialWindowAggregateSpec,
    ProcessSpec,
    RowsBetweenSpec,
    RunningAggregateSpec,
    SinkSpec,
    SourceSpec,
    Spec,
    TopNSpec,
    TransformSpec,
    TransformWithStateSpec,
    WindowAggregateSpec,
    WindowApplySpec,
    WindowTopNSpec,
)
from taskexecutor.executor.connectors.runtime import sink_runtime, source_runtime
from taskexecutor.executor.operator_factory import OpenedOperator

# Maps specs to constructors by name, so that a slot only imports its job's operators and an idle
# slot does without their libraries.
OPERATORS: dict[type[Spec], str] = {
    MapInArrowSpec: "map_in_arrow:MapInArrow",
    MapInPandasSpec: "map_in_pandas:MapInPandas",
    MapRowsSpec: "map_rows:MapRows",
    MapAsyncSpec: "asynchronous.map_async:MapAsync",
    CoMapInArrowSpec: "map_in_arrow:CoMapInArrow",
    FilterSpec: "filter:Filter",
    ProcessSpec: "process:Process",
    CoProcessSpec: "co_process:CoProcess",
    BroadcastProcessSpec: "broadcast_process:BroadcastProcess",
    TransformWithStateSpec: "stateful.transform_with_state:TransformWithState",
    AssignWatermarksSpec: "assign_watermarks:AssignWatermarks",
    WindowAggregateSpec: "windows.window_operator:window_operator",
    WindowApplySpec: "windows.window_operator:window_operator",
    WindowTopNSpec: "windows.window_operator:window_operator",
    DropDuplicatesSpec: "drop_duplicates:DropDuplicates",
    RunningAggregateSpec: "running_aggregate:RunningAggregate",
    TopNSpec: "top_n:TopN",
    RowsBetweenSpec: "rows_between:RowsBetween",
    JoinSpec: "joins.join_operator:join_operator",
}
RUN_ON_SPARK = (SourceSpec, ApplySpec, TransformSpec, PartialWindowAggregateSpec)


def create_operator(group: Sequence[OpenedOperator]) -> StreamOperator:
    """Creates the operator of `group`: one operator, or a linear run of operators that Spark
    executes as one plan.

    Raises FiresteelError for a group that cannot be one operator.
    """
    first, specs = group[0], [opened.spec for opened in group]
    if len(group) > 1 and not all(isinstance(spec, RUN_ON_SPARK) for spec in specs):
        raise FiresteelError(
            f"operators {', '.join(opened.operator.name for opened in group)} cannot be fused: "
            "not all of them run on Spark"
        )
    match first.spec:
        case SourceSpec():
            return source_runtime(first.spec.source).operator(group)
        case SinkSpec():
            return sink_runtime(first.spec.sink).operator()
        case TransformSpec() | PartialWindowAggregateSpec():
            from taskexecutor.executor.columnar.stages.transform_stage import SparkTransformStage

            return SparkTransformStage(specs, group[-1].output_schema)
        case ApplySpec():
            from taskexecutor.executor.columnar.stages.transform_stage import SparkTransformStage
            from taskexecutor.executor.columnar.stages.whole_rows import ApplyToAll

            following = None
            if len(group) > 1:
                last = group[-1].output_schema
                following = SparkTransformStage(specs[1:], last, first.output_schema)
            return ApplyToAll(first.spec, first.output_schema, following)
        case JoinSpec(whole=True):
            from taskexecutor.executor.operators.joins.whole_join import WholeJoin, joins_whole

            if joins_whole(first.spec, first.output_schema):
                return WholeJoin(first.spec, first.output_schema)
            return operator_class(JoinSpec)(first.spec)
        case CustomSpec():
            from taskexecutor.executor.operators.custom import custom_operator

            return custom_operator(first.spec, first.operator.name)
        case spec:
            return operator_class(type(spec))(spec)


def operator_class(spec: type[Spec]) -> Callable[[Any], StreamOperator]:
    """Returns the operator's class, or a function that selects one."""
    found: Callable[[Any], StreamOperator] = resolve_name(f"{__package__}.{OPERATORS[spec]}")
    return found
