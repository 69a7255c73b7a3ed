"""Plans the joins of a streaming query: with another stream, or with static rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from firesteel.datastream import ConnectedStreams
from firesteel.environment import Environment
from firesteel.errors import InvalidProgram
from firesteel.operators import JoinSpec
from firesteel.operators.joins import EventTimes, How, IntervalSpec
from firesteel.plan.catalyst_plan import alias, items
from firesteel.spark_connect.catalyst import (
    Catalyst,
    children,
    delay_ms,
    is_attribute,
    is_window,
    is_window_column,
    kind,
    output,
    same,
)
from firesteel.spark_connect.conditions import Between, Condition, condition_of, conjuncts_of
from firesteel.spark_connect.flows import Flow, Flows
from firesteel.spark_connect.names import Names
from firesteel.spark_connect.scalar_subqueries import ScalarSubqueries
from firesteel.spark_connect.spark import LocalRows
from firesteel.spark_connect.time_windows import window_size_us
from firesteel.static_table import StaticTable

_HOW: dict[str, How] = {
    "Inner": "inner",
    "Cross": "inner",
    "LeftOuter": "left",
    "RightOuter": "right",
    "FullOuter": "full",
    "LeftSemi": "semi",
}
# Columns of the two sides of a join: whether a row meets the conditions that refer to its side.
_CONDITION = ("condition_left", "condition_right")


class Joins:
    """Plans the joins of one query. `flow_of` plans the nodes below; `static_rows` runs a plan
    without streams.
    """

    def __init__(
        self,
        flows: Flows,
        environment: Environment,
        scalars: ScalarSubqueries,
        *,
        flow_of: Callable[[Any], Flow],
        static_rows: Callable[[Any], pa.Table],
    ) -> None:
        self._flows = flows
        self._catalyst = flows.catalyst
        self._names = flows.names
        self._environment = environment
        self._scalars = scalars
        self._flow_of = flow_of
        self._static_rows = static_rows

    def join(self, plan: Any) -> Flow:
        sides = children(plan)
        if all(side.isStreaming() for side in sides):
            return self._stream_join(plan)
        streaming = [side.isStreaming() for side in sides].index(True)
        flow = self._flows.assigned(self._flow_of(sides[streaming]))
        static = sides[1 - streaming]
        # Semi joins of one table share the ids of its columns.
        catalyst, wanted = self._catalyst, output(static)
        columns = [each.newInstance() for each in wanted]
        named = [alias(catalyst.jvm, *pair) for pair in zip(columns, wanted, strict=True)]
        side = catalyst.project(named, catalyst.leaf(columns))
        rows = self._rows(static)
        below = [flow.plan, side] if streaming == 0 else [side, flow.plan]
        return replace(
            flow,
            plan=plan.withNewChildren(catalyst.seq(below)),
            statics={**flow.statics, columns[0].exprId().id(): rows},
        )

    def _rows(self, static: Any) -> StaticTable:
        """Reads the static side of a join, now and once, as a table of the job."""
        rows = self._static_rows(static)
        self._scalars.check_rows(static, rows)
        read = LocalRows(rows)
        return self._environment.static(read, name="static side", max_size="1 gb", allow_empty=True)

    def _stream_join(self, plan: Any) -> Flow:
        catalyst = self._catalyst
        how = _HOW.get(plan.joinType().toString())
        if how is None:
            raise InvalidProgram(
                f"a {plan.joinType().toString()} join of two streams is not supported; allowed:"
                " inner, left, right and full outer joins, and left semi joins"
            )
        left, right = children(plan)
        given = conjuncts_of(plan.condition().get()) if plan.condition().isDefined() else []
        condition = condition_of(
            catalyst, given, output(left), output(right), filters=how != "semi"
        )
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
        if condition.between is None and how not in ("inner", "semi"):
            raise InvalidProgram(
                f"{plan.condition().get().toString()}: a {how} join of two streams needs bounds"
                " between event times that both have a watermark, such as b.time BETWEEN a.time -"
                " INTERVAL 1 HOUR AND a.time; add them, or a watermark to both times"
            )
        title = f"Join({how}, {', '.join(pair[0].sql() for pair in condition.equal)})"
        sides, condition = self._with_times((left, right), condition)
        condition = replace(condition, equal=self._pairs(condition, sides, how))
        keyed = [self._keyed(plan, side, condition, index, how) for index, side in enumerate(sides)]
        (_, left_keys), (_, right_keys) = keyed
        flows = [flow for flow, _ in keyed]
        spec = JoinSpec(
            left_keys=left_keys,
            right_keys=right_keys,
            how=how,
            within=_within(self._names, condition.between, sides),
            holds_null_keys=condition.between is not None,
            conditions=_conditions(flows),
        )
        if spec.within is not None:  # an operator downstream may take the time of either side
            spec = spec.with_delayed_watermark()
        first, second = (flow.stream.key_by(*names) for flow, names in keyed)
        stream = ConnectedStreams(first, second)._add(title, spec, self._names.uid("join"))
        there = flows[:1] if how == "semi" else flows
        joined = self._flows.on(
            stream,
            [attribute for flow in there for attribute in flow.attributes],
            [name for flow in there for name in flow.names],
        )
        after = catalyst.project(output(plan), joined.plan)
        return replace(joined, plan=_filtered(catalyst, condition.others, after))

    def _with_times(
        self, sides: tuple[Any, Any], condition: Condition
    ) -> tuple[list[Any], Condition]:
        """Returns the sides with the times of the bounds as columns."""
        between = condition.between
        if between is None or all(map(is_attribute, (between.left, between.right))):
            return list(sides), condition
        catalyst, given, times = self._catalyst, (between.left, between.right), []
        plans = list(sides)
        for index, time in enumerate(given):
            if is_attribute(time):
                times.append(time)
                continue
            column = catalyst.named(time, "time")
            plans[index] = catalyst.project([*output(sides[index]), column], sides[index])
            times.append(column.toAttribute())
        left, right = times
        equal = [(left, right) if _are_same(pair, given) else pair for pair in condition.equal]
        between = replace(between, left=left, right=right)
        return plans, replace(condition, equal=equal, between=between)

    def _pairs(self, condition: Condition, sides: Sequence[Any], how: How) -> list[tuple[Any, Any]]:
        """Returns the equal keys of two sides, without those that follow from the bounds of their
        times, unless there are no others.
        """
        pairs = [part for pair in condition.equal for part in self._parts(*pair)]
        between = condition.between
        if between is None or not between.equal or not _has_times(how, between):
            return pairs
        catalyst, times = self._catalyst, (between.left, between.right)
        implied = [tuple(map(catalyst.time_of, times))]
        if all(map(is_window, times)):
            left_us, right_us = map(window_size_us, sides, times)
            if left_us is not None and left_us == right_us:
                implied.append(tuple(catalyst.field(time, 0) for time in times))
        others = [pair for pair in pairs if not any(_are_same(pair, each) for each in implied)]
        return others or pairs

    def _parts(self, left: Any, right: Any) -> list[tuple[Any, Any]]:
        """Returns two equal keys; instead of a window and what equals it, their starts and ends,
        because rows are not distributed by structs.
        """
        pair = (left, right)
        if not any(map(is_window_column, pair)):
            return [pair]
        field = self._catalyst.field
        return [(field(left, part), field(right, part)) for part in (0, 1)]

    def _keyed(
        self, join: Any, side: Any, condition: Condition, index: int, how: How
    ) -> tuple[Flow, tuple[str, ...]]:
        """Returns a side and the names of its keys. Keys that are not columns, event times, and
        whether its own condition is true are additional columns; the rows that the join never emits
        are left out.
        """
        unmatched = how in (("left", "full"), ("right", "full"))[index]
        catalyst = self._catalyst
        flow = self._flow_of(side)
        own, between = condition.own[index], condition.between
        needed = [] if unmatched else list(own)
        attribute = None
        times = [each for each in output(side) if delay_ms(each) is not None]
        if between is not None:
            time = (between.left, between.right)[index]
            if not any(same(each, time) for each in times):
                times.append(time)
            if _has_times(how, between):
                attribute = time
                timed = catalyst.expressions.IsNotNull(catalyst.time_of(time))
                if own and unmatched:
                    without_match = catalyst.expressions.Not(catalyst.all_of(own))
                    timed = catalyst.expressions.Or(timed, without_match)
                needed.append(timed)
        if flow.watermark is not None and needed:
            # The watermark needs all rows that have a time.
            only_timed = len(needed) == 1 and attribute is not None
            if not only_timed or not _is_time(attribute, flow.watermark.time, flow.plan):
                flow = self._flows.cut(flow)
        flow = replace(flow, plan=_filtered(catalyst, needed, flow.plan))
        label = ("left", "right")[index]
        known = {each.exprId().id(): each for each in flow.output}
        named: list[Any] = []
        keys: list[str] = []
        for number, pair in enumerate(condition.equal):
            key = pair[index]
            column = known.pop(key.exprId().id(), None) if is_attribute(key) else None
            if column is None:
                named.append(catalyst.named(key, f"k{number}_{label}"))
            keys.append(named[-1].name() if column is None else self._names.column(column))
        if own and unmatched:
            named.append(catalyst.named(catalyst.all_of(own), _CONDITION[index]))
        named += [
            catalyst.named(catalyst.or_last(catalyst.time_of(each)), self._names.time(each))
            for each in times
        ]
        columns = [*flow.output, *named]
        names = [self._names.column(each) for each in flow.output]
        names += [each.name() for each in named]
        flow = self._flows.cut_as(self._flows.projected(flow, columns), names)
        return replace(flow, stream=self._flows.timed(join, side, flow)), tuple(keys)


def _has_times(how: How, between: Between) -> bool:
    """Returns whether rows without a time are left out: as in Spark, they have no match, and wait
    for one forever.
    """
    return not (how == "full" and between.only_equal)


def _are_same(pair: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return all(each.semanticEquals(one) for each, one in zip(pair, other, strict=True))


def _conditions(sides: Sequence[Flow]) -> tuple[str, str]:
    left, right = (
        name if name in side.names else "" for name, side in zip(_CONDITION, sides, strict=True)
    )
    return left, right


def _within(names: Names, between: Between | None, sides: Sequence[Any]) -> IntervalSpec | None:
    if between is None:
        return None
    left, right = between.left, between.right
    times = EventTimes(columns=(names.time(left), names.time(right)))
    late_by = None
    if delay_ms(left) is None or delay_ms(right) is None:
        late_by = (_late_by(names, left, sides[0]), _late_by(names, right, sides[1]))
    return IntervalSpec(
        times=times,
        lower_us=between.lower.distance_us,
        upper_us=between.upper.distance_us,
        kept_us=(between.upper.kept_us, between.lower.kept_us),
        late_by=late_by,
    )


def _late_by(names: Names, time: Any, side: Any) -> str:
    """Returns the column by whose times rows of a side are late: its event time."""
    watermarked = (each for each in [time, *output(side)] if delay_ms(each) is not None)
    return next((names.time(each) for each in watermarked), "")


def _filtered(catalyst: Catalyst, conditions: Sequence[Any], plan: Any) -> Any:
    for condition in conditions:
        plan = catalyst.logical.Filter(condition, plan)
    return plan


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
                if not is_attribute(attribute):
                    return bool(found.references().contains(time))
        if len(children(plan)) != 1:
            break
        (plan,) = children(plan)
    return False
