"""Reads and builds Catalyst plans in the front's JVM."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from firesteel.errors import InvalidProgram
from firesteel.plan.catalyst_plan import CatalystPlan, alias, items, nothing, seq, serialized
from firesteel.static_table import StaticTable

# The year 148,109. Times of joins are added to it.
_LAST_US = 2**62
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"

# Nodes that only name or describe their child.
TRANSPARENT = frozenset(
    ("SubqueryAlias", "View", "ResolvedHint", "Repartition", "RepartitionByExpression")
)


class Catalyst:
    """Functions over Catalyst's classes of one JVM. Plans, expressions and attributes are Java
    objects.
    """

    def __init__(self, jvm: Any) -> None:
        self.jvm = jvm
        self.logical = jvm.org.apache.spark.sql.catalyst.plans.logical
        self.expressions = jvm.org.apache.spark.sql.catalyst.expressions

    def seq(self, elements: Iterable[Any]) -> Any:
        return seq(self.jvm, elements)

    def pushed_down(self, plan: Any) -> Any:
        """Returns an analysed plan with its filters where Spark's optimizer puts them: below
        watermarks, which do not see the rows that are filtered, and in the conditions of joins.
        A filter may turn an outer join into an inner one, which filters more rows. IN, EXISTS and
        correlated subqueries become joins.
        """
        return _applied(self._push_down, plan)

    @functools.cached_property
    def _push_down(self) -> list[Any]:
        spark = self.jvm.org.apache.spark.sql.catalyst
        push, outer, infer = (
            spark.optimizer.PushDownPredicates,
            spark.optimizer.EliminateOuterJoin,
            spark.optimizer.InferFiltersFromConstraints,
        )
        inline = spark.optimizer.InlineCTE(True, False, False)
        named = (
            spark.analysis.EliminateSubqueryAliases,
            spark.analysis.EliminateView,
            spark.expressions.EliminatePipeOperators,
        )
        joined = (
            spark.optimizer.OptimizeOneRowRelationSubquery,
            spark.optimizer.RewriteNonCorrelatedExists,
            spark.optimizer.PullupCorrelatedPredicates,
            spark.optimizer.RewriteCorrelatedScalarSubquery,
            spark.optimizer.RewritePredicateSubquery,
        )
        pushed = (push, outer, push, infer, push, push)
        first, last = (inline, *named), (*pushed, *joined)
        return [*_methods(first), *self._replacements, *_methods(last)]

    @functools.cached_property
    def _replacements(self) -> list[Any]:
        optimizer = self.jvm.org.apache.spark.sql.catalyst.optimizer
        return _methods((optimizer.ReplaceExpressions, optimizer.RewriteWithExpression))

    def pruned(self, plan: Any) -> Any:
        """Returns the plan without unused columns. If rows would be left without any
        column, as by a count of all rows, the plan stays as it is: batches count their rows by
        their columns.
        """
        pruned = self.jvm.org.apache.spark.sql.catalyst.optimizer.ColumnPruning.apply(plan)
        return plan if _has_rows_without_columns(pruned) else pruned

    def leaf(self, attributes: Sequence[Any]) -> Any:
        """Returns the leaf of a stretch: a relation without rows and with these columns."""
        none = nothing(self.jvm)
        return self.logical.LocalRelation(self.seq(attributes), self.seq([]), False, none)

    def project(self, expressions: Sequence[Any], child: Any) -> Any:
        return self.logical.Project(self.seq(expressions), child)

    def named(self, expression: Any, name: str) -> Any:
        """Returns `expression` as a new column `name`."""
        number = self.expressions.NamedExpression.newExprId()
        none, empty = nothing(self.jvm), self.seq([])
        return self.expressions.Alias(expression, name, number, empty, none, empty)

    def renamed(self, attribute: Any, name: str) -> Any:
        return alias(self.jvm, attribute, attribute, name)

    def literal(self, value: Any) -> Any:
        return getattr(getattr(self.expressions, "Literal$"), "MODULE$").apply(value)

    def time_of(self, attribute: Any) -> Any:
        """Returns the event time of an attribute: of a window, its end."""
        return self.field(attribute, 1) if is_window(attribute) else attribute

    def field(self, struct: Any, index: int) -> Any:
        return self.expressions.GetStructField(struct, index, nothing(self.jvm))

    def all_of(self, conditions: Sequence[Any]) -> Any:
        """Returns whether all conditions are true: false if one of them is null."""
        whole = functools.reduce(self.expressions.And, conditions)
        return self.expressions.Coalesce(self.seq([whole, self.literal(False)]))

    def null_safe(self, one: Any, other: Any) -> list[tuple[Any, Any]]:
        """Returns keys that are equal if two expressions are, or if both are null: as in Spark, a
        default instead of null, and whether it is null.
        """
        pair = (one, other)
        default = getattr(getattr(self.expressions, "Literal$"), "MODULE$").default(one.dataType())
        left, right = (self.expressions.Coalesce(self.seq([each, default])) for each in pair)
        left_null, right_null = map(self.expressions.IsNull, pair)
        return [(left, right), (left_null, right_null)]

    def or_last(self, time: Any) -> Any:
        """Returns an event time, or instead of null one that no watermark passes."""
        last = self.expressions.Literal(_LAST_US, time.dataType())
        return self.expressions.Coalesce(self.seq([time, last]))

    def earlier(self, timestamp: Any, by_us: int) -> Any:
        """Returns a timestamp that is earlier by some microseconds."""
        parser = getattr(self.jvm.org.apache.spark.sql.catalyst.parser, "CatalystSqlParser$")
        by = getattr(parser, "MODULE$").parseExpression(f"{by_us}L")
        kind, number = timestamp.dataType(), by.dataType()
        exact = self.expressions.PreciseTimestampConversion
        micros = exact(timestamp, kind, number)
        return exact(self.expressions.Subtract(micros, by), number, kind)

    def struct(self, fields: Sequence[tuple[str, Any]]) -> Any:
        parts = [part for name, value in fields for part in (self.literal(name), value)]
        return self.expressions.CreateNamedStruct(self.seq(parts))

    def attribute(self, kind: Any, name: str) -> Any:
        """Returns a new column of a type."""
        return self.named(self.expressions.Literal(None, kind), name).toAttribute()

    def array_of(self, kind: Any, name: str) -> Any:
        """Returns a new column of arrays."""
        return self.attribute(self.jvm.org.apache.spark.sql.types.ArrayType(kind, False), name)

    def first(self, expression: Any) -> Any:
        """Returns the aggregate that is the first value of a group."""
        first = self.expressions.aggregate.First(expression, False)
        return first.toAggregateExpression()

    def aggregated(self, results: Sequence[Any], child: Any) -> Any:
        """Returns the aggregate of all rows of a plan."""
        none = nothing(self.jvm)
        return self.logical.Aggregate(self.seq([]), self.seq(results), child, none)

    def filtered(self, call: Any, condition: Any) -> Any:
        """Returns the call of an aggregate function for those of its rows that meet a condition."""
        if call.filter().isDefined():
            condition = self.expressions.And(condition, call.filter().get())
        some = self.jvm.scala.Some(condition)
        return call.aggregateFunction().toAggregateExpression(call.isDistinct(), some)

    def aggregate(self, session: Any, text: str, columns: Sequence[Any]) -> Any:
        """Returns what Spark understands by the SQL text of an aggregate function of columns."""
        parsed = session.sessionState().sqlParser().parseExpression(text)
        leaf = self.leaf(columns or [self.named(self.literal(1), "one").toAttribute()])
        plan = self.aggregated([self.named(parsed, "result")], leaf)
        rows = self.jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan)
        analyzed = _applied(self._replacements, rows.queryExecution().analyzed())
        return analyzed.aggregateExpressions().head().child()

    def stretch(self, plan: Any, statics: Mapping[int, StaticTable] | None = None) -> CatalystPlan:
        """Returns the plan as a function for slots, with few projections. Raises InvalidProgram if
        it has a part that cannot be serialised.
        """
        from py4j.protocol import Py4JJavaError

        plan = self.jvm.org.apache.spark.sql.catalyst.optimizer.CollapseProject.apply(plan)
        text = plan.treeString()
        try:
            return serialized(self.jvm, plan, text, statics)
        except Py4JJavaError as error:
            raise InvalidProgram(
                f"this part of the query cannot be sent to slots"
                f" ({error.java_exception.toString()}):\n{text[:1_000]}"
            ) from error


@functools.lru_cache(maxsize=4)
def catalyst_of(jvm: Any) -> Catalyst:
    return Catalyst(jvm)


def _methods(rules: Iterable[Any]) -> list[Any]:
    """Returns the `apply` of rules, which Py4J looks up in the JVM at each access."""
    return [rule.apply for rule in rules]


def _applied(rules: Iterable[Any], plan: Any) -> Any:
    return functools.reduce(lambda planned, rule: rule(planned), rules, plan)


def kind(plan: Any) -> str:
    """Returns the name of the node's class, such as "Project"."""
    name: str = plan.productPrefix()
    return name


def children(plan: Any) -> list[Any]:
    return items(plan.children())


# Expressions that neither fail for any value nor call functions of the program.
_HARMLESS = frozenset(
    {
        *("Alias", "AttributeReference", "Literal", "CreateNamedStruct", "GetStructField"),
        *("And", "Or", "Not", "IsNull", "IsNotNull", "EqualTo", "EqualNullSafe", "Coalesce"),
        *("LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"),
    }
)


def is_harmless(expression: Any) -> bool:
    """Whether an expression may also be computed for rows that a filter would remove."""
    return kind(expression) in _HARMLESS and all(map(is_harmless, children(expression)))


def same(one: Any, other: Any) -> bool:
    """Whether two attributes are the same column."""
    return bool(one.exprId().equals(other.exprId()))


def output(plan: Any) -> list[Any]:
    return items(plan.output())


def _has_rows_without_columns(plan: Any) -> bool:
    return plan.output().isEmpty() or any(map(_has_rows_without_columns, children(plan)))


def delay_ms(attribute: Any) -> int | None:
    """Returns the delay of the watermark if the attribute is an event time of the query."""
    metadata = attribute.metadata()
    key = "spark.watermarkDelayMs"
    return int(metadata.getLong(key)) if metadata.contains(key) else None


def is_window(attribute: Any) -> bool:
    """Whether the attribute is the struct `window` or `session_window`."""
    metadata = attribute.metadata()
    return bool(metadata.contains("spark.timeWindow") or metadata.contains("spark.sessionWindow"))


def is_window_column(expression: Any) -> bool:
    return is_attribute(expression) and is_window(expression)


def is_reference(expression: Any, attribute: Any) -> bool:
    return is_attribute(expression) and same(expression, attribute)


def is_attribute(expression: Any) -> bool:
    return kind(expression) == "AttributeReference"


def has_node(plan: Any, name: str) -> bool:
    return kind(plan) == name or any(has_node(child, name) for child in children(plan))


def keeps_times(plan: Any, time: Any) -> bool:
    """Whether a node filters rows without a time only."""
    if kind(plan) != "Filter" or kind(plan.condition()) != "IsNotNull":
        return False
    (child,) = children(plan.condition())
    return is_reference(child, time)
