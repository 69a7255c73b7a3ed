"""A file source and the Spark operators after it.

A split is read in bundles: tables that Arrow reads, or the rows that Spark's readers read in a
limited time. Between two bundles, all rows that have been read have been emitted, so that a
position exists.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from firesteel.common.file_parts import FilePart, from_json
from firesteel.common.globs import is_hidden
from firesteel.connectors.file_source import (
    LISTING_OPTIONS,
    FileSource,
)
from firesteel.connectors.source import Split
from firesteel.elements import Watermark
from firesteel.errors import FiresteelError
from firesteel.operators import SourceSpec, Spec
from firesteel.operators.aggregates import aggregate_of
from taskexecutor.executor.columnar.cached_plans import observations
from taskexecutor.executor.columnar.readers.arrow_readers import ARROW_FORMATS, ArrowReaders
from taskexecutor.executor.columnar.readers.frames import (
    DROPPED_COUNTER,
    CheckedRows,
    emit_malformed,
    read_all,
    read_files,
)
from taskexecutor.executor.columnar.readers.parts import FileParts, check_header
from taskexecutor.executor.columnar.readers.pieces import (
    Columns,
    ForSpark,
    PartReader,
    Piece,
    Wanted,
)
from taskexecutor.executor.columnar.runners.column_plans import (
    ColumnPlans,
    SourcePlan,
)
from taskexecutor.executor.columnar.runners.file_plans import FilePlan, FilePlans, FileRows
from taskexecutor.executor.columnar.schemas import to_spark
from taskexecutor.executor.connectors.files.explained import explained
from taskexecutor.executor.connectors.files.position import EVERY_ROW, SplitProgress
from taskexecutor.executor.connectors.spark_source import SparkSourceStage
from taskexecutor.executor.timing.bundle_time import BundleSize, BundleTime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
        self._plans: FilePlans | None = None
        self._column_plans: ColumnPlans | None = None
        self._ranges: FileRows | None = None
        aggregated = aggregate_of(specs) is not None
        self._time = BundleTime(aggregated=aggregated)
        self._size = BundleSize(aggregated=aggregated)
        self._progress = SplitProgress(source, self._source_schema)
        # Spark filters the listed files.
        self._chosen_by_spark = bool(LISTING_OPTIONS.intersection(map(str.lower, source.options)))
        self._group: _Group | None = None
        self._cached: _CachedRun | None = None  # reads the group's parts for Spark
        self.idle_between_splits = source.watch_s is not None

    def open(self) -> None:
        engine, source, schema = self._engine, self._source, self._source_schema
        meter = self.context.plan_meter
        with self._on_spark():
            self._parts = FileParts(engine, source, schema)
        self._plans = FilePlans(
            engine, source, schema, self._specs, self._watermarks, self._parts, meter
        )
        self._readers = ArrowReaders(engine, source, schema, self._parts, meter)
        if source.format in ARROW_FORMATS:
            self._column_plans = ColumnPlans(
                engine,
                schema,
                self._specs,
                self._watermarks,
                meter,
            )

    def close(self) -> None:
        self._end_group()
        if self._column_plans is not None:
            self._column_plans.close()
        if self._plans is not None:
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
        if self._cached is None:
            begun_s = self.context.busy_s
            with self.context.time("spark"), self.context.plan_meter.reading:
                piece = next(group.pieces, None)
            if piece is None:
                self._end_group()
                self._progress.reached(group.end)
                return 0
            if isinstance(piece, Columns):
                return self._run_columns(group, piece, begun_s)
            if not self._begins_cached(group, piece):
                return self._read_with_new_plan(group, piece)
        return self._read_cached()

    def _next_group(self) -> _Group | None:
        """Returns the next parts whose paths give the same columns, and their reader."""
        position = self._progress.position
        unread = self._progress.unread()
        if not unread:
            return None
        rest = [part for _, part in unread]
        reader: PartReader | None = None
        plan: SourcePlan | None = None
        with self._on_spark():
            parts, folder = next(self._parts.by_columns(rest))
            columns = folder.columns
            if not position.malformed_pass:
                if not self._chosen_by_spark:
                    self._check_files(parts, columns)
                if position.rows and position.scan != EVERY_ROW:
                    parts = parts[:1]  # Spark's reader has started this part and must finish it
                else:
                    reader = self._readers.reader(columns)
            if reader is not None:
                assert self._column_plans is not None
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
        cached, self._cached = self._cached, None
        if cached is not None:
            cached.plan.end()
        group, self._group = self._group, None
        if group is not None:
            group.pieces.close()
            if group.reader is not None:
                self.context.plan_meter.files_read_by(group.reader.reader)

    def _check_files(self, parts: list[FilePart], columns: tuple[str, ...]) -> None:
        compression = self._parts.compression
        names = [name for name in self._source_schema.names if name not in columns]
        for part in parts:
            if part.start == 0:
                compression.check(part.path)
                if self._source.format == "csv":
                    check_header(part.path, self._source, names, compression.beginning)

    # -- by Arrow

    def _run_columns(self, group: _Group, piece: Columns, begun_s: float) -> int:
        plan = group.plan
        assert plan is not None
        if piece.table.num_rows:
            engine, run = self._engine, self._job_group
            with self.context.time("spark"), engine.cancelling(run, self._cancelled):
                self._check_schema(plan.frame)
                assert self._output_schema is not None
                self.emit(plan.run(piece.table, self._output_schema, run))
                self._show_plan(plan.frame)
                self._progress.seen(plan.latest_us)
        self.context.counter(ARROW_COUNTER).inc(piece.rows)
        self.context.count_bundle(piece.rows)
        self._size.took(self.context.busy_s - begun_s, piece.size_bytes)
        self._progress.reached(*piece.end)
        return piece.rows

    # -- by Spark, with a cached plan

    def _begins_cached(self, group: _Group, piece: ForSpark) -> bool:
        """Starts to read with a cached plan. Returns False if there is none."""
        malformed, operator = self._progress.position.malformed_pass, self.context.operator_name
        assert self._plans is not None, "open first"
        with self._on_spark():
            plan = self._plans.plan(group.columns, piece.parts[0].path)
            if plan is None:
                if malformed:
                    raise FiresteelError(
                        f"{operator}: a cached plan found malformed rows, but no cached plan can "
                        "be made now. Restore the job in slots with the original resources"
                    )
                if piece.rows:
                    raise FiresteelError(_other_plan(operator, piece))
                return False
            if piece.rows and plan.scan(malformed=malformed) != self._progress.position.scan:
                raise FiresteelError(_other_plan(operator, piece))
            plan.begin(piece.parts, self._job_group, rows=piece.rows, malformed=malformed)
        self._cached = _CachedRun(plan, piece)
        return True

    def _read_cached(self) -> int:
        """Reads one bundle."""
        assert self._cached is not None
        plan, piece = self._cached
        malformed_pass = self._progress.position.malformed_pass
        begun_s = self.context.busy_s
        with self.context.time("spark"), self._engine.cancelling(self._job_group, self._cancelled):
            if malformed_pass:
                batches = plan.malformed_bundle(self._job_group, self._time.read_s)
                with closing(batches):
                    for batch in batches:
                        emit_malformed(batch, self.output)
            else:
                self._check_schema(plan.frame)
                assert self._output_schema is not None
                self.emit(plan.bundle(self._output_schema, self._job_group, self._time.read_s))
                self._show_plan(plan.frame)
                self._progress.seen(plan.latest_us)
        state = plan.state
        self.context.count_bundle(state.rows_read)
        self._time.took(self.context.busy_s - begun_s)
        if not malformed_pass and plan.malformed_rows:
            if self._source.malformed == "drop":
                self.context.counter(DROPPED_COUNTER).inc(plan.malformed_rows)
            elif self._source.malformed == "side_output":
                first = self._progress.position.part  # the bundle's first part
                read = piece.numbers[: state.part + 1]
                self._progress.found_malformed(number for number in read if number >= first)
        if state.part == len(piece.parts):
            self._cached = None
            plan.end()
            self._progress.reached(piece.numbers[-1] + 1)
        else:
            start = piece.parts[state.part].start
            scan = plan.scan(malformed=malformed_pass)
            self._progress.reached(piece.numbers[state.part], start, state.rows, scan)
        return 0 if malformed_pass else state.rows_read

    # -- by Spark, with a new plan

    def _read_with_new_plan(self, group: _Group, piece: ForSpark) -> int:
        read = 0
        for parts in self._at_once(piece.parts):
            rows = self._run_new_plan(parts, group.columns)
            self.context.count_bundle(rows)
            read += rows
        self._progress.reached(piece.numbers[-1] + 1)
        return read

    def _at_once(self, parts: list[FilePart]) -> list[list[FilePart]]:
        """Returns the groups of parts that a new plan reads together: all, unless only Spark knows
        which files to read.
        """
        return [[part] for part in parts] if self._chosen_by_spark else [parts]

    def _run_new_plan(self, parts: list[FilePart], columns: tuple[str, ...]) -> int:
        checked: CheckedRows | None = None
        with self._on_spark():
            with self.context.plan_meter.planning:
                frame, rdd = self._frame(parts, columns)
                if self._chosen_by_spark and (rdd is not None or frame.inputFiles()):
                    self._check_files(parts, columns)
                if self._source.malformed is not None:
                    checked = CheckedRows(self._source, self._source_schema, frame)
                    frame = checked.frame
                if self._watermarks is not None:
                    frame = observations.observe_time(frame, self._watermarks)
            done = self._run(frame)
            self._show_plan(done)
            if self._watermarks is not None:
                latest_us, rows = observations.observed_times(done)
                self._progress.seen(latest_us)
            if checked is not None:
                checked.account(done, self.context, self.output)
        if self._watermarks is None and rdd is not None:
            rows = observations.rdd_rows(done, rdd)
        elif self._watermarks is None:
            rows = observations.scanned_rows(done, parts[0].path)
        return rows

    def _frame(
        self, parts: list[FilePart], columns: tuple[str, ...]
    ) -> tuple[DataFrame, int | None]:
        """Returns the rows of the parts and the id of their RDD; None for the id if they are one
        whole file, read without an RDD.
        """
        # Spark skips a file with a hidden name even if the file is requested directly.
        hidden = is_hidden(os.path.basename(parts[0].path))
        if len(parts) > 1 or not parts[0].whole or hidden:
            if self._ranges is None:
                self._ranges = FileRows(
                    self._engine, self._source, self._source_schema, self._parts
                )
            return self._ranges.frame(columns, parts)
        read = read_files if self._source.malformed is None else read_all
        return read(self._engine.session, self._source, [parts[0].path], self._source_schema), None


class _Group(NamedTuple):
    """Neighbouring parts of the split whose paths give the same columns."""

    parts: list[FilePart]
    end: int  # index after the last part
    columns: tuple[str, ...]
    reader: PartReader | None  # None: Spark reads all of them
    plan: SourcePlan | None  # for the reader's columns
    pieces: Generator[Piece, None, None]


class _CachedRun(NamedTuple):
    plan: FilePlan
    piece: ForSpark


def _only(piece: Piece) -> Generator[Piece, None, None]:
    yield piece


def _other_plan(operator: str, piece: ForSpark) -> str:
    return (
        f"{operator}: {piece.rows} rows of {piece.parts[0].path} were read by a plan with different"
        " filters or columns, so they cannot be found again. Restore the job with the original"
        " filters, or start it without its earlier state"
    )
