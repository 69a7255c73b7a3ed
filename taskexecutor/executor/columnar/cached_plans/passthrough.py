"""Passthrough columns: they bypass Spark if the plan does not change them.

select("auction", "extra", 0.908 * price).where("auction % 123 = 0")

Spark would copy each value of `auction` and `extra` from one Arrow column to another. Instead, it
only computes the other results and the numbers of the remaining rows; the passthrough columns of
the result are the input columns, or the selected rows of them.

A plan is divided like this if it only filters and projects rows, so that its rows are in the order
of its input.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from taskexecutor.executor.columnar.cached_plans.leaf_columns import decoded
from taskexecutor.executor.columnar.grouping.columns import column_of, numbers_in
from taskexecutor.executor.columnar.jvm.engine import engine_of
from taskexecutor.executor.columnar.jvm.local_tasks import singleton

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CLASS = "FiresteelPassthrough"
_SMALL_BATCH_ROWS = 4_096  # selections from smaller batches are concatenated

_Columns = list[pa.Array]  # of one batch


class Passthrough(NamedTuple):
    """For each column of a plan's results: the name of the input column that it equals, or None if
    Spark computes it.
    """

    sources: tuple[str | None, ...]
    filtered: bool  # the last column that Spark computes holds the numbers of the remaining rows

    @property
    def columns(self) -> list[str]:
        """The names of the passthrough columns, without duplicates."""
        return list(dict.fromkeys(name for name in self.sources if name is not None))

    @property
    def complete(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.filtered and None not in self.sources

    def results(
        self, batches: Sequence[pa.RecordBatch], computed: Iterable[pa.RecordBatch]
    ) -> Generator[_Columns, None, None]:
        """Yields the columns of batches of results, each on demand. `batches` are the input, with
        the passthrough columns; `computed` are Spark's results, unless `complete`.
        """
        if self.complete:
            for batch in batches:
                yield self._joined(batch, ())
        elif self.filtered:
            yield from _large(self._chosen(batches, computed))
        else:
            for batch, values in _beside(batches, computed):
                yield self._joined(batch, values.columns)

    def results_at(
        self, batches: Sequence[pa.RecordBatch], values: Sequence[pa.Array], places: Any
    ) -> Generator[_Columns, None, None]:
        """Yields results whose computed values are at `places`, one for each row; a negative place
        means that the row is filtered.
        """
        yield from _large(self._at(batches, values, places))

    def _chosen(
        self, batches: Sequence[pa.RecordBatch], computed: Iterable[pa.RecordBatch]
    ) -> Iterator[_Columns]:
        starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
        for values in computed:
            places = numbers_in(values.column(values.num_columns - 1))
            cuts = np.searchsorted(places, starts).tolist()
            for number, batch in enumerate(batches):
                start, end = cuts[number], cuts[number + 1]
                if start < end:
                    taken = _taken(batch, places[start:end] - starts[number])
                    rest = values.slice(start, end - start)
                    yield self._joined(taken, rest.columns[:-1])

    def _at(
        self, batches: Sequence[pa.RecordBatch], values: Sequence[pa.Array], places: Any
    ) -> Iterator[_Columns]:
        start = 0
        for batch in batches:
            wanted = places[start : start + batch.num_rows]
            start += batch.num_rows
            if self.filtered:
                stay = np.flatnonzero(wanted >= 0)
                if not len(stay):
                    continue
                batch, wanted = _taken(batch, stay), wanted[stay]
            indices = column_of(wanted)
            yield self._joined(batch, [value.take(indices) for value in values])

    def _joined(self, batch: pa.RecordBatch, values: Sequence[pa.Array]) -> _Columns:
        rest = iter(values)
        return [
            next(rest) if name is None else decoded(batch.column(name)) for name in self.sources
        ]


def passthrough_of(session: Any, frame: DataFrame) -> tuple[Passthrough, DataFrame] | None:
    """Returns the passthrough columns of a plan over `rows.frame`, and a DataFrame of the other
    columns; `frame` itself if there are none. Returns None if the plan does more than filter and
    project.
    """
    from pyspark.sql import DataFrame

    engine = engine_of(session)
    java = engine.code.type(_CLASS).of(frame._jdf.queryExecution().analyzed())
    if java is None:
        return None
    names = list(java.columns())
    sources = tuple(names[place] if place >= 0 else None for place in json.loads(java.sources()))
    found = Passthrough(sources, bool(java.filtered()))
    if found.complete:
        return found, frame
    if found.filtered and not found.columns:
        return None  # row numbers would be unused
    dataset = singleton(session._jvm, "org.apache.spark.sql.classic.Dataset")
    return found, DataFrame(dataset.ofRows(session._jsparkSession, java.rest()), session)


def _beside(
    batches: Sequence[pa.RecordBatch], computed: Iterable[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Yields matching rows of both."""
    rest = iter(batches)
    batch = next(rest)
    for values in computed:
        while values.num_rows:
            while not batch.num_rows:
                batch = next(rest)
            count = min(values.num_rows, batch.num_rows)
            yield batch.slice(0, count), values.slice(0, count)
            values, batch = values.slice(count), batch.slice(count)
    left = batch.num_rows + sum(each.num_rows for each in rest)
    assert not left, f"the plan has no results for {left} rows"


def _taken(batch: pa.RecordBatch, places: Any) -> pa.RecordBatch:
    """Returns the rows with these numbers, which are ascending."""
    first, count = int(places[0]), len(places)
    if int(places[-1]) - first + 1 == count:
        return batch.slice(first, count)
    return batch.take(column_of(places))


def _large(pieces: Iterable[_Columns]) -> Iterator[_Columns]:
    """Merges batches so that none is small, except the last one."""
    held: list[_Columns] = []
    rows = 0
    for piece in pieces:
        held.append(piece)
        rows += len(piece[0])
        if rows >= _SMALL_BATCH_ROWS:
            yield _concatenated(held)
            held, rows = [], 0
    if held:
        yield _concatenated(held)


def _concatenated(pieces: list[_Columns]) -> _Columns:
    if len(pieces) == 1:
        return pieces[0]
    return [pa.concat_arrays(parts) for parts in zip(*pieces, strict=True)]
