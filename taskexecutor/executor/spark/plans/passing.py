"""Columns that only pass through a plan do not enter Spark.

    select("auction", "extra", 0.908 * price).where("auction % 123 = 0")

Spark would copy each value of `auction` and `extra` from one of Arrow's columns to another. Here it
computes the other results only, and the places of the rows that stay; the columns that it is given
are those of the results, or what is taken from them.

A plan is cut like this if it chooses rows and projects each one, and does nothing else, so that
its rows are in the order of its input.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from taskexecutor.executor.aggregation.columns import column_of, numbers_in
from taskexecutor.executor.spark.jvm.engine import engine_of
from taskexecutor.executor.spark.jvm.local_tasks import singleton
from taskexecutor.executor.spark.plans.leaf_columns import decoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CLASS = "FiresteelPassing"
_SMALL_BATCH_ROWS = 4_096  # what is taken from a batch is joined with the next if it has fewer

_Columns = list[pa.Array]  # of one batch


class Passing(NamedTuple):
    """Of each column of a plan's results: the name of its input's column that it is, or None if
    Spark computes it.
    """

    sources: tuple[str | None, ...]
    filtered: bool  # the last column that Spark computes has the places of the rows that stay

    @property
    def columns(self) -> list[str]:
        """The names of the columns that pass, each one once."""
        return list(dict.fromkeys(name for name in self.sources if name is not None))

    @property
    def complete(self) -> bool:
        """Whether there is nothing to be computed."""
        return not self.filtered and None not in self.sources

    def results(
        self, batches: Sequence[pa.RecordBatch], computed: Iterable[pa.RecordBatch]
    ) -> Generator[_Columns, None, None]:
        """The columns of batches of results, each on demand. `batches`: of the input, with the
        columns that pass; `computed`: what Spark has made of them, unless that is `complete`.
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
        """The same where the computed values of each row are at one of these places, or at none,
        less than 0, if it does not stay.
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


def passing(session: Any, frame: DataFrame) -> tuple[Passing, DataFrame] | None:
    """What passes through the plan of a frame over `rows.frame`, and a frame of the rest; `frame`
    itself if there is none. None if the plan does more to its rows.
    """
    from pyspark.sql import DataFrame

    engine = engine_of(session)
    engine.code.load("FiresteelScan")
    engine.code.load(_CLASS)
    java = engine.code.type(_CLASS).of(frame._jdf.queryExecution().analyzed())
    if java is None:
        return None
    names = list(java.columns())
    sources = tuple(names[place] if place >= 0 else None for place in json.loads(java.sources()))
    found = Passing(sources, bool(java.filtered()))
    if found.complete:
        return found, frame
    if found.filtered and not found.columns:
        return None  # places would be for nothing
    dataset = singleton(session._jvm, "org.apache.spark.sql.classic.Dataset")
    return found, DataFrame(dataset.ofRows(session._jsparkSession, java.rest()), session)


def _beside(
    batches: Sequence[pa.RecordBatch], computed: Iterable[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """The same rows of both."""
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
    """These rows, by their places in ascending order."""
    first, count = int(places[0]), len(places)
    if int(places[-1]) - first + 1 == count:
        return batch.slice(first, count)
    return batch.take(column_of(places))


def _large(pieces: Iterable[_Columns]) -> Iterator[_Columns]:
    """The same rows in batches that are not small, except for the last one."""
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
