"""Refuses functions that relate rows of different keys.

`apply`, on a window or on a whole stream, runs its function once per subtask, on the rows of all
keys in the subtask (and of all sessions that fire together). A function that groups them by
something else would silently return different rows with a different parallelism. Therefore every
operator of its plan that relates rows must do so within one key: group by it, partition by it, or
join on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from firesteel.errors import FiresteelError
from firesteel.plan.catalyst_plan import join_kind
from taskexecutor.executor.analysis.plans import items, kind_of
from taskexecutor.executor.analysis.row_by_row import OPERATORS, ROW_BY_ROW, RowByRow
from taskexecutor.executor.analysis.step import Frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Maps operators to the method that returns the columns by which they relate rows.
_RELATING = {
    "Aggregate": "groupingExpressions",
    "Deduplicate": "keys",
    "FlatMapGroupsInArrow": "groupingAttributes",
    "FlatMapGroupsInPandas": "groupingAttributes",
    "Window": "partitionSpec",
}
_ALL_EQUAL = ("EqualTo", "EqualNullSafe")


class KeyedFrame(NamedTuple):
    frame: Frame
    key_columns: tuple[str, ...]


class ByKey(RowByRow):
    """Checks one function's plan. Tracks the key columns through the plan by Spark's expression
    ids.
    """

    def __init__(self, what: str, *given: KeyedFrame, also: Sequence[frozenset[str]] = ()) -> None:
        """The keys of all inputs have the same number of columns. `also` are additional keys; each
        is one of several columns of the first input.
        """
        super().__init__(what, *(each.frame for each in given))
        keys = [name.lower() for name in given[0].key_columns]
        self._keys = [*(frozenset({name}) for name in keys), *also]
        self.instead = f"relate only rows with the same {', '.join(map(max, self._keys))}"
        self._names = [
            _names(each, keys, f"{number} " if number else "") for number, each in enumerate(given)
        ]
        # names of columns with the input's values, by expression id
        self._known: dict[int, str] = {}

    def check(self, result: DataFrame) -> None:
        if self._keys:
            super().check(result)

    def refuse(self, what: str, instead: str) -> NoReturn:
        raise FiresteelError(
            f"{self._what}: {what} works on the rows of all keys in its subtask; "
            f"{instead}, or apply(..., across_keys=True) if that is meant"
        )

    def is_input(self, plan: Any) -> bool:
        number = self.input_at(plan)
        if number is None:
            return False
        columns = zip(self._names[number], items(plan.output()), strict=True)
        self._known.update((_id(column), name) for name, column in columns)
        return True

    def refers(self, reference: Any, definition: Any) -> None:
        columns = zip(items(reference.output()), items(definition.output()), strict=True)
        for here, there in columns:
            self._same(here, there)

    def unites(self, union: Any) -> None:
        branches = [items(child.output()) for child in items(union.children())]
        for column, *others in zip(items(union.output()), *branches, strict=True):
            names = {self._known.get(_id(other), "") for other in others}
            if len(names) > 1:
                self._known.pop(_id(column), None)
            else:
                self._same(column, others[0])

    def check_unary(self, node: Any) -> None:
        for expression in items(node.expressions()):
            if kind_of(expression) == "Alias":
                self._same(expression, expression.child())
        self.check_functions(node)
        kind = kind_of(node)
        if kind in ROW_BY_ROW or kind == "Sort":  # a global order also orders each key
            return
        if kind == "Distinct":
            self._check_related(kind, items(node.child().output()))
        elif kind in _RELATING:
            self._check_related(kind, items(getattr(node, _RELATING[kind])()))
        else:
            self.refuse_operator(kind)

    def check_join_of_both(self, join: Any) -> None:
        equal = []
        if join.condition().isDefined():
            for term in _conjuncts(join.condition().get()):
                if kind_of(term) in _ALL_EQUAL:
                    left, right = self._name(term.left()), self._name(term.right())
                    if left == right:
                        equal.append(term.left())
        if not self._within_keys(equal):
            super().check_join_of_both(join)
        # Unmatched rows of a side have null keys, so rows of different keys have equal ones.
        kind = join_kind(join)
        for side, is_filled in ((join.left(), "RIGHT"), (join.right(), "LEFT")):
            if kind in (f"{is_filled} OUTER", "FULL OUTER"):
                for column in items(side.output()):
                    self._known.pop(_id(column), None)

    def refuse_operator(self, kind: str) -> NoReturn:
        spelling = OPERATORS[kind].spelling if kind in OPERATORS else "the operator"
        self.refuse(f"{spelling} ({kind})", self.instead)

    def _check_related(self, kind: str, columns: Sequence[Any]) -> None:
        if not self._within_keys(columns):
            self.refuse_operator(kind)

    def _within_keys(self, columns: Sequence[Any]) -> bool:
        by = {self._name(column) for column in columns}
        return all(by & key for key in self._keys)

    def _name(self, expression: Any) -> str:
        if kind_of(expression) == "Alias":
            expression = expression.child()
        if kind_of(expression) != "AttributeReference":
            return ""
        return self._known.get(_id(expression), "")

    def _same(self, new: Any, old: Any) -> None:
        if name := self._name(old):
            self._known[_id(new)] = name


def _names(given: KeyedFrame, keys: Sequence[str], prefix: str) -> list[str]:
    """Returns names for the input's columns: key columns get the first input's names, other columns
    unique ones.
    """
    same = {name.lower(): key for name, key in zip(given.key_columns, keys, strict=True)}
    return [same.get(name.lower(), prefix + name.lower()) for name in given.frame.frame.columns]


def _conjuncts(condition: Any) -> Iterator[Any]:
    if kind_of(condition) == "And":
        yield from _conjuncts(condition.left())
        yield from _conjuncts(condition.right())
    else:
        yield condition


def _id(column: Any) -> int:
    return int(column.exprId().id())
