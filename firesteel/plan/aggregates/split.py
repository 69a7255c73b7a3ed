"""Splits aggregate expressions into two halves: Spark SQL over the rows, and arithmetic over merged
partial columns.

Merging of partial columns within a group (`AggregateExpression.merge`); nulls are ignored:

    sum, min, max         NaN is the largest number, as in Spark
    any                   any one value
        list, set             one list of all elements, or of the distinct ones
        distinct              like set, where only the number of elements matters
    bit_and, bit_or, bit_xor
    first:<o>, last:<o>   the value in the row with the least or greatest <o>, a partial column
    m2:<n>:<sum>          squared deviations from the mean; <n> and <sum> are the columns of counts
                          and sums
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from firesteel.operators import RowPartial
from firesteel.plan.aggregates.calls import Call, calls_of
from firesteel.plan.aggregates.spark_functions import AGGREGATES

# Functions that final halves may call besides arithmetic (firesteel.plan.aggregates.finals).
MEAN = "firesteel_mean"  # (sum, count)
VARIANCE = "firesteel_variance"  # (m2, count, the number to subtract from the count)
DEVIATION = "firesteel_deviation"
SIZE = "firesteel_size"  # (list)
DISTINCT = "firesteel_approx_count_distinct"  # (set of registers)

_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Paren)
_NAMES: dict[type[exp.Expression], str] = {
    exp.Count: "count",
    exp.CountIf: "count_if",
    exp.Sum: "sum",
    exp.Min: "min",
    exp.Max: "max",
    exp.Avg: "avg",
    exp.Stddev: "stddev_samp",
    exp.StddevSamp: "stddev_samp",
    exp.StddevPop: "stddev_pop",
    exp.Variance: "var_samp",
    exp.VariancePop: "var_pop",
    exp.ArgMin: "min_by",
    exp.ArgMax: "max_by",
    exp.First: "first",
    exp.FirstValue: "first",
    exp.Last: "last",
    exp.LastValue: "last",
    exp.AnyValue: "any_value",
    exp.LogicalAnd: "bool_and",
    exp.LogicalOr: "bool_or",
    exp.Any: "bool_or",
    exp.ArrayAgg: "collect_list",
    exp.ArrayUniqueAgg: "collect_set",
    exp.ApproxDistinct: "approx_count_distinct",
    exp.BitwiseAndAgg: "bit_and",
    exp.BitwiseOrAgg: "bit_or",
    exp.BitwiseXorAgg: "bit_xor",
}
_SYNONYMS = {
    "mean": "avg",
    "std": "stddev_samp",
    "every": "bool_and",
    "some": "bool_or",
    "array_agg": "collect_list",
}
_MERGES = {
    "count": "sum",
    "sum": "sum",
    "min": "min",
    "max": "max",
    "bool_and": "min",
    "bool_or": "max",
}
_MERGES |= {"bit_and": "bit_and", "bit_or": "bit_or", "bit_xor": "bit_xor", "any_value": "any"}
_MERGES |= {"collect_list": "list", "collect_set": "set"}
# Aggregates for which the value of a row is its partial result.
_OF_ROW = frozenset({"sum", "min", "max", "bool_and", "bool_or", "collect_list", "collect_set"})
_SPREADS = {
    "stddev_samp": (DEVIATION, 1),
    "stddev_pop": (DEVIATION, 0),
    "var_samp": (VARIANCE, 1),
    "var_pop": (VARIANCE, 0),
}


class NotSplittable(Exception):
    """The aggregate needs the rows themselves."""


def aggregate_name(node: exp.Expression) -> str | None:
    """Returns the canonical name of the aggregate function that `node` calls, or None."""
    if type(node) in _NAMES:
        return _NAMES[type(node)]
    if isinstance(node, exp.Anonymous):
        name = node.name.lower()
        return _SYNONYMS.get(name, name) if name in AGGREGATES else None
    if isinstance(node, exp.AggFunc):
        return node.sql_name().lower()
    return None


class Split:
    """Replaces the aggregate calls of one expression by partial columns. Raises NotSplittable."""

    def __init__(self, prefix: str, text: str) -> None:
        self._prefix = prefix
        self._calls = calls_of(text)  # in the order of the tree
        self.partial: dict[str, str] = {}
        self.merge: dict[str, str] = {}
        self.exact: dict[str, str] = {}
        self.of_row: dict[str, RowPartial] = {}

    def final_of(self, tree: exp.Expression) -> exp.Expression:
        """Returns the final half; `tree` is the parsed text."""
        final = self._replaced(tree)
        if next(self._calls, None) is not None:
            raise NotSplittable
        return final

    def _replaced(self, tree: exp.Expression) -> exp.Expression:
        match tree:
            case exp.Literal() if not tree.is_string:
                return tree.copy()
            case exp.Filter():
                return self._call(tree.this)
            case exp.Binary() if isinstance(tree, _ARITHMETIC):
                return type(tree)(
                    this=self._replaced(tree.this), expression=self._replaced(tree.expression)
                )
            case exp.Unary() if isinstance(tree, _ARITHMETIC):
                return type(tree)(this=self._replaced(tree.this))
            case _:
                return self._call(tree)

    def _call(self, tree: exp.Expression) -> exp.Expression:
        name, call = aggregate_name(tree), next(self._calls, None)
        if (
            name is None
            or call is None
            or any(isinstance(part, exp.Order) for part in tree.iter_expressions())
        ):
            raise NotSplittable
        condition = call.condition
        if call.distinct and (name != "count" or len(call.arguments) != 1):
            raise NotSplittable
        match name, call.arguments:
            case ("count", [value]) if call.distinct:
                return exp.Anonymous(
                    this=SIZE,
                    expressions=[
                        self._partial(
                            "set", f"collect_set({value})", "distinct", condition, of_row=value
                        )
                    ],
                )
            case ("count", ["*"]):
                return self._counted("1", condition)
            case ("count", values) if values:
                return self._counted(values[0], condition, *values[1:])
            case ("count_if", [value]):
                counted = self._partial("count_if", f"count_if({value})", "sum", condition)
                conditions = [f"({each})" for each in (value, condition) if each]
                self.of_row[counted.name] = RowPartial("1L", " AND ".join(conditions), "0L")
                return counted
            case ("avg", [value]):
                return exp.Anonymous(
                    this=MEAN,
                    expressions=[self._total(value, condition), self._counted(value, condition)],
                )
            case ("min_by" | "max_by", [value, order]):
                return self._by(name, value, order, condition)
            case ("approx_count_distinct", [value]):
                return self._distinct(value, condition)
            case (_, [value]) if name in _SPREADS:
                return self._spread(value, condition, *_SPREADS[name])
            case (_, [value]) if name in _MERGES:
                of_row = value if name in _OF_ROW else ""
                text = f"{name}({value})"
                return self._partial(name, text, _MERGES[name], condition, of_row=of_row)
            case _:
                raise NotSplittable

    def _counted(self, value: str, condition: str, *others: str) -> exp.Expression:
        values = [value, *others]
        count = self._partial("count", f"count({', '.join(values)})", "sum", condition)
        conditions = [f"({each}) IS NOT NULL" for each in values if each != "1"]
        conditions += [f"({condition})"] if condition else []
        self.of_row[count.name] = RowPartial("1L", " AND ".join(conditions), otherwise="0L")
        return count

    def _total(self, value: str, condition: str) -> exp.Expression:
        """Returns the sum that an average divides. Like Spark, it adds numbers as doubles, which do
        not overflow, but decimals and intervals exactly.
        """
        as_double = f"double({value})"
        total = self._partial("sum", f"sum({as_double})", "sum", condition, of_row=as_double)
        self.exact[total.name] = self.partial[total.name].replace(as_double, value, 1)
        return total

    def _spread(self, value: str, condition: str, function: str, subtrahend: int) -> exp.Expression:
        count = self._counted(value, condition)
        total = self._partial("total", f"sum(CAST({value} AS DOUBLE))", "sum", condition)
        where = f" FILTER (WHERE {condition})" if condition else ""
        squares = self._partial(
            "m2",
            f"var_pop({value}){where} * count({value}){where}",
            f"m2:{count.name}:{total.name}",
            condition="",
            key=where,
        )
        return exp.Anonymous(
            this=function, expressions=[squares, count, exp.Literal.number(subtrahend)]
        )

    def _by(self, name: str, value: str, order: str, condition: str) -> exp.Expression:
        least = name == "min_by"
        ordering = self._partial(
            "order",
            f"{'min' if least else 'max'}({order})",
            "min" if least else "max",
            condition,
            of_row=order,
        )
        return self._partial(
            name,
            f"{name}({value}, {order})",
            f"{'first' if least else 'last'}:{ordering.name}",
            condition,
            key=ordering.name,
            of_row=value,
        )

    def _distinct(self, value: str, condition: str) -> exp.Expression:
        """Computes Spark's HyperLogLog++ with its default precision of 9 bits, as a set of numbers:
        register
        * 64 + rank.
        """
        hashed = f"xxhash64({value})"
        # The number of leading zeros after the register's bits, plus one. bin() omits leading
        # zeros, and 256 sets a bit below the last one.
        rank = f"(65 - length(bin(shiftleft({hashed}, 9) | 256L)))"
        register = f"shiftrightunsigned({hashed}, 55)"
        pair = f"CASE WHEN ({value}) IS NOT NULL THEN CAST({register} * 64 + {rank} AS INT) END"
        return exp.Anonymous(
            this=DISTINCT,
            expressions=[self._partial("hll", f"collect_set({pair})", "set", condition)],
        )

    def _partial(
        self,
        kind: str,
        text: str,
        merge: str,
        condition: str,
        key: str = "",
        *,
        of_row: str = "",
    ) -> exp.Expression:
        if condition:
            text = f"{text} FILTER (WHERE {condition})"
        name = next(
            (n for n, sql in self.partial.items() if sql == text and self.merge[n] == merge), None
        )
        if name is None:
            same = sum(1 for n in self.partial if n.startswith(f"{self._prefix}_{kind}"))
            name = f"{self._prefix}_{kind}" + (str(same + 1) if same else "")
            self.partial[name] = text
            self.merge[name] = merge
            if of_row:
                self.of_row[name] = RowPartial(of_row, condition)
        return exp.column(name)


def ordered_by_time(text: str, time_column: str, no_event_time: Callable[[Call], Exception]) -> str:
    """Replaces first(x) and last(x), the values at the first and last event time, by min_by and
    max_by, whose result is well defined.

    Raises `no_event_time(call)` if there is no time column.
    """
    written, at = "", 0
    for call in calls_of(text):
        least = call.name in ("first", "first_value")
        if not least and call.name not in ("last", "last_value"):
            continue
        if not time_column:
            raise no_event_time(call)
        value, *flags = call.arguments or ("",)
        if (
            call.distinct
            or not value
            or [flag.lower() for flag in flags] not in ([], ["true"], ["false"])
        ):
            continue
        conditions = [f"({call.condition})"] if call.condition else []
        if call.ignore_nulls or (flags and flags[0].lower() == "true"):
            conditions.append(f"({value}) IS NOT NULL")
        filtered = f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""
        quoted = time_column.replace("`", "``")
        function = "min_by" if least else "max_by"
        written += f"{text[at : call.start]}{function}({value}, `{quoted}`){filtered}"
        at = call.stop
    return written + text[at:]
