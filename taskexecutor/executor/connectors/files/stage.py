"""A file source and the Spark operators after it.

A split is read in bundles: tables that Arrow reads, or the rows that Spark's readers read in a
limited time. Between two bundles, all rows that have been read have been emitted, so that a
position exists.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from firesteel.common.file_parts import FilePart, from_json
from firesteel.common.globs import is_hidden
from firesteel.connectors.file_source import FileSource
from firesteel.connectors.source import Split
from firesteel.elements import Watermark
from firesteel.errors import FiresteelError
from firesteel.operators import SourceSpec, Spec
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.readers.arrow_readers import ArrowReaders
from taskexecutor.executor.columnar.readers.frames import DROPPED_COUNTER, read_all, read_files
from taskexecutor.executor.columnar.readers.parts import FileParts, check_header
from taskexecutor.executor.columnar.readers.pieces import ForSpark, PartReader, Piece, Wanted
from taskexecutor.executor.columnar.runners.column_plans import ColumnPlans, SourcePlan
from taskexecutor.executor.columnar.runners.file_plans import FilePlans, FileRows
from taskexecutor.executor.columnar.runners.file_runners import (
    ArrowColumns,
    CachedScan,
    FileRunner,
    NewScan,
    Reached,
)
from taskexecutor.executor.columnar.schemas import to_spark
from taskexecutor.executor.connectors.files.explained import explained
from taskexecutor.executor.connectors.files.position import EVERY_ROW, SplitProgress
from taskexecutor.executor.connectors.spark_source import SparkSourceStage
from taskexecutor.executor.timing.bundle_time import BundleSize, BundleTime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ARROW_COUNTER = "numRecordsReadByArrow"


class FileStage(SparkSourceStage):
    """Runs cached plans where possible."""

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
        assert source_schema is not None, "a file source has been analyzed"
        self._source_schema = to_spark(source_schema)
        self._watermark_us: int | None = None
        self._opened = False
        self._ranges: FileRows | None = None
        self._progress = SplitProgress(source, self._source_schema)
        # Spark filters the listed files.
        self._chosen_by_spark = bool(choose.spark_lists_files(source))
        self._group: _Group | None = None
        self._scan: CachedScan | None = None  # has started and not ended
        self.idle_between_splits = source.watch_s is not None

    def open(self) -> None:
        engine, source, schema = self._engine, self._source, self._source_schema
        specs, watermarks, meter = self._specs, self._watermarks, self.context.plan_meter
        aggregated, chained = self._aggregate is not None, self.context.chained
        self._time = BundleTime(aggregated=aggregated, chained=chained)
        self._size = BundleSize(aggregated=aggregated, chained=chained)
        with self._spark.job():
            self._parts = FileParts(engine, source, schema)
        self._plans = FilePlans(engine, source, schema, specs, watermarks, self._parts, meter)
        self._readers = ArrowReaders(engine, source, schema, self._parts, meter)
        self._column_plans = ColumnPlans(engine, schema, specs, watermarks, meter)
        self._opened = True

    def close(self) -> None:
        self._end_group()
        if self._opened:
            self._column_plans.close()
            self._plans.close()

    # -- positions

    def position(self) -> Any:
        return {**super().position(), "watermark_us": self._watermark_us}

    def merged(self, positions: Sequence[Any]) -> Any:
        watermarks = [position["watermark_us"] for position in positions]
        behind_us = None if None in watermarks else min(watermarks)
        return {**super().merged(positions), "watermark_us": behind_us}

    def restore(self, position: Any) -> None:
        super().restore(position)
        if position["watermark_us"] is not None:
            self._advance(position["watermark_us"])

    def _at(self) -> Any:
        return self._progress.position.to_json()

    def _begin(self, split: Split, at: Any) -> None:
        self._end_group()  # of a split that could not be read
        self._progress.begin(from_json(split), at)

    def _row_schema(self) -> StructType:
        return self._source_schema

    def _end(self) -> None:
        latest_us = self._progress.position.latest_us
        if latest_us is not None:
            assert self._watermarks is not None
            self._advance(latest_us - self._watermarks.max_out_of_orderness_us - 1)

    def _advance(self, watermark_us: int) -> None:
        if self._watermark_us is None or watermark_us > self._watermark_us:
            self._watermark_us = watermark_us
            self.output.emit_watermark(Watermark(watermark_us))

    # -- bundles

    def _read(self) -> tuple[int, bool]:
        group = self._group or self._next_group()
        if group is None:
            return 0, self._progress.begins_malformed_pass()
        session, schema = self._engine.session, self._source_schema
        with explained(session, self._source, schema, group.parts):
            rows = self._read_of(group)
        return rows, True

    def _read_of(self, group: _Group) -> int:
        """Reads one bundle."""
        malformed_pass = self._progress.position.malformed_pass
        begun_s = self.context.busy_s
        runner: FileRunner | None = self._scan
        if runner is None:
            with self.context.time("spark"), self.context.plan_meter.reading:
                piece = next(group.pieces, None)
            if piece is None:
                self._end_group()
                self._progress.reached(group.end)
                return 0
            if isinstance(piece, ForSpark):
                runner = self._scan_of(group, piece)
                begun_s = self.context.busy_s  # making a plan does not count
            else:
                assert group.plan is not None
                runner = ArrowColumns(group.plan, piece)
        self._run(runner)
        busy_s = self.context.busy_s - begun_s
        if isinstance(runner, ArrowColumns):
            self.context.counter(ARROW_COUNTER).inc(runner.rows)
            self._size.took(busy_s, runner.size_bytes)
        elif isinstance(runner, CachedScan):
            self._time.took(busy_s)
        reached = runner.reached()
        self._progress.seen(reached.latest_us)
        if reached.malformed_rows:
            self._count_malformed(reached)
        if self._scan is not None and self._scan.ended:
            self._end_scan()
        self._progress.reached(*reached.end, reached.scan)
        return 0 if malformed_pass else runner.rows

    def _count_malformed(self, reached: Reached) -> None:
        if self._source.malformed == "drop":
            self.context.counter(DROPPED_COUNTER).inc(reached.malformed_rows)
        elif self._source.malformed == "side_output":
            first = self._progress.position.part  # the bundle's first part
            self._progress.found_malformed(number for number in reached.parts if number >= first)

    def _next_group(self) -> _Group | None:
        """Returns the next parts whose paths give the same columns, and their reader."""
        position = self._progress.position
        unread = self._progress.unread()
        if not unread:
            return None
        rest = [part for _, part in unread]
        reader: PartReader | None = None
        plan: SourcePlan | None = None
        with self._spark.job():
            parts, folder = next(self._parts.by_columns(rest))
            columns = folder.columns
            if self._chosen_by_spark:
                parts = parts[:1]  # only Spark knows which files to read
            if not position.malformed_pass:
                if not self._chosen_by_spark:
                    self._check_files(parts, columns)
                if position.rows and position.scan != EVERY_ROW:
                    parts = parts[:1]  # Spark's reader has started this part and must finish it
                else:
                    reader = self._readers.reader(columns)
            if reader is not None:
                plan = self._column_plans.plan()
        numbers = [number for number, _ in unread[: len(parts)]]
        if reader is None or plan is None:
            reader, pieces = None, _only(ForSpark(parts, numbers, position.rows))
        else:
            every = self._source.malformed is not None  # then all columns must fit the schema
            names = self._source_schema.names if every else plan.columns
            rows = None if every else plan.wanted
            wanted = Wanted(names, rows, plan.late, dictionaries=plan.takes_dictionaries)
            pieces = reader.pieces(parts, wanted, self._size, first=numbers[0], skip=position.rows)
        self._group = _Group(parts, numbers[-1] + 1, columns, reader, plan, pieces)
        return self._group

    def _end_group(self) -> None:
        self._end_scan()
        group, self._group = self._group, None
        if group is not None:
            group.pieces.close()
            if group.reader is not None and group.reader.for_spark:
                self.context.plan_meter.files_read_by(choose.ARROW_OR_SPARK, group.reader.for_spark)

    def _end_scan(self) -> None:
        scan, self._scan = self._scan, None
        if scan is not None:
            scan.end()

    def _check_files(self, parts: list[FilePart], columns: tuple[str, ...]) -> None:
        compression = self._parts.compression
        names = [name for name in self._source_schema.names if name not in columns]
        for part in parts:
            if part.start == 0:
                compression.check(part.path)
                if self._source.format == "csv":
                    check_header(part.path, self._source, names, compression.beginning)

    # -- by Spark

    def _scan_of(self, group: _Group, piece: ForSpark) -> FileRunner:
        """Starts to read with a cached plan, or with a new one if there is none."""
        malformed, operator = self._progress.position.malformed_pass, self.context.operator_name
        with self._spark.job():
            plan = self._plans.plan(group.columns, piece.parts[0].path)
            if plan is None:
                if malformed:
                    raise FiresteelError(
                        f"{operator}: a cached plan found malformed rows, but no cached plan can "
                        "be made now. Restore the job in slots with the original resources"
                    )
                if piece.rows:
                    raise FiresteelError(_other_plan(operator, piece))
                return NewScan(
                    self.context,
                    self.output,
                    self._source,
                    self._source_schema,
                    self._watermarks,
                    piece,
                    lambda: self._frame(piece.parts, group.columns),
                    self._planned,
                )
            if piece.rows and plan.scan(malformed=malformed) != self._progress.position.scan:
                raise FiresteelError(_other_plan(operator, piece))
            scan = CachedScan(
                plan, piece, lambda: self._time.read_s, self.output if malformed else None
            )
            scan.begin(self._spark.job_group)
        self._scan = scan
        return scan

    def _frame(
        self, parts: list[FilePart], columns: tuple[str, ...]
    ) -> tuple[DataFrame, int | None]:
        """Returns the rows of the parts and the id of their RDD; None for the id if they are one
        whole file, read without an RDD.
        """
        # Spark skips a file with a hidden name even if the file is requested directly.
        hidden = is_hidden(os.path.basename(parts[0].path))
        frame: DataFrame
        rdd: int | None = None
        if len(parts) > 1 or not parts[0].whole or hidden:
            if self._ranges is None:
                self._ranges = FileRows(
                    self._engine, self._source, self._source_schema, self._parts
                )
            frame, rdd = self._ranges.frame(columns, parts)
        else:
            read = read_files if self._source.malformed is None else read_all
            path = parts[0].path
            frame = read(self._engine.session, self._source, [path], self._source_schema)
        if self._chosen_by_spark and (rdd is not None or frame.inputFiles()):
            self._check_files(parts, columns)
        return frame, rdd


class _Group(NamedTuple):
    """Neighbouring parts of the split whose paths give the same columns."""

    parts: list[FilePart]
    end: int  # index after the last part
    columns: tuple[str, ...]
    reader: PartReader | None  # None: Spark reads all of them
    plan: SourcePlan | None  # for the reader's columns
    pieces: Generator[Piece, None, None]


def _only(piece: Piece) -> Generator[Piece, None, None]:
    yield piece


def _other_plan(operator: str, piece: ForSpark) -> str:
    return (
        f"{operator}: {piece.rows} rows of {piece.parts[0].path} were read by a plan with different"
        " filters or columns, so they cannot be found again. Restore the job with the original"
        " filters, or start it without its earlier state"
    )
