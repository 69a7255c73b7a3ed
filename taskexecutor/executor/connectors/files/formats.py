"""The formats of part files: their options, and how tables are encoded."""

from __future__ import annotations

import bz2
import gzip
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, BinaryIO, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from firesteel.errors import FiresteelError
from taskexecutor.executor.connectors.files.parquet_writer import ParquetWriter
from taskexecutor.executor.connectors.json_values import json_form

_ONE_CHARACTER = "."
_SPECIAL_NUMBERS = ((b"nan", b"NaN"), (b"inf", b"Infinity"))  # of Arrow, and of Spark
_GREGORIAN = date(1582, 10, 15)  # the first day of the calendar
_CODECS = "none|snappy|gzip|brotli|zstd|lz4"
_ORC_CODECS = "none|uncompressed|snappy|zlib|zstd|lz4"
_TEXT_CODECS = "none|uncompressed|gzip|bzip2"
_OPTIONS: dict[str, dict[str, str]] = {  # by format: patterns of allowed values
    "csv": {
        "compression": _TEXT_CODECS,
        "header": "true|false",
        "sep": _ONE_CHARACTER,
        "delimiter": _ONE_CHARACTER,
        "escape": r'"|\\',
    },
    "json": {"compression": _TEXT_CODECS, "ignoreNullFields": "true|false"},
    "orc": {"compression": _ORC_CODECS},
    "parquet": {"compression": _CODECS},
    "text": {"compression": _TEXT_CODECS},
}


def check_format(format: str, options: Mapping[str, str], schema: pa.Schema | None) -> None:
    """Raises FiresteelError for a format, an option or a column that cannot be written."""
    if format not in WRITERS:
        raise FiresteelError(
            f"FileSink cannot write format {format!r}; allowed: {', '.join(sorted(WRITERS))}"
        )
    allowed = _OPTIONS[format]
    for name, value in options.items():
        if name not in allowed:
            known = f"it has: {', '.join(allowed)}" if allowed else "it has none"
            raise FiresteelError(f"FileSink: format {format} has no option {name!r}; {known}")
        pattern = allowed[name]
        if not re.fullmatch(pattern, value, re.IGNORECASE):
            values = "one character" if pattern == _ONE_CHARACTER else pattern.replace("|", ", ")
            raise FiresteelError(f"FileSink: option {name} is {value!r}; allowed: {values}")
    if format == "csv":
        for field in schema or ():
            _csv_field(field)
    if format == "orc":
        for field in schema or ():
            _check_orc(field.name, field.type)
    if format == "text" and schema is not None:
        _check_text(schema)


class TableWriter(Protocol):
    """Writes tables of one schema."""

    def suits(self, table: pa.Table) -> bool:
        """Returns whether the file's layout suits these rows; if not, they should be written to a
        new file.
        """

    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class _CsvWriter:
    """Writes strings in quotes. A quote in one is doubled. With a backslash as `escape`, quotes
    and backslashes follow one.
    """

    def __init__(self, stream: BinaryIO, first: pa.Table, options: Mapping[str, str]) -> None:
        self._stream = stream
        self._separator = options.get("sep", options.get("delimiter", ","))
        self._with_backslashes = options.get("escape") == "\\"
        written = pa_csv.WriteOptions(
            include_header=options.get("header", "true").lower() != "false",
            delimiter=self._separator,
        )
        self._schema = pa.schema([_csv_field(field) for field in first.schema])
        self._writer = pa_csv.CSVWriter(stream, self._schema, write_options=written)

    def suits(self, table: pa.Table) -> bool:
        return True

    def write_table(self, table: pa.Table) -> None:
        columns = [_csv_column(column) for column in table.columns]
        escapes = self._with_backslashes and any(map(_needs_escapes, columns))
        if escapes or any(map(_has_special_numbers, columns)):
            self._write_fields(columns)
        elif len(columns) == 1 and columns[0].null_count:
            self._write_lines(columns[0])
        else:
            self._writer.write_table(pa.table(columns, schema=self._schema))

    def _write_lines(self, column: pa.ChunkedArray) -> None:
        """Writes the values of the only column. Readers skip empty lines, so null is written as
        empty quotes, as in Spark.
        """
        if _is_quoted(column):
            some = column.fill_null(pa.scalar("", pa.string()).cast(column.type))
            self._writer.write_table(pa.table([some], schema=self._schema))
        else:
            texts = column.cast(pa.string()).fill_null('""').to_pylist()
            self._stream.write("".join(f"{text}\n" for text in texts).encode())

    def _write_fields(self, columns: list[pa.ChunkedArray]) -> None:
        null = b'""' if len(columns) == 1 else b""  # see _write_lines
        specials = (b"\\", b'"') if self._with_backslashes else (b'"',)
        escape = b"\\" if self._with_backslashes else b'"'
        fields = [_field(column, specials, escape).fill_null(null) for column in columns]
        fields[-1] = pc.binary_join_element_wise(fields[-1], b"\n", b"")
        lines = pc.binary_join_element_wise(*fields, self._separator.encode())
        self._stream.write(b"".join(lines.to_pylist()))

    def close(self) -> None:
        self._writer.close()


def _needs_escapes(column: pa.ChunkedArray) -> bool:
    return _is_quoted(column) and bool(pc.any(pc.match_substring_regex(column, r'["\\]')).as_py())


def _is_quoted(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_binary(column.type))


def _has_special_numbers(column: pa.ChunkedArray) -> bool:
    """Returns whether there are NaN or infinities, which Arrow writes as Spark does not read
    them.
    """
    if not pa.types.is_floating(column.type):
        return False
    return not pc.all(pc.is_finite(column), min_count=0).as_py()


def _field(column: pa.ChunkedArray, specials: Sequence[bytes], escape: bytes) -> pa.ChunkedArray:
    """Returns the bytes that are written for the values of a column; null for null. `escape`
    precedes each of `specials`.
    """
    if not _is_quoted(column):
        texts = column.cast(pa.string()).cast(pa.binary())
        for written, read in _SPECIAL_NUMBERS if pa.types.is_floating(column.type) else ():
            texts = pc.replace_substring(texts, written, read)
        return texts
    value = column.cast(pa.binary())
    for special in specials:
        value = pc.replace_substring(value, special, escape + special)
    return pc.binary_join_element_wise(b'"', value, b'"', b"")


def _csv_field(field: pa.Field) -> pa.Field:
    """Returns the field that is written for a column. Raises FiresteelError if CSV cannot hold
    it.
    """
    if pa.types.is_nested(field.type):
        raise FiresteelError(
            f"FileSink csv: column {field.name!r} is {field.type}, which CSV cannot hold; "
            "use parquet or json"
        )
    return pa.field(field.name, pa.string()) if pa.types.is_timestamp(field.type) else field


def _csv_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_timestamp(column.type):
        return column
    shape = "%Y-%m-%dT%H:%M:%SZ" if column.type.tz else "%Y-%m-%dT%H:%M:%S"
    utc = column.cast(pa.timestamp("us", "UTC")) if column.type.tz else column
    return pc.strftime(utc, format=shape)


class _JsonWriter:
    """Writes one object per line, in Spark's form."""

    def __init__(self, stream: BinaryIO, first: pa.Table, options: Mapping[str, str]) -> None:
        self._stream = stream
        self._omits_nulls = options.get("ignoreNullFields", "false").lower() == "true"
        self._forms = {
            field.name: form
            for field in first.schema
            if (form := json_form(field.type, omits_nulls=self._omits_nulls)) is not None
        }

    def suits(self, table: pa.Table) -> bool:
        return True

    def write_table(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            for name, form in self._forms.items():
                if row[name] is not None:
                    row[name] = form(row[name])
            if self._omits_nulls:
                row = {name: value for name, value in row.items() if value is not None}
            self._stream.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None: ...


class _OrcWriter:
    """Refuses times that Spark would read as others, or not at all: those of the Julian calendar,
    and fractions of seconds before 1970.
    """

    def __init__(self, stream: BinaryIO, first: pa.Table, options: Mapping[str, str]) -> None:
        from pyarrow import orc

        codec = options.get("compression", "snappy").lower()
        compression = "uncompressed" if codec == "none" else codec
        self._writer = orc.ORCWriter(stream, compression=compression)

    def suits(self, table: pa.Table) -> bool:
        return True

    def write_table(self, table: pa.Table) -> None:
        for name, column in zip(table.column_names, table.columns, strict=True):
            for chunk in column.chunks:
                _check_orc_times(name, chunk)
        self._writer.write(table)

    def close(self) -> None:
        self._writer.close()


def _check_orc(name: str, kind: pa.DataType) -> None:
    if pa.types.is_timestamp(kind) and kind.tz is None:
        raise FiresteelError(
            f"FileSink orc: column {name!r} has timestamps without a time zone, which Spark does"
            " not read from such files; cast them to TIMESTAMP, or use parquet"
        )
    for index in range(kind.num_fields):
        _check_orc(name, kind.field(index).type)


def _check_orc_times(name: str, values: pa.Array) -> None:
    kind = values.type
    if pa.types.is_map(kind):
        _check_orc_times(name, values.keys)
        _check_orc_times(name, values.items)
    elif pa.types.is_struct(kind):
        for part in values.flatten():
            _check_orc_times(name, part)
    elif pa.types.is_nested(kind):
        _check_orc_times(name, values.flatten())
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        # Nanoseconds do not reach back to the first day.
        days = values.cast(pa.date32(), safe=False)
        refused = pc.less(days, pa.scalar(_GREGORIAN))
        if pa.types.is_timestamp(kind):
            before_1970 = pc.less(values, pa.scalar(0).cast(kind))
            fraction = pc.not_equal(values, pc.floor_temporal(values, unit="second"))
            refused = pc.or_(refused, pc.and_(before_1970, fraction))
        if pc.any(refused).as_py():
            example = values.filter(refused)[0].as_py()
            raise FiresteelError(
                f"FileSink orc: column {name!r} has {example}, which Spark would not read as the"
                " same from such a file: times before 1582-10-15, and fractions of seconds before"
                " 1970; use parquet"
            )


class _TextWriter:
    """Writes one line per row; null is an empty line, as in Spark."""

    def __init__(self, stream: BinaryIO, first: pa.Table, options: Mapping[str, str]) -> None:
        _check_text(first.schema)
        self._stream = stream

    def suits(self, table: pa.Table) -> bool:
        return True

    def write_table(self, table: pa.Table) -> None:
        lines = (line or "" for line in table.column(0).to_pylist())
        self._stream.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None: ...


def _check_text(schema: pa.Schema) -> None:
    if len(schema) != 1:
        raise FiresteelError(
            f"FileSink text: the rows have {len(schema)} columns ({', '.join(schema.names)}); the"
            " format text writes exactly one"
        )
    field = schema.field(0)
    if not (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
        raise FiresteelError(
            f"FileSink text: column {field.name!r} is {field.type}; the format text writes strings"
        )


class _CompressedWriter:
    """Writes a format of text through a codec."""

    def __init__(
        self, create: _Create, stream: BinaryIO, first: pa.Table, options: Mapping[str, str]
    ) -> None:
        self._compressed: Any = _CODECS_OF_TEXT[options["compression"].lower()].open(stream)
        self._writer = create(self._compressed, first, options)

    def suits(self, table: pa.Table) -> bool:
        return self._writer.suits(table)

    def write_table(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def close(self) -> None:
        self._writer.close()
        self._compressed.close()


class _Codec(NamedTuple):
    extension: str
    open: Callable[[BinaryIO], Any]  # returns a stream that leaves the given one open


_CODECS_OF_TEXT = {
    "gzip": _Codec(".gz", lambda stream: gzip.GzipFile("", "wb", fileobj=stream, mtime=0)),
    "bzip2": _Codec(".bz2", lambda stream: bz2.BZ2File(stream, "wb")),
}


_Create = Callable[[BinaryIO, pa.Table, Mapping[str, str]], TableWriter]

# By format: creates the writer from a stream, the first table, and options.
WRITERS: dict[str, _Create] = {
    "parquet": ParquetWriter,
    "csv": _CsvWriter,
    "json": _JsonWriter,
    "orc": _OrcWriter,
    "text": _TextWriter,
}


def new_writer(
    format: str, stream: BinaryIO, first: pa.Table, options: Mapping[str, str]
) -> TableWriter:
    """Creates a writer whose first table is `first`. It does not close the stream."""
    if _codec_of_text(format, options) is not None:
        return _CompressedWriter(WRITERS[format], stream, first, options)
    return WRITERS[format](stream, first, options)


def extension_of(format: str, options: Mapping[str, str]) -> str:
    """Returns the end of the names of files, such as ".json.gz", from which Spark infers the
    codec.
    """
    codec = _codec_of_text(format, options)
    extension = ".txt" if format == "text" else f".{format}"
    return extension if codec is None else extension + codec.extension


def _codec_of_text(format: str, options: Mapping[str, str]) -> _Codec | None:
    if _OPTIONS[format].get("compression") != _TEXT_CODECS:
        return None
    return _CODECS_OF_TEXT.get(options.get("compression", "none").lower())
