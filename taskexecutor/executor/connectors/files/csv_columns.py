"""CSV text as Arrow's columns: exactly the rows that Spark reads of it, or none.

The two parsers differ in much: quotes, blanks, signs, hexadecimal numbers, spellings of infinity,
forms of times. So Arrow only splits the text, which both do alike where nothing is quoted; a value
is converted if its characters leave nothing that either of them could read in another way. Anything
else raises Differs, and is for Spark to read, or to refuse.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from taskexecutor.executor.connectors.files.csv_regular import RegularText
from taskexecutor.executor.connectors.files.pieces import Differs, Rows, Wanted, is_plain

_LONGEST_DECIMAL = 38  # with a scale of as many digits it fits into Arrow's largest decimal
_MOST_COLUMNS = 20_000  # Spark's limit is 20480
BOM = b"\xef\xbb\xbf"  # at the beginning of its text Arrow skips it
_NEWLINE, _RETURN, _QUOTE = 10, 13, 34
_BLANKS = bytes(range(33))  # what Java's trim() takes away
_DATE_AND_TIME = len("2024-01-01 00:00:00")  # times with less, both read in ways of their own
_NUMBER = np.zeros(256, np.bool_)
_NUMBER[list(b"0123456789+-.eE")] = True
_SEPARATORS = {",": ",", ";": ";", "|": "|", "\t": "\t", "\\t": "\t"}
# By option, in lower case: the values with which Arrow's way of reading is Spark's, or all.
_OPTIONS: dict[str, tuple[str, ...] | None] = {
    "header": ("true", "false"),
    "sep": tuple(_SEPARATORS),
    "delimiter": tuple(_SEPARATORS),
    "nullvalue": None,
    "quote": ('"',),
    "escape": ("\\", '"'),
    "encoding": ("utf-8", "utf8"),
    "charset": ("utf-8", "utf8"),
    "mode": ("permissive",),
    "multiline": ("false",),
    "enforceschema": ("true",),
    "inferschema": None,  # it has been done
    "samplingratio": None,
    "ignoreleadingwhitespace": ("false",),
    "ignoretrailingwhitespace": ("false",),
}


class Lines(NamedTuple):
    """Whole lines of a file: `text[start:end]`. The text before them is the end of another line."""

    text: bytes
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """How a source's files are read."""

    schema: pa.Schema  # of the columns in the files
    separator: str
    null: str  # this text is null, as is none
    header: bool
    utc: bool  # times without a zone are UTC

    @staticmethod
    def of(schema: pa.Schema, options: Mapping[str, str], time_zone: str) -> CsvFormat:
        """Raises Differs if Arrow cannot read such files. `time_zone`: the session's."""
        given = {key.lower(): value for key, value in options.items()}
        for name, value in given.items():
            if name not in _OPTIONS:
                raise Differs(f"the option {name}")
            allowed = _OPTIONS[name]
            if allowed is not None and value not in allowed and value.lower() not in allowed:
                raise Differs(f"the option {name} is {value!r}")
        if len(schema) > _MOST_COLUMNS:
            raise Differs(f"there are {len(schema)} columns")
        for field in schema:
            if not is_plain(field.type):
                raise Differs(f"column {field.name!r} is {field.type}")
        return CsvFormat(
            schema=schema,
            separator=_SEPARATORS[given.get("sep", given.get("delimiter", ","))],
            null=given.get("nullvalue", ""),
            header=given.get("header", "false").lower() == "true",
            utc=time_zone in ("UTC", "Etc/UTC"),
        )

    def rows(self, lines: Lines, wanted: Wanted, *, first: bool) -> Rows:
        """The lines' values in the wanted columns, or one more. `first`: the file begins with them.
        Raises Differs.
        """
        text, start, end = lines
        if first:
            start += len(BOM) if text.startswith(BOM, start) else 0
            if self.header:
                start = _behind_header(text, start, end)
        quoted = _check_splits(text, start, end, self.separator)
        if text.startswith(BOM, start):
            raise Differs("a byte order mark")
        # Spark leaves out lines of blanks; in all other files, Arrow finds them too short.
        may_be_blank = self.separator == "\t" or len(self.schema) == 1
        read = set(wanted.names)
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
        """What the wanted rows are known by is converted first, and the rest of theirs only."""
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
        """Values that are converted later need not be UTF-8."""
        return pa.string() if pa.types.is_string(self.schema.field(name).type) else pa.binary()


def converted(texts: pa.Array, field: pa.Field, *, utc: bool) -> pa.Array:
    """The values of texts, none of which is empty. Raises Differs. `utc`: see CsvFormat."""
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
    """Arrow checks their digits, but scales them before, and what is too large by then is another
    number. So they get more digits than the texts have.
    """
    if pc.max(pc.binary_length(texts)).as_py() > _LONGEST_DECIMAL:
        raise Differs(f"column {field.name!r} has long numbers")
    return pc.cast(pc.cast(texts, pa.decimal256(76, field.type.scale)), field.type)


def _check_splits(text: bytes, start: int, end: int, separator: str) -> bool:
    """Whether values are in quotes. Raises Differs unless values end at separators, lines at
    newlines, and quotes are around whole values only.
    """
    if text.find(b"\0", start, end) >= 0:
        raise Differs("a zero byte")
    content = np.frombuffer(text, np.uint8, end)
    if text.find(b"\r", 0, end) >= 0:  # also before the first line, where Spark looks for it
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
        raise Differs("a quote that is not closed")
    if (closing == opening + 1).any():
        raise Differs("quotes around nothing")  # null, or an empty text
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


def _behind_header(text: bytes, start: int, end: int) -> int:
    """Where the lines begin behind the first one that is not blank to Spark."""
    while start < end:
        line, start = start, text.find(b"\n", start, end) + 1 or end
        if text[line:start].strip(_BLANKS):
            break
    return start


def _content(texts: pa.Array) -> tuple[Any, Any]:
    """The offsets of a column's texts, and their bytes."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32, len(texts) + 1, 4 * texts.offset)
    return ends, np.frombuffer(data, np.uint8)


def _check_visible(texts: pa.Array) -> None:
    """Raises Differs if a line may be blank to Spark: one whose first value is not visible."""
    if not len(texts):
        return
    if texts.null_count:
        raise Differs("lines that begin with an empty value")
    ends, data = _content(texts)
    if not (data[ends[:-1]] > ord(" ")).all():
        raise Differs("lines that begin with a blank")


def _alike(kind: pa.DataType, ends: Any, data: Any) -> bool:
    """Whether both read every text that Arrow accepts, and mean the same."""
    data = data[ends[0] : ends[-1]]
    least, most = data.min(), data.max()
    if pa.types.is_timestamp(kind):
        sizes = np.diff(ends)
        return bool(((sizes >= _DATE_AND_TIME) | (sizes == 0)).all())
    if pa.types.is_boolean(kind):
        return bool(least >= ord("A"))  # not 0 and 1
    # Digits, a minus, a dot, and a slash, which no number has.
    if least >= ord("-") and most <= ord("9"):
        return True
    return pa.types.is_floating(kind) and bool(_NUMBER[data].all())


def _all_end_with(ends: Any, data: Any, byte: bytes) -> bool:
    ends = ends[1:][np.diff(ends) > 0]
    return bool((data[ends - 1] == byte[0]).all())
