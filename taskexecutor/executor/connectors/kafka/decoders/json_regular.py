"""Regular JSON: flat objects that differ only in the values of the same fields.

Producers usually write all records of a topic alike: the same fields in the same order, with the
same blanks. The first record then gives the text around the values. FiresteelRegularJson, in the
slot's JVM, compares the other records with it and finds their values. If nothing is escaped, these
are known without a parser. Times are converted as in regular CSV text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from taskexecutor.executor.columnar.columns.rows import SharedBytes
from taskexecutor.executor.columnar.jvm import gateway
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.readers.csv_columns import converted
from taskexecutor.executor.columnar.readers.csv_regular import RegularText
from taskexecutor.executor.columnar.readers.pieces import Differs

Bytes = npt.NDArray[np.uint8]

_UTC = ord("Z")
PADDING = 32  # bytes around the text, because conversions read words
_LINE = "\n"
_FIELD = re.compile(
    rb'"(?P<name>[^"]*)" *: *(?:"(?P<text>[^"]*)"|(?P<number>[0-9]+))(?P<end> *, *| *\}$)'
)
_MOST_FIELDS = 500
_INT64 = pa.int64()


class _Value(NamedTuple):
    name: str
    quoted: bool


class Template(NamedTuple):
    """The parts that are equal in all records, and the values between them: texts[0] value[0]
    texts[1] value[1] ... texts[-1].
    """

    values: list[_Value]
    texts: list[bytes]

    @staticmethod
    def of(record: bytes) -> Template | None:
        """Returns None unless it is a flat object of strings and digits."""
        if not record.startswith(b"{"):
            return None
        values: list[_Value] = []
        texts: list[bytes] = []
        at, last = 1, 0
        while at < len(record):
            field = _FIELD.match(record, at)
            if field is None or len(values) == _MOST_FIELDS:
                return None
            quoted = field["text"] is not None
            start, end = field.span("text" if quoted else "number")
            values.append(_Value(field["name"].decode(), quoted))
            texts.append(record[last:start])
            at, last = field.end(), end
        if not values or len({value.name for value in values}) < len(values):
            return None
        return Template(values, [*texts, record[last:]])


class RegularReader:
    """Finds the values of regular records."""

    def __init__(self, engine: SparkEngine) -> None:
        self._memory = SharedBytes()
        self._java = engine.code.type("FiresteelRegularJson")(
            self._memory.path, self._memory.room_bytes
        )
        self._read = gateway.without_conversion(self._java.read)
        self._template: Template | None = None

    def read(self, content: Bytes, ends: npt.NDArray[np.int32]) -> RegularJson | None:
        """Returns None if records differ in more than values, or something is escaped. `content`
        has the records without anything between them, in UTF-8 without control characters. The
        differences of `ends` are the sizes of the records. The result is valid until the next call.
        """
        template = Template.of(content[: ends[1] - ends[0]].tobytes())
        if template is None:
            return None
        if template != self._template:
            self._java.expect(_LINE.join(part.decode() for part in template.texts))
            self._template = template
        memory, records, values = self._memory, len(ends) - 1, template.values
        memory.clear()
        padded = memory.reserve(len(content) + 2 * PADDING)
        text, size = memory.view(padded, len(content) + 2 * PADDING), 8 * records * len(values)
        text[PADDING:-PADDING] = content
        ends_at, results_at = memory.copy(ends), memory.reserve(size)
        if self._read(padded + PADDING, ends_at, records, results_at) < records:
            return None
        results = memory.view(results_at, size).reshape(len(values), -1)
        starts = ends[:-1].astype(np.int64) + (PADDING - int(ends[0]))
        return RegularJson(text, starts, dict(zip(values, results, strict=True)))

    def close(self) -> None:
        self._java.close()
        self._memory.close()


class RegularJson:
    """The values of some records."""

    def __init__(
        self, text: Bytes, starts: npt.NDArray[np.int64], results: dict[_Value, Bytes]
    ) -> None:
        """`results`: of each record a number, or the bounds of a quoted value after the padding."""
        self._text = text
        self._starts = starts
        self._results = results

    def column(self, field: pa.Field, *, utc: bool) -> pa.Array | None:
        """Returns a column; None if it needs a parser. `utc`: times without a zone are UTC. Raises
        Differs.
        """
        if (numbers := self._results.get(_Value(field.name, quoted=False))) is not None:
            return _integers(numbers.view(np.int64), field.type)
        if (found := self._results.get(_Value(field.name, quoted=True))) is None:
            return pa.nulls(len(self._starts), field.type)
        bounds, kind = found.view(np.int32), field.type
        if pa.types.is_string(kind):
            return self._texts(bounds)
        starts, ends = bounds.reshape(-1, 2).T.astype(np.int64) + PADDING
        if not (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)) or (ends == starts).any():
            return None
        zoned = self._text[ends - 1] == _UTC
        if pa.types.is_timestamp(kind) and (zoned.all() or (utc and not zoned.any())):
            values = np.stack([starts - 1, ends - int(zoned[0])], axis=1)
            times = RegularText(self._text, self._starts, values).column(1, kind, utc=True)
            if times is not None:
                return times
        return converted(self._texts(bounds), field, utc=utc)

    def _texts(self, bounds: npt.NDArray[np.int32]) -> pa.Array:
        count = len(bounds) - 1
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self._text).slice(PADDING)]
        every = pa.Array.from_buffers(pa.string(), count, buffers)
        return every.take(pa.array(np.arange(0, count, 2, dtype=np.int32)))


def _integers(numbers: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array | None:
    if pa.types.is_int64(kind):
        return pa.array(numbers.copy())
    if not pa.types.is_int32(kind) or int(numbers.max()) >= 1 << 31:
        return None
    return pa.array(numbers.astype(np.int32))


def regular_rows(regular: RegularJson, schema: pa.Schema, *, utc: bool) -> pa.RecordBatch | None:
    """Returns the records' rows; None if a value needs a parser."""
    columns = []
    for field in schema:
        try:
            column = regular.column(field, utc=utc)
        except Differs:
            return None
        if column is None:
            return None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
