"""Regular JSON: flat objects that differ only in the values of the same fields.

Producers usually write all records of a topic alike: the same fields in the same order, with the
same blanks. The first record then gives the text around the values. FiresteelRegularJson, in the
slot's JVM, compares the other records with it and finds their values. If nothing is escaped, these
are known without a parser. Times in other than the usual form are converted like those of CSV text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from taskexecutor.executor.columnar.columns.rows import SharedBytes
from taskexecutor.executor.columnar.jvm import gateway
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.readers.csv_columns import converted
from taskexecutor.executor.columnar.readers.pieces import Differs

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_NO_TIME = -(2**63)
_LINE = "\n"
_FIELD = re.compile(
    rb'"(?P<name>[^"]*)" *: *(?:"(?P<text>[^"]*)"|(?P<number>[0-9]+))(?P<end> *, *| *\}$)'
)
_MOST_FIELDS = 500


class _Value(NamedTuple):
    name: str
    quoted: bool


class _Results(NamedTuple):
    """The values of all records."""

    values: Ints  # numbers; or, in each half, the start and the end of a text
    times: Ints | None  # in microseconds, or _NO_TIME


class Template(NamedTuple):
    """The parts that are equal in all records, and the values between them: texts[0] value[0]
    texts[1] value[1] ... texts[-1].
    """

    values: list[_Value]
    texts: list[bytes]

    @staticmethod
    def of(record: bytes) -> Template | None:
        """Returns None unless it is a flat object of strings and digits, without backslashes."""
        if not record.startswith(b"{") or b"\\" in record:
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

    def __init__(self, engine: SparkEngine, schema: pa.Schema, *, utc: bool) -> None:
        """`schema` is that of the rows. `utc`: times without a zone are UTC."""
        self._schema = schema
        self._utc = utc
        self._memory = SharedBytes()
        self._java = engine.code.type("FiresteelRegularJson")(
            self._memory.path, self._memory.room_bytes, utc
        )
        self._read = gateway.without_conversion(self._java.read)
        self._template: Template | None = None
        self._times: list[bool] = []

    def rows(self, content: Bytes, ends: npt.NDArray[np.int32]) -> pa.RecordBatch | None:
        """Returns None if records differ in more than values, something is escaped, or a value
        needs a parser. `content` has the records without anything between them, in UTF-8 without
        control characters. The differences of `ends` are the sizes of the records.
        """
        template = Template.of(content[: ends[1] - ends[0]].tobytes())
        if template is None:
            return None
        if template != self._template:
            self._expect(template)
        memory, records = self._memory, len(ends) - 1
        memory.clear()
        text_at, ends_at = memory.copy(content), memory.copy(ends)
        size = 8 * records * (len(template.values) + sum(self._times))
        results_at = memory.reserve(size)
        if self._read(text_at, ends_at, records, results_at) < records:
            return None
        found = iter(memory.view(results_at, size).view(np.int64).reshape(-1, records))
        results = {
            value: _Results(next(found), next(found) if is_time else None)
            for value, is_time in zip(template.values, self._times, strict=True)
        }
        return self._rows(records, results, pa.py_buffer(memory.view(text_at, len(content))))

    def close(self) -> None:
        self._java.close()
        self._memory.close()

    def _expect(self, template: Template) -> None:
        times = {field.name for field in self._schema if pa.types.is_timestamp(field.type)}
        self._times = [value.quoted and value.name in times for value in template.values]
        self._java.expect(
            _LINE.join(text.decode() for text in template.texts),
            "".join("t" if is_time else "-" for is_time in self._times),
        )
        self._template = template

    def _rows(
        self, records: int, results: dict[_Value, _Results], text: pa.Buffer
    ) -> pa.RecordBatch | None:
        columns = []
        for field in self._schema:
            column: pa.Array | None = pa.nulls(records, field.type)
            if (found := results.get(_Value(field.name, quoted=False))) is not None:
                column = _integers(found.values, field.type)
            elif (found := results.get(_Value(field.name, quoted=True))) is not None:
                column = self._column(found, field, text)
            if column is None:
                return None
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, found: _Results, field: pa.Field, text: pa.Buffer) -> pa.Array | None:
        if found.times is not None and (found.times != _NO_TIME).all():
            return pa.array(found.times.copy()).view(field.type)
        texts = _texts(found.values.view(np.int32), text)
        if pa.types.is_string(field.type):
            return texts
        is_time = found.times is not None or pa.types.is_date32(field.type)
        if not is_time or pc.any(pc.equal(pc.binary_length(texts), 0)).as_py():
            return None
        try:
            return converted(texts, field, utc=self._utc)
        except Differs:
            return None


def _integers(numbers: Ints, kind: pa.DataType) -> pa.Array | None:
    if pa.types.is_int64(kind):
        return pa.array(numbers.copy())
    if not pa.types.is_int32(kind) or int(numbers.max()) >= 1 << 31:
        return None
    return pa.array(numbers.astype(np.int32))


def _texts(bounds: npt.NDArray[np.int32], text: pa.Buffer) -> pa.Array:
    """Copies the text between each pair of bounds."""
    count = len(bounds) - 1
    every = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(bounds), text])
    return every.take(pa.array(np.arange(0, count, 2, dtype=np.int32)))
