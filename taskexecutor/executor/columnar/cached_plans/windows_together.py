"""Decides whether a function of one window's rows may get the rows of several windows at a time.

It may if every operator of its plan either processes rows independently, or only relates rows with
equal values of `window_start` or `window_end`. Then the result for the rows of all windows equals
the combined results of the single windows. Other plans are run once per window: those with joins,
unions or subqueries, with Python functions that get whole partitions, and functions that read their
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ATTEMPTS = 3  # jobs of other tasks may be mistaken for the function's
_ROW_BY_ROW = frozenset(
    {
        "Filter",
        "Generate",
        "Project",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sort",  # a global order also orders each window
        "SubqueryAlias",
    }
)
# Maps operators to the method that returns the columns by which they relate rows.
_RELATING = {
    "Aggregate": "groupingExpressions",
    "Deduplicate": "keys",
    "FlatMapGroupsInArrow": "groupingAttributes",
    "FlatMapGroupsInPandas": "groupingAttributes",
    "Window": "partitionSpec",
}


def gets_windows_together(
    function: Callable[[DataFrame], DataFrame], leaf: DataFrame, window_columns: Collection[str]
) -> bool:
    """`leaf` is a DataFrame without rows, with the columns of the rows. Calls the function on
    it.
    """
    session: Any = leaf.sparkSession
    scheduler = session._jsc.sc().dagScheduler()
    function(leaf)  # may read static tables
    for _ in range(_ATTEMPTS):
        jobs_before = scheduler.numTotalJobs()
        plans = [_analyzed(function(leaf)) for _ in range(2)]
        if scheduler.numTotalJobs() == jobs_before:
            break
    else:
        return False
    return bool(plans[0].sameResult(plans[1])) and _keeps_apart(
        plans[0], _analyzed(leaf), window_columns
    )


def _keeps_apart(plan: Any, given: Any, window_columns: Collection[str]) -> bool:
    nodes = []
    while not plan.sameResult(given):
        if plan.children().size() != 1 or not plan.deterministic() or plan.subqueries().size():
            return False
        nodes.append(plan)
        plan = plan.children().apply(0)
    # The window's columns, by Spark's expression ids.
    known = {_id(each) for each in _items(plan.output()) if each.name() in window_columns}
    for node in reversed(nodes):
        kind = str(node.getClass().getSimpleName())
        if kind == "Distinct":
            related_by = _items(node.child().output())
        elif kind in _RELATING:
            related_by = _items(getattr(node, _RELATING[kind])())
        elif kind in _ROW_BY_ROW:
            related_by = None
        else:
            return False
        if related_by is not None and not any(_is_known(each, known) for each in related_by):
            return False
        known.update(
            _id(each)
            for each in _items(node.expressions())
            if _is_alias(each) and _is_known(each, known)
        )
    return True


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _is_known(expression: Any, known: set[int]) -> bool:
    if _is_alias(expression):
        expression = expression.child()
    is_column = expression.getClass().getSimpleName() == "AttributeReference"
    return bool(is_column and _id(expression) in known)


def _is_alias(expression: Any) -> bool:
    return bool(expression.getClass().getSimpleName() == "Alias")


def _id(column: Any) -> int:
    return int(column.exprId().id())


def _items(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]
