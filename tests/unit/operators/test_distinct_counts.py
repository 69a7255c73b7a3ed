"""Distinct values per key: sets of pairs, and running counts of values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.operators import RunningAggregateSpec
from firesteel.plan.aggregates.parse import parse_aggregates
from firesteel.testing import OperatorHarness
from taskexecutor.executor.columnar.grouping import pair_set
from taskexecutor.executor.columnar.grouping.distinct_counts import DISTINCT, DistinctCounts
from taskexecutor.executor.columnar.grouping.key_index import KeyIndex
from taskexecutor.executor.columnar.grouping.pair_set import PairSet
from taskexecutor.executor.operators.running_aggregate import RunningAggregate
from tests.long import fewer

PAIRS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 2**31 - 1]),
        st.integers(-3, 3) | st.sampled_from([-(2**63), 2**63 - 1]),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(st.lists(PAIRS, max_size=8), st.booleans())
def test_each_pair_is_new_once(added: list[list[tuple[int, int]]], collide: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_set, "_LEAST", 2)
        if collide:
            patch.setattr(pair_set, "_hashes", lambda first, second: first.astype(np.int64) * 0 - 1)
        pairs, expected = PairSet(), set[tuple[int, int]]()
        for bundle in added:
            first = np.array([a for a, _ in bundle], np.int64)
            second = np.array([b for _, b in bundle], np.int64)
            new = pairs.add(first, second)
            found = [pair for pair, is_new in zip(bundle, new, strict=True) if is_new]
            assert len(found) == len(set(found))
            assert set(found) == set(bundle) - expected
            expected |= set(bundle)
            assert pairs.count == len(expected)


def test_many_pairs_fill_the_table() -> None:
    chance = np.random.default_rng(1)
    pairs, expected = PairSet(), set[tuple[int, int]]()
    for _ in range(10):
        first, second = chance.integers(0, 50, 5_000), chance.integers(0, 300, 5_000)
        bundle = set(zip(first.tolist(), second.tolist(), strict=True))
        assert pairs.add(first, second).sum() == len(bundle - expected)
        expected |= bundle
    assert pairs.count == len(expected)
    assert not pairs.add(first, second).any()


VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "integers": (pa.int64(), st.integers(-2, 2) | st.sampled_from([-(2**63), 2**62])),
    "days": (pa.date32(), st.integers(0, 3)),
    "texts": (pa.string(), st.sampled_from(["", "a", "bb"])),
    "doubles": (pa.float64(), st.sampled_from([math.nan, 0.5, -1.0])),
    "structs": (pa.struct([("a", pa.int64())]), st.sampled_from([{"a": 1}, {"a": None}])),
}
KEYS = st.tuples(st.none() | st.sampled_from(["x", "y"]), st.sampled_from([0, 1, 10**12]))


@pytest.mark.parametrize("kind", VALUES)
@settings(deadline=None, max_examples=fewer(30))
@given(data=st.data())
def test_lists_become_numbers_of_new_values(kind: str, data: st.DataObject) -> None:
    arrow, values = VALUES[kind]
    row = st.tuples(KEYS, st.none() | st.lists(values, max_size=4, unique_by=repr))
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("v", pa.list_(arrow))])
    counts = DistinctCounts(("k", "n"), {"v": DISTINCT})
    seen: dict[Any, set[str]] = {}
    found: dict[Any, int] = {}
    for rows in data.draw(st.lists(st.lists(row, min_size=1, max_size=5), max_size=5)):
        batches = [
            pa.record_batch([[key[0]], [key[1]], pa.array([listed], pa.list_(arrow))], schema)
            for key, listed in rows
        ]
        replaced = counts.replaced(batches)
        for row_found in (each for batch in replaced for each in batch.to_pylist()):
            key = row_found["k"], row_found["n"]
            found[key] = found.get(key, 0) + row_found["v"]
        for key, listed in rows:
            seen.setdefault(key, set()).update(map(repr, listed or ()))
        assert found == {key: len(each) for key, each in seen.items()}


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.integers(-5, 5) | st.sampled_from([10**12, 2**62]), max_size=5, unique=True),
        max_size=8,
    )
)
def test_keys_keep_their_numbers_when_they_become_sparse(bundles: list[list[int]]) -> None:
    index, expected = KeyIndex(), dict[int, int]()
    for bundle in bundles:
        found = index.numbers([pa.array(bundle, pa.int64())]).tolist()
        assert found == [expected.setdefault(key, len(expected)) for key in bundle]
        assert index.count == len(expected)


def test_updates_count_what_each_key_has_had() -> None:
    items = parse_aggregates(["count(DISTINCT x) AS n", "count(DISTINCT x) - count(*) AS d"])
    lists = pa.list_(pa.int64())
    schema = pa.schema(
        [
            ("k", pa.string()),
            ("_p0_set", lists),
            ("_p1_set", lists),
            ("_p1_count", pa.int64()),
            ("_rows", pa.int64()),
        ]
    )
    output = pa.schema([("k", pa.string()), ("n", pa.int64()), ("d", pa.int64())])
    operator = RunningAggregate(RunningAggregateSpec(key_columns=("k",), aggregates=items))
    harness = OperatorHarness(operator, [schema], output_schema=output).open()
    for rows in ([("a", [1, 2]), ("b", [1])], [("a", [2, 3]), ("a", [3])], [("b", [])]):
        columns = [[value for _, value in rows]] * 2
        counts = [[2] * len(rows)] * 2
        harness.process(pa.record_batch([[key for key, _ in rows], *columns, *counts], schema))
        harness.flush()
    assert sorted(map(repr, harness.rows())) == sorted(
        map(
            repr,
            [
                {"k": "a", "n": 2, "d": 0},
                {"k": "b", "n": 1, "d": -1},
                {"k": "a", "n": 3, "d": -3},
                {"k": "b", "n": 1, "d": -3},
            ],
        )
    )
