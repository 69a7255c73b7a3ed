"""Makes a Firesteel stream of a streaming query that Spark has analysed.

The planner walks the analysed plan. Nodes without state become stretches, which slots run on Spark;
a node with state becomes a Firesteel operator between two stretches. Columns of the streams are
named by `Names`, so that equal names do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructField, StructType, _parse_datatype_json_string
from pyspark.util import PythonEvalType

from firesteel.common.checkpoints.fits import DISPOSABLE
from firesteel.datastream import ConnectedStreams, DataStream
from firesteel.environment import Environment
from firesteel.errors import InvalidProgram
from firesteel.operators import (
    DropDuplicatesSpec,
    EventTimeWatermarkSpec,
    JoinSpec,
    PartialWindowAggregateSpec,
    RunningAggregateSpec,
    SessionAggregateSpec,
    SessionParts,
    SessionSpec,
    SlidingSpec,
    Spec,
    TumblingSpec,
)
from firesteel.operators.aggregates import LATEST, AggregateExpression
from firesteel.operators.joins import EventTimes, How, IntervalSpec
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.plan.catalyst_plan import alias, items, without_ids
from firesteel.spark_connect.catalyst import (
    Catalyst,
    catalyst_of,
    children,
    delay_ms,
    is_window,
    kind,
    output,
    same,
)
from firesteel.spark_connect.conditions import Between, Condition, condition_of, conjuncts_of
from firesteel.spark_connect.group_state import GroupStateProcessor
from firesteel.spark_connect.names import Names, repeated
from firesteel.spark_connect.scalar_subqueries import ScalarSubqueries
from firesteel.spark_connect.shared_watermarks import share_watermarks
from firesteel.spark_connect.sources import schema_of, source_of
from firesteel.spark_connect.spark import LocalRows, Spark
from firesteel.spark_connect.time_windows import TimeWindow, time_window
from firesteel.static_table import StaticTable

# Nodes that treat each row by itself; Spark runs them in the slots.
_ROW_BY_ROW = frozenset(
    ("Project", "Filter", "Expand", "Generate", "MapInPandas", "PythonMapInArrow", "MapInArrow")
)
# Nodes that only name or describe their child.
_TRANSPARENT = frozenset(
    ("SubqueryAlias", "View", "ResolvedHint", "Repartition", "RepartitionByExpression")
)
_BY_TIME = frozenset({"First", "Last"})  # aggregate functions; also any_value, which is first
# The methods of nodes that are refused, for messages.
_METHODS = {
    "GlobalLimit": "limit(), except after an aggregate in complete mode,",
    "LocalLimit": "limit(), except after an aggregate in complete mode,",
    "Offset": "offset(), except after an aggregate in complete mode,",
    "Sort": "orderBy(), except after an aggregate in complete mode,",
}
_TIME_MODES = {
    "NoTime": "none",
    "ProcessingTime": "processing_time",
    "EventTime": "event_time",
}
_WITH_STATE_IN_PANDAS = PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_UDF
_HOW: dict[str, How] = {
    "Inner": "inner",
    "Cross": "inner",
    "LeftOuter": "left",
    "RightOuter": "right",
    "FullOuter": "full",
    "LeftSemi": "semi",
}
# The column with the time of a watermark, if the query does not need it.
_TIME_OF_WATERMARK = "time_of_watermark"
# Columns of the two sides of a join: whether a row meets the conditions that refer to its side.
_CONDITION = ("condition_left", "condition_right")
# Nodes that need all rows: allowed above the aggregate of a query in complete mode.
_WHOLE = frozenset(("Sort", "GlobalLimit", "LocalLimit", "Offset", "Tail", "Window"))


@dataclass(frozen=True, kw_only=True)
class ObservedStream:
    """The metrics of an `observe()`: a stream with one row for each batch that has rows there."""

    name: str  # of the observation
    uid: str  # from which those of its operators are made
    stream: DataStream
    schema: StructType
    without_rows: pa.Table  # the metrics of a batch without rows there


@dataclass(frozen=True, kw_only=True)
class PlannedStream:
    """A streaming query as a stream without a sink.

    `per_batch` is the part of the query that needs all rows of a batch, such as the order of a
    complete result: the sink applies it. If `schema` has names that differ in their case at most,
    the columns have other names, in the same order (`is_renamed`): the sink restores those of
    `schema`.
    """

    environment: Environment
    stream: DataStream
    schema: StructType  # of the query, after `per_batch`
    per_batch: Callable[[DataFrame], DataFrame] | None = None
    is_renamed: bool = False
    observed: tuple[ObservedStream, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)  # descriptions by uid


@dataclass(frozen=True, kw_only=True)
class _Watermark:
    """A watermark that is assigned after the stretch above it, whose rows are as many.

    So Spark plans the stretch together with the nodes below the watermark.
    """

    time: Any  # attribute
    title: str
    uid: str
    spec: EventTimeWatermarkSpec  # its column is not known yet

    def with_parts(self, parts: SessionParts) -> _Watermark:
        return replace(self, spec=replace(self.spec, parts=parts))


@dataclass(frozen=True, kw_only=True)
class _Flow:
    """A stream and the stretch that is still to be applied to it.

    `attributes` are those of the stream's columns `names`; `plan` has them as its leaf, and
    `statics` for others. If `hides_time`, the last column of the plan is the time of the
    `watermark`, which the query itself does not need.
    """

    stream: DataStream
    attributes: list[Any]
    names: list[str]
    plan: Any
    statics: Mapping[int, StaticTable] = field(default_factory=dict)
    watermark: _Watermark | None = None
    hides_time: bool = False

    @property
    def output(self) -> list[Any]:
        """The attributes of the plan's columns."""
        columns = output(self.plan)
        return columns[:-1] if self.hides_time else columns


def stream_of(
    spark: Spark,
    user_id: str,
    session_id: str,
    analyzed: Any,
    *,
    output_mode: str,
    batches: bool,
    configuration: Mapping[str, str],
) -> PlannedStream:
    """Plans an analysed Catalyst plan of a session, in a new environment with this configuration.

    With `batches`, aggregates emit each key once per batch, not once per bundle. Raises
    InvalidProgram for what cannot run, and Py4JJavaError for what Spark refuses.
    """
    environment = Environment(configuration=dict(configuration))
    planner = Planner(
        spark.jvm,
        spark.holder(user_id, session_id).session(),
        environment,
        output_mode=output_mode,
        batches=batches,
        static_rows=lambda rows: spark.rows(user_id, session_id, rows),
    )
    return planner.planned(analyzed)


class Planner:
    """Plans one query of a classic session of the JVM. `static_rows` runs a plan without streams.
    With `batches`, aggregates emit each key once per batch, not once per bundle.
    """

    def __init__(
        self,
        jvm: Any,
        session: Any,
        environment: Environment,
        *,
        output_mode: str,
        batches: bool,
        static_rows: Callable[[Any], pa.Table],
    ) -> None:
        self._catalyst = catalyst_of(jvm)
        self._scalars = ScalarSubqueries(self._catalyst)
        self._names = Names()
        self._jvm = jvm
        self._session = session
        self._environment = environment
        self._output_mode = output_mode
        self._batches = batches
        self._static_rows = static_rows
        self._sources: dict[str, str] = {}
        self._observations: list[tuple[Any, _Flow]] = []  # nodes of observe(), and their rows
        self._nodes: dict[str, Callable[[Any], _Flow]] = {
            "EventTimeWatermark": self._watermark,
            "Aggregate": self._aggregate,
            "CollectMetrics": self._observation,
            "Deduplicate": self._deduplicate,
            "DeduplicateWithinWatermark": self._deduplicate,
            "Distinct": self._deduplicate,
            "Union": self._union,
            "Join": self._join,
            "FlatMapGroupsInPandasWithState": self._group_state,
            "TransformWithStateInPySpark": self._with_state,
            "StreamingRelation": self._source,
            "StreamingRelationV2": self._source,
        }

    def planned(self, plan: Any) -> PlannedStream:
        """Returns the stream of an analysed plan. Raises InvalidProgram for what cannot run, and
        Py4JJavaError with Spark's reason for what Spark itself refuses.
        """
        catalyst = self._catalyst
        self._check(plan)
        plan = catalyst.pruned(self._scalars.joined(catalyst.pushed_down(plan)))
        schema = schema_of(plan.schema())
        repeats = bool(repeated(schema.names))
        below, above = self._split_whole(plan)
        # Observed aggregates emit each key once per batch, as in Spark.
        self._batches = self._batches or _observes_aggregate(below)
        flow, per_batch = self._flow(below), None
        if above is None:
            flow = self._unique(flow) if repeats else flow
            names = [each.name() for each in flow.output] if repeats else schema.names
            flow = self._cut(flow, names=names)
        else:
            flow = self._cut(flow)
            whole = above(catalyst.leaf(flow.attributes))
            per_batch = catalyst.stretch(self._uniquely_named(whole) if repeats else whole)
        # After the query, whose names of state do not depend on its observations.
        observed = tuple(self._observed(node, rows) for node, rows in self._observations)
        share_watermarks(self._environment._program.graph)
        return PlannedStream(
            environment=self._environment,
            stream=flow.stream,
            schema=schema,
            per_batch=per_batch,
            is_renamed=repeats,
            observed=observed,
            sources=self._sources,
        )

    def _unique(self, flow: _Flow) -> _Flow:
        """Returns the flow with its columns under unique names."""
        flow = flow if flow.watermark is None else self._cut(flow)
        return replace(flow, plan=self._uniquely_named(flow.plan))

    def _uniquely_named(self, plan: Any) -> Any:
        columns = [
            self._catalyst.named(each, f"{self._names.column(each)}_{number}_column")
            for number, each in enumerate(output(plan))
        ]
        return self._catalyst.project(columns, plan)

    def _check(self, plan: Any) -> None:
        """Raises Spark's AnalysisException for a query that Spark refuses in the output mode."""
        catalyst = self._jvm.org.apache.spark.sql.catalyst
        modes = self._jvm.org.apache.spark.sql.streaming.OutputMode
        mode = getattr(modes, self._output_mode.capitalize())()
        catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)

    def _split_whole(self, plan: Any) -> tuple[Any, Callable[[Any], Any] | None]:
        """Returns the part of the plan below the lowest node that needs all rows, and a function
        that puts the others on a leaf; None if there are none.
        """
        if self._output_mode != "complete":
            return plan, None
        chain: list[Any] = []
        node, lowest = plan, -1
        while len(children(node)) == 1:
            if kind(node) in _WHOLE:
                lowest = len(chain)
            chain.append(node)
            (node,) = children(node)
        if lowest < 0:
            return plan, None
        if any(kind(node) == "CollectMetrics" for node in chain[:lowest]):
            raise InvalidProgram(
                "observe() is not supported after orderBy(), limit(), offset() and functions over"
                " windows of a complete result; call it before them"
            )
        (below,) = children(chain[lowest])

        def above(leaf: Any) -> Any:
            for each in reversed(chain[: lowest + 1]):
                if kind(each) not in _TRANSPARENT:
                    leaf = each.withNewChildren(self._catalyst.seq([leaf]))
            return leaf

        return below, above

    # -- nodes

    def _flow(self, plan: Any) -> _Flow:
        name = kind(plan)
        if name in _TRANSPARENT:
            return self._flow(children(plan)[0])
        if name in _ROW_BY_ROW:
            return self._row_by_row(plan, self._flow(children(plan)[0]))
        node = self._nodes.get(name)
        if node is None:
            raise InvalidProgram(
                f"{_METHODS.get(name, name)} is not supported here in a streaming query:\n"
                f"{plan.treeString().splitlines()[0][:300]}"
            )
        return node(plan)

    def _row_by_row(self, plan: Any, flow: _Flow) -> _Flow:
        if kind(plan) == "Filter" and _is_always_true(plan.condition()):
            return flow
        if flow.watermark is not None:
            time = flow.watermark.time
            if kind(plan) == "Project":
                columns = items(plan.projectList())
                hides = not any(same(time, each.toAttribute()) for each in columns)
                project = self._catalyst.project([*columns, time] if hides else columns, flow.plan)
                return replace(flow, plan=project, hides_time=hides)
            if not _keeps_times(plan, time):
                flow = self._cut(flow)
        return replace(flow, plan=plan.withNewChildren(self._catalyst.seq([flow.plan])))

    def _cut_flow(self, plan: Any) -> _Flow:
        """Returns the flow of a plan, with its watermark assigned."""
        flow = self._flow(plan)
        return flow if flow.watermark is None else self._cut(flow)

    def _source(self, plan: Any) -> _Flow:
        uid = self._names.uid("source")
        source = source_of(self._jvm, self._environment, plan, uid)
        self._sources[uid] = source.description
        return self._on(source.stream, output(plan), source.names)

    def _watermark(self, plan: Any) -> _Flow:
        flow = self._cut_flow(children(plan)[0])
        attributes = output(plan)
        time = next(each for each in attributes if same(each, plan.eventTime()))
        watermark = _Watermark(
            time=time,
            title=f"Watermark({plan.eventTime().name()})",
            uid=self._names.uid("watermark"),
            spec=EventTimeWatermarkSpec(
                delay_us=(delay_ms(time) or 0) * 1_000,
                combined=_has(children(plan)[0], "EventTimeWatermark"),
            ),
        )
        # The attributes know that one of them is the event time.
        project = self._catalyst.project(attributes, flow.plan)
        return replace(flow, plan=project, watermark=watermark, hides_time=False)

    def _union(self, plan: Any) -> _Flow:
        attributes = output(plan)
        names = [self._names.column(each) for each in attributes]
        first, *others = (
            self._timed(plan, child, self._cut(self._flow(child), names=names))
            for child in children(plan)
        )
        return self._on(first.union(*others), attributes, names)

    def _timed(self, plan: Any, child: Any, flow: _Flow) -> DataStream:
        """Returns the stream of an input. Without a watermark it never holds back those of the
        other inputs. Each consumer gets the watermarks of all subtasks: that of a subtask alone,
        which may have no rows, is not that of the input.
        """
        if not _has(plan, "EventTimeWatermark"):
            return flow.stream
        if _has(child, "EventTimeWatermark"):
            return flow.stream.rebalance()
        return flow.stream.operator("No watermark", EventTimeWatermarkSpec()).rebalance()

    def _deduplicate(self, plan: Any) -> _Flow:
        flow = self._cut_flow(children(plan)[0])
        within = kind(plan) == "DeduplicateWithinWatermark"
        attributes = output(flow.plan)
        names = list(map(self._names.column, attributes))
        keys = attributes if kind(plan) == "Distinct" else items(plan.keys())
        columns = tuple(map(self._names.column, keys))
        timed = [each for each in attributes if delay_ms(each) is not None]
        late, expires_after_us = "", None
        if timed:
            in_keys = [each for each in timed if self._names.column(each) in columns]
            time = (in_keys or timed)[0]
            late = self._names.time(time)
            if within:
                expires_after_us = (delay_ms(time) or 0) * 1_000
            elif in_keys:
                expires_after_us = 0
            added = self._catalyst.named(_time_of(self._catalyst, time), late)
            project = self._catalyst.project([*attributes, added], flow.plan)
            flow, names = replace(flow, plan=project), [*names, late]
        flow = self._cut(flow, names=names)
        spec = DropDuplicatesSpec(
            key_columns=columns,
            late_column=late,
            time_is_key=bool(timed and in_keys and not within),
            expires_after_us=expires_after_us,
        )
        title = f"DropDuplicates({', '.join(key.name() for key in keys)})"
        unique = self._on(
            flow.stream.key_by(*columns)._add(title, spec, uid=self._names.uid("duplicates")),
            flow.attributes,
            flow.names,
        )
        return replace(unique, plan=self._catalyst.project(output(plan), unique.plan))

    def _aggregate(self, plan: Any) -> _Flow:
        """Computes keys and inputs in a stretch, aggregates them, and computes the results."""
        catalyst = self._catalyst
        grouping, calls, results, plan = self._physical(plan)
        window = None
        if (attribute := _only_key(grouping, calls)) is not None:
            window = time_window(catalyst, plan, attribute)
            if window is not None and not self._is_assigned(window):
                window = None
        if window is not None:
            plan = window.plan
            grouping = [each for each in grouping if not _is(each, attribute)]
        flow = self._flow(plan)
        if flow.watermark is not None and window is not None:
            # The partial aggregate leaves out rows without the time of the window.
            flow = flow if same(window.time, flow.watermark.time) else self._cut(flow)
        spec = window.spec if window is not None else None
        parts = None  # of sessions that are divided before the shuffle
        if isinstance(spec, SessionSpec):
            parts = SessionParts(column="session_part", gap_us=spec.gap_us)
        if (spec is None or parts is not None) and all(map(_is_session, grouping)):
            grouping.append(self._all_rows())
        keys = [_Key.of(catalyst, self._names, each) for each in grouping]
        columns = [column for key in keys for column in key.columns]
        key_columns = tuple(name for name, _ in columns)
        inputs: list[Any] = []
        expressions: list[str] = []
        for call in calls:
            expressions.append(self._call(call, inputs))
        columns += [(each.name(), each) for each in inputs]
        watermark, time, latest = flow.watermark, "", ""
        assigned = None  # before the aggregate
        if window is not None:
            keys.append(_Key.of_window(catalyst, attribute, window.spec))
            time = self._names.time(window.time)
            columns.append((time, self._another(columns, window.time, time)))
        if parts is not None:
            assert watermark is not None
            assigned, watermark = watermark.with_parts(parts), None
        elif watermark is not None:
            latest = time or _TIME_OF_WATERMARK
            if not time:
                columns.append((latest, self._another(columns, watermark.time, latest)))
        before = catalyst.project([each for _, each in columns], flow.plan)
        flow = replace(flow, plan=before, watermark=assigned, hides_time=False)
        flow = self._cut_as(flow, [name for name, _ in columns])
        aggregates = _parsed(calls, expressions, time or latest)
        partial = PartialWindowAggregateSpec(
            key_columns=key_columns,
            window=spec,
            time_column=time,
            aggregates=aggregates,
            whole_windows=spec is not None and parts is None,
            latest=latest,
            part_column=parts.column if parts is not None else "",
        )
        names = tuple(name for key in keys for name in key.names)
        by = names
        mode = cast(Any, self._output_mode)
        final: Spec
        if session := next((key for key in keys if key.session), None):
            start, end = session.names
            by = tuple(name for name in names if name not in session.names)
            final = SessionAggregateSpec(
                key_columns=names,
                start=start,
                end=end,
                aggregates=aggregates,
                mode=mode,
                at_barriers=self._batches,
            )
        else:
            expires = next((key.time for key in keys if key.time), "")
            final = RunningAggregateSpec(
                key_columns=names,
                aggregates=aggregates,
                mode=mode,
                expires=expires if self._output_mode != "complete" else "",
                at_barriers=self._batches,
            )

        def timed(partials: DataStream) -> DataStream:
            if watermark is None:
                return partials
            return _assigned(partials, watermark, LATEST, drops=True)

        stream = flow.stream.key_by(*by)._add_in_two_halves(
            f"Aggregate({', '.join(without_ids(key.attribute.name()) for key in keys)})",
            partial,
            final,
            between=timed,
            uid=self._names.uid("aggregate"),
        )
        return self._after_aggregate(stream, keys, calls, results)

    def _physical(self, aggregate: Any) -> tuple[list[Any], list[Any], list[Any], Any]:
        """Returns the grouping expressions of an Aggregate, its calls of aggregate functions, its
        results, and its child.
        """
        physical = self._jvm.org.apache.spark.sql.catalyst.planning.PhysicalAggregation
        option = physical.unapply(aggregate)
        if option.isEmpty():
            raise InvalidProgram(
                f"this aggregate is not supported on streams:\n"
                f"{aggregate.treeString().splitlines()[0][:300]}"
            )
        found = option.get()
        return items(found._1()), items(found._2()), items(found._3()), found._4()

    def _observation(self, plan: Any) -> _Flow:
        flow = self._cut_flow(children(plan)[0])
        self._observations.append((plan, flow))
        return flow

    def _observed(self, node: Any, flow: _Flow) -> ObservedStream:
        """Adds the metrics of an `observe()` besides the stream of its rows."""
        catalyst = self._catalyst
        whole = catalyst.aggregated(items(node.metrics()), flow.plan)
        _, calls, results, _ = self._physical(whole)
        keys = [_Key.of(catalyst, self._names, self._all_rows())]
        columns = [column for key in keys for column in key.columns]
        inputs: list[Any] = []
        expressions = [self._call(call, inputs) for call in calls]
        columns += [(each.name(), each) for each in inputs]
        before = catalyst.project([each for _, each in columns], flow.plan)
        rows = self._cut_as(replace(flow, plan=before), [name for name, _ in columns])
        aggregates = _parsed(calls, expressions, "")
        names, uid = tuple(keys[0].names), DISPOSABLE + self._names.uid("observation")
        stream = rows.stream.key_by(*names)._add_in_two_halves(
            f"Observe({node.name()})",
            PartialWindowAggregateSpec(
                key_columns=names,
                window=None,
                time_column="",
                aggregates=aggregates,
                observes=True,
            ),
            RunningAggregateSpec(
                key_columns=names, aggregates=aggregates, at_barriers=True, forgets=True
            ),
            uid=uid,
        )
        schema = schema_of(whole.schema())
        observed = self._after_aggregate(stream, keys, calls, results)
        unique = [f"metric_{number}" for number in range(len(schema))]
        return ObservedStream(
            name=node.name(),
            uid=uid,
            stream=self._cut(observed, names=unique).stream,
            schema=schema,
            without_rows=self._static_rows(whole),
        )

    def _another(self, columns: Sequence[tuple[str, Any]], time: Any, name: str) -> Any:
        """Returns the time as a column besides `columns`, one of which may be the time as a key."""
        is_key = any(same(each, time) for _, each in columns)
        return self._catalyst.named(time, name) if is_key else time

    def _is_assigned(self, window: TimeWindow) -> bool:
        """Returns whether Firesteel assigns rows to the window. To sessions, it does where they are
        emitted once, and right after the watermark of their time.
        """
        if not isinstance(window.spec, SessionSpec):
            return True
        return self._output_mode == "append" and _has_watermark_of(window.time, window.plan)

    def _all_rows(self) -> Any:
        """Returns the key of an aggregate without groups."""
        return self._catalyst.named(self._catalyst.literal(1), "all_rows")

    def _after_aggregate(
        self, stream: DataStream, keys: Sequence[_Key], calls: Sequence[Any], results: Sequence[Any]
    ) -> _Flow:
        catalyst = self._catalyst
        attributes = [part for key in keys for part in key.parts]
        names = [name for key in keys for name in key.names]
        attributes += [call.resultAttribute() for call in calls] or [_row_count(catalyst)]
        names += [self._names.result(call) for call in calls] or ["rows_"]
        leaf = catalyst.leaf(attributes)
        whole = catalyst.project(
            [*(key.whole(catalyst) for key in keys), *(c.resultAttribute() for c in calls)], leaf
        )
        after = catalyst.project(results, whole)
        return _Flow(stream=stream, attributes=attributes, names=names, plan=after)

    def _call(self, call: Any, inputs: list[Any]) -> str:
        """Returns an aggregate call as SQL over columns, which are added to `inputs`."""
        catalyst = self._catalyst

        def column(expression: Any) -> Any:
            if expression.foldable():
                return expression
            name = f"i{len(inputs)}_input"
            inputs.append(catalyst.named(expression, name))
            return inputs[-1].toAttribute()

        function = call.aggregateFunction()
        given = [column(each) for each in children(function)]
        parts = [function.withNewChildren(catalyst.seq(given))]
        if call.filter().isDefined():
            parts.append(column(call.filter().get()))
        renamed = call.withNewChildren(catalyst.seq(parts))
        text: str = renamed.sql()
        if kind(function) in _BY_TIME and function.ignoreNulls():  # which Spark's SQL text lacks
            bare = parts[0].sql()
            text = f"{bare.removesuffix(')')}, true){text.removeprefix(bare)}"
        columns = [each.toAttribute() for each in inputs]
        if not catalyst.aggregate(self._session, text, columns).semanticEquals(renamed):
            raise InvalidProgram(
                f"{call.toString()}: the options of this aggregate function are not supported on"
                " streams; use the function without them"
            )
        return f"{text} AS {self._names.result(call)}"

    # -- functions with state

    def _group_state(self, plan: Any) -> _Flow:
        processor = GroupStateProcessor(
            _function_of(self._catalyst, plan.functionExpr()),
            schema_of(plan.stateType()),
            plan.timeout().toString(),
        )
        return self._stateful(
            plan, items(plan.groupingAttributes()), processor, processor.time_mode, pandas=True
        )

    def _with_state(self, plan: Any) -> _Flow:
        if plan.hasInitialState():
            raise InvalidProgram(
                "transformWithState with an initial state is not supported in PySpark programs"
            )
        processor = _function_of(self._catalyst, plan.functionExpr()).__self__._stateful_processor
        mode = plan.timeMode().toString()
        keys = items(plan.child().output())[: plan.groupingAttributesLen()]
        pandas = plan.functionExpr().evalType() == _WITH_STATE_IN_PANDAS
        return self._stateful(plan, keys, processor, _TIME_MODES[mode], pandas=pandas)

    def _stateful(
        self, plan: Any, keys: Sequence[Any], processor: Any, time_mode: str, *, pandas: bool
    ) -> _Flow:
        """Adds a function that gets the columns under the names that the program gave them."""
        given = items(plan.functionExpr().children())
        names = [each.name() for each in given]
        by_id = {each.exprId().id(): each.name() for each in given}
        missing = [key.name() for key in keys if key.exprId().id() not in by_id]
        if missing or len(set(names)) < len(names):
            raise InvalidProgram(
                f"groupBy({', '.join(key.name() for key in keys)}): group by columns of the stream,"
                " whose names are unique: add others with withColumn(...) before"
            )
        (child, *_) = children(plan)
        flow = self._cut_flow(child)
        flow = self._cut_as(replace(flow, plan=self._catalyst.project(given, flow.plan)), names)
        keyed = flow.stream.key_by(*(by_id[key.exprId().id()] for key in keys))
        run = keyed.transform_with_state_in_pandas if pandas else keyed.transform_with_state
        mode = plan.outputMode().toString().lower()
        attributes = items(plan.outputAttrs())
        schema = StructType([StructField(a.name(), _type_of(a)) for a in attributes])
        uid = self._names.uid("function")
        stream = run(processor, schema, mode, time_mode, uid=uid)
        return self._on(stream, attributes, [each.name() for each in attributes])

    # -- joins

    def _join(self, plan: Any) -> _Flow:
        sides = children(plan)
        if all(side.isStreaming() for side in sides):
            return self._stream_join(plan)
        streaming = [side.isStreaming() for side in sides].index(True)
        flow = self._cut_flow(sides[streaming])
        static = sides[1 - streaming]
        leaf = self._catalyst.leaf(output(static))
        rows = self._rows(static)
        below = [flow.plan, leaf] if streaming == 0 else [leaf, flow.plan]
        number = output(static)[0].exprId().id()
        return replace(
            flow,
            plan=plan.withNewChildren(self._catalyst.seq(below)),
            statics={**flow.statics, number: rows},
        )

    def _rows(self, static: Any) -> StaticTable:
        """Reads the static side of a join, now and once, as a table of the job."""
        rows = self._static_rows(static)
        self._scalars.check_rows(static, rows)
        read = LocalRows(rows)
        return self._environment.static(read, name="static side", max_size="1 gb", allow_empty=True)

    def _stream_join(self, plan: Any) -> _Flow:
        catalyst = self._catalyst
        how = _HOW.get(plan.joinType().toString())
        if how is None:
            raise InvalidProgram(
                f"a {plan.joinType().toString()} join of two streams is not supported; allowed:"
                " inner, left, right and full outer joins, and left semi joins"
            )
        left, right = children(plan)
        given = conjuncts_of(plan.condition().get()) if plan.condition().isDefined() else []
        condition = condition_of(catalyst, given, output(left), output(right))
        if not condition.equal:
            raise InvalidProgram(
                "a join of two streams needs columns that are equal, such as a.id = b.id"
            )
        if condition.others and how != "inner":
            raise InvalidProgram(
                f"{condition.others[0].toString()}: the condition of a {how} join of two streams"
                " consists of equalities and of bounds between the two event times; filter the"
                " streams before the join"
            )
        keyed = [
            self._keyed(plan, side, condition, index, how)
            for index, side in enumerate((left, right))
        ]
        (_, left_keys), (_, right_keys) = keyed
        flows = [flow for flow, _ in keyed]
        spec = JoinSpec(
            left_keys=left_keys,
            right_keys=right_keys,
            how=how,
            within=_within(self._names, condition.between),
            holds_null_keys=condition.between is not None,
            conditions=_conditions(flows),
        )
        if spec.within is not None:  # an operator downstream may take the time of either side
            spec = spec.with_delayed_watermark()
        first, second = (flow.stream.key_by(*names) for flow, names in keyed)
        title = f"Join({how}, {', '.join(pair[0].sql() for pair in condition.equal)})"
        stream = ConnectedStreams(first, second)._add(title, spec, self._names.uid("join"))
        there = flows[:1] if how == "semi" else flows
        joined = self._on(
            stream,
            [attribute for flow in there for attribute in flow.attributes],
            [name for flow in there for name in flow.names],
        )
        after = catalyst.project(output(plan), joined.plan)
        return replace(joined, plan=_filtered(catalyst, condition.others, after))

    def _keyed(
        self, join: Any, side: Any, condition: Condition, index: int, how: How
    ) -> tuple[_Flow, tuple[str, ...]]:
        """Returns a side and the names of its keys. Keys that are not columns, event times, and
        whether its own condition is true are additional columns; the rows that the join never emits
        are left out.
        """
        unmatched = how in (("left", "full"), ("right", "full"))[index]
        catalyst = self._catalyst
        flow = self._flow(side)
        own, between = condition.own[index], condition.between
        needed = [] if unmatched else list(own)
        attribute = None
        if between is not None and not (how == "full" and between.only_equal):
            # As in Spark, a row without a time has no match, and waits for one forever.
            attribute = (between.left, between.right)[index]
            timed = catalyst.expressions.IsNotNull(_time_of(catalyst, attribute))
            if own and unmatched:
                without_match = catalyst.expressions.Not(catalyst.all_of(own))
                timed = catalyst.expressions.Or(timed, without_match)
            needed.append(timed)
        if flow.watermark is not None and needed:
            # The watermark needs all rows that have a time.
            only_timed = len(needed) == 1 and attribute is not None
            if not only_timed or not _is_time(attribute, flow.watermark.time, flow.plan):
                flow = self._cut(flow)
        flow = replace(flow, plan=_filtered(catalyst, needed, flow.plan))
        label = ("left", "right")[index]
        known = {each.exprId().id(): each for each in flow.output}
        named: list[Any] = []
        keys: list[str] = []
        for number, pair in enumerate(condition.equal):
            key = pair[index]
            column = known.pop(key.exprId().id(), None) if _is_attribute(key) else None
            if column is None:
                named.append(catalyst.named(key, f"k{number}_{label}"))
            keys.append(named[-1].name() if column is None else self._names.column(column))
        if own and unmatched:
            named.append(catalyst.named(catalyst.all_of(own), _CONDITION[index]))
        times = [
            catalyst.named(catalyst.or_last(_time_of(catalyst, each)), self._names.time(each))
            for each in output(side)
            if delay_ms(each) is not None
        ]
        columns = [*flow.output, *named, *times]
        names = [self._names.column(each) for each in flow.output]
        names += [each.name() for each in (*named, *times)]
        flow = self._cut_as(self._projected(flow, columns), names)
        return replace(flow, stream=self._timed(join, side, flow)), tuple(keys)

    # -- stretches

    def _on(self, stream: DataStream, attributes: list[Any], names: list[str]) -> _Flow:
        leaf = self._catalyst.leaf(attributes)
        return _Flow(stream=stream, attributes=attributes, names=names, plan=leaf)

    def _projected(self, flow: _Flow, columns: list[Any]) -> _Flow:
        """Returns the flow with these columns, and the time of its watermark."""
        hides = flow.watermark is not None
        every = [*columns, flow.watermark.time] if flow.watermark is not None else columns
        return replace(flow, plan=self._catalyst.project(every, flow.plan), hides_time=hides)

    def _cut(self, flow: _Flow, names: Sequence[str] | None = None) -> _Flow:
        """Adds the stretch of `flow` to the stream, and its watermark. Its columns get `names`."""
        if names is None:
            if kind(flow.plan) == "LocalRelation":
                return flow
            names = [self._names.column(each) for each in flow.output]
        elif list(names) == flow.names and kind(flow.plan) == "LocalRelation":
            return flow
        return self._cut_as(flow, names)

    def _cut_as(self, flow: _Flow, names: Sequence[str]) -> _Flow:
        attributes = flow.output
        columns = [
            self._catalyst.renamed(attribute, name)
            for attribute, name in zip(attributes, names, strict=True)
        ]
        watermark, time = flow.watermark, ""
        if watermark is not None:
            known = (same(each, watermark.time) for each in attributes)
            time = next((name for name, is_time in zip(names, known, strict=True) if is_time), "")
            if not time:
                columns.append(self._catalyst.named(watermark.time, _TIME_OF_WATERMARK))
        whole = self._catalyst.project(columns, flow.plan)
        stretch = self._catalyst.stretch(whole, flow.statics)
        stream = flow.stream.transform(stretch, name=_title(flow.plan))
        if watermark is not None:
            stream = _assigned(stream, watermark, time or _TIME_OF_WATERMARK, drops=not time)
        return self._on(stream, attributes, list(names))


def _parsed(
    calls: Sequence[Any], expressions: Sequence[str], time: str
) -> tuple[AggregateExpression, ...]:
    """Parses calls of aggregate functions, which are `expressions` in SQL. `time` is the column
    with the event time; empty: there is none.
    """
    for call in calls:
        if not time and kind(call.aggregateFunction()) in _BY_TIME:
            raise InvalidProgram(
                f"{call.sql()} depends on the order of rows, which a stream has by its event"
                " time only: call withWatermark before, or use min_by(value, column) or"
                " max_by(value, column)"
            )
    aggregates = parse_aggregates(expressions or ["count(1) AS rows_"], time_column=time)
    for call, aggregate in zip(calls, aggregates, strict=False):  # without calls, rows count
        if not aggregate.splittable:
            raise InvalidProgram(
                f"{call.sql()} would keep all rows of each group; use functions whose results"
                " can be updated (count, sum, min, max, avg, stddev, approx_count_distinct,"
                " ...)"
            )
    return aggregates


def _assigned(
    stream: DataStream, watermark: _Watermark, column: str, *, drops: bool = False
) -> DataStream:
    spec = replace(watermark.spec, column=column, drops_column=drops)
    return stream.operator(watermark.title, spec, uid=watermark.uid)


def _is_always_true(condition: Any) -> bool:
    """Whether a condition only excludes nulls of a column that has none."""
    return kind(condition) == "IsNotNull" and not condition.child().nullable()


def _keeps_times(plan: Any, time: Any) -> bool:
    """Whether a node filters rows without a time only."""
    if kind(plan) != "Filter" or kind(plan.condition()) != "IsNotNull":
        return False
    (child,) = children(plan.condition())
    return _is(child, time)


def _has_watermark_of(time: Any, plan: Any) -> bool:
    """Returns whether the flow of the plan has the watermark of this time."""
    while kind(plan) != "EventTimeWatermark":
        if kind(plan) not in ("Project", *_TRANSPARENT) and not _keeps_times(plan, time):
            return False
        (plan,) = children(plan)
    return same(plan.eventTime(), time)


def _function_of(catalyst: Catalyst, expression: Any) -> Any:
    """Returns the program's function of a PythonUDF."""
    pickled = expression.func().command().toArray(catalyst.jvm.scala.reflect.ClassTag.Byte())
    function, _ = cloudpickle.loads(bytes(pickled))
    return function


def _type_of(attribute: Any) -> DataType:
    return _parse_datatype_json_string(attribute.dataType().json())


def _conditions(sides: Sequence[_Flow]) -> tuple[str, str]:
    left, right = (
        name if name in side.names else "" for name, side in zip(_CONDITION, sides, strict=True)
    )
    return left, right


def _within(names: Names, between: Between | None) -> IntervalSpec | None:
    if between is None:
        return None
    times = EventTimes(columns=(names.time(between.left), names.time(between.right)))
    lower_us, upper_us = between.lower_us, between.upper_us
    # Spark keeps rows for a millisecond longer, unless their times are equal keys.
    kept_us = 1_000 if lower_us < upper_us else 0
    return IntervalSpec(times=times, lower_us=lower_us, upper_us=upper_us, kept_us=kept_us)


def _time_of(catalyst: Catalyst, attribute: Any) -> Any:
    """Returns the event time of an attribute: of a window, its end."""
    return catalyst.field(attribute, 1) if is_window(attribute) else attribute


def _filtered(catalyst: Catalyst, conditions: Sequence[Any], plan: Any) -> Any:
    for condition in conditions:
        plan = catalyst.logical.Filter(condition, plan)
    return plan


@dataclass(frozen=True, kw_only=True)
class _Key:
    """A grouping expression as columns: a window is two, its start and end."""

    attribute: Any
    columns: list[tuple[str, Any]]  # names and expressions before the aggregate
    names: list[str]  # after it
    parts: list[Any]  # their attributes
    time: str = ""  # the column with the key's event time
    window: bool = False
    size_us: int | None = None  # of the window; None: its start is a column, too
    session: bool = False

    @staticmethod
    def of(catalyst: Catalyst, names: Names, grouping: Any) -> _Key:
        attribute = grouping.toAttribute()
        name = names.column(attribute)
        if not is_window(attribute):
            return _Key(
                attribute=attribute,
                columns=[(name, grouping)],
                names=[name],
                parts=[attribute],
                time=name if delay_ms(attribute) is not None else "",
            )
        names_of_parts = [f"{name}_start", f"{name}_end"]
        parts = _bounds(catalyst, attribute, names_of_parts)
        return _Key(
            attribute=attribute,
            columns=list(zip(names_of_parts, parts, strict=True)),
            names=names_of_parts,
            parts=[part.toAttribute() for part in parts],
            time=names_of_parts[1] if delay_ms(attribute) is not None else "",
            window=True,
            session=_is_session(grouping),
        )

    @staticmethod
    def of_window(
        catalyst: Catalyst, attribute: Any, spec: TumblingSpec | SlidingSpec | SessionSpec
    ) -> _Key:
        """Returns the key of a window that the aggregate computes: its end, and of a session its
        start.
        """
        if isinstance(spec, SessionSpec):
            names = ["window_start", "window_end"]
            parts = _bounds(catalyst, attribute, names)
            return _Key(
                attribute=attribute,
                columns=[],
                names=names,
                parts=[part.toAttribute() for part in parts],
                time=names[1],
                window=True,
                session=True,
            )
        end = catalyst.named(catalyst.field(attribute, 1), "window_end")
        return _Key(
            attribute=attribute,
            columns=[],
            names=["window_end"],
            parts=[end.toAttribute()],
            time="window_end" if delay_ms(attribute) is not None else "",
            window=True,
            size_us=spec.size_us,
        )

    def whole(self, catalyst: Catalyst) -> Any:
        if not self.window:
            return self.attribute
        start, end = (
            self.parts
            if self.size_us is None
            else (catalyst.earlier(self.parts[0], self.size_us), self.parts[0])
        )
        struct = catalyst.struct([("start", start), ("end", end)])
        return alias(catalyst.jvm, struct, self.attribute)


def _bounds(catalyst: Catalyst, window: Any, names: Sequence[str]) -> list[Any]:
    """Returns the start and the end of a window as columns with these names."""
    return [catalyst.named(catalyst.field(window, index), name) for index, name in enumerate(names)]


def _only_key(grouping: Sequence[Any], calls: Sequence[Any]) -> Any:
    """Returns the grouping expression that is a window of time or a session which no other part of
    the aggregate uses; None if there is none.
    """
    for each in grouping:
        if kind(each) == "AttributeReference" and is_window(each):
            others = [other for other in (*grouping, *calls) if other is not each]
            used = any(other.references().contains(each) for other in others)
            return None if used else each
    return None


def _is_time(attribute: Any, time: Any, plan: Any) -> bool:
    """Returns whether an attribute of the plan is null where `time` is: it is the time, or one of
    its windows.
    """
    if same(attribute, time):
        return True
    while is_window(attribute):
        if kind(plan) == "Project":
            made = (each for each in items(plan.projectList()) if kind(each) == "Alias")
            if found := next((each for each in made if same(each.toAttribute(), attribute)), None):
                attribute = found.child()
                if not _is_attribute(attribute):
                    return bool(found.references().contains(time))
        if len(children(plan)) != 1:
            break
        (plan,) = children(plan)
    return False


def _is_session(grouping: Any) -> bool:
    return bool(grouping.toAttribute().metadata().contains("spark.sessionWindow"))


def _is(expression: Any, attribute: Any) -> bool:
    return _is_attribute(expression) and same(expression, attribute)


def _is_attribute(expression: Any) -> bool:
    return kind(expression) == "AttributeReference"


def _has(plan: Any, name: str) -> bool:
    return kind(plan) == name or any(_has(child, name) for child in children(plan))


def _observes_aggregate(plan: Any) -> bool:
    if kind(plan) == "CollectMetrics" and _has(plan, "Aggregate"):
        return True
    return any(map(_observes_aggregate, children(plan)))


def _row_count(catalyst: Catalyst) -> Any:
    return catalyst.named(catalyst.literal(1), "rows_").toAttribute()


def _title(plan: Any) -> str:
    names = []
    while children(plan):
        names.append(kind(plan))
        plan = children(plan)[0]
    return ", ".join(reversed(names)) or "Rename"
