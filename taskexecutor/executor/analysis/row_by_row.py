"""Refuses transforms that are not row by row.

Spark sees one bundle of a stream at a time, or one split of its source. A function that relates
rows to each other (a groupBy, a limit, a join of its input with itself) would be right for each
bundle and silently wrong for the stream. Its analyzed plan shows that before data flows: every
operator between the function's input and its result must be known to process rows independently.
Operators over static data, which do not depend on the input, are not restricted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from firesteel.errors import FiresteelError
from firesteel.plan.catalyst_plan import EXISTENCE, join_kind
from taskexecutor.executor.analysis.plans import analyzed, items, kind_of
from taskexecutor.executor.analysis.random_numbers import (
    Seed,
    check_seeds,
    not_deterministic,
    seeds_of,
)
from taskexecutor.executor.analysis.step import BUNDLE, Frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Logical operators with one child.
ROW_BY_ROW = frozenset(
    {
        "CTERelationDef",
        "CollectMetrics",
        "DeserializeToObject",
        "EventTimeWatermark",
        "Expand",
        "Filter",
        "Generate",
        "LateralJoin",
        "MapElements",
        "MapInArrow",
        "MapInPandas",
        "MapPartitions",
        "PipeOperator",
        "Project",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "ScriptTransformation",
        "SerializeFromObject",
        "SubqueryAlias",
        "TypedFilter",
        "View",
    }
)
# Joins that match each row of this side with the other side independently.
_LEFT_SAFE = frozenset(
    {"INNER", "CROSS", "LEFT OUTER", "LEFT SEMI", "LEFT ANTI", "LEFT SINGLE", EXISTENCE}
)
_RIGHT_SAFE = frozenset({"INNER", "CROSS", "RIGHT OUTER"})

_WINDOWS = "use key_by(...).window(...).apply(...), whose function gets whole windows"
_AGGREGATE = (
    "use key_by(...).window(...).aggregate(...) or, without windows, key_by(...).aggregate(...)"
)
_DUPLICATES = 'use drop_duplicates("column", within="1 hour") of the stream'
_ORDER = (
    "use window_all(...).top_n(...), for each key key_by(...).window(...).top_n(...), or apply(...)"
    " instead of top_n, whose function gets whole windows"
)


class _Refused(NamedTuple):
    spelling: str  # name in programs
    instead: str


OPERATORS = {
    "Aggregate": _Refused("groupBy", _AGGREGATE),
    "Deduplicate": _Refused("dropDuplicates", _DUPLICATES),
    "DeduplicateWithinWatermark": _Refused("dropDuplicatesWithinWatermark", _DUPLICATES),
    "Distinct": _Refused("distinct", _DUPLICATES),
    "Sort": _Refused("orderBy", _ORDER),
    "GlobalLimit": _Refused("limit", _ORDER),
    "LocalLimit": _Refused("limit", _ORDER),
    "Offset": _Refused("offset", _ORDER),
    "Tail": _Refused("tail", _ORDER),
    "Window": _Refused("a window function", _ORDER),
    "Except": _Refused("exceptAll or subtract", _WINDOWS),
    "Intersect": _Refused("intersect", _WINDOWS),
    "FlatMapGroupsInPandas": _Refused("applyInPandas", _WINDOWS),
    "FlatMapGroupsInArrow": _Refused("applyInArrow", _WINDOWS),
    "AttachDistributedSequence": _Refused("zipWithIndex", "use uuid() for distinct values"),
}
_FUNCTIONS = {
    "MonotonicallyIncreasingID": _Refused(
        "monotonically_increasing_id()", "use uuid() for distinct values"
    ),
    "SparkPartitionID": _Refused("spark_partition_id()", "leave it out"),
}
_OF_FILES = {
    "InputFileName": "input_file_name()",
    "InputFileBlockStart": "input_file_block_start()",
    "InputFileBlockLength": "input_file_block_length()",
}


def check_row_by_row(
    operator_name: str, given: Frame, result: DataFrame, again: Callable[[], DataFrame]
) -> None:
    """Raises FiresteelError, which names the operator and an alternative, if `result` relates rows
    of `given` to each other, or if its random functions would repeat their values in each bundle.
    `result` is what a function returned for `given`, and `again` returns the result of another
    call.
    """

    def seeds(frame: DataFrame) -> set[Seed]:
        checked = RowByRow(operator_name, given)
        checked.check(frame)
        return checked.seeds

    check_seeds(
        operator_name,
        seeds(result),
        lambda: seeds(again()),
        each_run="bundle of rows",
        instead=", or, in a batch, use apply(...), whose function gets all rows at once",
    )


class RowByRow:
    """Checks one function's plan, from its input upwards."""

    instead = _WINDOWS  # the default alternative

    def __init__(self, what: str, *given: Frame) -> None:
        self._what = what
        self._reads_files = given[0].leaf != BUNDLE
        self._inputs = [analyzed(each.frame) for each in given]
        self._ctes: dict[int, Any] = {}  # those that read the input, by id
        self.seeds: set[Seed] = set()  # seeds that the rows of the input pass

    def check(self, result: DataFrame) -> None:
        if not self.reads_input(analyzed(result)):
            self.refuse(
                "the DataFrame it returns, whose plan does not start with its argument,",
                "derive it from the argument by DataFrame methods",
            )

    def refuse(self, what: str, instead: str) -> NoReturn:
        raise FiresteelError(
            f"{self._what}: {what} works on one bundle of rows at a time, not on the whole stream; "
            f"{instead}, or transform(..., per_bundle=True) if that is meant"
        )

    def reads_input(self, plan: Any) -> bool:
        """Returns whether rows of the input reach the top of `plan`, and if so checks the plan."""
        unary = []  # without recursion, because long chains are common
        while not self.is_input(plan) and plan.children().size() == 1:
            unary.append(plan)
            plan = plan.children().apply(0)
        reads = self.is_input(plan) or self._branches_read_input(plan)
        for node in reversed(unary):
            self.check_subqueries(node)
            if reads:
                self.seeds |= seeds_of(node)
                self.check_unary(node)
        return reads

    def is_input(self, plan: Any) -> bool:
        """Also True if its columns have different ids, which Spark assigns where the input is used
        twice.
        """
        return self.input_at(plan) is not None

    def input_at(self, plan: Any) -> int | None:
        """Returns the index of the input."""
        found = (at for at, each in enumerate(self._inputs) if plan.sameResult(each))
        return next(found, None)

    def _branches_read_input(self, plan: Any) -> bool:
        """Checks a plan whose root has no children or several."""
        kind = kind_of(plan)
        if kind == "CTERelationRef":
            if plan.cteId() not in self._ctes:
                return False
            self.refers(plan, self._ctes[plan.cteId()])
            return True
        if kind == "WithCTE":
            for definition in items(plan.cteDefs()):
                if self.reads_input(definition):
                    self._ctes[definition.id()] = definition
            return self.reads_input(plan.plan())
        reading = [self.reads_input(child) for child in items(plan.children())]
        self.check_subqueries(plan)
        if any(reading):
            self.check_branches(plan, reading)
        return any(reading)

    def check_branches(self, plan: Any, reading: Sequence[bool]) -> None:
        """Checks a plan with several children. `reading`: which of them read the input."""
        kind = kind_of(plan)
        if kind == "Join":
            if all(reading):
                self.check_join_of_both(plan)
            else:
                self._check_join(plan, left=reading[0])
        elif kind != "Union":
            self.refuse_operator(kind)
        elif all(reading):
            self.unites(plan)
        else:
            self.refuse(
                "union with rows from outside its input (Union)",
                "use DataStream.union with a stream of these rows",
            )

    def refers(self, reference: Any, definition: Any) -> None:
        """Called for a reference to a common table expression that reads the input."""

    def unites(self, union: Any) -> None:
        """Called for a union whose branches all read the input."""

    def check_join_of_both(self, join: Any) -> None:
        self.refuse("a join of its input with itself (Join)", self.instead)

    def _check_join(self, join: Any, left: bool) -> None:
        kind = join_kind(join)
        if kind not in (_LEFT_SAFE if left else _RIGHT_SAFE):
            side = "left" if left else "right"
            self.refuse(
                f"a {kind.lower()} join with its input on the {side} (Join)",
                "use an inner join, or one that keeps the input's rows (left, with the input on "
                "the left)",
            )

    def check_subqueries(self, node: Any) -> None:
        if any(self.reads_input(query) for query in items(node.subqueries())):
            self.refuse("a subquery over its input", self.instead)

    def check_unary(self, node: Any) -> None:
        kind = kind_of(node)
        if kind == "Sort" and not getattr(node, "global")():
            return  # sortWithinPartitions guarantees nothing beyond a bundle
        if kind == "Aggregate" and not node.groupingExpressions().size():
            self.refuse("an aggregate function (Aggregate)", _AGGREGATE)
        if kind not in ROW_BY_ROW:
            self.refuse_operator(kind)
        self.check_functions(node)

    def check_functions(self, node: Any) -> None:
        for expression in not_deterministic(node):
            self._check_function(kind_of(expression))

    def refuse_operator(self, kind: str) -> NoReturn:
        refused = OPERATORS.get(kind)
        if refused is None:
            self.refuse(f"the operator {kind}", self.instead)
        self.refuse(f"{refused.spelling} ({kind})", refused.instead)

    def _check_function(self, kind: str) -> None:
        if kind in _FUNCTIONS:
            self.refuse(*_FUNCTIONS[kind])
        if kind in _OF_FILES and not self._reads_files:
            self.refuse(
                _OF_FILES[kind],
                "call it in a transform right after the FileSource, chained to it and its only "
                "consumer",
            )


class AnyRows(RowByRow):
    """Accepts a function that may relate rows arbitrarily."""

    def check(self, result: DataFrame) -> None:
        self.reads_input(analyzed(result))

    def check_unary(self, node: Any) -> None:
        pass

    def check_branches(self, plan: Any, reading: Sequence[bool]) -> None:
        pass

    def check_subqueries(self, node: Any) -> None:
        for query in items(node.subqueries()):
            self.reads_input(query)
