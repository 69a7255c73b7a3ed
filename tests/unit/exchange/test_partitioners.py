"""Which rows go where."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.common.job_graph import Partitioner, pointwise_producers
from taskexecutor.executor.exchange.errors import UnsupportedKey
from taskexecutor.executor.exchange.partitioning.routing import (
    Routing,
    cut,
    groups_of_subtask,
    key_groups,
    make_routing,
    subtask_of_group,
)


def routing(
    partitioner: Partitioner,
    *,
    producer: int = 0,
    producers: int = 1,
    consumers: int = 3,
    keys: tuple[str, ...] = (),
    batch_rows: int = 65536,
    max_parallelism: int = 128,
) -> Routing:
    return make_routing(
        partitioner,
        producer=producer,
        producers=producers,
        consumers=consumers,
        max_parallelism=max_parallelism,
        key_columns=keys,
        batch_rows=batch_rows,
    )


def numbers(count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(count), pa.int64())})


def indices(router: Routing, batch: pa.RecordBatch) -> list[int]:
    return [index for index, _ in router.route(batch)]


def test_forward_hands_the_batch_itself_to_its_only_target() -> None:
    batch = numbers(5)
    forward = routing(Partitioner.FORWARD, producer=2, producers=3, consumers=3)
    assert forward.targets == (2,)
    ((index, piece),) = forward.route(batch)
    assert index == 0
    assert piece is batch


def test_rebalance_rotates_by_batch_and_producers_start_apart() -> None:
    first, second = (routing(Partitioner.REBALANCE, producer=p, producers=2) for p in (0, 1))
    assert [indices(first, numbers(1))[0] for _ in range(5)] == [0, 1, 2, 0, 1]
    assert [indices(second, numbers(1))[0] for _ in range(3)] == [1, 2, 0]


def test_rebalance_splits_a_large_batch_over_all_targets() -> None:
    router = routing(Partitioner.REBALANCE, batch_rows=4000)
    pieces = list(router.route(numbers(4001)))
    assert [(index, piece.num_rows) for index, piece in pieces] == [(0, 1333), (1, 1334), (2, 1334)]
    assert pa.concat_batches([piece for _, piece in pieces]).equals(numbers(4001))


@given(st.integers(1, 9), st.integers(1, 9))
def test_rescale_targets_are_the_gates_producers(producers: int, consumers: int) -> None:
    for producer in range(producers):
        targets = routing(
            Partitioner.RESCALE, producer=producer, producers=producers, consumers=consumers
        ).targets
        assert list(targets) == [
            c for c in range(consumers) if producer in pointwise_producers(c, producers, consumers)
        ]


def test_broadcast_gives_everybody_everything() -> None:
    router = routing(Partitioner.BROADCAST, batch_rows=3)
    pieces = list(router.route(numbers(5)))
    for target in range(3):
        assert pa.concat_batches([piece for index, piece in pieces if index == target]).equals(
            numbers(5)
        )


def test_an_edge_for_watermarks_reaches_everybody_with_no_rows() -> None:
    router = routing(Partitioner.WATERMARKS)
    assert (router.targets, list(router.route(numbers(5)))) == ((0, 1, 2), [])


@given(st.lists(st.integers(-50, 50), max_size=200), st.integers(1, 130), st.integers(1, 40))
def test_hash_sends_each_row_once_to_its_groups_owner_in_order(
    keys: list[int], consumers: int, batch_rows: int
) -> None:
    batch = pa.record_batch(
        {"k": pa.array(keys, pa.int64()), "i": pa.array(range(len(keys)), pa.int64())}
    )
    router = routing(
        Partitioner.HASH,
        consumers=consumers,
        keys=("k",),
        batch_rows=batch_rows,
        max_parallelism=130,
    )
    owners = subtask_of_group(key_groups(batch, ("k",), 130), consumers, 130).tolist()
    rows: dict[int, list[int]] = {}
    for index, piece in router.route(batch):
        assert piece.num_rows <= batch_rows
        rows.setdefault(index, []).extend(piece.column("i").to_pylist())
    expected = {owner: [i for i, o in enumerate(owners) if o == owner] for owner in owners}
    assert {index: got for index, got in rows.items() if got} == expected


def test_hash_does_not_copy_when_all_rows_go_to_one_consumer() -> None:
    batch = pa.record_batch({"k": ["EWR"] * 10})
    ((_, piece),) = routing(Partitioner.HASH, keys=("k",)).route(batch)
    assert piece is batch
    ((_, piece),) = routing(Partitioner.HASH, keys=("k",), consumers=1).route(batch)
    assert piece is batch


def test_hash_moves_rows_of_any_type() -> None:
    batch = pa.record_batch(
        {
            "k": pa.array(range(100)),
            "dictionary": pa.array(["a", None, "b", "a"] * 25).dictionary_encode(),
            "nested": pa.array([{"x": [i, None], "y": {"z": str(i)}} for i in range(100)]),
            "map": pa.array([[(str(i), i)] for i in range(100)], pa.map_(pa.string(), pa.int64())),
        }
    )
    pieces = [piece for _, piece in routing(Partitioner.HASH, keys=("k",)).route(batch)]
    assert len(pieces) == 3
    rows = sorted((row for piece in pieces for row in piece.to_pylist()), key=lambda row: row["k"])
    assert rows == batch.to_pylist()


def test_golden_subtasks_never_change() -> None:
    batch = pa.record_batch({"k": ["EWR", "JFK", "LGA", None]})
    groups = key_groups(batch, ("k",), 128)
    assert groups.tolist() == GOLDEN_GROUPS
    assert subtask_of_group(groups, 4, 128).tolist() == [
        group * 4 // 128 for group in GOLDEN_GROUPS
    ]


GOLDEN_GROUPS = [40, 104, 67, 0]


@given(st.integers(1, 300), st.data())
def test_groups_of_subtask_is_the_inverse(max_parallelism: int, data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, max_parallelism))
    owners = subtask_of_group(np.arange(max_parallelism), parallelism, max_parallelism)
    for subtask in range(parallelism):
        assert (
            list(groups_of_subtask(subtask, parallelism, max_parallelism))
            == np.flatnonzero(owners == subtask).tolist()
        )


def test_an_unknown_or_unhashable_key_is_a_clear_error() -> None:
    batch = pa.record_batch({"a": [1], "b": pa.array([[]], pa.map_(pa.string(), pa.int32()))})
    with pytest.raises(UnsupportedKey, match="no single key column 'orgin'; the columns are a, b"):
        key_groups(batch, ("orgin",), 128)
    with pytest.raises(UnsupportedKey, match=r"key column b: a column of type map"):
        key_groups(batch, ("b",), 128)
    with pytest.raises(UnsupportedKey, match="at least one key column"):
        routing(Partitioner.HASH)


@given(st.integers(0, 1000), st.integers(1, 300))
def test_cut_keeps_everything_and_the_limit(rows: int, batch_rows: int) -> None:
    pieces = list(cut(numbers(rows), batch_rows))
    assert all(piece.num_rows <= batch_rows for piece in pieces)
    assert pa.concat_batches(pieces).equals(numbers(rows))


@pytest.mark.parametrize(
    "partitioner", [each for each in Partitioner if each is not Partitioner.WATERMARKS]
)
def test_an_empty_batch_and_one_without_columns_are_routed(partitioner: Partitioner) -> None:
    router = routing(partitioner, keys=("n",))
    assert next(router.route(numbers(0)))[1].num_rows == 0
    if partitioner is not Partitioner.HASH:
        assert next(router.route(numbers(3).select([])))[1].num_rows == 3
