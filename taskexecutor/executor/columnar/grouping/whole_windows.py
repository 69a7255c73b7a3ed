"""Turns partial rows of panes into partial rows of the windows that consist of these panes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.operators import SlidingSpec, TumblingSpec
from taskexecutor.executor.columnar.grouping.columns import column_of, numbers_in
from taskexecutor.executor.columnar.grouping.merging import merge_partials


def whole_windows(
    rows: pa.RecordBatch,
    window: TumblingSpec | SlidingSpec,
    *,
    start: str,
    end: str,
    keys: Sequence[str],
    merges: Mapping[str, str],
) -> pa.RecordBatch:
    """Returns one row per key and window, with the columns of `rows`. The columns `start` and `end`
    are those of panes before, and of windows after. Rows without a start are left out.
    """
    starts = rows.column(start)
    if starts.null_count:
        rows = rows.filter(pc.is_valid(starts))
    if isinstance(window, TumblingSpec) or not rows.num_rows:
        return rows
    panes = numbers_in(rows.column(start).view(pa.int64()))
    last_starts = panes - (panes - window.offset_us) % window.slide_us
    places: list[np.ndarray] = []
    of_windows: list[np.ndarray] = []
    for back in range(-(-window.size_us // window.slide_us)):
        window_starts = last_starts - back * window.slide_us
        inside = np.flatnonzero(window_starts + window.size_us > panes)
        places.append(inside)
        of_windows.append(window_starts[inside])
    begin = np.concatenate(of_windows)
    copies = rows.take(column_of(np.concatenate(places)))
    kind = rows.schema.field(start).type
    times = {
        start: column_of(begin).view(kind),
        end: column_of(begin + window.size_us).view(kind),
    }
    columns = [times.get(name, copies.column(name)) for name in rows.schema.names]
    table = pa.Table.from_arrays(columns, schema=rows.schema)
    return merge_partials(table, [*keys, start, end], merges).select(rows.schema.names)
