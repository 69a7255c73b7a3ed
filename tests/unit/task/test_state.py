"""Key groups and the hashmap backend."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.common.key_groups import key_group
from taskexecutor.executor.exchange.partitioning.routing import groups_of_subtask, key_groups
from taskexecutor.executor.state import (
    HashMapKeyedStateBackend,
    KeyedStateEntry,
    KeyGroupRange,
    RestoredOperatorState,
    TaskOperatorState,
    key_group_range,
)

VALUES: list[tuple[Any, pa.DataType]] = [
    (0, pa.int64()),
    (-7, pa.int32()),
    (2**63 - 1, pa.int64()),
    (2**64 - 1, pa.uint64()),
    (True, pa.bool_()),
    (False, pa.bool_()),
    (1.5, pa.float64()),
    (-0.0, pa.float64()),
    (float("nan"), pa.float64()),
    ("Zürich", pa.string()),
    ("", pa.string()),
    (b"\x00\xff", pa.binary()),
    (None, pa.string()),
    (datetime.date(1969, 12, 31), pa.date32()),
    (datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.UTC), pa.timestamp("us", "UTC")),
    (datetime.datetime(1950, 6, 1, 1, 2, 3, 4), pa.timestamp("us")),
    (datetime.time(23, 59, 59, 999_999), pa.time64("us")),
    (datetime.timedelta(days=-1, microseconds=3), pa.duration("us")),
    (decimal.Decimal("1.50"), pa.decimal128(10, 2)),
    (decimal.Decimal("0.00"), pa.decimal128(10, 2)),
]


@pytest.mark.parametrize(("value", "kind"), VALUES)
def test_a_key_belongs_to_the_group_its_records_are_sent_to(value: Any, kind: pa.DataType) -> None:
    batch = pa.record_batch({"k": pa.array([value], kind)})
    assert key_group(value, 128) == key_groups(batch, ["k"], 128)[0]
    assert key_group((value,), 128) == key_groups(batch, ["k"], 128)[0]


@given(st.text(), st.integers(-(2**63), 2**63 - 1), st.floats(width=64))
def test_composite_keys_agree_with_the_exchange(text: str, number: int, real: float) -> None:
    batch = pa.record_batch({"a": pa.array([text]), "b": pa.array([number]), "c": pa.array([real])})
    assert key_group((text, number, real), 1000) == key_groups(batch, ["a", "b", "c"], 1000)[0]


def test_a_list_cannot_be_a_key() -> None:
    with pytest.raises(TypeError, match="a list cannot be a key"):
        key_group([1], 128)


@given(st.integers(1, 40), st.integers(0, 100))
def test_every_key_group_has_exactly_one_owner(parallelism: int, more: int) -> None:
    max_parallelism = parallelism + more
    ranges = [
        key_group_range(subtask, parallelism, max_parallelism) for subtask in range(parallelism)
    ]
    assert [g for r in ranges for g in range(r.first, r.end)] == list(range(max_parallelism))
    for subtask, owned in enumerate(ranges):
        assert range(owned.first, owned.end) == groups_of_subtask(
            subtask, parallelism, max_parallelism
        )


def new_backend(groups: KeyGroupRange = KeyGroupRange(0, 8)) -> HashMapKeyedStateBackend:  # noqa: B008
    return HashMapKeyedStateBackend(groups, lambda key: key_group(key, 8))


def contents(backend_or_entries: Any) -> dict[tuple[str, Any, Any], Any]:
    return {(e.name, e.key, e.namespace): e.value for e in backend_or_entries}


def test_a_snapshot_copies_nothing_and_keeps_what_was() -> None:
    backend = new_backend()
    for key in range(100):
        backend.put("count", key, key)
    snapshot = backend.snapshot()
    assert backend.layers == 2
    backend.put("count", 1, "changed")
    backend.remove("count", 2)
    groups = list(snapshot.entries_by_key_group())
    assert [group for group, _ in groups] == sorted(group for group, _ in groups)
    assert all(key_group(entry.key, 8) == group for group, entries in groups for entry in entries)
    assert contents(entry for _, entries in groups for entry in entries) == {
        ("count", k, None): k for k in range(100)
    }
    snapshot.release()
    backend.put("count", 3, "changed")
    assert backend.layers == 1
    assert (backend.get("count", 1), backend.get("count", 2), backend.get("count", 4)) == (
        "changed",
        None,
        4,
    )


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "remove", "snapshot", "release"]), st.integers(0, 4), st.integers()
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_any_history_is_that_of_a_dictionary_and_its_copies(
    operations: list[tuple[str, int, int]],
) -> None:
    backend, model = new_backend(), {}
    snapshots: list[tuple[Any, dict[Any, Any]]] = []
    for operation, key, value in operations:
        match operation:
            case "put":
                backend.put("s", key, value)
                model[("s", key, None)] = value
            case "remove":
                backend.remove("s", key)
                model.pop(("s", key, None), None)
            case "snapshot":
                snapshots.append((backend.snapshot(), dict(model)))
            case "release" if snapshots:
                snapshots.pop(key % len(snapshots))[0].release()
        assert contents(backend.entries("s")) == model
        assert {k: backend.get("s", k[1]) for k in model} == model
        for snapshot, then in snapshots:
            assert (
                contents(e for _, entries in snapshot.entries_by_key_group() for e in entries)
                == then
            )


def test_operator_state_is_restored_and_snapshotted() -> None:
    restored = RestoredOperatorState(
        keyed=[KeyedStateEntry("count", "a", None, 7)],
        lists={"offsets": [1]},
        union_lists={"all": [1, 2]},
        broadcasts={"rules": {"x": 1}},
    )
    state = TaskOperatorState(new_backend(), restored, max_parallelism=128)
    assert state.restored
    assert state.keyed.get("count", "a") == 7
    state.list_state("offsets").append(2)
    state.broadcast_state("rules")["y"] = 2
    snapshot = state.snapshot()
    state.list_state("offsets").append(3)
    assert snapshot.lists == {"offsets": [1, 2]}
    assert snapshot.union_lists == {"all": [1, 2]}
    assert snapshot.broadcasts == {"rules": {"x": 1, "y": 2}}
    first = TaskOperatorState(new_backend(), None, max_parallelism=128)
    assert not first.restored
    assert first.union_list_state("all") == []
