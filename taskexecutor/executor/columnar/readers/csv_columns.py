"""Converts CSV text to Arrow columns: exactly the rows that Spark reads from it, or none.

The two parsers differ in quotes, blanks, signs, hexadecimal numbers, spellings of infinity and
forms of times. Therefore Arrow only splits the text, which both do alike if nothing is quoted. A
value is converted only if its characters are unambiguous to both parsers. All other text raises
Differs and is left to Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from taskexecutor.executor.columnar.choose import CSV_SEPARATORS
from taskexecutor.executor.columnar.readers.csv_regular import RegularText
from taskexecutor.executor.columnar.readers.pieces import Differs, Rows, Wanted

_LONGEST_DECIMAL = 38  # with a scale of as many digits it fits into Arrow's largest decimal
BOM = b"\xef\xbb\xbf"  # Arrow skips it at the start of a text
_NEWLINE, _RETURN, _QUOTE = 10, 13, 34
_BLANKS = bytes(range(33))  # the characters that Java's trim() removes
_DATE_AND_TIME = len("2024-01-01 00:00:00")  # the two parsers read shorter times differently
_NUMBER = np.zeros(256, np.bool_)
_NUMBER[list(b"0123456789+-.eE")] = True


class Lines(NamedTuple):
    """Complete lines of a file: `text[start:end]`. The text before them is the end of another
    line.
    """

    text: bytes
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """How a source's files are read."""

    schema: pa.Schema  # of the columns in the files
    separator: str
    null: str  # text that means null; empty text is also null
    header: bool
    utc: bool  # times without a zone are UTC

    @staticmethod
    def of(schema: pa.Schema, options: Mapping[str, str], time_zone: str) -> CsvFormat:
        """Returns the format. `time_zone` is the session's."""
        given = {key.lower(): value for key, value in options.items()}
        return CsvFormat(
            schema=schema,
            separator=CSV_SEPARATORS[given.get("sep", given.get("delimiter", ","))],
            null=given.get("nullvalue", ""),
            header=given.get("header", "false").lower() == "true",
            utc=time_zone in ("UTC", "Etc/UTC"),
        )

    def rows(self, lines: Lines, wanted: Wanted, *, first: bool) -> Rows:
        """Returns the lines' values in the wanted columns, or in one column if none is wanted.
        `first`: the file starts with these lines. Raises Differs.
        """
        text, start, end = lines
        if first:
            start += len(BOM) if text.startswith(BOM, start) else 0
            if self.header:
                start = _after_header(text, start, end)
        quoted = _check_splits(text, start, end, self.separator)
        if text.startswith(BOM, start):
            raise Differs("a byte order mark")
        # Spark drops blank lines. In files with several columns, Arrow detects them as too short.
        may_be_blank = self.separator == "\t" or len(self.schema) == 1
        read = {name for name in wanted.names if name in self.schema.names}
        if may_be_blank or not read:
            read.add(self.schema.names[0])
        included = [name for name in self.schema.names if name in read]
        if not (quoted or may_be_blank or self.null):
            regular = RegularText.of(text, start, end, self.separator, len(self.schema))
            if regular is not None:
                return self._of_regular(regular, included, wanted)
        texts = self._split(pa.py_buffer(text).slice(start, end - start), included, quoted)
        if may_be_blank:
            for chunk in texts.column(0).chunks:
                _check_visible(chunk)
        fields = [self.schema.field(name) for name in included]
        columns = [
            pa.chunked_array(
                [converted(chunk, field, utc=self.utc) for chunk in column.chunks], type=field.type
            )
            for column, field in zip(texts.columns, fields, strict=True)
        ]
        return Rows.of(pa.table(columns, schema=pa.schema(fields)), wanted.rows)

    def _of_regular(self, text: RegularText, names: list[str], wanted: Wanted) -> Rows:
        """Converts the columns that select rows first, and then the other columns of the wanted
        rows only.
        """
        asked = wanted.rows.columns if wanted.rows is not None else ()
        first = {n: self._regular(text, n, wanted.late) for n in names if n in asked}
        known = Rows.of(pa.table(first), wanted.rows)
        rest = text if known.chosen is None else text.of_lines(known.chosen)
        columns = [
            known.table.column(name) if name in first else self._regular(rest, name, wanted.late)
            for name in names
        ]
        return Rows(pa.table(columns, names), text.lines, known.chosen)

    def _regular(self, text: RegularText, name: str, late: Collection[str]) -> pa.Array:
        field, number = self.schema.field(name), self.schema.get_field_index(name)
        if not text.lines:
            return pa.nulls(0, field.type)
        column = text.column(number, field.type, utc=self.utc)
        if column is None and name in late and pa.types.is_string(field.type):
            column = text.late_texts(number)
        if column is None:
            texts = text.texts(number, self._text_type(name))
            column = converted(texts, field, utc=self.utc)
        return column

    def _split(self, text: pa.Buffer, names: list[str], quoted: bool) -> pa.Table:
        if not text.size:
            return pa.schema([(name, self._text_type(name)) for name in names]).empty_table()
        try:
            return csv.read_csv(
                pa.BufferReader(text),
                csv.ReadOptions(
                    use_threads=False,
                    block_size=text.size + 1,
                    column_names=self.schema.names,
                ),
                csv.ParseOptions(
                    delimiter=self.separator,
                    quote_char='"' if quoted else False,
                    escape_char=False,
                    ignore_empty_lines=True,
                ),
                csv.ConvertOptions(
                    column_types={name: self._text_type(name) for name in names},
                    include_columns=names,
                    null_values=["", self.null],
                    strings_can_be_null=True,
                    check_utf8=True,
                ),
            )
        except pa.ArrowException as error:
            raise Differs(str(error)) from None

    def _text_type(self, name: str) -> pa.DataType:
        """Returns a type that allows invalid UTF-8 for values that are converted later."""
        return pa.string() if pa.types.is_string(self.schema.field(name).type) else pa.binary()


def converted(texts: pa.Array, field: pa.Field, *, utc: bool) -> pa.Array:
    """Converts texts, none of which is empty. Raises Differs. `utc`: see CsvFormat."""
    kind = field.type
    if pa.types.is_string(kind):
        return texts
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    ends, data = _content(texts)
    if not _alike(kind, ends, data):
        raise Differs(f"column {field.name!r} has other forms of {kind}")
    source = texts.view(pa.string())
    try:
        if pa.types.is_decimal(kind):
            return _decimals(source, field)
        if not pa.types.is_timestamp(kind) or kind.tz is None or _all_end_with(ends, data, b"Z"):
            return pc.cast(source, kind)
        if not utc:
            raise Differs(f"column {field.name!r} has times in another zone than UTC")
        return pc.cast(source, pa.timestamp("us")).view(kind)
    except pa.ArrowException as error:
        raise Differs(f"column {field.name!r}: {error}") from None


def _decimals(texts: pa.Array, field: pa.Field) -> pa.Array:
    """Converts decimals. Arrow scales digits before it checks them, so a value that is too large
    would silently become a different number. Therefore the conversion uses more digits than the
    texts have.
    """
    if pc.max(pc.binary_length(texts)).as_py() > _LONGEST_DECIMAL:
        raise Differs(f"column {field.name!r} has long numbers")
    return pc.cast(pc.cast(texts, pa.decimal256(76, field.type.scale)), field.type)


def _check_splits(text: bytes, start: int, end: int, separator: str) -> bool:
    """Returns whether values are quoted. Raises Differs unless values end at separators, lines end
    at newlines, and quotes enclose complete values only.
    """
    if text.find(b"\0", start, end) >= 0:
        raise Differs("a zero byte")
    content = np.frombuffer(text, np.uint8, end)
    if text.find(b"\r", 0, end) >= 0:  # also before the first line, where Spark searches for it
        following = np.flatnonzero(content == _RETURN) + 1
        if following[-1] == end or not (content[following] == _NEWLINE).all():
            raise Differs("a carriage return inside a line")
    if text.find(b'"', start, end) < 0:
        return False
    if text.find(b"\\", start, end) >= 0:
        raise Differs("quotes and backslashes")
    quotes = np.flatnonzero(content[start:end] == _QUOTE) + start
    opening, closing = quotes[::2], quotes[1::2]
    if len(opening) != len(closing):
        raise Differs("an unclosed quote")
    if (closing == opening + 1).any():
        raise Differs("empty quotes")  # null, or an empty string
    border = np.zeros(256, np.bool_)
    border[[ord(separator), _NEWLINE, _RETURN]] = True
    before, behind = (
        content[np.maximum(opening - 1, start)],
        content[np.minimum(closing + 1, end - 1)],
    )
    if not ((border[before] | (opening == start)) & (border[behind] | (closing == end - 1))).all():
        raise Differs("quotes inside a value")
    newlines = np.flatnonzero(content == _NEWLINE)
    if (np.searchsorted(newlines, opening) != np.searchsorted(newlines, closing)).any():
        raise Differs("an end of line in quotes")
    return True


def _after_header(text: bytes, start: int, end: int) -> int:
    """Returns where the lines start after the first line that is not blank to Spark."""
    while start < end:
        line, start = start, text.find(b"\n", start, end) + 1 or end
        if text[line:start].strip(_BLANKS):
            break
    return start


def _content(texts: pa.Array) -> tuple[Any, Any]:
    """Returns the offsets of a column's texts, and their bytes."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32, len(texts) + 1, 4 * texts.offset)
    return ends, np.frombuffer(data, np.uint8)


def _check_visible(texts: pa.Array) -> None:
    """Raises Differs if a line may be blank to Spark: a line whose first value has no visible
    characters.
    """
    if not len(texts):
        return
    if texts.null_count:
        raise Differs("lines that start with an empty value")
    ends, data = _content(texts)
    if not (data[ends[:-1]] > ord(" ")).all():
        raise Differs("lines that start with a blank")


def _alike(kind: pa.DataType, ends: Any, data: Any) -> bool:
    """Returns whether both parsers read every text that Arrow accepts in the same way."""
    data = data[ends[0] : ends[-1]]
    least, most = data.min(), data.max()
    if pa.types.is_timestamp(kind):
        sizes = np.diff(ends)
        return bool(((sizes >= _DATE_AND_TIME) | (sizes == 0)).all())
    if pa.types.is_boolean(kind):
        return bool(least >= ord("A"))  # excludes 0 and 1
    # Digits, minus, dot and slash; the last does not occur in numbers.
    if least >= ord("-") and most <= ord("9"):
        return True
    return pa.types.is_floating(kind) and bool(_NUMBER[data].all())


def _all_end_with(ends: Any, data: Any, byte: bytes) -> bool:
    ends = ends[1:][np.diff(ends) > 0]
    return bool((data[ends - 1] == byte[0]).all())
