"""Specs: the behavior of each operator of a program as plain data, and its traits.

The API builds specs. They are pickled into the JobGraph and unpickled in slots, where the module of
`taskexecutor.executor.operators` with the same name analyzes and runs them. Within Firesteel, specs
import only the bases of functions and connectors.
"""

from __future__ import annotations

from firesteel.operators.aggregates import (
    AggregateExpression,
    PartialWindowAggregateSpec,
    RowPartial,
)
from firesteel.operators.assigners import (
    CountSpec,
    DynamicSessionSpec,
    GlobalSpec,
    SessionSpec,
    SlidingSpec,
    TumblingSpec,
    WindowSpec,
)
from firesteel.operators.batches import BatchesSpec
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
from firesteel.operators.limit import LimitSpec
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
from firesteel.operators.running_aggregate import RunningAggregateSpec
from firesteel.operators.session_aggregate import SessionAggregateSpec
from firesteel.operators.spark_program import SparkDriverSpec, SparkExecutorsSpec
from firesteel.operators.spec import NeededTime, Spec, WatermarkAlignmentSpec
from firesteel.operators.top_n import TopNSpec
from firesteel.operators.transform_with_state import TransformWithStateSpec
from firesteel.operators.watermarks import (
    AssignWatermarksSpec,
    EventTimeWatermarkSpec,
    SessionParts,
    WatermarkSpec,
)
from firesteel.operators.windows import WindowAggregateSpec, WindowApplySpec, WindowTopNSpec

__all__ = [
    "AggregateExpression",
    "ApplySpec",
    "AsOfSpec",
    "AssignWatermarksSpec",
    "BatchesSpec",
    "BroadcastProcessSpec",
    "CoMapInArrowSpec",
    "CoProcessSpec",
    "CountSpec",
    "CustomSpec",
    "DropDuplicatesSpec",
    "DynamicSessionSpec",
    "EventTimeWatermarkSpec",
    "EventTimes",
    "FilterSpec",
    "GlobalSpec",
    "IntervalSpec",
    "JoinSpec",
    "LimitSpec",
    "MapAsyncSpec",
    "MapInArrowSpec",
    "MapInPandasSpec",
    "MapRowsSpec",
    "NeededTime",
    "PartialWindowAggregateSpec",
    "ProcessSpec",
    "RowPartial",
    "RowTimeSpec",
    "RowsBetweenSpec",
    "RunningAggregateSpec",
    "SameWindowSpec",
    "SessionAggregateSpec",
    "SessionParts",
    "SessionSpec",
    "SinkSpec",
    "SlidingSpec",
    "SourceSpec",
    "SparkDriverSpec",
    "SparkExecutorsSpec",
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
]
