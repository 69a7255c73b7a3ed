"""Makes a Firesteel stream of a streaming query that Spark has analysed.

The planner walks the analysed plan. Nodes without state become stretches, which slots run on Spark;
a node with state becomes a Firesteel operator between two stretches. Columns of the streams are
named by `Names`, so that equal names do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from firesteel.datastream import DataStream
from firesteel.environment import Environment
from firesteel.errors import InvalidProgram
from firesteel.operators import DropDuplicatesSpec, EventTimeWatermarkSpec, LimitSpec
from firesteel.plan.catalyst_plan import items
from firesteel.spark_connect.aggregates import Aggregates, ObservedStream
from firesteel.spark_connect.catalyst import (
    TRANSPARENT,
    catalyst_of,
    children,
    delay_ms,
    has_node,
    keeps_times,
    kind,
    output,
    same,
)
from firesteel.spark_connect.flows import Flow, Flows, Watermark
from firesteel.spark_connect.grouping_keys import parts_of_window
from firesteel.spark_connect.joins import Joins
from firesteel.spark_connect.names import Names, repeated
from firesteel.spark_connect.scalar_subqueries import ScalarSubqueries
from firesteel.spark_connect.shared_watermarks import share_watermarks
from firesteel.spark_connect.sources import schema_of, source_of
from firesteel.spark_connect.spark import Spark
from firesteel.spark_connect.stateful_functions import StatefulFunctions

# Nodes that treat each row by itself; Spark runs them in the slots.
_ROW_BY_ROW = frozenset(
    ("Project", "Filter", "Expand", "Generate", "MapInPandas", "PythonMapInArrow", "MapInArrow")
)
# The methods of nodes that are refused, for messages.
_METHODS = {
    "LateralJoin": "LATERAL with a table, or with an outer join,",
    "Offset": "offset(), except after an aggregate in complete mode,",
    "Sort": "orderBy(), except after an aggregate in complete mode,",
}
# Nodes that need all rows: allowed above the aggregate of a query in complete mode.
_WHOLE = frozenset(("Sort", "GlobalLimit", "LocalLimit", "Offset", "Tail", "Window"))


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
    warnings: tuple[str, ...] = ()


def stream_of(
    spark: Spark,
    user_id: str,
    session_id: str,
    analyzed: Any,
    *,
    output_mode: str,
    batches: bool,
    configuration: Mapping[str, str],
    begun_us: Callable[[], int],
) -> PlannedStream:
    """Plans an analysed Catalyst plan of a session, in a new environment with this configuration.

    With `batches`, aggregates emit each key once per batch, not once per bundle. `begun_us` returns
    when the query was first started, in microseconds since the epoch. Raises InvalidProgram for
    what cannot run, and Py4JJavaError for what Spark refuses.
    """
    environment = Environment(configuration=dict(configuration))
    planner = Planner(
        spark.jvm,
        spark.holder(user_id, session_id).session(),
        environment,
        output_mode=output_mode,
        batches=batches,
        static_rows=lambda rows: spark.rows(user_id, session_id, rows),
        begun_us=begun_us,
    )
    return planner.planned(analyzed)


class Planner:
    """Plans one query of a classic session of the JVM. `static_rows` runs a plan without streams.
    With `batches`, aggregates emit each key once per batch, not once per bundle. `begun_us` returns
    when the query was first started, in microseconds since the epoch.
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
        begun_us: Callable[[], int],
    ) -> None:
        self._catalyst = catalyst_of(jvm)
        self._scalars = ScalarSubqueries(self._catalyst)
        self._names = Names()
        self._flows = flows = Flows(self._catalyst, self._names)
        self._jvm = jvm
        self._session = session
        self._environment = environment
        self._output_mode = output_mode
        self._begun_us = begun_us
        self._sources: dict[str, str] = {}
        self._warnings: list[str] = []
        self._observations: list[tuple[Any, Flow]] = []  # nodes of observe(), and their rows
        self._aggregates = Aggregates(
            flows,
            session,
            flow_of=self._flow,
            static_rows=static_rows,
            output_mode=output_mode,
            batches=batches,
        )
        joins = Joins(
            flows,
            environment,
            self._scalars,
            flow_of=self._flow,
            static_rows=static_rows,
        )
        functions = StatefulFunctions(flows, flow_of=self._flow)
        self._nodes: dict[str, Callable[[Any], Flow]] = {
            "EventTimeWatermark": self._watermark,
            "UpdateEventTimeWatermarkColumn": self._event_time_of_function,
            "Aggregate": self._aggregates.aggregate,
            "CollectMetrics": self._observation,
            "Deduplicate": self._deduplicate,
            "DeduplicateWithinWatermark": self._deduplicate,
            "Distinct": self._deduplicate,
            "GlobalLimit": self._limit,
            "Union": self._union,
            "Join": joins.join,
            "FlatMapGroupsInPandasWithState": functions.group_state,
            "TransformWithStateInPySpark": functions.with_state,
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
        self._aggregates.batches |= _observes_aggregate(below)
        flow, per_batch = self._flow(below), None
        if above is None:
            flow = self._unique(flow) if repeats else flow
            names = [each.name() for each in flow.output] if repeats else schema.names
            flow = self._flows.cut(flow, names=names)
        else:
            flow = self._flows.cut(flow)
            whole = above(catalyst.leaf(flow.attributes))
            per_batch = catalyst.stretch(self._uniquely_named(whole) if repeats else whole)
        # After the query, whose names of state do not depend on its observations.
        observed = tuple(self._aggregates.observed(node, rows) for node, rows in self._observations)
        share_watermarks(self._environment._program.graph)
        return PlannedStream(
            environment=self._environment,
            stream=flow.stream,
            schema=schema,
            per_batch=per_batch,
            is_renamed=repeats,
            observed=observed,
            sources=self._sources,
            warnings=tuple(self._warnings),
        )

    def _unique(self, flow: Flow) -> Flow:
        """Returns the flow with its columns under unique names."""
        flow = self._flows.assigned(flow)
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
                if kind(each) not in TRANSPARENT:
                    leaf = each.withNewChildren(self._catalyst.seq([leaf]))
            return leaf

        return below, above

    # -- nodes

    def _flow(self, plan: Any) -> Flow:
        name = kind(plan)
        if name in TRANSPARENT:
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

    def _row_by_row(self, plan: Any, flow: Flow) -> Flow:
        if kind(plan) == "Filter" and _is_always_true(plan.condition()):
            return flow
        if flow.watermark is not None:
            time = flow.watermark.time
            if kind(plan) == "Project":
                columns = items(plan.projectList())
                hides = not any(same(time, each.toAttribute()) for each in columns)
                project = self._catalyst.project([*columns, time] if hides else columns, flow.plan)
                return replace(flow, plan=project, hides_time=hides)
            if not keeps_times(plan, time):
                flow = self._flows.cut(flow)
        return replace(flow, plan=plan.withNewChildren(self._catalyst.seq([flow.plan])))

    def _source(self, plan: Any) -> Flow:
        uid = self._names.uid("source")
        source = source_of(
            self._jvm, self._session, self._environment, plan, uid, begun_us=self._begun_us
        )
        self._sources[uid] = source.description
        self._warnings += source.warnings
        return self._flows.on(source.stream, output(plan), source.names)

    def _watermark(self, plan: Any) -> Flow:
        flow = self._flows.assigned(self._flow(children(plan)[0]))
        attributes = output(plan)
        time = next(each for each in attributes if same(each, plan.eventTime()))
        watermark = Watermark(
            time=time,
            title=f"Watermark({plan.eventTime().name()})",
            uid=self._names.uid("watermark"),
            spec=EventTimeWatermarkSpec(
                delay_us=(delay_ms(time) or 0) * 1_000,
                combined=has_node(children(plan)[0], "EventTimeWatermark"),
            ),
        )
        # The attributes know that one of them is the event time.
        project = self._catalyst.project(attributes, flow.plan)
        return replace(flow, plan=project, watermark=watermark, hides_time=False)

    def _event_time_of_function(self, plan: Any) -> Flow:
        """Marks the event time of the rows that a stateful function returns. The watermark is that
        of its input.
        """
        flow = self._flows.assigned(self._flow(children(plan)[0]))
        return replace(flow, plan=self._catalyst.project(output(plan), flow.plan))

    def _union(self, plan: Any) -> Flow:
        attributes = output(plan)
        names = [self._names.column(each) for each in attributes]
        first, *others = (
            self._flows.timed(plan, child, self._flows.cut(self._flow(child), names=names))
            for child in children(plan)
        )
        return self._flows.on(first.union(*others), attributes, names)

    def _deduplicate(self, plan: Any) -> Flow:
        flow = self._flows.assigned(self._flow(children(plan)[0]))
        within = kind(plan) == "DeduplicateWithinWatermark"
        attributes = output(flow.plan)
        keys = attributes if kind(plan) == "Distinct" else items(plan.keys())
        columns: list[str] = []
        added: list[Any] = []
        for key in keys:
            parts = parts_of_window(self._catalyst, key, self._names.column(key))
            added += parts
            columns += [each.name() for each in parts] or [self._names.column(key)]
        timed = [each for each in attributes if delay_ms(each) is not None]
        late, expires_after_us = "", None
        if timed:
            in_keys = [each for each in timed if any(same(each, key) for key in keys)]
            time = (in_keys or timed)[0]
            late = self._names.time(time)
            if within:
                expires_after_us = (delay_ms(time) or 0) * 1_000
            elif in_keys:
                expires_after_us = 0
            added.append(self._catalyst.named(self._catalyst.time_of(time), late))
        names = [*map(self._names.column, attributes), *(each.name() for each in added)]
        if added:
            project = self._catalyst.project([*attributes, *added], flow.plan)
            flow = replace(flow, plan=project)
        flow = self._flows.cut(flow, names=names)
        spec = DropDuplicatesSpec(
            key_columns=tuple(columns),
            late_column=late,
            time_is_key=bool(timed and in_keys and not within),
            expires_after_us=expires_after_us,
        )
        title = f"DropDuplicates({', '.join(key.name() for key in keys)})"
        unique = self._flows.on(
            flow.stream.key_by(*columns)._add(title, spec, uid=self._names.uid("duplicates")),
            flow.attributes,
            flow.names,
        )
        return replace(unique, plan=self._catalyst.project(output(plan), unique.plan))

    def _limit(self, plan: Any) -> Flow:
        (local,) = children(plan)
        flow = self._flows.cut(self._flow(children(local)[0]))
        rows = plan.limitExpr().eval(None)
        stream = flow.stream.operator(
            f"Limit({rows})", LimitSpec(rows=rows), uid=self._names.uid("limit")
        )
        return replace(flow, stream=stream.set_parallelism(1))

    def _observation(self, plan: Any) -> Flow:
        flow = self._flows.assigned(self._flow(children(plan)[0]))
        self._observations.append((plan, flow))
        return flow


def _is_always_true(condition: Any) -> bool:
    """Whether a condition only excludes nulls of a column that has none."""
    return kind(condition) == "IsNotNull" and not condition.child().nullable()


def _observes_aggregate(plan: Any) -> bool:
    if kind(plan) == "CollectMetrics" and has_node(plan, "Aggregate"):
        return True
    return any(map(_observes_aggregate, children(plan)))
