"""SQL aggregate expressions, such as "avg(dep_delay) AS avg_delay": parsed, checked and split in two halves.

The partial half is Spark SQL and runs on the rows; partials merge column by column; the final half is arithmetic on merged
partials, small enough to be evaluated here with pyarrow. No Spark is needed to parse, nor to evaluate.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.plan.specs import AggregateExpression

ALLOWED = "count, sum, min, max, avg"
_RESERVED = ("window_start", "window_end", "_rows")
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Paren)
# What `final` may call besides arithmetic: a mean, which is null where nothing was counted.
_MEAN = "firesteel_mean"


def parse_aggregates(expressions: Sequence[str]) -> tuple[AggregateExpression, ...]:
    """Parses the items of `aggregate(...)`. Raises InvalidProgram, with a caret under the place where one is known."""
    if not expressions:
        raise InvalidProgram('aggregate() needs at least one expression, such as "count(*) AS flights"')
    parsed = [_parse_one(text, index) for index, text in enumerate(expressions)]
    seen: set[str] = set()
    for item in parsed:
        if item.name.lower() in seen:
            raise InvalidProgram(f"aggregate(): two expressions are named {item.name!r}; give each a name of its own with AS")
        if item.name.lower() in _RESERVED:
            raise InvalidProgram(f"aggregate(): {item.name!r} is a column that every window has; choose another name")
        seen.add(item.name.lower())
    return tuple(parsed)


def _parse_one(text: Any, index: int) -> AggregateExpression:
    if not isinstance(text, str):
        raise InvalidProgram(f"aggregate() takes SQL expressions as text, not {type(text).__name__}")
    tree = _sql_tree(text)
    name = ""
    if isinstance(tree, exp.Alias):
        name, tree = tree.alias, tree.this
    split = _Split(text, f"_p{index}")
    final = split.final_of(tree)
    if not split.partial:
        raise _wrong(text, tree, f"it aggregates nothing; use {ALLOWED}")
    return AggregateExpression(
        sql=text,
        name=name or _derived_name(text, tree),
        partial=split.partial,
        merge=split.merge,
        final=final.sql(dialect="spark"),
    )


def _sql_tree(text: str) -> exp.Expression:
    if not text.strip():
        raise InvalidProgram("aggregate(): an empty expression")
    try:
        select = sqlglot.parse_one(f"{_SELECT}{text}", dialect="spark")
    except ParseError as error:
        detail = error.errors[0] if error.errors else {}
        # sqlglot points at the last character of the token that it could not take.
        ends_at = _offset(f"{_SELECT}{text}", detail.get("line", 1), detail.get("col", 0)) - len(_SELECT)
        starts_at = max(0, ends_at - max(1, len(detail.get("highlight") or "")))
        message = re.sub(r"\s+", " ", str(detail.get("description") or "it is not SQL")).strip().rstrip(".")
        raise InvalidProgram(f"aggregate(): this does not parse: {message}\n{_caret(text, min(starts_at, len(text)))}") from None
    except TokenError:
        raise InvalidProgram(
            f"aggregate(): this does not parse: an unfinished text or name\n{_caret(text, _unclosed(text))}"
        ) from None
    if not isinstance(select, exp.Select) or {key for key, value in select.args.items() if value} - {"expressions", "kind"}:
        raise InvalidProgram(f"aggregate(): this is not one expression:\n{_caret(text, 0)}")
    if len(select.expressions) != 1:
        raise InvalidProgram(
            f"aggregate(): give each expression as a text of its own:\n{_caret(text, text.find(',') if ',' in text else 0)}"
        )
    tree: exp.Expression = select.expressions[0]
    return tree


_SELECT = "SELECT "
_FUNCTIONS: dict[type[exp.Expression], str] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Min: "min",
    exp.Max: "max",
    exp.Avg: "avg",
}


class _Split:
    """Replaces the aggregate calls of one expression by partial columns."""

    def __init__(self, text: str, prefix: str) -> None:
        self._text = text
        self._prefix = prefix
        self.partial: dict[str, str] = {}
        self.merge: dict[str, str] = {}

    def final_of(self, tree: exp.Expression) -> exp.Expression:
        match tree:
            case exp.Literal() if not tree.is_string:
                return tree.copy()
            case exp.Filter():
                return self._call(tree.this, condition=tree.expression.this)
            case exp.Binary() if isinstance(tree, _ARITHMETIC):
                return type(tree)(this=self.final_of(tree.this), expression=self.final_of(tree.expression))
            case exp.Unary() if isinstance(tree, _ARITHMETIC):
                return type(tree)(this=self.final_of(tree.this))
            case exp.Column():
                raise _wrong(self._text, tree, f"column {tree.sql(dialect='spark')} must be inside an aggregate ({ALLOWED})")
            case _:
                return self._call(tree, condition=None)

    def _call(self, call: exp.Expression, condition: exp.Expression | None) -> exp.Expression:
        kind = _FUNCTIONS.get(type(call))
        if kind is None:
            if isinstance(call, exp.Window):
                raise _wrong(self._text, call, "OVER has no place here: the window is the stream's")
            what = (
                call.sql_name().lower()
                if isinstance(call, exp.Func) and not isinstance(call, exp.Anonymous)
                else call.name or call.sql()
            )
            raise _wrong(self._text, call, f"{what} cannot be used here; allowed now: {ALLOWED}, with + - * / between them")
        arguments = [argument for argument in (call.this, *call.args.get("expressions", ())) if argument is not None]
        if any(isinstance(argument, exp.Distinct) for argument in arguments):
            raise _wrong(self._text, call, f"{kind}(DISTINCT ...) cannot be split into partial results; allowed now: {ALLOWED}")
        if len(arguments) != 1:
            raise _wrong(self._text, call, f"{kind} takes one argument here")
        argument = arguments[0]
        inner = argument.find(exp.AggFunc, exp.Window, exp.Select)
        if inner is not None:
            raise _wrong(self._text, inner, f"{kind} of an aggregate or query")
        if isinstance(argument, exp.Star):
            if kind != "count":
                raise _wrong(self._text, call, f"{kind}(*) has no meaning; name a column")
            return self._partial("count", "1", condition)
        value = argument.sql(dialect="spark")
        if kind == "avg":
            total = self._partial("sum", value, condition)
            count = self._partial("count", value, condition)
            return exp.Anonymous(this=_MEAN, expressions=[total, count])
        return self._partial(kind, value, condition)

    def _partial(self, function: str, value: str, condition: exp.Expression | None) -> exp.Expression:
        text = f"{function}({value})" + (f" FILTER (WHERE {condition.sql(dialect='spark')})" if condition is not None else "")
        name = next((n for n, sql in self.partial.items() if sql == text), None)
        if name is None:
            same = sum(1 for n in self.partial if n.startswith(f"{self._prefix}_{function}"))
            name = f"{self._prefix}_{function}" + (str(same + 1) if same else "")
            self.partial[name] = text
            self.merge[name] = "sum" if function in ("count", "sum") else function
        return exp.column(name)


# -- evaluation


def evaluate(item: AggregateExpression, partials: Mapping[str, pa.Array], rows: int, kind: pa.DataType) -> pa.Array:
    """The final values of `item` over merged partials, as Spark would give them, of type `kind`.

    Raises FiresteelError on division by zero, as Spark does (ANSI mode).
    """
    try:
        value = _compiled(item.final)(partials, kind)
        if isinstance(value, pa.Scalar):
            value = pa.repeat(value, rows)
        if isinstance(value, pa.ChunkedArray):
            value = value.combine_chunks()
        return value if value.type == kind else value.cast(kind, safe=not pa.types.is_floating(kind))
    except pa.ArrowInvalid as error:
        raise FiresteelError(f"aggregate {item.sql!r}: {error}") from error


_Evaluator = Callable[[Mapping[str, pa.Array], pa.DataType], Any]


@lru_cache(maxsize=1024)
def _compiled(final: str) -> _Evaluator:
    tree = sqlglot.parse_one(final, dialect="spark")
    assert isinstance(tree, exp.Expression)
    return _compile(tree)


def _compile(tree: exp.Expression) -> _Evaluator:
    match tree:
        case exp.Column():
            name = tree.name
            return lambda partials, kind: partials[name]
        case exp.Literal():
            literal = pa.scalar(int(tree.this)) if tree.is_int else pa.scalar(float(tree.this))
            return lambda partials, kind: literal
        case exp.Paren():
            return _compile(tree.this)
        case exp.Neg():
            negated = _compile(tree.this)
            return lambda partials, kind: pc.negate(negated(partials, kind))
        case exp.Anonymous() if tree.this.lower() == _MEAN:
            total, count = (_compile(argument) for argument in tree.expressions)
            return lambda partials, kind: _mean(total(partials, kind), count(partials, kind), kind)
        case exp.Add() | exp.Sub() | exp.Mul() | exp.Div():
            left, right = _compile(tree.this), _compile(tree.expression)
            operation = _OPERATIONS[type(tree)]
            return lambda partials, kind: operation(left(partials, kind), right(partials, kind))
        case _:
            raise FiresteelError(f"{tree.sql(dialect='spark')} cannot be evaluated on merged partials")


def _divide(left: Any, right: Any) -> Any:
    """Spark's `/`: always a double for whole numbers; an error on zero."""
    left, right = pc.cast(left, pa.float64()), pc.cast(right, pa.float64())
    zero = pc.and_(pc.equal(right, 0.0), pc.is_valid(left))
    if (zero.as_py() if isinstance(zero, pa.Scalar) else pc.any(zero).as_py()) is True:
        raise FiresteelError("division by zero in an aggregate; guard it, for example with a FILTER clause")
    return pc.divide(left, right)


_OPERATIONS: dict[type[exp.Expression], Callable[[Any, Any], Any]] = {
    exp.Add: pc.add_checked,
    exp.Sub: pc.subtract_checked,
    exp.Mul: pc.multiply_checked,
    exp.Div: _divide,
}


def _mean(total: Any, count: Any, kind: pa.DataType) -> Any:
    """Null where nothing was counted. Decimals keep Spark's scale, rounded half up; everything else is a double."""
    if pa.types.is_decimal(total.type) and pa.types.is_decimal(kind):
        with decimal.localcontext() as context:
            context.prec = 76
            unit = decimal.Decimal(1).scaleb(-kind.scale)
            values = [
                None if not n or s is None else (s / n).quantize(unit, rounding=decimal.ROUND_HALF_UP)
                for s, n in zip(total.to_pylist(), count.to_pylist(), strict=True)
            ]
        return pa.array(values, kind)
    counted = pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.int64()), count)
    return pc.divide(pc.cast(total, pa.float64()), pc.cast(counted, pa.float64()))


# -- names and errors


def _derived_name(text: str, tree: exp.Expression) -> str:
    """`count(*)` is called count, `avg(dep_delay)` avg_dep_delay; anything more needs a name."""
    if isinstance(tree, exp.Count) and isinstance(tree.this, exp.Star):
        return "count"
    if isinstance(tree, exp.AggFunc) and isinstance(tree.this, exp.Column):
        return f"{tree.sql_name().lower()}_{tree.this.name}"
    raise InvalidProgram(f'aggregate(): give the expression a name: "{text} AS ..."')


def _wrong(text: str, tree: exp.Expression, why: str) -> InvalidProgram:
    return InvalidProgram(f"aggregate(): {why}\n{_caret(text, _place(text, tree))}")


def _place(text: str, tree: exp.Expression) -> int:
    """Where `tree` begins in `text`, as well as sqlglot lets us know."""
    starts = [node.meta["start"] for node in tree.walk() if "start" in node.meta]
    start = min(starts) - len(_SELECT) if starts else len(text)
    if isinstance(tree, exp.Func):  # its name stands before its first part
        word = tree.name if isinstance(tree, exp.Anonymous) else tree.sql_name()
        found = [m.start() for m in re.finditer(re.escape(word) + r"\s*\(", text, re.IGNORECASE) if m.start() <= start]
        if found:
            return found[-1]
    return max(0, start) if start < len(text) else 0


def _caret(text: str, column: int) -> str:
    """The line of `text` that `column` is in, and a caret under the place."""
    before = text[:column]
    line_start = before.rfind("\n") + 1
    line_end = text.find("\n", column)
    line = text[line_start : line_end if line_end >= 0 else len(text)]
    return f"  {line}\n  {' ' * (column - line_start)}^"


def _offset(text: str, line: int, column: int) -> int:
    lines = text.split("\n")
    return sum(len(part) + 1 for part in lines[: line - 1]) + column


def _unclosed(text: str) -> int:
    return max((text.rfind(quote) for quote in "'\"`" if text.count(quote) % 2), default=0)
