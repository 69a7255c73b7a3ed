"""Arrow columns to PySpark Rows and back, at a fraction of what Row's own constructor and accessors
cost.

Rows have what PySpark's workers give to a StatefulProcessor: Arrow's Python values (timestamps with
their zone, structs as dictionaries, maps as lists of pairs).
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

from firesteel.errors import FiresteelError
from taskexecutor.executor.spark.schemas import shown

# Output rows that are held back until the batch they come from is processed; fewer if the input's
# rows are large.
MAX_BUFFERED_ROWS = 65_536
MAX_BUFFERED_BYTES = 64 << 20

# -- in


def row_maker(names: Sequence[str]) -> Callable[[Sequence[Any]], Row]:
    """A function from values to a Row with these fields."""
    return functools.partial(tuple.__new__, _row_type(tuple(names)))


@functools.lru_cache(maxsize=1024)
def _row_type(names: tuple[str, ...]) -> type[Row]:
    """Row, with its fields as attributes of the class: nothing is looked up by name when a row is
    made or read.
    """
    positions: dict[Any, int] = {index: index for index in range(-len(names), len(names))}
    for index in reversed(range(len(names))):  # of fields with the same name, the first counts
        positions[names[index]] = index
    plain_get = tuple.__getitem__
    rows_get = Row.__getitem__

    def get(self: Row, item: Any) -> Any:
        try:
            return plain_get(self, positions[item])
        except (KeyError, TypeError):  # slices; and errors, in Row's own words
            return rows_get(self, item)

    members: dict[str, Any] = {
        "__fields__": list(names),
        "__getitem__": get,
        "__module__": Row.__module__,
    }
    positional = namedtuple("positional", [f"f{index}" for index in range(len(names))])  # type: ignore[misc]
    for name in names:
        # A field called count or index does not hide tuple's methods, in PySpark either:
        # row["count"].
        if not hasattr(Row, name) and not name.startswith("__"):
            members[name] = vars(positional)[f"f{positions[name]}"]
    return type("Row", (Row,), members)


def to_python(column: pa.Array) -> list[Any]:
    """`column.to_pylist()`, several times faster for flat types."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        if not column.null_count:
            return column.to_numpy().tolist()  # type: ignore[no-any-return]
        values = column.fill_null(0).to_numpy().tolist()
        for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[index] = None
        return values  # type: ignore[no-any-return]
    if (
        pa.types.is_string(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
    ):
        return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    if pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us"):
        return _times(column)
    return column.to_pylist()  # type: ignore[no-any-return]


def _times(column: pa.Array) -> list[Any]:
    kind = column.type
    zone = getattr(kind, "tz", None)
    if zone not in (None, "UTC"):
        return column.to_pylist()  # type: ignore[no-any-return]
    values = column.to_numpy(zero_copy_only=False).tolist()
    if any(isinstance(value, int) for value in values):  # a year that Python's dates do not have
        return column.to_pylist()  # type: ignore[no-any-return]
    if zone is None:
        return values  # type: ignore[no-any-return]
    utc = pa.scalar(0, kind).as_py().tzinfo  # whatever Arrow takes for it
    return [None if value is None else value.replace(tzinfo=utc) for value in values]


# -- out


def buffered_rows(rows: int, size_bytes: int) -> int:
    """How many output rows to hold back for an input of this size."""
    each_bytes = size_bytes // max(rows, 1) + 1
    return max(1, min(MAX_BUFFERED_ROWS, MAX_BUFFERED_BYTES // each_bytes))


class RowCollector:
    """Rows that the processor yields, as batches of the declared schema, columns matched by name.

    Values are given to Arrow as they are; what does not fit is an error that names the key.
    """

    def __init__(
        self, schema: pa.Schema, emit: Callable[[pa.RecordBatch], None], name: str
    ) -> None:
        self._schema = schema
        self._emit = emit
        self._name = name
        self._names: list[str] = list(schema.names)
        self._converters = [_plain(field.type) for field in schema]
        self._unwrap = [False] * len(schema)
        self._rows: list[Any] = []
        self._starts: list[int] = []  # where a key's rows begin, and which key that is
        self._origins: list[tuple[str, Any]] = []
        self.limit = MAX_BUFFERED_ROWS

    def expect(self, rows: int, size_bytes: int) -> None:
        """Input of this size comes: rows may be held back accordingly."""
        self.limit = buffered_rows(rows, size_bytes)

    def begin(self, function: str, key: Any) -> None:
        """What follows is yielded by `function` for `key`."""
        self._starts.append(len(self._rows))
        self._origins.append((function, key))

    def fill(self, results: Iterator[Any]) -> bool:
        """Takes results until there are no more (False), or so many that `flush` is due (True)."""
        rows = self._rows
        rows.extend(islice(results, self.limit - len(rows)))
        return len(rows) >= self.limit

    def flush(self) -> None:
        rows = self._rows
        if rows:
            batches = list(self._batches(rows, 0))
            self._rows = []
        origin = self._origins[-1:]  # it may go on
        self._starts, self._origins = [0] * len(origin), origin
        if rows:
            for batch in batches:
                self._emit(batch)

    def _batches(self, rows: list[Any], first: int) -> Iterator[pa.RecordBatch]:
        columns = self._columns(rows, first)
        if any(
            isinstance(column, pa.ChunkedArray) for column in columns
        ):  # over 2 GiB in one column
            half = len(rows) // 2
            yield from self._batches(rows[:half], first)
            yield from self._batches(rows[half:], first + half)
            return
        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _columns(self, rows: list[Any], first: int) -> list[pa.Array]:
        names = self._names
        try:
            alike = [row.__fields__ for row in rows].count(names) == len(rows)
            values = list(zip(*rows, strict=True)) if alike else []
        except (AttributeError, TypeError, ValueError):
            alike = False
        if not alike or len(values) != len(names):
            rows = [self._arranged(row, first + index) for index, row in enumerate(rows)]
            values = list(zip(*rows, strict=True))
        return [self._column(index, column, rows, first) for index, column in enumerate(values)]

    def _arranged(self, row: Any, index: int) -> tuple[Any, ...]:
        """The row's values in the order of the schema."""
        fields = getattr(row, "__fields__", None)
        if not isinstance(row, tuple):
            raise self._wrong(
                index,
                f"yielded a {type(row).__name__}; it must yield Row({', '.join(self._names)})",
            )
        if fields is None:
            if len(row) == len(self._names):
                return row
            raise self._wrong(
                index, f"yielded a row of {len(row)} values; expected {shown(self._schema)}"
            )
        if len(fields) != len(row) or sorted(fields) != sorted(self._names):
            raise self._wrong(
                index,
                f"yielded another schema than it declares: expected {shown(self._schema)}; got {_shown_row(row)}",
            )
        by_name = dict(zip(fields, row, strict=True))
        return tuple(by_name[name] for name in self._names)

    def _column(self, index: int, values: Sequence[Any], rows: list[Any], first: int) -> Any:
        kind = self._schema.field(index).type
        convert = self._converters[index]
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
                # The key, which is a tuple, given for a column: Row(id=key, ...), as in PySpark's
                # own examples.
                self._unwrap[index] = True
                return self._column(index, values, rows, first)
            raise self._misfit(index, values, rows, first, error) from None

    def _misfit(
        self, column: int, values: Sequence[Any], rows: list[Any], first: int, error: Exception
    ) -> FiresteelError:
        """Names the first value that does not fit."""
        field = self._schema.field(column)
        for index, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except Exception as reason:
                got = _clipped(repr(value))
                return self._wrong(
                    first + index,
                    f"yielded a row that does not fit its schema: expected {shown(self._schema)}; got {_shown_row(rows[index])}; "
                    f"column {field.name!r} is {field.type} and cannot hold {got}: {reason}",
                )
        return FiresteelError(f"{self._name}: column {field.name!r} ({field.type}): {error}")

    def _wrong(self, index: int, what: str) -> FiresteelError:
        function, key = self._origins[bisect_right(self._starts, index) - 1]
        return FiresteelError(f"{self._name}: {function} for key {shown_key(key)} {what}")


def shown_key(key: Any) -> str:
    return _clipped(repr(key))


def _clipped(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def _shown_row(row: Any) -> str:
    fields = getattr(row, "__fields__", None) or [f"_{index + 1}" for index in range(len(row))]
    return ", ".join(
        f"{name} {type(value).__name__}" for name, value in zip(fields, row, strict=False)
    )


def _unwrapped(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _plain(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """From what PySpark takes for a nested type (Row, dict) to what Arrow takes; None: Arrow takes
    it as it is.
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
