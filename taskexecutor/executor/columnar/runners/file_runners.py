"""The ways to read a bundle of a split of files and to compute its results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from firesteel.connectors import FileSource
from firesteel.operator import Output, RuntimeContext
from firesteel.operators import WatermarkSpec
from taskexecutor.executor.columnar.cached_plans import observations
from taskexecutor.executor.columnar.readers.frames import CheckedRows, emit_malformed
from taskexecutor.executor.columnar.readers.pieces import Columns, ForSpark, Place
from taskexecutor.executor.columnar.runners.column_plans import SourcePlan
from taskexecutor.executor.columnar.runners.file_plans import FilePlan
from taskexecutor.executor.columnar.runners.runner import NewPlan, Runner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class Reached(NamedTuple):
    """How far a bundle has read its split."""

    end: Place
    scan: str = ""  # which rows before `end` the readers have skipped: see FilePlan.scan
    latest_us: int | None = None  # the bundle's latest event time
    malformed_rows: int = 0  # left out of the results, and not counted yet
    parts: Sequence[int] = ()  # numbers of the parts that the bundle has read


class FileRunner(Runner):
    @abstractmethod
    def reached(self) -> Reached:
        """Called once the bundle has run."""


class ArrowColumns(FileRunner):
    """Runs columns that Arrow has read with a cached plan."""

    def __init__(self, plan: SourcePlan, piece: Columns) -> None:
        self._plan = plan
        self._piece = piece
        self.computes = plan.computes
        self.rows = piece.rows
        self.size_bytes = piece.size_bytes

    def plan(self) -> DataFrame:
        return self._plan.frame

    def run(self, schema: pa.Schema, job_group: str) -> Generator[pa.RecordBatch, None, None]:
        if self._piece.table.num_rows:
            yield from self._plan.run(self._piece.table, schema, job_group)

    def reached(self) -> Reached:
        latest_us = self._plan.latest_us if self._piece.table.num_rows else None
        return Reached(self._piece.end, latest_us=latest_us)


class CachedScan(FileRunner):
    """Reads parts of files, bundle by bundle, with a cached plan over Spark's readers."""

    def __init__(
        self, plan: FilePlan, piece: ForSpark, read_s: Callable[[], float], malformed: Output | None
    ) -> None:
        """`read_s` returns how long a bundle is read. `malformed` gets the malformed rows, instead
        of the results.
        """
        self._plan = plan
        self._piece = piece
        self._read_s = read_s
        self._malformed = malformed
        self.computes = plan.computes

    def begin(self, job_group: str) -> None:
        malformed = self._malformed is not None
        self._plan.begin(self._piece.parts, job_group, rows=self._piece.rows, malformed=malformed)

    def plan(self) -> DataFrame:
        return self._plan.frame

    def run(self, schema: pa.Schema, job_group: str) -> Generator[pa.RecordBatch, None, None]:
        if self._malformed is None:
            yield from self._plan.bundle(schema, job_group, self._read_s())
        else:
            with closing(self._plan.malformed_bundle(job_group, self._read_s())) as batches:
                for batch in batches:
                    emit_malformed(batch, self._malformed)
        self.rows = self._plan.state.rows_read

    @property
    def ended(self) -> bool:
        return self._plan.state.part == len(self._piece.parts)

    def reached(self) -> Reached:
        state, numbers = self._plan.state, self._piece.numbers
        malformed = self._malformed is not None
        if self.ended:
            end, scan = Place(numbers[-1] + 1), ""
        else:
            end = Place(numbers[state.part], self._piece.parts[state.part].start, state.rows)
            scan = self._plan.scan(malformed=malformed)
        if malformed:
            return Reached(end, scan)
        rows = self._plan.malformed_rows
        return Reached(end, scan, self._plan.latest_us, rows, numbers[: state.part + 1])

    def end(self) -> None:
        """Closes the files, whether or not they were read completely."""
        self._plan.end()


class NewScan(NewPlan, FileRunner):
    """Reads parts of files with a plan that is made for them."""

    def __init__(
        self,
        context: RuntimeContext,
        output: Output,
        source: FileSource,
        schema: StructType,
        watermarks: WatermarkSpec | None,
        piece: ForSpark,
        leaf: Callable[[], tuple[DataFrame, int | None]],
        planned: Callable[[DataFrame], DataFrame],
    ) -> None:
        """`leaf` returns the rows of the parts, and the id of their RDD, or None if they are one
        whole file.
        """
        super().__init__(context.plan_meter, self._results)
        self._context = context
        self._output = output
        self._source = source
        self._schema = schema
        self._watermarks = watermarks
        self._piece = piece
        self._leaf = leaf
        self._planned = planned
        self._checked: CheckedRows | None = None
        self._latest_us: int | None = None

    def _results(self) -> DataFrame:
        frame, self._rdd = self._leaf()
        if self._source.malformed is not None:
            self._checked = CheckedRows(self._source, self._schema, frame)
            frame = self._checked.frame
        if self._watermarks is not None:
            frame = observations.observe_time(frame, self._watermarks)
        return self._planned(frame)

    def run(self, schema: pa.Schema, job_group: str) -> Generator[pa.RecordBatch, None, None]:
        yield from super().run(schema, job_group)
        if self._watermarks is not None:
            self._latest_us, self.rows = observations.observed_times(self.frame)
        elif self._rdd is not None:
            self.rows = observations.rdd_rows(self.frame, self._rdd)
        else:
            self.rows = observations.scanned_rows(self.frame, self._piece.parts[0].path)
        if self._checked is not None:
            self._checked.account(self.frame, self._context, self._output)

    def reached(self) -> Reached:
        return Reached(Place(self._piece.numbers[-1] + 1), latest_us=self._latest_us)
