"""Evaluates the final half of aggregate expressions: arithmetic on merged partial columns in
pyarrow, with the same results as Spark.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from firesteel.errors import FiresteelError
from firesteel.operators import AggregateExpression
from firesteel.plan.aggregates import hyperloglog
from firesteel.plan.aggregates import split as aggregate_split

# Maps merged partials to an Array, or to a Scalar for a literal. Decimals have the precision and
# scale that they have in Spark, which rounds at each step of an expression.
_Evaluator = Callable[[Mapping[str, pa.Array]], Any]


def evaluate(
    item: AggregateExpression, partials: Mapping[str, pa.Array], rows: int, kind: pa.DataType
) -> pa.Array:
    """Returns the final values of `item` over merged partials, of type `kind`, equal to Spark's.

    Raises FiresteelError on division by zero and on overflow, as Spark does (ANSI mode).
    """
    try:
        value = _compiled(item.final)(partials)
        if isinstance(value, pa.Scalar):
            value = pa.repeat(value, rows)
        if isinstance(value, pa.ChunkedArray):
            value = value.combine_chunks()
        return (
            value if value.type == kind else value.cast(kind, safe=not pa.types.is_floating(kind))
        )
    except pa.ArrowInvalid as error:
        raise FiresteelError(f"aggregate {item.sql!r}: {error}") from error


@lru_cache(maxsize=1024)
def _compiled(final: str) -> _Evaluator:
    tree = sqlglot.parse_one(final, dialect="spark")
    assert isinstance(tree, exp.Expression)
    return _compile(tree)


def _compile(tree: exp.Expression) -> _Evaluator:
    match tree:
        case exp.Column():
            name = tree.name
            return lambda partials: partials[name]
        case exp.Literal():
            literal = _literal(tree)
            return lambda partials: literal
        case exp.Paren():
            return _compile(tree.this)
        case exp.Neg():
            negated = _compile(tree.this)
            return lambda partials: pc.negate_checked(negated(partials))
        case exp.Anonymous() if tree.this.lower() in _FUNCTIONS:
            function = _FUNCTIONS[tree.this.lower()]
            arguments = [_compile(argument) for argument in tree.expressions]
            return lambda partials: function(*(argument(partials) for argument in arguments))
        case exp.Add() | exp.Sub() | exp.Mul() | exp.Div():
            left, right = _compile(tree.this), _compile(tree.expression)
            operation = _OPERATIONS[type(tree)]
            return lambda partials: operation(left(partials), right(partials))
        case _:
            raise FiresteelError(
                f"{tree.sql(dialect='spark')} cannot be evaluated on merged partials"
            )


def _literal(tree: exp.Literal) -> pa.Scalar:
    if tree.is_int:
        return pa.scalar(int(tree.this))
    if "e" in tree.this.lower():
        return pa.scalar(float(tree.this))
    value = decimal.Decimal(tree.this)  # 1.5 is a decimal, as in Spark
    scale = max(0, -int(value.as_tuple().exponent))
    return pa.scalar(value, pa.decimal128(max(len(value.as_tuple().digits), scale), scale))


def _checked(
    operation: Callable[[Any, Any], Any], decimals: Callable[[_Digits, _Digits], _Digits]
) -> Callable[[Any, Any], Any]:
    def apply(left: Any, right: Any) -> Any:
        if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
            return operation(_as_double(left), _as_double(right))
        if pa.types.is_decimal(left.type) or pa.types.is_decimal(right.type):
            kind = _decimal(decimals(_digits(left), _digits(right)))
            exact = operation(_widened(left), _widened(right))
            rounded = (
                pc.round(exact, kind.scale, "half_towards_infinity")
                if exact.type.scale > kind.scale
                else exact
            )
            return rounded.cast(kind)
        return operation(left, right)

    return apply


def _divide(left: Any, right: Any) -> Any:
    """Divides like Spark: a double for integers, a decimal for decimals. Raises on division by
    zero.
    """
    zero = pc.and_(pc.equal(right, pa.scalar(0, pa.int64()).cast(right.type)), pc.is_valid(left))
    if (zero.as_py() if isinstance(zero, pa.Scalar) else pc.any(zero).as_py()) is True:
        raise FiresteelError(
            "division by zero in an aggregate; guard it, for example with a FILTER clause"
        )
    floating = pa.types.is_floating(left.type) or pa.types.is_floating(right.type)
    if not floating and (pa.types.is_decimal(left.type) or pa.types.is_decimal(right.type)):
        return _decimal_quotient(
            left, right, _decimal(_quotient_digits(_digits(left), _digits(right)))
        )
    return pc.divide(_as_double(left), _as_double(right))


# -- decimals


class _Digits(NamedTuple):
    precision: int
    scale: int


_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}  # by bit width, as in Spark


def _digits(value: Any) -> _Digits:
    if pa.types.is_decimal(value.type):
        return _Digits(value.type.precision, value.type.scale)
    if isinstance(value, pa.Scalar):
        return _Digits(len(str(abs(value.as_py()))), 0)
    return _Digits(_INTEGER_DIGITS[value.type.bit_width], 0)


def _sum_digits(left: _Digits, right: _Digits) -> _Digits:
    scale = max(left.scale, right.scale)
    whole = max(left.precision - left.scale, right.precision - right.scale)
    return _Digits(whole + scale + 1, scale)


def _product_digits(left: _Digits, right: _Digits) -> _Digits:
    return _Digits(left.precision + right.precision + 1, left.scale + right.scale)


def _quotient_digits(left: _Digits, right: _Digits) -> _Digits:
    scale = max(6, left.scale + right.precision + 1)
    return _Digits(left.precision - left.scale + right.scale + scale, scale)


def _decimal(digits: _Digits) -> pa.Decimal128Type:
    """Returns the type with these digits. If there are too many, reduces the scale, down to six."""
    precision, scale = digits
    if precision > 38:
        scale = max(38 - (precision - scale), min(scale, 6))
    return pa.decimal128(min(precision, 38), scale)


def _widened(value: Any) -> Any:
    """Converts the value to a decimal with room for the digits of any result."""
    scale = value.type.scale if pa.types.is_decimal(value.type) else 0
    return pc.cast(value, pa.decimal256(37, scale))


def _as_double(value: Any) -> Any:
    return pc.cast(value, pa.float64(), safe=False)


_OPERATIONS: dict[type[exp.Expression], Callable[[Any, Any], Any]] = {
    exp.Add: _checked(pc.add_checked, _sum_digits),
    exp.Sub: _checked(pc.subtract_checked, _sum_digits),
    exp.Mul: _checked(pc.multiply_checked, _product_digits),
    exp.Div: _divide,
}


def _decimal_quotient(left: Any, right: Any, kind: pa.Decimal128Type) -> pa.Array:
    """Divides and rounds half up to the scale of `kind`; null where either side is null or the
    right one is zero.
    """
    rows = max(len(side) for side in (left, right) if not isinstance(side, pa.Scalar))
    dividends, divisors = (
        ([s.as_py()] * rows if isinstance(s, pa.Scalar) else s.to_pylist()) for s in (left, right)
    )
    with decimal.localcontext() as context:
        context.prec = 76
        unit = decimal.Decimal(1).scaleb(-kind.scale)
        values = [
            None
            if a is None or not b
            else (decimal.Decimal(a) / decimal.Decimal(b)).quantize(unit, decimal.ROUND_HALF_UP)
            for a, b in zip(dividends, divisors, strict=True)
        ]
    return pa.array(values, kind)


def _mean(total: Any, count: Any) -> Any:
    """Returns the mean; null where the count is zero. Decimals get four more decimal places,
    intervals are rounded half up; any other result is a double.
    """
    if pa.types.is_duration(total.type):
        return (
            _decimal_quotient(total.view(pa.int64()), count, pa.decimal128(38, 0))
            .cast(pa.int64())
            .view(total.type)
        )
    if pa.types.is_decimal(total.type):
        # A sum has ten more digits than its values, or the maximum.
        precision = 38 if total.type.precision == 38 else total.type.precision - 6
        return _decimal_quotient(
            total, count, pa.decimal128(precision, min(total.type.scale + 4, precision))
        )
    return pc.divide(_as_double(total), _as_double(_null_where_zero(count)))


def _variance(squares: Any, count: Any, subtrahend: pa.Scalar) -> Any:
    divisor = pc.subtract(pc.cast(count, pa.int64()), subtrahend)
    positive = pc.if_else(
        pc.greater(divisor, pa.scalar(0, pa.int64())), divisor, pa.scalar(None, pa.int64())
    )
    return pc.divide(squares, _as_double(positive))


def _deviation(squares: Any, count: Any, subtrahend: pa.Scalar) -> Any:
    return pc.sqrt(_variance(squares, count, subtrahend))


def _size(values: Any) -> Any:
    if pa.types.is_integer(values.type):  # already counted
        return values
    return pc.fill_null(pc.list_value_length(values), 0).cast(pa.int64())


def _approx_count_distinct(registers: pa.ListArray) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(registers), 0).to_numpy()
    pairs = registers.flatten().to_numpy(zero_copy_only=False)
    bounds = np.cumsum(lengths)[:-1]
    return pa.array(
        [hyperloglog.estimate(part) for part in np.split(pairs, bounds)] if len(lengths) else [],
        pa.int64(),
    )


def _null_where_zero(count: Any) -> Any:
    return pc.if_else(pc.equal(count, pa.scalar(0, count.type)), pa.scalar(None, pa.int64()), count)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    aggregate_split.MEAN: _mean,
    aggregate_split.VARIANCE: _variance,
    aggregate_split.DEVIATION: _deviation,
    aggregate_split.SIZE: _size,
    aggregate_split.DISTINCT: _approx_count_distinct,
}
