"""Collects the PySpark Rows that a function yields into Arrow batches of its schema."""

from __future__ import annotations

import datetime
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.common.time_zones import has_moments
from firesteel.common.units import MIB
from firesteel.errors import FiresteelError
from firesteel.text import text_of
from taskexecutor.executor.columnar.schemas import shown
from taskexecutor.executor.operators.python_rows.rows import row_maker

# Output rows that may wait while their input batch is processed; fewer if the input's rows are
# large.
MAX_BUFFERED_ROWS = 65_536
MAX_BUFFERED_BYTES = 64 * MIB


def buffered_rows(rows: int, size_bytes: int) -> int:
    """Returns how many output rows may wait for an input of this size."""
    each_bytes = size_bytes // max(rows, 1) + 1
    return max(1, min(MAX_BUFFERED_ROWS, MAX_BUFFERED_BYTES // each_bytes))


class RowRefused(FiresteelError):
    """A row of a function does not fit the declared schema. The message names the function, and
    the key if the row has one.
    """


class Origin(NamedTuple):
    """Where rows come from."""

    function: str  # of the program
    key: Any  # None: there is no key

    def __str__(self) -> str:
        return self.function + ("" if self.key is None else f" for key {shown_key(self.key)}")


class RowCollector:
    """Collects the rows that a function yields into batches of the declared schema; columns are
    matched by name.

    Values are passed to Arrow unchanged; a value that does not fit raises an error that names the
    key.
    """

    def __init__(
        self,
        schema: pa.Schema,
        emit: Callable[[pa.RecordBatch], None],
        name: str,
        how: str = "yielded",
    ) -> None:
        """`how` is the verb in errors: what a function does with a row."""
        self._how = how
        self._schema = schema
        self._emit = emit
        self._name = name
        self._names: list[str] = list(schema.names)
        self._converters = [_plain(field.type) for field in schema]
        self._unwrap = [False] * len(schema)
        self._rows: list[Any] = []
        self._starts: list[int] = []  # index of the first row of each origin
        self._origins: list[Any] = []  # the function of the program, and the key or None
        self.limit = MAX_BUFFERED_ROWS
        self.shown_as: Callable[[Any], Any] = _same  # keys, as the program sees them

    def expect(self, rows: int, size_bytes: int) -> None:
        """Sets how many rows may wait, for an input of this size."""
        self.limit = buffered_rows(rows, size_bytes)

    def begin(self, function: str, key: Any = None) -> None:
        """Starts the rows that `function` yields for `key`."""
        self._starts.append(len(self._rows))
        self._origins.append((function, key))

    def fill(self, results: Iterator[Any]) -> bool:
        """Takes results until there are no more (returns False) or `flush` is due (returns
        True).
        """
        rows = self._rows
        rows.extend(islice(results, self.limit - len(rows)))
        return len(rows) >= self.limit

    def fill_from(self, results: Iterator[Any], origin: Any) -> bool:
        """Combines `begin` and `fill`, for functions that are called per row. `origin` is a tuple
        of the function and the key.
        """
        rows = self._rows
        start, limit = len(rows), self.limit
        rows.extend(islice(results, limit - start))
        end = len(rows)
        if end > start:
            self._starts.append(start)
            self._origins.append(origin)
        return end >= limit

    def flush(self) -> None:
        rows = self._rows
        if rows:
            batches = list(self._batches(rows, 0))
            self._rows = []
        origin = self._origins[-1:]  # it may yield more rows
        self._starts, self._origins = [0] * len(origin), origin
        if rows:
            for batch in batches:
                self._emit(batch)

    def _batches(self, rows: list[Any], first: int) -> Iterator[pa.RecordBatch]:
        columns = self._columns(rows, first)
        # A column of more than 2 GiB.
        if any(isinstance(column, pa.ChunkedArray) for column in columns):
            half = len(rows) // 2
            yield from self._batches(rows[:half], first)
            yield from self._batches(rows[half:], first + half)
            return
        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _columns(self, rows: list[Any], first: int) -> list[pa.Array]:
        names = self._names
        try:
            # Plain tuples are matched by position.
            alike = set(map(type, rows)) == {tuple} or [row.__fields__ for row in rows].count(
                names
            ) == len(rows)
            values = list(zip(*rows, strict=True)) if alike else []
        except (AttributeError, TypeError, ValueError):
            alike = False
        if not alike or len(values) != len(names):
            make = row_maker(names)
            rows = [make(self._arranged(row, first + index)) for index, row in enumerate(rows)]
            values = list(zip(*rows, strict=True))
        return [self._column(index, column, rows, first) for index, column in enumerate(values)]

    def _arranged(self, row: Any, index: int) -> tuple[Any, ...]:
        """Returns the row's values in the order of the schema."""
        if isinstance(row, dict):
            row = row_maker(tuple(map(str, row)))(tuple(row.values()))
        fields = getattr(row, "__fields__", None) or getattr(row, "_fields", None)
        if not isinstance(row, tuple):
            raise self._wrong(
                index,
                f"a {type(row).__name__}; it must be a Row({', '.join(self._names)}), a dictionary"
                " or a tuple",
            )
        if fields is None:
            if len(row) == len(self._names):
                return row
            raise self._wrong(index, f"a row of {len(row)} values; expected {shown(self._schema)}")
        if len(fields) != len(row) or sorted(fields) != sorted(self._names):
            raise self._wrong(
                index,
                "another schema than it declares: "
                f"expected {shown(self._schema)}; got {_shown_row(row)}",
            )
        by_name = dict(zip(fields, row, strict=True))
        return tuple(by_name[name] for name in self._names)

    def _column(self, index: int, values: Sequence[Any], rows: list[Any], first: int) -> Any:
        kind = self._schema.field(index).type
        convert = self._converters[index]
        changed = _changed(values, kind)
        if changed is not None:
            raise self._unfit(index, changed, rows, first)
        try:
            if convert is not None:
                values = [convert(value) for value in values]
            if self._unwrap[index]:
                values = [_unwrapped(value) for value in values]
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
            if (
                convert is None
                and not self._unwrap[index]
                and any(isinstance(value, tuple) for value in values)
            ):
                # The key, which is a tuple, used as a column's value: Row(id=key, ...), as in
                # PySpark's examples.
                self._unwrap[index] = True
                return self._column(index, values, rows, first)
            raise self._misfit(index, values, rows, first, error) from None

    def _misfit(
        self, column: int, values: Sequence[Any], rows: list[Any], first: int, error: Exception
    ) -> FiresteelError:
        """Returns an error that names the first value that does not fit."""
        field = self._schema.field(column)
        for index, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except Exception as reason:
                return self._unfit(column, _Changed(index, value, text_of(reason)), rows, first)
        return FiresteelError(
            f"{self._name}: column {field.name!r} ({field.type}): {text_of(error)}"
        )

    def _unfit(self, column: int, value: _Changed, rows: list[Any], first: int) -> FiresteelError:
        field = self._schema.field(column)
        return self._wrong(
            first + value.row,
            "a row that does not fit its schema: "
            f"expected {shown(self._schema)}; got {_shown_row(rows[value.row])}; "
            f"column {field.name!r} is {field.type} and cannot hold {clipped(repr(value.value))}: "
            f"{value.reason}",
        )

    def _wrong(self, index: int, what: str) -> RowRefused:
        function, key = self._origins[bisect_right(self._starts, index) - 1]
        origin = Origin(function, None if key is None else self.shown_as(key))
        return RowRefused(f"{self._name}: {origin} {self._how} {what}")


class _Changed(NamedTuple):
    row: int
    value: Any
    reason: str


def _changed(values: Sequence[Any], kind: pa.DataType) -> _Changed | None:
    """Returns the first value that Arrow would accept but change: a fraction in an integer column,
    or a time without a zone in a TIMESTAMP column.
    """
    if pa.types.is_integer(kind):
        if any(issubclass(given, (float, np.floating)) for given in set(map(type, values))):
            for index, value in enumerate(values):
                if isinstance(value, (float, np.floating)) and math.isfinite(value) and value % 1:
                    return _Changed(index, value, "it has a fraction; round it")
    elif has_moments(kind):
        for index, value in enumerate(values):
            if _lacks_zone(value, kind):
                return _Changed(index, value, _NO_ZONE)
    return None


def _lacks_zone(value: Any, kind: pa.DataType) -> bool:
    """Returns whether a time without a zone stands for an instant, at any depth."""
    if value is None or not has_moments(kind):
        return False
    if pa.types.is_timestamp(kind):
        return isinstance(value, datetime.datetime) and value.tzinfo is None
    if pa.types.is_struct(kind):
        parts = [kind.field(index) for index in range(kind.num_fields)]
        if hasattr(value, "__fields__"):
            value = dict(zip(value.__fields__, value, strict=True))
        if isinstance(value, dict):
            return any(_lacks_zone(value.get(part.name), part.type) for part in parts)
        pairs = zip(value, parts, strict=False)
        return any(_lacks_zone(element, part.type) for element, part in pairs)
    if pa.types.is_map(kind):
        items = value.items() if isinstance(value, dict) else value
        return any(
            _lacks_zone(k, kind.key_type) or _lacks_zone(v, kind.item_type) for k, v in items
        )
    return any(_lacks_zone(element, kind.value_type) for element in value)


_NO_ZONE = (
    "the time has no zone, and TIMESTAMP is an instant; add a zone, as in"
    " datetime.now(timezone.utc), or declare the column TIMESTAMP_NTZ"
)


def shown_key(key: Any) -> str:
    return clipped(repr(key))


def clipped(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def _shown_row(row: Any) -> str:
    fields = getattr(row, "__fields__", None) or [f"_{index + 1}" for index in range(len(row))]
    return ", ".join(
        f"{name} {type(value).__name__}" for name, value in zip(fields, row, strict=False)
    )


def _unwrapped(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _plain(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Returns a conversion from the values that PySpark accepts for a nested type (Row, dict) to
    those that Arrow accepts; None if none is needed.
    """
    if pa.types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        parts = [_plain(kind.field(index).type) or _same for index in range(kind.num_fields)]

        def struct(value: Any) -> Any:
            if value is None:
                return None
            if isinstance(value, dict):
                given = value
            elif hasattr(value, "__fields__"):
                given = dict(zip(value.__fields__, value, strict=True))
            else:
                given = dict(zip(names, value, strict=True))
            return {name: part(given.get(name)) for name, part in zip(names, parts, strict=True)}

        return struct
    if pa.types.is_map(kind):
        of_key, of_item = _plain(kind.key_type) or _same, _plain(kind.item_type) or _same

        def mapping(value: Any) -> Any:
            if value is None:
                return None
            pairs = value.items() if isinstance(value, dict) else value
            return [(of_key(key), of_item(item)) for key, item in pairs]

        return mapping
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        of_element = _plain(kind.value_type)
        if of_element is None:
            return None
        return lambda value: None if value is None else [of_element(element) for element in value]
    return None


def _same(value: Any) -> Any:
    return value
