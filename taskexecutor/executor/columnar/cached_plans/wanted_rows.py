"""A plan's conditions on its leaf's rows, with which readers skip rows that no condition accepts:
parts of a file by its minimum and maximum values, and single rows by their values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]

_TRANSPARENT = frozenset({"ColumnarToRowExec", "WholeStageCodegenExec", "InputAdapter"})
_INTEGERS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}  # and their digits
_EPOCHS = {"timestamp": datetime(1970, 1, 1, tzinfo=UTC), "timestamp_ntz": datetime(1970, 1, 1)}
_FEW_ROWS = 4_096  # of a batch: with fewer rows, merging its dictionary with others costs more
_WHOLE_SHARE = 0.75  # with more of the rows wanted, skipping the others costs more than it saves


class Bounds(NamedTuple):
    """Bounds of a column's values in some rows: integers, strings, dates, times or decimals. None:
    there are no values.
    """

    least: Any
    greatest: Any


class WantedRows(ABC):
    """A condition that holds for all wanted rows, and possibly for others."""

    @abstractmethod
    def may_be(self, bounds: Mapping[str, Bounds]) -> bool:
        """Returns whether there may be wanted rows, by the bounds of the known columns."""

    @abstractmethod
    def mask(self, table: pa.Table) -> pa.ChunkedArray | None:
        """Returns a boolean, or null for false, for each row. None: all rows may be wanted."""

    @property
    @abstractmethod
    def columns(self) -> frozenset[str]:
        """The names of the columns that the condition compares."""

    def chosen(self, table: pa.Table) -> Ints | None:
        """Returns the indices of the rows that may be wanted, in order. None: too few rows can be
        skipped.
        """
        mask = self.mask(table)
        if mask is None or (pc.sum(mask).as_py() or 0) > _WHOLE_SHARE * table.num_rows:
            return None
        return np.flatnonzero(pc.fill_null(mask, False).to_numpy())

    def of(self, table: pa.Table) -> pa.Table:
        """Returns the rows that may be wanted, or all rows if most of them are. If few rows of each
        batch remain, dictionary columns become plain columns, because such batches are concatenated
        later.
        """
        batches = [self._of_batch(batch) for batch in table.to_batches()]
        found = pa.Table.from_batches(batches, table.schema)
        if found.num_rows >= len(batches) * _FEW_ROWS:
            return found
        return pa.table(
            [
                column.cast(column.type.value_type)
                if pa.types.is_dictionary(column.type)
                else column
                for column in found.columns
            ],
            found.column_names,
        )

    def _of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        chosen = self.chosen(pa.Table.from_batches([batch]))
        return batch if chosen is None else batch.take(pa.array(chosen))


def wanted_rows(physical: Any) -> WantedRows | None:
    """Returns the condition over the leaf of a plan over `columns.rows.frame`; None if it cannot be
    used.

    Conditions on floating-point numbers cannot be used: for Spark, NaN equals itself and is greater
    than all other numbers, unlike in files' statistics and Arrow's comparisons.
    """
    condition = _over_leaf(physical, None)
    return None if condition is None else _wanted(condition)


@dataclass(frozen=True)
class _Pair(WantedRows):
    left: WantedRows
    right: WantedRows

    @property
    def columns(self) -> frozenset[str]:
        return self.left.columns | self.right.columns


class _Both(_Pair):
    def may_be(self, bounds: Mapping[str, Bounds]) -> bool:
        return self.left.may_be(bounds) and self.right.may_be(bounds)

    def mask(self, table: pa.Table) -> pa.ChunkedArray | None:
        left, right = self.left.mask(table), self.right.mask(table)
        if left is None or right is None:
            return left if right is None else right
        return pc.and_(left, right)


class _Either(_Pair):
    def may_be(self, bounds: Mapping[str, Bounds]) -> bool:
        return self.left.may_be(bounds) or self.right.may_be(bounds)

    def mask(self, table: pa.Table) -> pa.ChunkedArray | None:
        left, right = self.left.mask(table), self.right.mask(table)
        return None if left is None or right is None else pc.or_kleene(left, right)


class _Test(NamedTuple):
    """A comparison of a column with a constant."""

    may_pass: Callable[[Bounds, Any], bool]  # whether a value within the bounds may pass
    passes: Callable[[Any, Any], Any]  # tests each value of an Arrow array


_LESS = _Test(lambda bounds, value: bounds.least < value, pc.less)
_AT_MOST = _Test(lambda bounds, value: bounds.least <= value, pc.less_equal)
_GREATER = _Test(lambda bounds, value: bounds.greatest > value, pc.greater)
_AT_LEAST = _Test(lambda bounds, value: bounds.greatest >= value, pc.greater_equal)
_EQUAL = _Test(lambda bounds, value: bounds.least <= value <= bounds.greatest, pc.equal)
_BEGINS = _Test(
    lambda bounds, start: bounds.greatest >= start and bounds.least[: len(start)] <= start,
    lambda values, start: pc.starts_with(values, start.as_py()),
)

_COMPARISONS = {  # with its sides exchanged
    "LessThan": (_LESS, _GREATER),
    "LessThanOrEqual": (_AT_MOST, _AT_LEAST),
    "GreaterThan": (_GREATER, _LESS),
    "GreaterThanOrEqual": (_AT_LEAST, _AT_MOST),
    "EqualTo": (_EQUAL, _EQUAL),
}


@dataclass(frozen=True)
class _Compared(WantedRows):
    """The column compares to any of the constants as tested."""

    column: str
    values: tuple[Any, ...]
    test: _Test

    def may_be(self, bounds: Mapping[str, Bounds]) -> bool:
        found = bounds.get(self.column)
        if found is None:
            return True
        if found.least is None:
            return False
        try:
            return any(self.test.may_pass(found, value) for value in self.values)
        except TypeError:  # a file has values of another type than declared
            return True

    def mask(self, table: pa.Table) -> pa.ChunkedArray | None:
        if self.column not in table.column_names:
            return None
        column = table.column(self.column)
        kind = column.type
        if not pa.types.is_dictionary(kind):
            return self._passing(column, kind)
        chunks = []
        for chunk in column.chunks:
            passing = self._passing(chunk.dictionary, kind.value_type)
            if passing is None:
                return None
            chunks.append(passing.take(chunk.indices))
        return pa.chunked_array(chunks, pa.bool_())

    @property
    def columns(self) -> frozenset[str]:
        return frozenset({self.column})

    def _passing(self, values: Any, kind: pa.DataType) -> Any:
        try:
            constants = [pa.scalar(value, kind) for value in self.values]
        except (pa.ArrowException, OverflowError):  # no value of the column equals it
            return None
        if self.test is _EQUAL and len(constants) > 1:
            return pc.is_in(values, pa.array(constants, kind))
        (constant,) = constants
        return self.test.passes(values, constant)


def _over_leaf(node: Any, condition: Any) -> Any:
    """Returns the condition of the filter directly over the leaf, if there is one."""
    kind = _kind(node)
    if kind == "BatchScanExec":
        return condition
    if kind == "FilterExec":
        condition = node.condition()
    elif kind not in _TRANSPARENT:
        condition = None
    found = (_over_leaf(child, condition) for child in _items(node.children()))
    return next((each for each in found if each is not None), None)


def _wanted(condition: Any) -> WantedRows | None:
    kind = _kind(condition)
    if kind in ("And", "Or"):
        left, right = _wanted(condition.left()), _wanted(condition.right())
        if left is not None and right is not None:
            return _Both(left, right) if kind == "And" else _Either(left, right)
        return (left if right is None else right) if kind == "And" else None
    if kind in _COMPARISONS:
        test, exchanged = _COMPARISONS[kind]
        column, value = condition.left(), condition.right()
        if _kind(column) == "Literal":
            column, value, test = value, column, exchanged
        if _kind(column) == "Multiply":
            return _scaled(column, value, test)
        return _compared(column, [value], test)
    if kind == "In":
        return _compared(condition.value(), _items(condition.list()), _EQUAL)
    if kind == "StartsWith":
        return _compared(condition.left(), [condition.right()], _BEGINS)
    return None


def _compared(column: Any, literals: list[Any], test: _Test) -> WantedRows | None:
    if _kind(column) != "AttributeReference" or any(_kind(each) != "Literal" for each in literals):
        return None
    values = [_value(each) for each in literals if each.value() is not None]
    if not values or None in values:
        return None
    return _Compared(str(column.name()), tuple(values), test)


def _scaled(product: Any, literal: Any, test: _Test) -> WantedRows | None:
    """Handles integers times a positive decimal, such as `0.9 * price < 100`, by the least or
    greatest integer that meets the comparison. The product is exact if its type has at least one
    digit more than both factors. An integer that does not fit its factor's type is an error in
    Spark, so its row must not be skipped.
    """
    factors = product.left(), product.right()
    kinds = [str(each.dataType().simpleString()) for each in (*factors, product, literal)]
    if not all(kind.startswith("decimal(") for kind in kinds):
        return None
    left, right, exact = (each.dataType().precision() for each in (*factors, product))
    if exact != left + right + 1:
        return None
    factor, cast = factors if _kind(factors[0]) == "Literal" else reversed(factors)
    if _kind(factor) != "Literal" or _kind(literal) != "Literal" or _kind(cast) != "Cast":
        return None
    column, kind = cast.child(), cast.dataType()
    digits = _INTEGERS.get(str(column.dataType().simpleString()))
    if _kind(column) != "AttributeReference" or digits is None:
        return None
    if kind.precision() - kind.scale() < digits:
        return None
    by, value = _value(factor), _value(literal)
    if by is None or value is None or by <= 0:
        return None
    border = Fraction(value) / Fraction(by)
    if test in (_LESS, _AT_MOST):
        most = floor(border) if test is _AT_MOST else ceil(border) - 1
        return _Compared(str(column.name()), (most,), _AT_MOST)
    if test in (_GREATER, _AT_LEAST):
        least = ceil(border) if test is _AT_LEAST else floor(border) + 1
        return _Compared(str(column.name()), (least,), _AT_LEAST)
    return None


def _value(literal: Any) -> Any:
    """Returns None if the value is null or not supported here."""
    kind, value = str(literal.dataType().simpleString()), literal.value()
    if value is None:
        return None
    try:
        if kind in _INTEGERS:
            return int(value)
        if kind == "string":  # comparing characters equals comparing UTF-8 bytes
            return str(value.toString())
        if kind == "date":
            return date(1970, 1, 1) + timedelta(days=int(value))
        if kind in _EPOCHS:
            return _EPOCHS[kind] + timedelta(microseconds=int(value))
        if kind.startswith("decimal("):
            return Decimal(str(value.toString()))
    except OverflowError:  # beyond the years of Python
        return None
    return None


def _items(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
