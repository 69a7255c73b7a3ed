"""Which analyser an operator's spec has."""

from __future__ import annotations

from firesteel.plan.specs import (
    ApplySpec,
    AssignWatermarksSpec,
    BroadcastProcessSpec,
    CoMapInArrowSpec,
    CoProcessSpec,
    CustomSpec,
    DropDuplicatesSpec,
    FilterSpec,
    JoinSpec,
    MapInArrowSpec,
    MapInPandasSpec,
    MapRowsSpec,
    PartialWindowAggregateSpec,
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
from taskexecutor.executor.analysis import connectors, functions, joins, ranking, windows
from taskexecutor.executor.analysis.step import Analyzer

ANALYZERS: dict[type[Spec], Analyzer] = {
    SourceSpec: connectors.analyze_source,
    SinkSpec: connectors.analyze_sink,
    TransformSpec: functions.analyze_transform,
    ApplySpec: functions.analyze_apply,
    MapInArrowSpec: functions.analyze_map,
    MapInPandasSpec: functions.analyze_map,
    MapRowsSpec: functions.analyze_map,
    CoMapInArrowSpec: functions.analyze_co_map,
    FilterSpec: functions.analyze_filter,
    AssignWatermarksSpec: functions.analyze_watermarks,
    CoProcessSpec: functions.analyze_co_process,
    BroadcastProcessSpec: functions.analyze_broadcast_process,
    TransformWithStateSpec: functions.analyze_transform_with_state,
    CustomSpec: functions.analyze_map,
    PartialWindowAggregateSpec: windows.analyze_partial_aggregate,
    WindowAggregateSpec: windows.analyze_keyed_aggregate,
    RunningAggregateSpec: windows.analyze_keyed_aggregate,
    WindowApplySpec: windows.analyze_window_apply,
    WindowTopNSpec: ranking.analyze_window_top_n,
    TopNSpec: ranking.analyze_top_n,
    RowsBetweenSpec: ranking.analyze_rows_between,
    JoinSpec: joins.analyze_join,
    DropDuplicatesSpec: functions.analyze_drop_duplicates,
}
