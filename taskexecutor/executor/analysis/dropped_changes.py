"""Finds conditions that may drop one of a row's two changes and keep the other.

The insertion and the deletion of a row are equal except for `row_kind`, so a condition on other
columns keeps both or neither. A condition that reads `row_kind`, or that is not deterministic, may
keep one of them: a downstream operator on changes would then keep a deleted row, or delete a row
that it never received.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from firesteel.operators.code_names import names_in
from firesteel.row_kind import ROW_KIND
from taskexecutor.executor.analysis.plans import analyzed, items, kind_of
from taskexecutor.executor.analysis.step import DroppedChanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Their values depend on the plan's run.
_CLOCKS = frozenset({"CurrentDate", "CurrentTime", "CurrentTimestamp", "LocalTimestamp", "Now"})
_BY_KIND = f"it reads {ROW_KIND}"
_BY_CHANCE = "it is not deterministic"


def dropped_by_plan(operator_name: str, result: DataFrame) -> DroppedChanges | None:
    """Returns the first such condition in the plan of a transform, starting from its input."""
    kinds: set[int] = set()  # ids of the columns row_kind
    reads: dict[int, str] = {}  # by column id: the reason against a condition on the column
    found = None
    for node in _upwards(analyzed(result)):
        if not node.children().size():
            kinds.update(_id(column) for column in items(node.output()) if _is_kind(column))
            reads.update(dict.fromkeys(kinds, _BY_KIND))
        for expression in items(node.expressions()):
            if kind_of(expression) == "Alias" and (why := _why(expression.child(), reads)):
                reads[_id(expression)] = why
        for condition in _conditions(node):
            if why := _why(condition, reads):
                one_kind = kind_of(node) == "Filter" and _leaves_one_kind(condition, kinds)
                found = later(found, DroppedChanges(who=operator_name, why=why, one_kind=one_kind))
        if kind_of(node) == "Sample":
            by_chance = DroppedChanges(who=operator_name, why=_BY_CHANCE, one_kind=False)
            found = later(found, by_chance)
    return found


def given_once(partials: DataFrame) -> dict[str, str]:
    """Returns the columns of rows' contributions to an aggregate that would differ for the row's
    deletion, with the reasons.
    """
    plan = analyzed(partials)
    inputs = items(plan.child().output())
    reads = {_id(column): _BY_KIND for column in inputs if _is_kind(column)}
    values = (item for item in items(plan.expressions()) if kind_of(item) == "Alias")
    found = {str(value.name()): _why(value.child(), reads) for value in values}
    return {name: why for name, why in found.items() if why}


def dropped_by_function(operator_name: str, function: Any) -> DroppedChanges | None:
    """Returns a Python function that filters batches, if its code names the column."""
    if not any(name.lower() == ROW_KIND for name in names_in(function)):
        return None
    return DroppedChanges(who=operator_name, why=_BY_KIND, one_kind=False)


def later(earlier: DroppedChanges | None, found: DroppedChanges | None) -> DroppedChanges | None:
    """Returns the one in effect: once only rows of one kind are left, later conditions change
    nothing.
    """
    keeps = found is None or (earlier is not None and (earlier.one_kind or not found.one_kind))
    return earlier if keeps else found


def _upwards(plan: Any) -> list[Any]:
    """Returns the plan's nodes, each after its children. Without recursion, because long chains are
    common.
    """
    waiting, ordered = [plan], list[Any]()
    while waiting:
        node = waiting.pop()
        ordered.append(node)
        waiting += items(node.children())
    return ordered[::-1]


def _conditions(node: Any) -> list[Any]:
    """Returns the expressions that determine whether, or how often, the node emits a row."""
    match kind_of(node):
        case "Filter":
            return [node.condition()]
        case "Join":
            return [node.condition().get()] if node.condition().isDefined() else []
        case "Generate":
            return [node.generator()]
        case _:
            return []


def _why(expression: Any, reads: dict[int, str]) -> str:
    """Returns why a condition on this may differ for the two changes of a row; "" if it cannot."""
    columns = map(_id, items(expression.references().toSeq()))
    by = [reads[column] for column in columns if column in reads]
    if _BY_KIND in by:
        return _BY_KIND
    if by or not expression.deterministic() or not _CLOCKS.isdisjoint(_kinds_in(expression)):
        return _BY_CHANCE
    return ""


def _kinds_in(expression: Any) -> Iterator[str]:
    yield kind_of(expression)
    for child in items(expression.children()):
        yield from _kinds_in(child)


def _leaves_one_kind(condition: Any, kinds: set[int]) -> bool:
    """Returns whether the condition is row_kind = 'insert', also within AND, or inequality to one
    of the two kinds.
    """
    if kind_of(condition) == "And":
        return any(_leaves_one_kind(c, kinds) for c in (condition.left(), condition.right()))
    if kind_of(condition) == "Not":
        condition = condition.child()
    if kind_of(condition) not in ("EqualTo", "EqualNullSafe"):
        return False
    sides = {kind_of(side): side for side in (condition.left(), condition.right())}
    column = sides.get("AttributeReference")
    return "Literal" in sides and column is not None and _id(column) in kinds


def _is_kind(column: Any) -> bool:
    return bool(column.name() == ROW_KIND)


def _id(column: Any) -> int:
    return int(column.exprId().id())
