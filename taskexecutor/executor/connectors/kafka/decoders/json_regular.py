"""Regular JSON: flat objects that differ only in the values of the same fields.

Producers usually write all records of a topic alike: the same fields in the same order, with the
same blanks. The first record then gives the text between the values, and the quotes of all records
give its positions. Once these texts are equal to the first record's, and nothing is escaped, all
values are known without a parser. Integers and times are converted as in regular CSV text.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from firesteel.common.units import KIB
from taskexecutor.executor.columnar.readers.csv_columns import converted
from taskexecutor.executor.columnar.readers.csv_regular import RegularText
from taskexecutor.executor.columnar.readers.pieces import Differs

Ints = npt.NDArray[np.int64]

_QUOTE, _ZERO, _UTC = ord('"'), ord("0"), ord("Z")
_CACHED = 256 * KIB  # bytes that are searched at a time
PADDING = bytes(32)  # around the text, because conversions read words
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


class RegularJson:
    """The positions of all values of some records."""

    def __init__(self, text: bytes, starts: Ints, template: Template, borders: Ints) -> None:
        """`borders`: of each record, where its values start and end."""
        self._template = template
        self._borders = borders
        self._bytes = np.frombuffer(text, np.uint8)
        self._buffer = pa.py_buffer(text)
        self._text = text
        self._starts = starts

    @staticmethod
    def of(text: bytes, ends: npt.NDArray[np.int32]) -> RegularJson | None:
        """Returns None if records differ in more than values. `text` has the records without
        anything between them, and padding around them. It contains neither backslashes nor control
        characters, and is UTF-8. The differences of `ends` are the sizes of the records.
        """
        offsets = ends.astype(np.int64) + (len(PADDING) - int(ends[0]))
        starts, stops = offsets[:-1], offsets[1:]
        if (template := Template.of(text[starts[0] : stops[0]])) is None:
            return None
        quotes = _quotes(text)
        count, more = divmod(len(quotes), len(starts))
        if more or count != sum(part.count(b'"') for part in template.texts):
            return None
        quotes = quotes.reshape(len(starts), count)
        if (quotes[:, 0] < starts).any() or (quotes[:, -1] >= stops).any():
            return None
        borders = _borders(text, template, starts, stops, quotes)
        return None if borders is None else RegularJson(text, starts, template, borders)

    def column(self, field: pa.Field, *, utc: bool) -> pa.Array | None:
        """Returns a column; None if it needs a parser. `utc`: times without a zone are UTC. Raises
        Differs.
        """
        names = [value.name for value in self._template.values]
        if field.name not in names:
            return pa.nulls(len(self._starts), field.type)
        index = names.index(field.name)
        quoted = self._template.values[index].quoted
        starts, ends = self._borders[:, 2 * index], self._borders[:, 2 * index + 1]
        kind = field.type
        if not quoted:
            return self._integers(starts, ends, kind)
        if pa.types.is_string(kind):
            return self._texts(starts, ends)
        if not (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)) or (ends == starts).any():
            return None
        zoned = self._bytes[ends - 1] == _UTC
        if pa.types.is_timestamp(kind) and (zoned.all() or (utc and not zoned.any())):
            times = self._regular(starts, ends - int(zoned[0])).column(1, kind, utc=True)
            if times is not None:
                return times
        return converted(self._texts(starts, ends), field, utc=utc)

    def are_numbers(self, names: Collection[str]) -> bool:
        """Returns whether all values of the other fields that have no quotes are integers."""
        return all(
            value.quoted
            or value.name in names
            or self._integers(self._borders[:, 2 * index], self._borders[:, 2 * index + 1])
            is not None
            for index, value in enumerate(self._template.values)
        )

    def _integers(self, starts: Ints, ends: Ints, kind: pa.DataType = _INT64) -> pa.Array | None:
        """Returns digits without leading zeros as numbers; None if there are other values."""
        sizes = ends - starts
        if not (pa.types.is_int32(kind) or pa.types.is_int64(kind)) or sizes.min() < 1:
            return None
        if ((self._bytes[starts] == _ZERO) & (sizes > 1)).any():
            return None
        return self._regular(starts, ends).column(1, kind, utc=True)

    def _regular(self, starts: Ints, ends: Ints) -> RegularText:
        """Returns the values as the second column of regular text."""
        return RegularText(self._text, self._starts, np.stack([starts - 1, ends], axis=1))

    def _texts(self, starts: Ints, ends: Ints) -> pa.Array:
        offsets = np.empty((len(starts), 2), np.int32)
        offsets[:, 0], offsets[:, 1] = starts, ends
        count = 2 * len(starts) - 1
        buffers = [None, pa.py_buffer(offsets), self._buffer]
        every = pa.Array.from_buffers(pa.string(), count, buffers)
        return every.take(pa.array(np.arange(0, count, 2, dtype=np.int32)))


def _quotes(text: bytes) -> Ints:
    content = np.frombuffer(text, np.uint8)
    places = []
    for at in range(0, len(content), _CACHED):
        (found,) = (content[at : at + _CACHED] == _QUOTE).nonzero()
        found += at
        places.append(found)
    return np.concatenate(places)


def _borders(
    text: bytes, template: Template, starts: Ints, stops: Ints, quotes: Ints
) -> Ints | None:
    """Returns where values start and end; None if the text between them differs."""
    words = np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))
    borders = np.empty((len(starts), 2 * len(template.values)), np.int64)
    seen = 0  # quotes
    for index, part in enumerate(template.texts):
        if index == 0:
            places = starts
        elif index == len(template.values):
            places = stops - len(part)
        else:
            places = quotes[:, seen] - part.index(b'"')
        if index and (places < borders[:, 2 * index - 2]).any():
            return None
        if not _are_equal(words, places, part):
            return None
        seen += part.count(b'"')
        if index:
            borders[:, 2 * index - 1] = places
        if index < len(template.values):
            borders[:, 2 * index] = places + len(part)
    return borders


def _are_equal(words: npt.NDArray[np.uint64], places: Ints, part: bytes) -> bool:
    """Returns whether the text at all places is `part`: compares eight bytes at a time."""
    for at in range(0, len(part), 8):
        piece = part[at : at + 8]
        found = words[places + at]
        if len(piece) < 8:
            found = found & np.uint64((1 << 8 * len(piece)) - 1)
        if not (found == np.uint64(int.from_bytes(piece, "little"))).all():
            return False
    return True


def regular_rows(regular: RegularJson, schema: pa.Schema, *, utc: bool) -> pa.RecordBatch | None:
    """Returns the records' rows; None if a value needs a parser."""
    if not regular.are_numbers(schema.names):
        return None
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
