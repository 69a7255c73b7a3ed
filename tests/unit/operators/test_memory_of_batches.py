"""How much memory operators take in a batch whose state is larger: some pieces of it, at any time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from firesteel.common.process import temporary
from firesteel.elements import StreamElement
from firesteel.operator import StreamOperator
from firesteel.operators import (
    DropDuplicatesSpec,
    RowsBetweenSpec,
    RunningAggregateSpec,
    SessionSpec,
    SlidingSpec,
    TopNSpec,
    TumblingSpec,
    WindowAggregateSpec,
    WindowTopNSpec,
)
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.row_kind import DELETE, ROW_KIND
from firesteel.testing import OperatorHarness
from taskexecutor.executor import column_memory
from taskexecutor.executor.column_memory import IN_MEMORY, SlotColumnMemory
from taskexecutor.executor.columnar.grouping import value_counts
from taskexecutor.executor.exchange.partitioning import hash_columns
from taskexecutor.executor.operators import changelog_rows, running_aggregate
from taskexecutor.executor.operators.drop_duplicates import DropDuplicates
from taskexecutor.executor.operators.rows_between import RowsBetween
from taskexecutor.executor.operators.running_aggregate import RunningAggregate
from taskexecutor.executor.operators.top_n import TopN
from taskexecutor.executor.operators.windows import panes, sessions, window_operator
from taskexecutor.executor.state import HashMapKeyedStateBackend

ROWS, KEYS, BATCH_ROWS = 100_000, 30_000, 2_500
BUDGET_BYTES, PIECE_BYTES = 512 << 10, 128 << 10
TIME, INT = pa.timestamp("us", "UTC"), pa.int64()
SUMS = parse_aggregates(["sum(x) AS s", "count(*) AS c"])
DISTINCT = parse_aggregates(["count(DISTINCT x) AS d"])
ENDS = parse_aggregates(["sum(x) AS s", "min(x) AS least", "count(DISTINCT x) AS d"])
KEY, AT, NUMBER = pa.field("k", pa.string()), pa.field("at", TIME), pa.field("n", INT)
KIND = pa.field(ROW_KIND, pa.string())
TIMES = [pa.field("window_start", TIME), pa.field("window_end", TIME)]


def partials(aggregates: Any, kind: pa.DataType = INT) -> list[pa.Field]:
    names = [name for item in aggregates for name in item.merge]
    return [*(pa.field(name, kind) for name in names), pa.field("_rows", INT)]


class Case(NamedTuple):
    operator: Callable[[], StreamOperator]
    fields: list[pa.Field]


def aggregate(aggregates: Any) -> Callable[[], StreamOperator]:
    spec = RunningAggregateSpec(key_columns=("k",), aggregates=aggregates)
    return lambda: RunningAggregate(spec)


def window(of: Any) -> Callable[[], StreamOperator]:
    spec = WindowAggregateSpec(key_columns=("k",), window=of, aggregates=SUMS)
    return lambda: window_operator(spec)


BY = {"by": ("at",), "ascending": (False,)}
CASES = {
    "aggregate": Case(aggregate(SUMS), [KEY, *partials(SUMS)]),
    "aggregate of distinct values": Case(
        aggregate(DISTINCT), [KEY, *partials(DISTINCT, pa.list_(INT))]
    ),
    "aggregate of changes": Case(aggregate(ENDS), [KEY, *partials(ENDS)[:-1], KIND]),
    "drop_duplicates": Case(
        lambda: DropDuplicates(DropDuplicatesSpec(key_columns=("k",))), [KEY, NUMBER]
    ),
    "one window": Case(window(TumblingSpec(size_us=10**9)), [KEY, *TIMES, *partials(SUMS)]),
    "many windows": Case(window(TumblingSpec(size_us=1_000)), [KEY, *TIMES, *partials(SUMS)]),
    "sliding windows": Case(
        window(SlidingSpec(size_us=400_000, slide_us=200_000)), [KEY, *TIMES, *partials(SUMS)]
    ),
    "sessions": Case(window(SessionSpec(gap_us=1_000)), [KEY, *TIMES, *partials(SUMS)]),
    "top_n of windows": Case(
        lambda: window_operator(
            WindowTopNSpec(
                key_columns=("k",),
                window=TumblingSpec(size_us=10**9),
                n=2,
                time_column="at",
                by=("n",),
                ascending=(True,),
            )
        ),
        [KEY, AT, NUMBER],
    ),
    "top_n": Case(
        lambda: TopN(TopNSpec(key_columns=("k",), n=2, **BY)),
        [KEY, AT, NUMBER],
    ),
    "top_n of changes": Case(
        lambda: TopN(TopNSpec(key_columns=("k",), n=2, **BY)),
        [KEY, AT, NUMBER, KIND],
    ),
    "rows_between": Case(
        lambda: RowsBetween(
            RowsBetweenSpec(key_columns=("k",), start=-1, end=0, aggregates=SUMS, **BY)
        ),
        [KEY, AT, NUMBER, *partials(SUMS)[:-1]],
    ),
}


def batches(fields: list[pa.Field], rows: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, rows, BATCH_ROWS):
        numbers = np.arange(first, first + BATCH_ROWS)
        digits = pa.array(numbers * 7_919 % KEYS).cast(pa.string())
        columns: list[pa.Array] = []
        for field in fields:
            if field.name == "k":
                columns.append(pc.binary_join_element_wise("the key with the number", digits, " "))
            elif field.type == TIME:
                columns.append(pa.array(numbers + (field.name == "window_end")).view(TIME))
            elif field.name == ROW_KIND:
                columns.append(pa.repeat("insert", BATCH_ROWS))
            elif pa.types.is_list(field.type):
                offsets = pa.array(np.arange(BATCH_ROWS + 1), pa.int32())
                columns.append(pa.ListArray.from_arrays(offsets, pa.array(numbers)))
            else:
                columns.append(pa.array(numbers if field.name != "_rows" else numbers * 0 + 1))
        yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


class Results(list[StreamElement]):
    """Not the rows themselves: how many there are, and the sum of their hashes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = self.hashes = 0

    def append(self, element: StreamElement) -> None:
        if not isinstance(element, pa.RecordBatch) or not element.num_rows:
            return
        signs = np.ones(element.num_rows, np.int64)
        place = element.schema.get_field_index(ROW_KIND)
        if place >= 0:
            signs[np.array(element.column(place)) == DELETE] = -1
            element = element.remove_column(place)
        self.rows += int(signs.sum())
        self.hashes += int((signs * hash_columns(element.columns).astype(np.int64)).sum())


_POOLS: list[pa.MemoryPool] = []  # what lives on may be freed later


@contextmanager
def peak_bytes() -> Iterator[Callable[[], int]]:
    """Yields the peak of the memory of Arrow and Python, with NumPy, since the start."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield lambda: (pool.max_memory() or 0) + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def run(case: Case, memory: SlotColumnMemory, rows: int = ROWS) -> tuple[Results, int]:
    with peak_bytes() as peak:
        harness = OperatorHarness(
            case.operator(),
            [pa.schema(case.fields)],
            config={"execution.runtime-mode": "BATCH"},
            create_keyed_state=partial(HashMapKeyedStateBackend, columns=memory),
        )
        harness._main.elements = results = Results()
        harness.open()
        for batch in batches(case.fields, rows):
            harness.process(batch)
            assert memory.in_memory_bytes <= BUDGET_BYTES
        harness.end()
        return results, peak()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_a_batch_has_some_pieces_of_its_state_in_memory(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_memory, "_PIECE_BYTES", (PIECE_BYTES, PIECE_BYTES))
    monkeypatch.setattr(column_memory, "_SMALL_BYTES", 4 << 10)
    for module, constant in (
        (changelog_rows, "BUNDLE_ROWS"),
        (panes, "COMPACT_ROWS"),
        (running_aggregate, "BUNDLE_ROWS"),
        (running_aggregate, "PART_ROWS"),
        (sessions, "SETTLE_ROWS"),
        (value_counts, "_AT_ONCE"),
    ):
        monkeypatch.setattr(module, constant, BATCH_ROWS)
    case, memory = CASES[name], SlotColumnMemory(BUDGET_BYTES, temporary.SHARED_MEMORY)
    run(case, IN_MEMORY, rows=1)  # which imports what it needs
    found, peak = run(case, memory)
    expected, peak_in_memory = run(case, IN_MEMORY)
    assert (found.rows, found.hashes) == (expected.rows, expected.hashes)
    assert found.rows > 0
    assert 3 * peak < peak_in_memory, (peak, peak_in_memory)
