"""Specs: the behaviour of each operator of a program as plain data.

The API builds specs. They are pickled into the JobGraph and unpickled in slots, where
`taskexecutor.executor` creates the operator for each. Within Firesteel, specs import only the bases
of connectors.
"""

from __future__ import annotations

from firesteel.operators.aggregates import (
    AggregateExpression,
    PartialWindowAggregateSpec,
    RowPartial,
    RunningAggregateSpec,
)
from firesteel.operators.connectors import SinkSpec, SourceSpec
from firesteel.operators.custom import CustomSpec
from firesteel.operators.dataframes import ApplySpec, TransformSpec
from firesteel.operators.drop_duplicates import DropDuplicatesSpec
from firesteel.operators.joins import (
    AsOfSpec,
    EventTimes,
    IntervalSpec,
    JoinSpec,
    SameWindowSpec,
    TimeToLiveSpec,
)
from firesteel.operators.map import (
    CoMapInArrowSpec,
    FilterSpec,
    MapInArrowSpec,
    MapInPandasSpec,
    MapRowsSpec,
)
from firesteel.operators.map_async import MapAsyncSpec
from firesteel.operators.process import (
    BroadcastProcessSpec,
    CoProcessSpec,
    ProcessSpec,
    RowTimeSpec,
)
from firesteel.operators.rows_between import RowsBetweenSpec
from firesteel.operators.top_n import TopNSpec
from firesteel.operators.transform_with_state import TransformWithStateSpec
from firesteel.operators.watermarks import (
    AssignWatermarksSpec,
    WatermarkAlignmentSpec,
    WatermarkSpec,
)
from firesteel.operators.windowed import WindowAggregateSpec, WindowApplySpec, WindowTopNSpec
from firesteel.operators.windows import (
    CountSpec,
    DynamicSessionSpec,
    GlobalSpec,
    SessionSpec,
    SlidingSpec,
    TumblingSpec,
    WindowSpec,
)

__all__ = [
    "AggregateExpression",
    "ApplySpec",
    "AsOfSpec",
    "AssignWatermarksSpec",
    "BroadcastProcessSpec",
    "CoMapInArrowSpec",
    "CoProcessSpec",
    "CountSpec",
    "CustomSpec",
    "DropDuplicatesSpec",
    "DynamicSessionSpec",
    "EventTimes",
    "FilterSpec",
    "GlobalSpec",
    "IntervalSpec",
    "JoinSpec",
    "MapAsyncSpec",
    "MapInArrowSpec",
    "MapInPandasSpec",
    "MapRowsSpec",
    "PartialWindowAggregateSpec",
    "ProcessSpec",
    "RowPartial",
    "RowTimeSpec",
    "RowsBetweenSpec",
    "RunningAggregateSpec",
    "SameWindowSpec",
    "SessionSpec",
    "SinkSpec",
    "SlidingSpec",
    "SourceSpec",
    "Spec",
    "TimeToLiveSpec",
    "TopNSpec",
    "TransformSpec",
    "TransformWithStateSpec",
    "TumblingSpec",
    "WatermarkAlignmentSpec",
    "WatermarkSpec",
    "WindowAggregateSpec",
    "WindowApplySpec",
    "WindowSpec",
    "WindowTopNSpec",
    "side_output_tags",
]

Spec = (
    SourceSpec
    | TransformSpec
    | MapInArrowSpec
    | AssignWatermarksSpec
    | MapInPandasSpec
    | MapRowsSpec
    | MapAsyncSpec
    | FilterSpec
    | ApplySpec
    | CoMapInArrowSpec
    | ProcessSpec
    | CoProcessSpec
    | BroadcastProcessSpec
    | PartialWindowAggregateSpec
    | WindowAggregateSpec
    | TransformWithStateSpec
    | RunningAggregateSpec
    | WindowApplySpec
    | WindowTopNSpec
    | DropDuplicatesSpec
    | TopNSpec
    | RowsBetweenSpec
    | JoinSpec
    | SinkSpec
    | CustomSpec
)


def side_output_tags(spec: Spec) -> frozenset[str]:
    """Returns the tags that an operator may use with `Output.emit_side`."""
    match spec:
        case SourceSpec():
            tags: frozenset[str] = spec.source.side_output_tags
            return tags
        case CustomSpec() | ProcessSpec() | CoProcessSpec() | BroadcastProcessSpec():
            return frozenset(spec.side_outputs)
        case WindowApplySpec(late_tag=tag) | WindowTopNSpec(late_tag=tag) if tag:
            return frozenset({tag})
        case _:
            return frozenset()
