"""FileSource: files read by Spark, inside the plan of the operators that follow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.common.error_report import summary_of
from firesteel.common.file_parts import FilePart, from_json
from firesteel.common.globs import is_hidden, matches_of
from firesteel.connectors.file_source import (
    CORRUPT_RECORD,
    LISTING_OPTIONS,
    MALFORMED_FORMATS,
    FileSource,
)
from firesteel.connectors.read_options import OPTIONS
from firesteel.connectors.source import Split
from firesteel.elements import Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import SourceOperator
from firesteel.plan.specs import SourceSpec, Spec
from taskexecutor.executor.connectors.files.csv_blocks import CsvBlocks
from taskexecutor.executor.connectors.files.csv_columns import CsvFormat
from taskexecutor.executor.connectors.files.parquet_groups import ParquetGroups
from taskexecutor.executor.connectors.files.pieces import Differs, PartReader, Piece, is_plain
from taskexecutor.executor.connectors.runtime import SourceAnalysis, SourceRuntime
from taskexecutor.executor.connectors.spark_source import SparkSourceStage
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.spark.bundles.source_columns import (
    ChosenColumns,
    ColumnPlan,
    ColumnPlans,
)
from taskexecutor.executor.spark.files.frames import (
    DROPPED_COUNTER,
    MALFORMED_SCHEMA,
    CheckedRows,
    declared_schema,
    emit_malformed,
    file_reader,
    first_malformed,
    read_all,
    read_files,
)
from taskexecutor.executor.spark.files.parts import FileParts, check_header, check_read, unchanged
from taskexecutor.executor.spark.files.plans import FilePlan, FilePlans, FileRows
from taskexecutor.executor.spark.plans import observations
from taskexecutor.executor.spark.schemas import to_arrow, to_spark
from taskexecutor.executor.timing.missing_time import IS_NULL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Their schemas come with Spark, or are inferred; any other format's may be wrong for the files.
_BUILT_IN_FORMATS = ("csv", "json", "parquet", "orc", "text")
_TEXT_FORMATS = ("csv", "json", "xml")  # whose values are read by their types
_FIELD_ID = "parquet.field.id"
_ARROW_FORMATS = ("csv", "parquet")
ARROW_COUNTER = "numRecordsReadByArrow"


class FileSourceRuntime(SourceRuntime[FileSource]):
    def analyze(self, session: SparkSession) -> SourceAnalysis:
        source = self.source
        schema = _schema_of(session, source)
        return SourceAnalysis(
            schema=to_arrow(schema),
            spark_schema=schema,
            leaf=f"Read {source.format} {', '.join(source.paths)}",
            side_schemas=dict.fromkeys(source.side_output_tags, MALFORMED_SCHEMA),
        )

    def operator(self, group: Sequence[OpenedOperator]) -> SourceOperator:
        spec = group[0].spec
        assert isinstance(spec, SourceSpec)
        specs = [opened.spec for opened in group[1:]]
        return FileStage(self.source, spec, group[0].output_schema, specs, group[-1].output_schema)


class FileStage(SparkSourceStage):
    """A file source and the Spark operators after it: by a kept plan where there is one."""

    def __init__(
        self,
        source: FileSource,
        spec: SourceSpec,
        source_schema: pa.Schema | None,
        specs: Sequence[Spec],
        output_schema: pa.Schema | None,
    ) -> None:
        super().__init__(specs, output_schema)
        self._source = source
        self._watermarks = spec.watermarks
        assert source_schema is not None, "a file source has been analysed"
        self._source_schema = to_spark(source_schema)
        self._latest_us: int | None = None  # the latest event time that was read
        self._watermark_us: int | None = None
        self._plans: FilePlans | None = None
        # By the columns that the paths of files give; None: Spark reads all of them.
        self._readers: dict[tuple[str, ...], PartReader | None] = {}
        self._column_plans: ColumnPlans | None = None
        self._ranges: FileRows | None = None
        self._split_parts: list[FilePart] = []  # of the split, as their files are now
        self.idle_between_splits = source.watch_s is not None

    def open(self) -> None:
        with self._on_spark():
            self._parts = FileParts(self._engine, self._source, self._source_schema)
        self._plans = FilePlans(
            self._engine,
            self._source,
            self._source_schema,
            self._specs,
            self._watermarks,
            self._parts,
            self.context.plan_meter,
        )
        if self._source.format in _ARROW_FORMATS:
            self._column_plans = ColumnPlans(
                self._engine,
                self._source_schema,
                self._specs,
                self._watermarks,
                self.context.plan_meter,
                readers_skip_rows=self._source.format == "parquet",
            )

    def _reader_of(self, columns: tuple[str, ...]) -> PartReader | None:
        """For files whose paths give these columns; None if Spark reads all of them."""
        if self._source.format not in _ARROW_FORMATS:
            return None
        if columns not in self._readers:
            try:
                reader = self._readers[columns] = self._made_reader(columns)
                assert reader is not None
                shown = reader.reader
            except Differs as reason:
                self._readers[columns] = None
                shown = f"Files are read by Spark: {reason}"
            self.context.plan_meter.files_read_by(shown)
        return self._readers[columns]

    def _made_reader(self, columns: tuple[str, ...]) -> PartReader:
        """Raises Differs."""
        if self._engine.cores > 1 or not self._engine.is_local:
            raise Differs("a job of Spark's uses more cores")
        schema = to_arrow(self._source_schema)
        if len({name.lower() for name in schema.names}) < len(schema):
            raise Differs("two columns have one name")
        for name in columns:
            if name not in schema.names or not is_plain(schema.field(name).type):
                raise Differs(f"folders give the column {name}")
        in_files = pa.schema([field for field in schema if field.name not in columns])
        if self._source.format == "csv":
            return self._csv_reader(in_files, schema)
        return self._parquet_reader(in_files, schema)

    def _csv_reader(self, in_files: pa.Schema, schema: pa.Schema) -> CsvBlocks:
        if self._setting("spark.sql.legacy.timeParserPolicy").upper() == "LEGACY":
            raise Differs("spark.sql.legacy.timeParserPolicy is LEGACY")
        if self._setting("spark.sql.columnNameOfCorruptRecord") in schema.names:
            raise Differs("rows that do not fit are in a column")
        zone = self._setting("spark.sql.session.timeZone")
        format = CsvFormat.of(in_files, self._source.options, zone)
        return CsvBlocks(format, schema.names, self._parts)

    def _parquet_reader(self, in_files: pa.Schema, schema: pa.Schema) -> ParquetGroups:
        if self._setting("spark.sql.files.ignoreCorruptFiles").lower() == "true":
            raise Differs("spark.sql.files.ignoreCorruptFiles leaves out what cannot be read")
        rebase = self._setting("spark.sql.parquet.datetimeRebaseModeInRead")
        corrected = rebase.upper() == "CORRECTED"
        return ParquetGroups(
            in_files, self._source.options, schema.names, self._parts, corrected=corrected
        )

    def _setting(self, name: str) -> str:
        return str(self._engine.session.conf.get(name))

    def _begin(self, split: Split, at: Any) -> None:
        self._split_parts = [unchanged(part, self._source) for part in from_json(split)]

    def _read(self) -> tuple[int, bool]:
        parts = self._split_parts
        assert self._plans is not None, "open first"
        rows = 0
        for group, columns in self._grouped(parts):
            self._check_headers(group, columns)
            with self._explained(group):
                rows += self._read_group(group, columns)
            if self._latest_us is not None:
                self._advance(self._latest_us)
        for part in parts:
            check_read(part, self._source)
        self.context.count_bundle(rows)
        return rows, False

    def _at(self) -> Any:
        raise NotImplementedError(f"{self.context.operator_name} has positions between splits only")

    def _end(self) -> None: ...

    def _read_group(self, parts: list[FilePart], columns: tuple[str, ...]) -> int:
        plan = None
        with self._on_spark():
            reader = self._reader_of(columns)
            if reader is not None:
                assert self._column_plans is not None
                plan = self._column_plans.plan()
        if reader is None or plan is None:
            return self._read_by_spark(parts, columns)
        every = self._source.malformed is not None  # then all columns must fit the schema
        names = self._source_schema.names if every else plan.columns
        rows = 0
        with closing(reader.pieces(parts, names)) as pieces:
            while (piece := self._next_of(pieces)) is not None:
                if isinstance(piece, pa.Table):
                    self._run_columns(plan, piece)
                    rows += piece.num_rows
                else:
                    rows += self._read_by_spark(piece, columns)
        self.context.plan_meter.files_read_by(reader.reader)
        return rows

    def _next_of(self, pieces: Iterator[Piece]) -> Piece | None:
        with self.context.time("spark"), self.context.plan_meter.reading:
            return next(pieces, None)

    def _run_columns(self, plan: ColumnPlan | ChosenColumns, table: pa.Table) -> None:
        with self.context.time("spark"), self._engine.cancelling(self._job_group, self._cancelled):
            self._check_schema(plan.frame)
            assert self._output_schema is not None
            self._emit(plan.run(table, self._output_schema, self._job_group))
            self._show_plan(plan.frame)
            self._seen(plan.latest_us)
        self.context.counter(ARROW_COUNTER).inc(table.num_rows)

    def _read_by_spark(self, parts: list[FilePart], columns: tuple[str, ...]) -> int:
        assert self._plans is not None
        with self._on_spark():
            plan = self._plans.plan(columns, parts[0].path)
        if plan is not None:
            return self._read_kept(plan, parts)
        return sum(self._read_anew(part, columns) for part in self._at_once(parts))

    def close(self) -> None:
        if self._column_plans is not None:
            self._column_plans.close()
        if self._plans is not None:
            self._plans.close()

    def _check_headers(self, parts: list[FilePart], columns: tuple[str, ...]) -> None:
        if self._source.format == "csv":
            names = [name for name in self._source_schema.names if name not in columns]
            for part in parts:
                if part.start == 0:
                    check_header(part.path, self._source, names)

    def _grouped(self, parts: list[FilePart]) -> list[tuple[list[FilePart], tuple[str, ...]]]:
        with self._on_spark():
            return [(group, folder.columns) for group, folder in self._parts.by_columns(parts)]

    def _read_kept(self, plan: FilePlan, parts: list[FilePart]) -> int:
        with self.context.time("spark"), self._engine.cancelling(self._job_group, self._cancelled):
            self._check_schema(plan.frame)
            assert self._output_schema is not None
            self._emit(plan.run(parts, self._output_schema, self._job_group))
            self._show_plan(plan.frame)
            if malformed := plan.malformed_rows:
                if self._source.malformed == "drop":
                    self.context.counter(DROPPED_COUNTER).inc(malformed)
                elif self._source.malformed == "side_output":
                    for batch in plan.run_malformed(parts, self._job_group):
                        emit_malformed(batch, self.output)
            self._seen(plan.latest_us)
        return plan.rows_read

    def _at_once(self, parts: list[FilePart]) -> list[list[FilePart]]:
        """What a plan that is made anew reads: all, unless only Spark knows which files to read."""
        if LISTING_OPTIONS.intersection(map(str.lower, self._source.options)):
            return [[part] for part in parts]
        return [parts]

    def _read_anew(self, parts: list[FilePart], columns: tuple[str, ...]) -> int:
        checked: CheckedRows | None = None
        with self._on_spark():
            with self.context.plan_meter.planning:
                frame, rdd = self._frame(parts, columns)
                if self._source.malformed is not None:
                    checked = CheckedRows(self._source, self._source_schema, frame)
                    frame = checked.frame
                if self._watermarks is not None:
                    frame = observations.observe_time(frame, self._watermarks)
            done = self._run(frame)
            self._show_plan(done)
            if self._watermarks is not None:
                latest_us, rows = observations.observed_times(done)
                self._seen(latest_us)
            if checked is not None:
                checked.account(done, self.context, self.output)
        if self._watermarks is None and rdd is not None:
            rows = observations.rdd_rows(done, rdd)
        elif self._watermarks is None:
            rows = observations.scanned_rows(done, parts[0].path)
        return rows

    @contextmanager
    def _explained(self, parts: list[FilePart]) -> Iterator[None]:
        """If a window misses an event time, the error names a row that does not fit the schema, if
        there is one.
        """
        try:
            yield
        except Exception as error:
            source = self._source
            if (
                IS_NULL not in str(error)
                or source.malformed is not None
                or source.format not in MALFORMED_FORMATS
            ):
                raise
            paths = [part.path for part in parts]
            row = first_malformed(self._engine.session, source, paths, self._source_schema)
            if row is None:
                raise
            raise FiresteelError(
                f"{row['path']}: the row {row[CORRUPT_RECORD][:200]!r} does not fit the schema, so "
                "columns of it are null, and a window needs its event time;"
                ' FileSource(malformed="drop") or "side_output" goes on without such rows'
            ) from error

    def _frame(
        self, parts: list[FilePart], columns: tuple[str, ...]
    ) -> tuple[DataFrame, int | None]:
        """The rows of the parts, and the id of their RDD; without an RDD, of one whole file."""
        # Spark leaves out a file with a hidden name even if it is asked for that one.
        hidden = is_hidden(os.path.basename(parts[0].path))
        if len(parts) > 1 or not parts[0].whole or hidden:
            if self._ranges is None:
                self._ranges = FileRows(
                    self._engine, self._source, self._source_schema, self._parts
                )
            return self._ranges.frame(columns, parts)
        read = read_files if self._source.malformed is None else read_all
        return read(self._engine.session, self._source, [parts[0].path], self._source_schema), None

    def _seen(self, latest_us: int | None) -> None:
        if latest_us is not None:
            self._latest_us = max(latest_us, self._latest_us or latest_us)

    def _advance(self, latest_us: int) -> None:
        assert self._watermarks is not None
        watermark_us = latest_us - self._watermarks.max_out_of_orderness_us - 1
        if self._watermark_us is None or watermark_us > self._watermark_us:
            self._watermark_us = watermark_us
            self.output.emit_watermark(Watermark(watermark_us))


# -- before data flows


def _schema_of(session: SparkSession, source: FileSource) -> StructType:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql.types import StructType

    named = ", ".join(source.paths)
    paths = _existing_paths(source)
    try:
        schema = _declared_or_inferred(session, source, paths)
    except ParseException as error:
        raise FiresteelError(
            f"FileSource schema {source.schema!r} does not parse: {summary_of(error)}"
        ) from error
    except (AnalysisException, Py4JJavaError) as error:  # an unknown format is the latter
        summary = summary_of(error)
        if "DATA_SOURCE_NOT_FOUND" in summary:
            summary = f"there is no such format; Spark has {', '.join(OPTIONS)} ({summary})"
        raise FiresteelError(f"FileSource {named} as {source.format}: {summary}") from error
    if not schema.fields:
        raise FiresteelError(f"FileSource {named}: the files have no columns")
    _check_read_as_declared(session, source, schema)
    return StructType([type(field)(field.name, field.dataType, True) for field in schema.fields])


def _check_read_as_declared(session: SparkSession, source: FileSource, schema: StructType) -> None:
    """Raises FiresteelError if the schema says more than an Arrow schema, and that more decides
    which values are read.
    """
    by_number = "spark.sql.parquet.fieldId.read.enabled"
    if _FIELD_ID in schema.json() and str(session.conf.get(by_number)).lower() == "true":
        raise FiresteelError(
            f"FileSource {', '.join(source.paths)}: the schema has {_FIELD_ID}, and {by_number} is "
            "set, but columns are read by their names; leave that setting out"
        )
    if source.format.lower() not in _TEXT_FORMATS:
        return
    for field, read in zip(schema.fields, to_spark(to_arrow(schema)).fields, strict=True):
        name, kind = read.dataType.simpleString(), field.dataType.simpleString()
        if kind != name:
            raise FiresteelError(
                f"FileSource {', '.join(source.paths)}: column {field.name!r} is {kind}, and would "
                f"be read as {name}; declare it so if its texts are, else as STRING, and cast it "
                "in a transform"
            )


def _declared_or_inferred(
    session: SparkSession, source: FileSource, paths: list[str]
) -> StructType:
    schema = declared_schema(source)
    if schema is None:
        return read_files(session, source, paths, None, base=False).schema
    if source.malformed is not None and CORRUPT_RECORD in schema.names:
        raise FiresteelError(
            f"FileSource: malformed={source.malformed!r} and a column {CORRUPT_RECORD} exclude "
            "each other: either rows that do not fit go elsewhere, or they stay with that column "
            "set"
        )
    reader = file_reader(session, source)  # an unknown format is found when it is loaded
    if paths and source.format not in _BUILT_IN_FORMATS:
        reader.schema(schema).options(**source.options).load(paths)
    return schema


def _existing_paths(source: FileSource) -> list[str]:
    paths: list[str] = []
    for path in (path.removeprefix("file://") for path in source.paths):
        exists = "://" in path or os.path.exists(path)
        files = [path] if exists else sorted(matches_of(path))
        if not files and source.watch_s is None:
            raise FiresteelError(f"FileSource: no such file: {path}")
        paths += files
    if source.schema is None and source.watch_s is not None and not any(map(_has_files, paths)):
        raise FiresteelError(
            f"FileSource {', '.join(source.paths)}: there are no files yet to infer the schema "
            "from; give the source a schema"
        )
    return paths


def _has_files(path: str) -> bool:
    return not os.path.isdir(path) or any(
        not is_hidden(name) for _, _, names in os.walk(path) for name in names
    )
