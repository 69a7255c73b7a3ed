"""Aggregate functions whose results cannot be updated, such as percentile_approx.

The aggregate collects what the functions of a group read, as a list of structs. A stretch after it
divides each list into rows again, and Spark computes the functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from firesteel.plan.catalyst_plan import alias, nothing
from firesteel.spark_connect.catalyst import Catalyst, children, is_attribute

COLLECTED = "collected"  # the column with the lists


@dataclass(frozen=True, kw_only=True)
class CollectedValues:
    """The struct `row` holds what `calls` of aggregate functions read of a row. `bound` holds the
    same calls of an element of a list of such structs.
    """

    row: Any
    lists: Any  # the attribute of the lists
    element: Any  # the attribute of the rows that come from them
    calls: Sequence[Any]
    bound: Sequence[Any]

    @staticmethod
    def of(catalyst: Catalyst, calls: Sequence[Any]) -> CollectedValues:
        read = {each.exprId().id(): each for call in calls for each in _attributes(call)}
        fields = list(read.values()) or [catalyst.literal(True)]
        row = catalyst.struct([(f"f{index}", each) for index, each in enumerate(fields)])
        element = catalyst.attribute(row.dataType(), "element")
        places = {number: catalyst.field(element, index) for index, number in enumerate(read)}

        def bound(expression: Any) -> Any:
            if is_attribute(expression):
                return places[expression.exprId().id()]
            below = children(expression)
            return expression.withNewChildren(catalyst.seq(map(bound, below)))

        exists = catalyst.expressions.IsNotNull(element)  # not so for an empty list

        return CollectedValues(
            row=row,
            lists=catalyst.array_of(row.dataType(), COLLECTED),
            element=element,
            calls=calls,
            bound=[catalyst.filtered(bound(call), exists) for call in calls],
        )

    def computed(self, catalyst: Catalyst, keys: Sequence[Any], results: Sequence[Any]) -> Any:
        """Returns a plan over rows with `keys`, `results` of other functions, and lists. Its rows
        have the results of these calls in place of the lists.
        """
        jvm, none = catalyst.jvm, nothing(catalyst.jvm)
        number = catalyst.named(catalyst.expressions.MonotonicallyIncreasingID(), "group_number")
        given = [*keys, *results, self.lists]
        groups = catalyst.project([number, *given], catalyst.leaf(given))
        rows = catalyst.logical.Generate(
            catalyst.expressions.Explode(self.lists),
            catalyst.seq([len(given)]),
            True,
            none,
            catalyst.seq([self.element]),
            groups,
        )
        computed = [
            *keys,
            *(alias(jvm, catalyst.first(each), each) for each in results),
            *(
                alias(jvm, call, of.resultAttribute())
                for call, of in zip(self.bound, self.calls, strict=True)
            ),
        ]
        by = [number.toAttribute(), *keys]
        return catalyst.logical.Aggregate(catalyst.seq(by), catalyst.seq(computed), rows, none)


def _attributes(expression: Any) -> Iterator[Any]:
    if is_attribute(expression):
        yield expression
    for each in children(expression):
        yield from _attributes(each)
