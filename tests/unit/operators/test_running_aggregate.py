"""Running aggregation and its parts: groups, merged partials, their log."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.errors import FiresteelError
from firesteel.operators import RunningAggregateSpec
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness
from taskexecutor.executor.column_memory import IN_MEMORY
from taskexecutor.executor.columnar.grouping import key_index, keyed_partials
from taskexecutor.executor.columnar.grouping.dense_partials import DensePartials
from taskexecutor.executor.columnar.grouping.grouping import group, members
from taskexecutor.executor.columnar.grouping.keyed_partials import KeyedPartials
from taskexecutor.executor.columnar.grouping.merging import merge_partials
from taskexecutor.executor.columnar.grouping.row_log import RowLog, chosen
from taskexecutor.executor.operators.running_aggregate import RunningAggregate
from tests.long import fewer

DIGITS_38 = pa.array([9 * Decimal(10) ** 37], pa.decimal128(38, 0))
MERGES = {"s": "sum", "d": "sum", "top": "max", "_rows": "sum"}


def partials(kind: pa.DataType, rows: list[tuple[Any, int | None]]) -> pa.Table:
    schema = pa.schema(
        [
            ("k", kind),
            ("s", pa.int64()),
            ("d", pa.float64()),
            ("top", pa.int64()),
            ("_rows", pa.int64()),
        ]
    )
    columns = {
        "k": [k for k, _ in rows],
        "s": [x for _, x in rows],
        "d": [None if x is None else float(x) for _, x in rows],
        "top": [x for _, x in rows],
        "_rows": [1] * len(rows),
    }
    return pa.table(columns, schema=schema)


KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "dense": (pa.int64(), st.integers(-5, 30)),
    "sparse": (pa.int64(), st.sampled_from([-(2**62), 0, 5, 2**62, 10**12])),
    "nulls": (pa.int32(), st.none() | st.integers(0, 5)),
    "text": (pa.string(), st.none() | st.sampled_from(["", "a", "bb"])),
    "double": (pa.float64(), st.sampled_from([math.nan, 0.5, -1.0]) | st.none()),
    "nested": (pa.list_(pa.int64()), st.sampled_from([None, [], [1], [1, None]])),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=fewer(40))
@given(data=st.data())
def test_a_log_of_partials_holds_what_a_dictionary_would(kind: str, data: st.DataObject) -> None:
    arrow, keys = KINDS[kind]
    rows = st.lists(st.tuples(keys, st.none() | st.integers(-9, 9)), min_size=1, max_size=8)
    state = KeyedPartials(("k",), MERGES)
    expected: dict[str, list[int | None]] = {}
    for bundle in data.draw(st.lists(rows, max_size=8)):
        changed = state.add(partials(arrow, bundle))
        for key, x in bundle:
            expected.setdefault(repr(key), []).append(x)
        assert sorted(repr(row["k"]) for row in changed.to_pylist()) == sorted(
            {repr(key) for key, _ in bundle}
        )
        check(changed.to_pylist(), {repr(k): expected[repr(k)] for k, _ in bundle})
    if expected:
        check(state.rows().to_pylist(), expected)


def check(rows: list[dict[str, Any]], expected: dict[str, list[int | None]]) -> None:
    found = {repr(row["k"]): (row["s"], row["d"], row["top"], row["_rows"]) for row in rows}
    for key, values in expected.items():
        present = [x for x in values if x is not None]
        total = sum(present) if present else None
        assert found[key] == (total, total, max(present, default=None), len(values))


DENSE = {
    "int64": pa.int64(),
    "int16": pa.int16(),
    "date": pa.date32(),
    "time": pa.timestamp("us", "UTC"),
}


@pytest.mark.parametrize("kind", DENSE)
@settings(max_examples=fewer(40))
@given(
    st.lists(
        st.lists(st.tuples(st.integers(-20, 20), st.integers(-9, 9)), min_size=1, max_size=8),
        max_size=8,
    )
)
def test_dense_keys_are_places_in_arrays(kind: str, bundles: list[list[tuple[int, int]]]) -> None:
    state, log = DensePartials(("k",), MERGES), KeyedPartials(("k",), MERGES)
    for bundle in bundles:
        table = partials(pa.int64(), bundle)
        if kind != "int64":
            keys = table["k"].combine_chunks().cast(pa.int32() if kind == "date" else pa.int64())
            table = table.set_column(
                0, "k", keys.cast(DENSE[kind]) if kind == "int16" else keys.view(DENSE[kind])
            )
        changed = state.add(table.to_batches(max_chunksize=3))
        assert changed is not None
        by_key = [("k", "ascending")]
        assert changed.sort_by(by_key).equals(log.add(table).sort_by(by_key))
        assert state.rows().sort_by(by_key).equals(log.rows().sort_by(by_key))
        assert state.keys == log.keys


@pytest.mark.parametrize(
    "rows",
    [[(None, 1)], [(5, None)], [(10**9, 1)], [(5, 2**62)]],
    ids=["null key", "null sum", "far away", "large sum"],
)
def test_sparse_updates_continue_in_the_log(rows: list[tuple[int | None, int | None]]) -> None:
    items = parse_aggregates(["sum(x) AS s"])
    schema = pa.schema([("k", pa.int64()), ("_p0_sum", pa.int64()), ("_rows", pa.int64())])
    operator = RunningAggregate(RunningAggregateSpec(key_columns=("k",), aggregates=items))
    harness = OperatorHarness(
        operator, [schema], output_schema=pa.schema([("k", pa.int64()), ("s", pa.int64())])
    ).open()
    for bundle in ([(5, 1), (6, 2)], rows, [(5, 10)]):
        harness.process(
            pa.record_batch(
                [[k for k, _ in bundle], [x for _, x in bundle], [1] * len(bundle)], schema=schema
            )
        )
        harness.flush()
    latest = {row["k"]: row["s"] for row in harness.rows()}
    added = dict(rows)
    assert latest == {5: 11 + (added.pop(5, None) or 0), 6: 2, **added}
    assert isinstance(operator._state, KeyedPartials)


@pytest.mark.parametrize("kind", [key_index.HashIndex, lambda: key_index.PairIndex(IN_MEMORY)])
@given(
    st.lists(
        st.sets(
            st.tuples(
                st.none() | st.integers(0, 60) | st.sampled_from([2**63 - 1, -(2**63)]),
                st.sampled_from(["x", "y", None]),
            )
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_keys_keep_their_numbers(
    kind: Callable[[], key_index.HashIndex | key_index.PairIndex],
    bundles: list[set[tuple[int | None, str | None]]],
    few: bool,
) -> None:
    before, key_index._FEW = key_index._FEW, 0 if few else 8
    try:
        index = kind()
        expected: dict[tuple[int | None, str | None], int] = {}
        for bundle in map(list, bundles):
            if not bundle:
                continue
            columns = [
                pa.array([a for a, _ in bundle], pa.int64()),
                pa.array([b for _, b in bundle], pa.string()),
            ]
            found = index.numbers(columns).tolist()
            assert found == [expected.setdefault(key, len(expected)) for key in bundle]
            assert index.count == len(expected)
        columns = index.frozen()() or [[], []]
        assert [(a.as_py(), b.as_py()) for a, b in zip(*columns, strict=True)] == list(expected)
    finally:
        key_index._FEW = before


@pytest.mark.parametrize("left", [0, 16])
@given(st.lists(st.integers(1, 9) | st.just(100), max_size=60))
def test_a_log_has_its_rows_in_few_pieces(left: int, sizes: list[int]) -> None:
    log = RowLog(left)
    numbers = pa.array(range(sum(sizes)))
    for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
        before = log.pieces
        log.add(pa.record_batch([numbers.slice(start, size)], ["n"]))
        assert len(log.pieces) <= left + 1 + math.log2(start + size)
        assert len(before) >= left or log.pieces[: len(before)] == before
    found = [piece.column(0) for piece in log.pieces]
    assert pa.chunked_array(found, numbers.type) == pa.chunked_array([numbers])


@given(st.lists(st.integers(1, 9), max_size=20), st.data())
def test_chosen_rows_are_in_their_order(sizes: list[int], data: st.DataObject) -> None:
    numbers = pa.array(range(sum(sizes)))
    pieces = [
        pa.record_batch([numbers.slice(start, size)], ["n"])
        for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False)
    ]
    places = data.draw(st.permutations(range(sum(sizes))))[: data.draw(st.integers(0, sum(sizes)))]
    found = chosen(pieces, np.array(places, np.int64))
    assert all(batch.num_rows for batch in found)
    assert [n for batch in found for n in batch.column(0).to_pylist()] == sorted(places)


def test_the_log_is_rewritten_when_most_of_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_partials, "LOG_ROWS", 10)
    state = KeyedPartials(("k",), MERGES)
    for _ in range(50):
        state.add(partials(pa.int64(), [(k, 1) for k in range(7)]))
    assert state._log_rows <= 2 * 7 + 10 + 7
    assert sorted(row["s"] for row in state.rows().to_pylist()) == [50] * 7


def test_keys_may_become_sparse() -> None:
    state = KeyedPartials(("k",), MERGES)
    for key in [5, 7, 6, 10**15, 5, None, 8, None, 10**15]:
        state.add(partials(pa.int64(), [(key, 1)]))
    assert {row["k"]: row["s"] for row in state.rows().to_pylist()} == {
        5: 2,
        7: 1,
        6: 1,
        10**15: 2,
        None: 2,
        8: 1,
    }


def test_changed_keys_are_emitted_once_per_flush() -> None:
    items = parse_aggregates(["sum(x) AS s", "avg(x) AS a"])
    schema = pa.schema(
        [
            ("k", pa.int64()),
            ("_p0_sum", pa.int64()),
            ("_p1_sum", pa.int64()),
            ("_p1_count", pa.int64()),
            ("_rows", pa.int64()),
        ]
    )
    output = pa.schema([("k", pa.int64()), ("s", pa.int64()), ("a", pa.float64())])
    operator = RunningAggregate(RunningAggregateSpec(key_columns=("k",), aggregates=items))
    harness = OperatorHarness(operator, [schema], output_schema=output).open()

    def rows(*rows: tuple[int, int]) -> pa.RecordBatch:
        return pa.record_batch(
            [[k for k, _ in rows], *[[x for _, x in rows]] * 2, *[[1] * len(rows)] * 2],
            schema=schema,
        )

    harness.process(rows((1, 10), (2, 20)))
    harness.process(rows((1, 5)))
    assert harness.rows() == []
    harness.flush()
    assert sorted(row["s"] for row in harness.rows()) == [15, 20]
    harness.process(rows((2, 1)))
    harness.watermark(7)
    assert harness.rows()[2:] == [{"k": 2, "s": 21, "a": 10.5}]
    harness.process(rows((3, 1)))
    harness.end()
    assert harness.rows()[3:] == [{"k": 3, "s": 1, "a": 1.0}]


@given(
    st.lists(
        st.tuples(st.none() | st.sampled_from(["a", "b"]), st.none() | st.integers(-3, 3)),
        max_size=20,
    )
)
def test_groups_of_several_columns_are_those_of_their_tuples(
    rows: list[tuple[str | None, int | None]],
) -> None:
    if not rows:
        return
    columns = [
        pa.array([a for a, _ in rows], pa.string()),
        pa.array([b for _, b in rows], pa.int32()),
    ]
    groups = group(columns)
    codes = groups.codes.tolist()
    assert groups.count == len(set(rows)) == len(set(codes))
    assert len(set(zip(rows, codes, strict=True))) == groups.count
    assert [rows[i] for i in groups.first_rows()] == [
        rows[codes.index(code)] for code in range(groups.count)
    ]
    assert members(columns, [c.slice(0, 1) for c in columns]).tolist() == [
        row == rows[0] for row in rows
    ]


def test_sums_beyond_bigint_fail_loudly() -> None:
    table = pa.table({"k": [1, 1, 2], "s": [2**62, 2**62, 5], "_rows": [1, 1, 1]})
    with pytest.raises(FiresteelError, match="out of the range of BIGINT"):
        merge_partials(table, ["k"], {"s": "sum", "_rows": "sum"})
    whole = merge_partials(
        pa.table({"k": [1, 1], "s": [2**62, -(2**62)], "_rows": [1, 1]}),
        ["k"],
        {"s": "sum", "_rows": "sum"},
    )
    assert whole.column("s").to_pylist() == [0]


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (pa.array([-(2**63)]), pa.array([-1]), "out of the range of BIGINT"),
        (pa.array([-1]), pa.array([-(2**63)]), "out of the range of BIGINT"),
        (DIGITS_38, DIGITS_38, r"out of the range of DECIMAL\(38, 0\)"),
        (
            *(pa.array([Decimal(n)], pa.decimal128(3, 1)) for n in ("99.9", "0.1")),
            r"DECIMAL\(3, 1\)",
        ),
    ],
    ids=["least integer", "least integer last", "38 digits", "3 digits"],
)
def test_no_sum_wraps_around(first: pa.Array, second: pa.Array, error: str) -> None:
    state = KeyedPartials(("k",), {"s": "sum"})
    state.add(pa.table({"k": ["a"], "s": first}))
    with pytest.raises(FiresteelError, match=error):
        state.add(pa.table({"k": ["a"], "s": second}))
    with pytest.raises(FiresteelError, match=error):
        merge_partials(
            pa.table({"k": ["a", "a"], "s": pa.concat_arrays([first, second])}), ["k"], {"s": "sum"}
        )


def test_sums_of_decimals_have_all_their_digits() -> None:
    state = KeyedPartials(("k",), {"s": "sum"})
    for sign in (1, 1, -1):
        some = pa.array([sign * 4 * Decimal(10) ** 37, None], pa.decimal128(38, 0))
        rows = state.add(pa.table({"k": ["a", "b"], "s": some}))
    assert rows.column("s").to_pylist() == [4 * Decimal(10) ** 37, None]


def test_there_is_one_zero_and_one_nan() -> None:
    """As for Spark, whatever their bits."""
    bits = [0, 2**63, 0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000]
    doubles = np.array(bits, np.uint64).view(np.float64)
    assert group([pa.array(doubles)]).codes.tolist() == [0, 0, 1, 1, 1]
    assert group([pa.array([0.0, None, -0.0, 1.5], pa.float32())]).codes.tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize("keys", [[1, 2, 1], [10**12, None, 10**12], []])
def test_in_a_batch_each_key_has_one_row_at_the_end(keys: list[int | None]) -> None:
    (expression,) = parse_aggregates(["count(*) AS n"])
    spec = RunningAggregateSpec(key_columns=("k",), aggregates=(expression,))
    (partial,) = expression.partial
    schema = pa.schema([("k", pa.int64()), (partial, pa.int64()), ("_rows", pa.int64())])
    batch = {"execution.runtime-mode": "BATCH"}
    harness = OperatorHarness(RunningAggregate(spec), [schema], config=batch).open()
    for key in keys:
        harness.process(
            pa.RecordBatch.from_pydict({"k": [key], partial: [2], "_rows": [2]}, schema)
        )
        harness.flush()
        harness.watermark(0)
    assert not harness.rows()
    harness.finish()
    found = {row["k"]: row["n"] for row in harness.rows()}
    assert found == {key: 2 * keys.count(key) for key in keys}
    assert len(harness.rows()) == len(found)
