"""Groups the columns of rows with Arrow. Contributions to partial results that are Arrow
columns already do not enter Spark; Spark computes only the others.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from firesteel.operator import PlanMeter
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.cached_plans.leaf_columns import (
    BySecond,
    LeafColumn,
    decoded,
    leaf_columns,
)
from taskexecutor.executor.columnar.cached_plans.reusable_plan import ReusablePlan
from taskexecutor.executor.columnar.cached_plans.row_partials import GivenRows
from taskexecutor.executor.columnar.cached_plans.wanted_rows import WantedRows
from taskexecutor.executor.columnar.columns.bundles import ColumnBundles
from taskexecutor.executor.columnar.columns.sink import ColumnSink
from taskexecutor.executor.columnar.grouping.columns import as_array, column_of, numbers_in
from taskexecutor.executor.columnar.grouping.grouping import Groups, group
from taskexecutor.executor.columnar.grouping.merging import ROWS, merge_partials
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.schemas import conform, to_arrow

_SECOND_US = 1_000_000
# Rows that are grouped together: more would exceed the processor's caches. With more than one group
# per `_FEW` rows, reducing the number of groups is worth more than that. The same holds for lists
# of distinct values.
_GROUPED_ROWS, _LISTED_ROWS, _MOST_ROWS = 65_536, 262_144, 1_048_576
_FEW = 8
# Rows with this many bytes of text are grouped where they were read, unless their batches are
# small: concatenating them would copy all texts for the few chosen rows.
_TEXT_BYTES, _BATCH_ROWS = 32, 8_192


def grouped_outside(engine: SparkEngine, given: GivenRows) -> bool:
    """Returns whether to group the contributions of a plan over columns here."""
    leave = ColumnSink.suits(engine, given.frame.schema)
    unchanged = leave and given.numbers and _are_columns(engine, given)
    return not choose.grouped_outside(numbers=given.numbers, leave=leave, unchanged=unchanged)


def _are_columns(engine: SparkEngine, given: GivenRows) -> bool:
    """Returns whether the contributions are columns of the rows that enter the plan."""
    columns = leaf_columns(engine, given.frame._jdf.queryExecution().executedPlan())
    return columns is not None and all(
        column is not None or place == given.grouping.bits for place, column in enumerate(columns)
    )


class GroupedColumns:
    """A plan of rows whose columns are grouped. One run at a time."""

    takes_dictionaries = False
    late: frozenset[str] = frozenset()
    wanted: WantedRows | None = None  # all rows

    def __init__(
        self,
        engine: SparkEngine,
        cached: ReusablePlan,
        given: Sequence[LeafColumn | BySecond | None],
        time: str | None,
        meter: PlanMeter,
    ) -> None:
        """`given` are the columns of the plan's rows. `time` is the column of event times."""
        assert cached.grouping is not None
        self.cached = cached
        self._grouping = cached.grouping
        self._given = [each if isinstance(each, LeafColumn) else None for each in given]
        self._time = time
        self.meter = meter
        self._rows = _LISTED_ROWS if self._grouping.values else _GROUPED_ROWS
        if self._grouping.gap_us:  # parts of sessions that are grouped apart stay apart
            self._rows = _MOST_ROWS
        self._merges = {**self._grouping.merges, ROWS: "sum"}
        self._by = [name for name in self._grouping.schema.names if name not in self._merges]
        self._piecewise = not self._grouping.values and not self._grouping.gap_us
        self._computed: list[_Computed] = []
        for seconds in dict.fromkeys(each for each in given if not isinstance(each, LeafColumn)):
            places = [place for place, each in enumerate(given) if each == seconds]
            kind = _Computed if seconds is None else _OfSeconds
            self._computed.append(kind(engine, cached, places))
        self.frame = cached.frame
        self.computes = choose.computed_by(spark=bool(self._computed), grouped=True)
        self.columns = {name for each in self._given if each is not None for name in each.reads}
        self.columns.update(*(each.reads for each in self._computed))
        self.columns |= {time} if time is not None else set()
        self.latest_us: int | None = None  # latest event time of the last run, if any

    def run(
        self, table: pa.Table, schema: pa.Schema, job_group: str
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yields the results in batches of exactly `schema`, each computed on demand. `table` has
        the plan's `columns`, and may have others.
        """
        needed = [name for name in table.schema.names if name in self.columns]
        table = table.select(needed or table.schema.names[:1])
        self.latest_us = None
        if self._time is not None:
            self.latest_us = latest_us(table.column(self._time))
        self.meter.ran_cached()
        computed = {
            place: column
            for each in self._computed
            for place, column in each.run(table, job_group, self.meter)
        }
        start = 0
        while start < table.num_rows:
            part = table.slice(start, self._rows)
            pieces = [self._grouped(rows, computed, at) for at, rows in self._pieces(part, start)]
            start += part.num_rows
            if sum(piece.num_rows for piece in pieces) * _FEW > part.num_rows:
                self._rows, self._piecewise = _MOST_ROWS, False
            grouped = pieces[0]
            if len(pieces) > 1:
                grouped = merge_partials(pa.Table.from_batches(pieces), self._by, self._merges)
                grouped = grouped.select(self._grouping.schema.names)
            yield conform(grouped, schema)

    def _pieces(self, part: pa.Table, start: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields batches that are grouped together, and their offsets in the table."""
        batches = part.to_batches()
        if not (self._piecewise and _has_long_texts(part, len(batches))):
            columns = [as_array(column) for column in part.columns]
            batches = [pa.RecordBatch.from_arrays(columns, schema=part.schema)]
        for batch in batches:
            yield start, batch
            start += len(batch)

    def _grouped(
        self, rows: pa.RecordBatch, computed: Mapping[int, pa.Array], start: int
    ) -> pa.RecordBatch:
        given = [
            computed[place].slice(start, len(rows)) if each is None else each.of(rows)
            for place, each in enumerate(self._given)
        ]
        keys = self._grouping.keys
        given[keys:] = map(decoded, given[keys:])
        names = [str(place) for place in range(len(given))]
        return self._grouping.grouped(pa.RecordBatch.from_arrays(given, names))

    @property
    def reusable(self) -> bool:
        return self.cached.reusable and all(each.bundles.reusable for each in self._computed)

    def release_memory(self) -> None:
        for each in self._computed:
            each.bundles.release_memory()

    def close(self) -> None:
        for each in self._computed:
            each.bundles.close()


class _Computed:
    """Columns that Spark computes for each row, and the columns on which these depend."""

    def __init__(self, engine: SparkEngine, cached: ReusablePlan, places: Sequence[int]) -> None:
        """`places`: indices among the columns of the plan's rows."""
        names = cached.rows.columns
        rows = cached.rows.select(*(names[place] for place in places))
        physical = rows._jdf.queryExecution().executedPlan()
        self._places = places
        self._schema = to_arrow(rows.schema)
        self.bundles = ColumnBundles(engine, ReusablePlan(rows, rows, physical, ()))
        self.reads = self.bundles.columns

    def run(
        self, table: pa.Table, job_group: str, meter: PlanMeter
    ) -> Iterator[tuple[int, pa.Array]]:
        """Yields the columns by their indices."""
        batches = self.bundles.run(table, self._schema, job_group, meter)
        computed = pa.Table.from_batches(batches, self._schema)
        yield from zip(self._places, map(as_array, computed.columns), strict=True)


class _OfSeconds(_Computed):
    """Columns that are equal for all times of a second: computed for one time of each second."""

    def run(
        self, table: pa.Table, job_group: str, meter: PlanMeter
    ) -> Iterator[tuple[int, pa.Array]]:
        (name,) = self.reads
        times = as_array(table.column(name))
        seconds = _seconds(times)
        one_each = times.take(column_of(seconds.first_rows()))
        for place, column in super().run(pa.table({name: one_each}), job_group, meter):
            different = column.dictionary_encode(null_encoding="encode")
            codes = numbers_in(different.indices)[seconds.codes]
            yield place, pa.DictionaryArray.from_arrays(pa.array(codes), different.dictionary)


def _has_long_texts(part: pa.Table, batches: int) -> bool:
    if part.num_rows < batches * _BATCH_ROWS:
        return False
    texts = [column for column in part.columns if pa.types.is_string(column.type)]
    return bool(sum(column.nbytes for column in texts) >= part.num_rows * _TEXT_BYTES)


def _seconds(times: pa.Array) -> Groups:
    """Groups the rows by second; rows without a time are a group."""
    seconds = column_of(numbers_in(times) // _SECOND_US)
    if times.null_count:
        seconds = pc.if_else(times.is_valid(), seconds, pa.scalar(None, pa.int64()))
    return group([seconds])


def latest_us(times: pa.ChunkedArray) -> int | None:
    latest: int | None = pc.max(times).cast(pa.int64()).as_py()
    return latest
