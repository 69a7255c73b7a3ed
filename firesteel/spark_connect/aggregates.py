"""Plans the aggregates of a streaming query, and the metrics of its `observe()`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from firesteel.common.checkpoints.fits import DISPOSABLE
from firesteel.datastream import DataStream
from firesteel.errors import InvalidProgram
from firesteel.operators import (
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
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.plan.catalyst_plan import items, without_ids
from firesteel.spark_connect.catalyst import (
    TRANSPARENT,
    Catalyst,
    children,
    delay_ms,
    is_harmless,
    is_reference,
    keeps_times,
    kind,
    same,
)
from firesteel.spark_connect.collected_values import COLLECTED, CollectedValues
from firesteel.spark_connect.flows import TIME_OF_WATERMARK, Flow, Flows, with_watermark
from firesteel.spark_connect.grouping_keys import Key, is_session, only_window
from firesteel.spark_connect.sources import schema_of
from firesteel.spark_connect.time_windows import TimeWindow, time_window

_BY_TIME = frozenset({"First", "Last"})  # aggregate functions; also any_value, which is first
_ORDERED = frozenset({"ListAgg"})  # whose arguments include the order of rows
_LISTS = frozenset({"CollectList", "CollectSet"})  # whose results are as large as what they read


@dataclass(frozen=True, kw_only=True)
class ObservedStream:
    """The metrics of an `observe()`: a stream with one row for each batch that has rows there."""

    name: str  # of the observation
    uid: str  # from which those of its operators are made
    stream: DataStream
    schema: StructType
    without_rows: pa.Table  # the metrics of a batch without rows there


_ALL_ROWS = "all_rows"  # the key of rows without groups


class Aggregates:
    """Plans the aggregates of one query, whose classic session of the JVM is `session`. `flow_of`
    plans the nodes below; `static_rows` runs a plan without streams. With `batches`, aggregates
    emit each key once per batch, not once per bundle.
    """

    def __init__(
        self,
        flows: Flows,
        session: Any,
        *,
        flow_of: Callable[[Any], Flow],
        static_rows: Callable[[Any], pa.Table],
        output_mode: str,
        batches: bool,
    ) -> None:
        self._flows = flows
        self._catalyst = flows.catalyst
        self._names = flows.names
        self._session = session
        self._flow_of = flow_of
        self._static_rows = static_rows
        self._output_mode = output_mode
        self.batches = batches

    def aggregate(self, plan: Any) -> Flow:
        """Computes keys and inputs in a stretch, aggregates them, and computes the results."""
        catalyst = self._catalyst
        grouping, calls, results, plan = self._physical(plan)
        window = None
        if (attribute := only_window(grouping, calls)) is not None:
            window = time_window(catalyst, plan, attribute)
            if window is not None and not self._is_assigned(window):
                window = None
        if window is not None:
            grouping = [each for each in grouping if not is_reference(each, attribute)]
            plan = window.plan if _are_harmless(grouping, calls) else window.filtered
        flow = self._flow_of(plan)
        if flow.watermark is not None and window is not None:
            # The partial aggregate leaves out rows without the time of the window.
            flow = flow if same(window.time, flow.watermark.time) else self._flows.cut(flow)
        spec = window.spec if window is not None else None
        parts = None  # of sessions that are divided before the shuffle
        if isinstance(spec, SessionSpec):
            parts = SessionParts(column="session_part", gap_us=spec.gap_us)
        has_groups = bool(grouping) or spec is not None
        # Each window is emitted once: the panes of all windows of a key are at one subtask.
        in_panes = (
            isinstance(spec, SlidingSpec)
            and self._output_mode == "append"
            and delay_ms(attribute) is not None
        )
        by_key = spec is None or parts is not None or in_panes
        if by_key and all(map(is_session, grouping)):
            grouping.append(self._all_rows())
        keys = [Key.of(catalyst, self._names, each) for each in grouping]
        columns = [column for key in keys for column in key.columns]
        key_columns = tuple(name for name, _ in columns)
        called = self._called(calls)
        columns += [(each.name(), each) for each in called.inputs]
        watermark, time, latest = flow.watermark, "", ""
        assigned = None  # before the aggregate
        if window is not None:
            keys.append(Key.of_window(catalyst, attribute, window.spec))
            time = self._names.time(window.time)
            columns.append((time, self._another(columns, window.time, time)))
        if parts is not None:
            assert watermark is not None
            assigned, watermark = watermark.with_parts(parts), None
        elif watermark is not None:
            latest = time or TIME_OF_WATERMARK
            if not time:
                columns.append((latest, self._another(columns, watermark.time, latest)))
        before = catalyst.project([each for _, each in columns], flow.plan)
        flow = replace(flow, plan=before, watermark=assigned, hides_time=False)
        flow = self._flows.cut_as(flow, [name for name, _ in columns])
        aggregates = called.parsed(time or latest)
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
                at_barriers=self.batches,
            )
        else:
            expires = next((key.time for key in keys if key.time), "")
            final = RunningAggregateSpec(
                key_columns=names,
                aggregates=aggregates,
                window=spec,
                mode=mode,
                expires=expires if self._output_mode != "complete" else "",
                at_barriers=self.batches,
            )
            if final.in_panes:
                assert isinstance(spec, SlidingSpec)
                by = tuple(name for name in names if name != final.expires)
                spec = TumblingSpec(size_us=spec.pane_us, offset_us=spec.offset_us)
        partial = PartialWindowAggregateSpec(
            key_columns=key_columns,
            window=spec,
            time_column=time,
            aggregates=aggregates,
            whole_windows=spec is not None and parts is None,
            latest=latest,
            part_column=parts.column if parts is not None else "",
            without_groups=not has_groups,
        )

        def timed(partials: DataStream) -> DataStream:
            if watermark is None:
                return partials
            return with_watermark(partials, watermark, LATEST, drops=True)

        stream = flow.stream.key_by(*by)._add_in_two_halves(
            f"Aggregate({', '.join(_titles(keys))})",
            partial,
            final,
            between=timed,
            uid=self._names.uid("aggregate"),
        )
        if final.fixed_parallelism is not None:
            stream = stream.set_parallelism(final.fixed_parallelism)
        return self._after_aggregate(stream, keys, called, results)

    def _physical(self, aggregate: Any) -> tuple[list[Any], list[Any], list[Any], Any]:
        """Returns the grouping expressions of an Aggregate, its calls of aggregate functions, its
        results, and its child.
        """
        physical = self._catalyst.jvm.org.apache.spark.sql.catalyst.planning.PhysicalAggregation
        option = physical.unapply(aggregate)
        if option.isEmpty():
            raise InvalidProgram(
                f"this aggregate is not supported on streams:\n"
                f"{aggregate.treeString().splitlines()[0][:300]}"
            )
        found = option.get()
        return items(found._1()), items(found._2()), items(found._3()), found._4()

    def observed(self, node: Any, flow: Flow) -> ObservedStream:
        """Adds the metrics of an `observe()` besides the stream of its rows."""
        catalyst = self._catalyst
        whole = catalyst.aggregated(items(node.metrics()), flow.plan)
        _, calls, results, _ = self._physical(whole)
        keys = [Key.of(catalyst, self._names, self._all_rows())]
        columns = [column for key in keys for column in key.columns]
        called = self._called(calls)
        columns += [(each.name(), each) for each in called.inputs]
        before = catalyst.project([each for _, each in columns], flow.plan)
        rows = self._flows.cut_as(replace(flow, plan=before), [name for name, _ in columns])
        aggregates = called.parsed("")
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
        observed = self._after_aggregate(stream, keys, called, results)
        unique = [f"metric_{number}" for number in range(len(schema))]
        return ObservedStream(
            name=node.name(),
            uid=uid,
            stream=self._flows.cut(observed, names=unique).stream,
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
        return self._catalyst.named(self._catalyst.literal(1), _ALL_ROWS)

    def _after_aggregate(
        self, stream: DataStream, keys: Sequence[Key], called: _Called, results: Sequence[Any]
    ) -> Flow:
        catalyst = self._catalyst
        parts = [part for key in keys for part in key.parts]
        names = [name for key in keys for name in key.names]
        attributes = [call.resultAttribute() for call in called.calls]
        columns = [self._names.result(call) for call in called.calls]
        collected = called.collected
        if collected is not None:
            plan = collected.computed(catalyst, parts, attributes)
            attributes += [call.resultAttribute() for call in collected.calls]
            columns += [self._names.result(call) for call in collected.calls]
            stream = self._flows.computed(stream, plan, [*names, *columns])
        elif not columns:
            attributes, columns = [_row_count(catalyst)], ["rows_"]
        leaf = catalyst.leaf([*parts, *attributes])
        calls = [*called.calls, *(collected.calls if collected is not None else ())]
        whole = catalyst.project(
            [*(key.whole(catalyst) for key in keys), *(c.resultAttribute() for c in calls)], leaf
        )
        after = catalyst.project(results, whole)
        return Flow(
            stream=stream, attributes=[*parts, *attributes], names=[*names, *columns], plan=after
        )

    def _called(self, calls: Sequence[Any], collects: Container[str] = ()) -> _Called:
        """Returns the aggregate calls as SQL over columns. Those whose results cannot be updated,
        and the functions `collects`, are computed of the values that the aggregate collects.
        """
        catalyst = self._catalyst
        inputs: list[Any] = []
        updated: list[Any] = []
        expressions: list[str] = []
        whole: list[Any] = []
        for call in calls:
            function = call.aggregateFunction()
            name = kind(function)
            if name == "PythonUDAF":
                raise InvalidProgram(
                    f"{call.sql()}: Spark does not support pandas aggregate functions on streams;"
                    " use applyInPandasWithState or transformWithState"
                )
            used = list(inputs)
            text = None if name in collects else self._sql(call, function, name, used)
            if text is None and name in _BY_TIME:  # collected values have no order of times
                raise InvalidProgram(
                    f"{call.sql()}: its options are not supported on streams; use"
                    " min_by(value, time) or max_by(value, time)"
                )
            if text is not None and (name in _BY_TIME or _is_updated(text)):
                inputs = used
                updated.append(call)
                expressions.append(f"{text} AS {self._names.result(call)}")
            else:
                whole.append(call)
        if whole and not collects:  # the rows from collected values hold the other results
            return self._called(calls, _LISTS)
        collected = None
        if whole:
            collected = CollectedValues.of(catalyst, whole)
            inputs.append(catalyst.named(collected.row, f"i{len(inputs)}_input"))
            expressions.append(f"collect_list({inputs[-1].name()}) AS {COLLECTED}")
        return _Called(updated, inputs, expressions, collected)

    def _sql(self, call: Any, function: Any, name: str, inputs: list[Any]) -> str | None:
        """Returns a call of an aggregate function as SQL over columns, which are added to `inputs`;
        None if no SQL text has its options.
        """
        if name in _ORDERED:
            return None
        catalyst = self._catalyst

        def column(expression: Any) -> Any:
            if expression.foldable():
                return expression
            inputs.append(catalyst.named(expression, f"i{len(inputs)}_input"))
            return inputs[-1].toAttribute()

        given = [column(each) for each in children(function)]
        parts = [function.withNewChildren(catalyst.seq(given))]
        if call.filter().isDefined():
            parts.append(column(call.filter().get()))
        renamed = call.withNewChildren(catalyst.seq(parts))
        text: str = renamed.sql()
        if name in _BY_TIME and function.ignoreNulls():  # which Spark's SQL text lacks
            bare = parts[0].sql()
            text = f"{bare.removesuffix(')')}, true){text.removeprefix(bare)}"
        columns = [each.toAttribute() for each in inputs]
        try:
            understood = catalyst.aggregate(self._session, text, columns)
        except AnalysisException:  # a function of the DataFrame API only
            return None
        return text if understood.semanticEquals(renamed) else None


@dataclass(frozen=True)
class _Called:
    """The aggregate functions of an aggregate: `calls` whose results can be updated, and others,
    which are computed of `collected` values.
    """

    calls: list[Any]
    inputs: list[Any]  # columns that they read
    expressions: list[str]  # of the aggregate
    collected: CollectedValues | None

    def parsed(self, time: str) -> tuple[AggregateExpression, ...]:
        """Parses the expressions. `time` is the column with the event time; empty: there is
        none.
        """
        for call in self.calls:
            if not time and kind(call.aggregateFunction()) in _BY_TIME:
                raise InvalidProgram(
                    f"{call.sql()} depends on the order of rows, which a stream has by its event"
                    " time only: call withWatermark before, or use min_by(value, column) or"
                    " max_by(value, column)"
                )
        return parse_aggregates(self.expressions or ["count(1) AS rows_"], time_column=time)


def _is_updated(text: str) -> bool:
    """Returns whether the result of an aggregate function, given as SQL, can be updated."""
    with contextlib.suppress(InvalidProgram):
        return parse_aggregates([f"{text} AS result"])[0].splittable
    return False


def _titles(keys: Sequence[Key]) -> list[str]:
    names = [without_ids(key.attribute.name()) for key in keys]
    return [name for name in names if name != _ALL_ROWS] or names


def _are_harmless(grouping: Sequence[Any], calls: Sequence[Any]) -> bool:
    """Returns whether the inputs of an aggregate may be computed for any row."""
    inputs = [*grouping]
    for call in calls:
        inputs += children(call.aggregateFunction())
        inputs += [call.filter().get()] if call.filter().isDefined() else []
    return all(map(is_harmless, inputs))


def _has_watermark_of(time: Any, plan: Any) -> bool:
    """Returns whether the flow of the plan has the watermark of this time."""
    while kind(plan) != "EventTimeWatermark":
        if kind(plan) not in ("Project", *TRANSPARENT) and not keeps_times(plan, time):
            return False
        (plan,) = children(plan)
    return same(plan.eventTime(), time)


def _row_count(catalyst: Catalyst) -> Any:
    return catalyst.named(catalyst.literal(1), "rows_").toAttribute()
