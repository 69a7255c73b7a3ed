"""State in columns that is larger than the memory for it: the results are those of state in memory,
and its files go when nothing needs them.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.common.process import temporary
from firesteel.errors import FiresteelError
from firesteel.operators import (
    SessionSpec,
    SlidingSpec,
    TumblingSpec,
    WindowAggregateSpec,
    WindowSpec,
)
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness, restored_from
from taskexecutor.executor import column_memory
from taskexecutor.executor.column_memory import SlotColumnMemory
from taskexecutor.executor.columnar.grouping import (
    key_index,
    keyed_partials,
    ranked_rows,
    row_log,
    value_counts,
)
from taskexecutor.executor.columnar.grouping.key_index import HashIndex, KeyIndex, TextIndex
from taskexecutor.executor.columnar.grouping.keyed_partials import KeyedPartials
from taskexecutor.executor.columnar.grouping.ranked_rows import RankedRows
from taskexecutor.executor.columnar.grouping.row_log import RowLog
from taskexecutor.executor.operators.windows import panes, window_operator
from taskexecutor.executor.state import (
    CreateKeyedState,
    HashMapKeyedStateBackend,
    RestoredOperatorState,
)
from tests.small_disk import small_disk
from tests.unit.operators import (
    test_changes_aggregated,
    test_distinct_counts,
    test_drop_duplicates,
    test_rows_between,
    test_running_aggregate,
    test_top_n,
    test_window_aggregate,
    test_windows,
)

MERGES = {"s": "sum", "_rows": "sum"}


@pytest.fixture(autouse=True)
def files_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_memory, "_SMALL_BYTES", 1)
    monkeypatch.setattr(column_memory, "_TINY_BYTES", 1)
    monkeypatch.setattr(column_memory, "_SHARED_BYTES", 65_536)
    monkeypatch.setattr(column_memory, "_PIECE_BYTES", (512, 512))
    monkeypatch.setattr(key_index, "_FEW_TEXTS", 3)


def in_files() -> SlotColumnMemory:
    """Files in memory: tests make many."""
    return SlotColumnMemory(0, temporary.SHARED_MEMORY)


def open_files() -> list[str]:
    """Without a name that are open or mapped."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in maps if line.endswith("(deleted)") and "/dev/" not in line]


def test_arrays_are_in_memory_up_to_the_budget_and_then_in_files() -> None:
    memory = SlotColumnMemory(1000)
    first = memory.full(100, 7, np.int64)
    second = memory.full(100, 8, np.int64)
    assert (memory.in_memory_bytes, memory.in_files_bytes) == (800, 800)
    assert first.tolist() == [7] * 100
    assert second.tolist() == [8] * 100
    del first
    third = memory.empty(100, np.int64)
    third[:] = 9
    assert (memory.in_memory_bytes, memory.in_files_bytes) == (800, 800)
    part = second[50:]
    del second
    assert part.tolist() == [8] * 50, "a part keeps the whole"
    assert memory.in_files_bytes == 800
    del part, third
    gc.collect()
    assert (memory.in_memory_bytes, memory.in_files_bytes) == (0, 0)


def test_files_have_no_names_and_go_with_their_arrays(tmp_path: Path) -> None:
    memory = SlotColumnMemory(0, tmp_path)
    before, descriptors = len(open_files()), len(os.listdir("/proc/self/fd"))
    array = memory.full(10_000, 1, np.int64)
    grown = memory.grown(array, 10_001)
    assert (len(grown), grown[:10_000].sum()) == (20_000, 10_000)
    assert len(open_files()) == before + 2
    assert list(tmp_path.iterdir()) == []
    del array, grown
    gc.collect()
    assert len(open_files()) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 3], pa.int32()),
        pa.array(["a", None, "ö" * 99]),
        pa.array([["a"], [], None], pa.list_(pa.string())),
        pa.array([{"a": 1}, None, {"a": None}], pa.struct([("a", pa.int64())])),
        pa.array(["x", "y", "x"]).dictionary_encode(),
        pa.array([True, None, False]),
    ],
    ids=lambda column: str(column.type),
)
def test_a_batch_in_a_file_is_the_batch(column: pa.Array) -> None:
    batch = pa.record_batch([column], pa.schema([pa.field("c", column.type, metadata={"a": "b"})]))
    for part in (batch, batch.slice(1), batch.slice(0, 0)):
        kept = in_files().kept(part)
        assert kept.equals(part, check_metadata=True)
        assert kept is not part or not part.nbytes
        kept.validate(full=True)


def test_small_batches_share_files_that_go_with_the_last_of_them(tmp_path: Path) -> None:
    memory, before = SlotColumnMemory(0, tmp_path), len(open_files())
    kept = [memory.kept(pa.record_batch([pa.array(range(n, n + 50))], ["n"])) for n in range(500)]
    assert 500 * 400 < memory.in_files_bytes < 10 * 65_536
    assert len(open_files()) - before == memory.in_files_bytes // 65_536
    for n, batch in enumerate(kept):
        assert batch.column(0).to_pylist() == list(range(n, n + 50))
    last = kept[-1]
    del kept, batch
    gc.collect()
    assert memory.in_files_bytes == 65_536
    assert last.column(0)[0].as_py() == 499


def test_the_size_in_memory_is_reported() -> None:
    sizes: list[int] = []
    memory = SlotColumnMemory(1000, changed=sizes.append)
    array = memory.empty(100, np.int64)
    del array
    assert memory.in_memory_bytes == 0
    assert sizes == [800, 0]


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        memory = SlotColumnMemory(0, disk)
        array = memory.full(4_000, 1, np.int64)
        with pytest.raises(
            FiresteelError, match=rf"state in columns in {disk}.*grow by 80000 bytes"
        ):
            memory.empty(10_000, np.int64)
        assert array.sum() == 4_000
        del array
        memory.full(5_000, 1, np.int64)


KEYS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "text": (pa.string(), lambda n: None if n == 7 else f"key {n}"),
    "bytes": (pa.binary(), lambda n: n.to_bytes(n % 3 + 1, "little")),
    "dense": (pa.int64(), lambda n: n),
    "sparse": (pa.int64(), lambda n: None if n == 7 else n * 10**12),
    "double": (pa.float64(), lambda n: None if n == 7 else n / 2),
    "float": (pa.float32(), lambda n: n / 2),
    "decimal": (pa.decimal128(9, 2), lambda n: None if n == 7 else Decimal(n) / 4),
    "long decimal": (pa.decimal128(38, 2), lambda n: Decimal(n) / 4),
}


@settings(deadline=None, max_examples=25)
@given(
    kind=st.sampled_from(list(KEYS)),
    bundles=st.lists(
        st.lists(st.tuples(st.integers(0, 60), st.integers(-9, 9)), min_size=1, max_size=40),
        max_size=12,
    ),
    collide=st.booleans(),
)
def test_partials_in_files_are_those_in_memory(
    kind: str, bundles: list[list[tuple[int, int]]], collide: bool
) -> None:
    arrow, key_of = KEYS[kind]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed_partials, "LOG_ROWS", 10)
        if collide:
            patch.setattr(
                key_index, "hash_columns", lambda columns: np.zeros(len(columns[0]), np.uint32)
            )
        memory = in_files()
        spilled, plain = KeyedPartials(("k",), MERGES, memory), KeyedPartials(("k",), MERGES)
        for bundle in bundles:
            table = pa.table(
                {
                    "k": pa.array([key_of(n) for n, _ in bundle], arrow),
                    "s": [x for _, x in bundle],
                    "_rows": [1] * len(bundle),
                }
            )
            assert rows(spilled.add(table)) == rows(plain.add(table))
        if bundles:
            assert rows(spilled.rows()) == rows(plain.rows())
            assert memory.in_files_bytes > 0
            assert memory.in_memory_bytes == 0


def rows(batch: pa.RecordBatch) -> list[str]:
    return sorted(map(repr, batch.to_pylist()))


@settings(deadline=None)
@given(st.lists(st.sets(st.none() | st.text("ab", max_size=4)), max_size=8), st.integers(1, 4))
def test_texts_of_one_hash_have_numbers_of_their_own(
    bundles: list[set[str | None]], hashes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            key_index,
            "hash_columns",
            lambda columns: np.array([len(t or "") % hashes for t in columns[0].to_pylist()]),
        )
        index, expected = TextIndex(in_files()), dict[str | None, int]()
        for bundle in map(list, bundles):
            known = index.count
            found = index.numbers([pa.array(bundle, pa.string())]).tolist()
            new = {number for number in found if number >= known}
            assert new == set(range(known, index.count))
            for text, number in zip(bundle, found, strict=True):
                assert expected.setdefault(text, number) == number
        assert len(set(expected.values())) == len(expected) == index.count
        (texts,) = index.frozen()() or [pa.array([], pa.string())]
        assert {text: n for n, text in enumerate(texts.to_pylist())} == expected


def test_texts_are_found_by_their_hashes_where_state_may_be_in_files() -> None:
    index = KeyIndex(in_files())
    assert index.numbers([pa.array(["a", "b"])]).tolist() == [0, 1]
    assert isinstance(index._index, HashIndex), "few are found faster in memory"
    assert index.numbers([pa.array(["c", "b", "a"])]).tolist() == [2, 1, 0]
    assert isinstance(index._index, TextIndex)


@given(
    bundles=st.lists(st.sets(st.none() | st.text("ab", max_size=3)), max_size=8),
    hashes=st.integers(1, 4),
    few=st.integers(0, 9),
)
def test_texts_keep_their_numbers_when_there_are_many(
    bundles: list[set[str | None]], hashes: int, few: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "_FEW_TEXTS", few)
        patch.setattr(
            key_index,
            "hash_columns",
            lambda columns: np.array([len(t or "") % hashes for t in columns[0].to_pylist()]),
        )
        index, expected = KeyIndex(in_files()), dict[str | None, int]()
        for bundle in map(list, bundles):
            found = index.numbers([pa.array(bundle, pa.string())]).tolist()
            for text, number in zip(bundle, found, strict=True):
                assert expected.setdefault(text, number) == number
        assert sorted(expected.values()) == list(range(index.count))


def test_pieces_of_a_log_stay_small() -> None:
    log, batch = RowLog(memory=in_files()), pa.record_batch([pa.array(range(8))], ["n"])
    for _ in range(100):
        log.add(batch)
    assert max(piece.nbytes for piece in log.pieces) <= 512
    assert sum(piece.num_rows for piece in log.pieces) == 800
    assert len(log.pieces) < 40


def paged() -> CreateKeyedState:
    """Returns the keyed state of batch tasks."""
    return partial(HashMapKeyedStateBackend, columns=in_files())


TIME = pa.timestamp("us", "UTC")
ITEMS = parse_aggregates(["sum(x) AS s", "count(*) AS n"])
PARTIAL = pa.schema(
    [
        ("k", pa.string()),
        ("window_start", TIME),
        ("window_end", TIME),
        *[(name, pa.int64()) for item in ITEMS for name in item.merge],
        ("_rows", pa.int64()),
    ]
)
Flow = list[list[tuple[int, int]] | int]  # keys with times, or a watermark


def batch_of(rows: list[tuple[int, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            dict.fromkeys(PARTIAL.names, 1)
            | {"k": f"key {key}", "window_start": time, "window_end": time + 1}
            for key, time in rows
        ],
        schema=PARTIAL,
    )


def results(window: WindowSpec, flow: Flow, create: CreateKeyedState, lateness: int) -> list[str]:
    """Restored in the middle."""
    spec = WindowAggregateSpec(
        key_columns=("k",), window=window, aggregates=ITEMS, allowed_lateness_us=lateness
    )

    def harness(restored: RestoredOperatorState | None = None) -> OperatorHarness:
        return OperatorHarness(
            window_operator(spec), [PARTIAL], create_keyed_state=create, restored=restored
        ).open()

    run, found = harness(), list[str]()
    for place, element in enumerate(flow):
        if place == len(flow) // 2:
            found += map(repr, run.rows())
            run = harness(restored_from(run.snapshot()))
        if isinstance(element, int):
            run.watermark(element)
        else:
            run.process(batch_of(element))
    run.end()
    return sorted([*found, *map(repr, run.rows())])


@settings(deadline=None, max_examples=25)
@given(
    window=st.sampled_from(
        [TumblingSpec(size_us=10), SlidingSpec(size_us=12, slide_us=4), SessionSpec(gap_us=3)]
    ),
    flow=st.lists(
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=60)
        | st.integers(0, 45),
        max_size=8,
    ),
    lateness=st.sampled_from([0, 5]),
)
def test_windows_in_files_are_those_in_memory(
    window: WindowSpec, flow: Flow, lateness: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panes, "COMPACT_ROWS", 20)
        spilled = results(window, flow, paged(), lateness)
    assert spilled == results(window, flow, HashMapKeyedStateBackend, lateness)


def test_a_large_window_fires_in_parts_of_its_keys() -> None:
    spec = WindowAggregateSpec(
        key_columns=("k",), window=TumblingSpec(size_us=10), aggregates=ITEMS
    )
    run = OperatorHarness(window_operator(spec), [PARTIAL], create_keyed_state=paged())
    run.open()
    run.process(batch_of([(n % 100, n % 20) for n in range(1_000)]))
    run.watermark(30)
    assert len(run.batches) > 20
    assert max(batch.num_rows for batch in run.batches) < 50
    found = run.rows()
    assert len({(row["k"], row["window_start"]) for row in found}) == len(found) == 100
    assert {row["n"] for row in found} == {10}


def test_windows_fire_as_many_at_a_time_as_are_in_memory_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a batch, all of them fire at its end."""
    monkeypatch.setattr(column_memory, "_PIECE_BYTES", (2_048, 2_048))
    spec = WindowAggregateSpec(
        key_columns=("k",), window=TumblingSpec(size_us=10), aggregates=ITEMS
    )
    run = OperatorHarness(window_operator(spec), [PARTIAL], create_keyed_state=paged()).open()
    for _ in range(3):
        run.process(batch_of([(key, time) for time in range(0, 1_000, 10) for key in range(3)]))
    run.end()
    assert 10 < len(run.batches) < 100
    found = [(row["window_start"], row["k"], row["n"]) for row in run.rows()]
    assert found == sorted(found), "in the order of time"
    assert len(found) == 300
    assert {count for *_, count in found} == {3}


def test_the_rows_of_a_key_may_be_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_log, "LARGEST_BYTES", 1)

    def ranked() -> RankedRows:
        by = [("n", True)]
        return RankedRows(["k"], 3, by, ranked=False, latest_first=False, memory=in_files())

    rows, again = ranked(), ranked()
    rows.add(pa.record_batch({"k": list("abaacbab"), "n": [8, 7, 6, 5, 4, 3, 2, 1]}))
    table = rows.frozen()()
    assert table is not None
    again.restore(pa.Table.from_batches([table.slice(n, 1).to_batches()[0] for n in range(7)]))
    assert again.frozen()() == table
    assert table["n"].to_pylist() == [2, 5, 6, 1, 3, 7, 4]


ORACLES = [
    test_changes_aggregated.test_a_batch_has_one_row_per_key,
    test_changes_aggregated.test_what_is_there_is_aggregated,
    test_distinct_counts.test_updates_count_what_each_key_has_had,
    test_drop_duplicates.test_what_is_kept_is_what_an_oracle_keeps,
    test_rows_between.test_each_row_has_the_results_of_those_around_it,
    test_running_aggregate.test_keys_may_become_sparse,
    test_top_n.test_of_equal_rows_the_earlier_stays_or_the_later_comes,
    test_top_n.test_rows_that_go_make_room_for_others,
    test_top_n.test_what_is_there_is_what_is_first,
    test_window_aggregate.test_any_interleaving_equals_the_oracle,
    test_windows.test_sessions_equal_the_oracle,
    test_windows.test_settling_early_changes_nothing,
    test_windows.test_sliding_windows_equal_the_oracle,
]


@pytest.mark.parametrize("test", ORACLES, ids=lambda test: test.__name__)
def test_operators_do_the_same_with_their_state_in_files(
    test: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HashMapKeyedStateBackend, "columns", in_files())
    monkeypatch.setattr(ranked_rows, "LOG_ROWS", 4)
    monkeypatch.setattr(ranked_rows, "_KEYS", 2)
    monkeypatch.setattr(value_counts, "_LEAST_PAIRS", 2)
    monkeypatch.setattr(value_counts, "_AT_ONCE", 2)
    test()
