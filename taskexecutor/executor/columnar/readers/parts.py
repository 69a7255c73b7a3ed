"""Parts of files that enter Spark: checks that they are unchanged since they were listed, parses
their partition columns, and makes the partitions of a scan.
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

from firesteel.common.file_parts import COMPRESSED, FilePart
from firesteel.connectors import FileSource
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.local_tasks import singleton
from taskexecutor.executor.columnar.readers.compression import Compression
from taskexecutor.executor.columnar.readers.frames import declared_base, partition_base
from taskexecutor.executor.columnar.schemas import to_arrow

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_MOST_FOLDERS = 10_000  # folders whose values are remembered
_HEADER_BYTES = 64 * 1024
_MS = 1_000_000  # nanoseconds
_LINES = ("csv", "json", "text")  # formats of files to which lines may be appended
Beginning: TypeAlias = Callable[[str, int], bytes]


class Folder(NamedTuple):
    """The common properties of a folder's files."""

    columns: tuple[str, ...]  # given by its path
    values: Any  # of these columns: an InternalRow


class FileParts:
    """The parts of one source's files."""

    def __init__(self, engine: SparkEngine, source: FileSource, schema: StructType) -> None:
        self._session: Any = engine.session
        self._source = source
        self._java_schema = self._session._jsparkSession.parseDataType(schema.json())
        self._schema = to_arrow(schema)
        self._folders: dict[str, Folder] = {}
        self._scalars: dict[str, dict[str, pa.Scalar]] = {}  # by folder
        self._type = engine.code.type("FiresteelFilePartitions")
        self.compression = Compression(engine, source)

    def compressed(self, path: str) -> bool:
        """Returns whether the file is compressed as a whole, by its name."""
        return self.compression.codec(path) is not None

    def by_columns(self, parts: Sequence[FilePart]) -> Iterator[tuple[list[FilePart], Folder]]:
        """Yields runs of neighbouring parts whose paths give the same columns, in order."""
        for _, group in groupby(parts, lambda part: self._folder(part.path).columns):
            same = list(group)
            yield same, self._folder(same[0].path)

    def values(self, path: str) -> Mapping[str, pa.Scalar]:
        """Returns the columns given by the path as Arrow scalars, where Spark has a value of a
        plain type.
        """
        folder = self._folder(path)
        name = os.path.dirname(path)
        if folder.columns and name not in self._scalars:
            if len(self._scalars) >= _MOST_FOLDERS:
                self._scalars.clear()
            self._scalars[name] = {
                column: self._scalar(folder.values, place, column)
                for place, column in enumerate(folder.columns)
            }
        return self._scalars.get(name, {})

    def _scalar(self, values: Any, place: int, name: str) -> pa.Scalar:
        kind = self._schema.field(name).type
        if values.isNullAt(place):
            return pa.scalar(None, kind)
        value = values.get(place, self._java_schema.apply(name).dataType())
        if pa.types.is_string(kind) or pa.types.is_decimal(kind):
            return pa.scalar(value.toString(), pa.string()).cast(kind)
        if pa.types.is_date32(kind):
            return pa.scalar(value, pa.int32()).cast(kind)
        if pa.types.is_timestamp(kind):
            return pa.scalar(value, pa.int64()).cast(kind)
        return pa.scalar(value, kind)

    def partition(self, parts: Sequence[FilePart], index: int = 0) -> Any:
        """Returns a FilePartition."""
        rows: dict[int, int] = {}  # numbers of each folder's values
        values = self._session._jvm.java.util.ArrayList()
        fields: list[object] = []
        for path, start, length, size, modified_ns in parts:
            if size and not length:
                continue  # Hadoop's reader returns the line at 0 even for an empty range
            row = self._folder(path).values
            if id(row) not in rows:
                rows[id(row)] = len(rows)
                values.append(row)
            fields += path, start, length, size, modified_ns // _MS, rows[id(row)]
        return self._type.partition(index, "".join(f"{field}\0" for field in fields), values)

    def _folder(self, path: str) -> Folder:
        name = os.path.dirname(path)
        folder = self._folders.get(name)
        if folder is None:
            if len(self._folders) >= _MOST_FOLDERS:
                self._folders.clear()
            folder = self._folders[name] = self._parsed(name, path)
        return folder

    def _parsed(self, name: str, path: str) -> Folder:
        """Parses the folder as Spark does when it lists it."""
        base = partition_base(self._source, path) or ("=" in name and declared_base(self._source))
        jvm = self._session._jvm
        nothing = jvm.org.apache.spark.sql.catalyst.InternalRow.empty()
        options = {key.lower(): value for key, value in self._source.options.items()}
        if not base or options.get("recursivefilelookup", "").lower() == "true":
            return Folder((), nothing)
        paths = jvm.java.util.ArrayList()
        paths.append(jvm.org.apache.hadoop.fs.Path(name))
        bases = jvm.java.util.ArrayList()
        bases.append(jvm.org.apache.hadoop.fs.Path(base))
        conf = self._session._jsparkSession.sessionState().conf()
        spec = singleton(
            jvm, "org.apache.spark.sql.execution.datasources.PartitioningUtils"
        ).parsePartitions(
            jvm.PythonUtils.toSeq(paths),
            False,  # columns that are not in the schema are strings, and unused
            jvm.PythonUtils.toSeq(bases).toSet(),
            jvm.scala.Some(self._java_schema),
            conf.caseSensitiveAnalysis(),
            conf.validatePartitionColumns(),
            options.get("timezone", conf.sessionLocalTimeZone()),
            False,
        )
        if spec.partitions().isEmpty():
            return Folder((), nothing)
        return Folder(
            tuple(spec.partitionColumns().fieldNames()), spec.partitions().head().values()
        )


def unchanged(part: FilePart, source: FileSource) -> FilePart:
    """Returns the part of the file as it is now: for a whole file, with the lines that were
    appended since it was listed. Raises FiresteelError for any other change.
    """
    try:
        found = os.stat(part.path)
    except FileNotFoundError:
        if _is_set(source, "ignoreMissingFiles"):
            return part  # Spark raises the error
        raise FiresteelError(
            f"{part.path}: the file is gone; it had {part.size} bytes when it was listed. "
            "A job needs its files until it has read them"
        ) from None
    size, modified_ns = found.st_size, found.st_mtime_ns
    if (size, modified_ns) == (part.size, part.modified_ns):
        return part
    if size > part.size and _may_grow(part, source):
        return FilePart(part.path, 0, size, size, modified_ns)
    change = "was written to" if size == part.size else f"now has {size} bytes"
    raise FiresteelError(
        f"{part.path}: the file {change}; it had {part.size} bytes when it was listed. A job needs "
        "its files as they were listed until it has read them: write files elsewhere and rename "
        "them when they are complete"
    )


def check_read(part: FilePart, source: FileSource) -> None:
    """Raises FiresteelError if the file changed while it was read. `part` is the result of
    `unchanged`.
    """
    try:
        found = os.stat(part.path)
    except FileNotFoundError:
        return  # the opened file was read
    if (found.st_size, found.st_mtime_ns) == (part.size, part.modified_ns):
        return
    if found.st_size > part.size and _may_grow(part, source):
        return  # lines were appended
    raise FiresteelError(
        f"{part.path}: the file was changed while it was read: from {part.size} to "
        f"{found.st_size} bytes. Write files elsewhere and rename them when they are complete"
    )


def _may_grow(part: FilePart, source: FileSource) -> bool:
    """Returns whether all earlier rows are still present if the file has grown. Not for a divided
    file or a single document; and Spark ends a compressed file at its previous end.
    """
    document = {"json": "multiLine", "text": "wholetext"}.get(source.format.lower(), "")
    return (
        part.whole
        and source.format.lower() in _LINES
        and not part.path.lower().endswith(COMPRESSED)
        and not _is_set(source, document)
    )


def _is_set(source: FileSource, option: str) -> bool:
    options = {key.lower(): value.lower() for key, value in source.options.items()}
    return options.get(option.lower()) == "true"


def check_header(path: str, source: FileSource, names: Sequence[str], beginning: Beginning) -> None:
    """Raises FiresteelError if a CSV file's header has the columns in a different order than the
    schema, or, if that was inferred, different columns. Spark matches columns by position, and
    would silently return wrong ones.

    `names` are those of the columns in the file, by the schema. Renamed columns are allowed, as is
    everything if the program sets the option enforceSchema. `beginning` returns the first bytes of
    the file's text, up to a size.
    """
    options = {key.lower(): value for key, value in source.options.items()}
    if "enforceschema" in options or options.get("header", "false").lower() != "true":
        return
    found = _header(path, options, beginning)
    if found is None:
        return
    counts = Counter(found)
    for place, name in enumerate(map(_comparable, names, range(len(names)))):
        # Spark appends its place to a name that occurs more than once.
        if place < len(found) and (
            found[place] == name or (counts[found[place]] > 1 and f"{found[place]}{place}" == name)
        ):
            continue
        inferred = source.schema is None and len(set(found)) == len(found)
        if name in found or inferred:
            where = f"column {found.index(name) + 1}" if name in found else "not in its header"
            raise FiresteelError(
                f"{path}: {names[place]!r}, column {place + 1} of the schema, is {where}: the "
                f"header is {', '.join(found)}. Spark reads CSV by position; read such files by a "
                "separate source, or set the option enforceSchema to true to read them like this"
            )


def _header(path: str, options: Mapping[str, str], beginning: Beginning) -> list[str] | None:
    """Returns the header's names, comparable; None if there is none, or only Spark can read it."""
    encoding = options.get("encoding", options.get("charset", "utf-8"))
    separator = options.get("sep", options.get("delimiter", ",")).replace("\\t", "\t")
    quote, comment = options.get("quote", '"'), options.get("comment")
    escape, null = options.get("escape", "\\"), options.get("nullvalue", "")
    if not separator or len(quote) > 1 or "emptyvalue" in options:
        return None
    try:
        text = beginning(path, _HEADER_BYTES).decode(encoding, "replace")
    except (pa.ArrowException, OSError, LookupError):
        return None  # Spark raises the error
    text, end = text.removeprefix("\ufeff"), options.get("linesep")
    lines = text.split(end) if end else re.split("\r\n|\r|\n", text)
    if len(text) == _HEADER_BYTES:
        lines.pop()
    for line in lines:
        if not line.strip() or (comment and line.startswith(comment)):
            continue
        if quote and line.count(quote) % 2:
            return None  # it may continue on the next line
        if not quote or quote not in line:
            row = line.split(separator)
        elif len(separator) > 1 or (escape and escape in line):
            return None
        else:
            row = next(csv.reader([line], delimiter=separator, quotechar=quote))
            if any(quote in name for name in row):
                return None  # Spark keeps doubled quotes
        return [_comparable("" if name == null else name, place) for place, name in enumerate(row)]
    return None


def _comparable(name: str, place: int) -> str:
    """Returns a name in comparable form. Spark names columns without a name `_c0` and so on."""
    return name.strip().lower() or f"_c{place}"
