"""Replaces scalar subqueries of a streaming query by joins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from firesteel.errors import InvalidProgram
from firesteel.plan.catalyst_plan import items, nothing
from firesteel.spark_connect.catalyst import Catalyst, children, kind, output


class ScalarSubqueries:
    """The scalar subqueries of one plan, which are not correlated. Their values are joined to the
    rows, as static sides of left joins without a condition.
    """

    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst
        patterns = catalyst.jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        self._pattern = patterns.SCALAR_SUBQUERY()
        self._values: set[int] = set()  # ids of the columns that have them

    def joined(self, plan: Any) -> Any:
        """Returns the plan with joins. Raises InvalidProgram for a subquery of another node than a
        filter or a projection.
        """
        if not self._in(plan):
            return plan
        below = [self.joined(child) for child in children(plan)]
        plan = plan.withNewChildren(self._catalyst.seq(below))
        if not any(map(self._in, items(plan.expressions()))):
            return plan
        if kind(plan) not in ("Filter", "Project"):
            raise InvalidProgram(
                "a scalar subquery of a streaming query is supported in filters and among the"
                f" columns of select() only:\n{plan.treeString().splitlines()[0][:300]}"
            )
        (child,), values = below, list[Any]()
        if kind(plan) == "Project":
            columns = [self._replaced(each, values) for each in items(plan.projectList())]
            return self._catalyst.project(columns, self._with_values(child, values))
        condition = self._replaced(plan.condition(), values)
        rows = self._catalyst.logical.Filter(condition, self._with_values(child, values))
        return self._catalyst.project(output(child), rows)

    def check_rows(self, static: Any, rows: pa.Table) -> None:
        """Raises InvalidProgram if the static side of a join is a subquery with several rows."""
        if output(static)[0].exprId().id() in self._values and rows.num_rows > 1:
            raise InvalidProgram(
                f"a scalar subquery has {rows.num_rows:,} rows, and one at most is allowed: add an"
                " aggregate or a LIMIT 1"
            )

    def _in(self, tree: Any) -> bool:
        return bool(tree.containsPattern(self._pattern))

    def _replaced(self, expression: Any, values: list[Any]) -> Any:
        """Returns the expression with columns instead of its subqueries, whose plans are added to
        `values`.
        """
        if kind(expression) == "ScalarSubquery":
            plan = expression.plan()
            value = self._catalyst.named(output(plan)[0], "scalar_subquery")
            self._values.add(value.exprId().id())
            values.append(self._catalyst.project([value], plan))
            return value.toAttribute().withNullability(True)
        if not self._in(expression):
            return expression
        parts = [self._replaced(part, values) for part in children(expression)]
        return expression.withNewChildren(self._catalyst.seq(parts))

    def _with_values(self, plan: Any, values: Sequence[Any]) -> Any:
        plans = self._catalyst.jvm.org.apache.spark.sql.catalyst.plans
        left_outer = getattr(getattr(plans, "LeftOuter$"), "MODULE$")
        logical, no_condition = self._catalyst.logical, nothing(self._catalyst.jvm)
        for value in values:
            plan = logical.Join(plan, value, left_outer, no_condition, logical.JoinHint.NONE())
        return plan
