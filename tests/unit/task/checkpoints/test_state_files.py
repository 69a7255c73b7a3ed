"""State that is written, cut for another parallelism and read: nothing lost, nothing doubled."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.common.checkpoints.metadata import (
    CheckpointedOperator,
    decode_snapshots,
    encode_snapshots,
)
from firesteel.common.checkpoints.state import OperatorSnapshot, inline_bytes
from firesteel.common.checkpoints.storage import CheckpointStorage, StorageError
from firesteel.common.ids import OperatorId
from firesteel.common.key_groups import key_group, key_group_range
from firesteel.errors import FiresteelError
from jobmaster.core.checkpoints.restore import assign
from taskexecutor.executor.state import (
    HashMapKeyedStateBackend,
    RestoredOperatorState,
    TaskOperatorState,
    files,
)
from taskexecutor.executor.state.files import read_snapshot, write_snapshot
from taskexecutor.executor.state.keyed import SnapshotTarget

MAX_PARALLELISM = 16
OPERATOR = OperatorId("0" * 32)


def backend(subtask: int, parallelism: int) -> HashMapKeyedStateBackend:
    return HashMapKeyedStateBackend(
        key_group_range(subtask, parallelism, MAX_PARALLELISM),
        lambda key: key_group(key, MAX_PARALLELISM),
    )


def operator_state(
    keyed: HashMapKeyedStateBackend, restored: RestoredOperatorState | None
) -> TaskOperatorState:
    return TaskOperatorState(keyed, restored, max_parallelism=MAX_PARALLELISM)


def content(state: HashMapKeyedStateBackend, name: str) -> dict[object, object]:
    return {(entry.key, entry.namespace): entry.value for entry in state.entries(name)}


keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
parallelisms = st.integers(1, 6)


@given(
    st.dictionaries(keys, st.lists(st.integers())),
    parallelisms,
    parallelisms,
    st.sampled_from([0, 300, 2**20]),
)
def test_keyed_state_moves_with_its_keys(
    tmp_path_factory: pytest.TempPathFactory,
    values: dict[object, list[int]],
    before: int,
    after: int,
    limit_bytes: int,
) -> None:
    storage = CheckpointStorage(str(tmp_path_factory.mktemp("state")))
    written = {}
    for subtask in range(before):
        keyed = backend(subtask, before)
        for key, value in values.items():
            if key_group(key, MAX_PARALLELISM) in keyed.key_groups:
                keyed.put("s", key, value, namespace="n")
        snapshot = operator_state(keyed, None).snapshot()
        written[subtask] = write_snapshot(
            storage, f"chk-1/{subtask}", OPERATOR, snapshot, inline_bytes=limit_bytes
        )
    assert storage.files() == sorted(file.path for s in written.values() for file in s.files)
    found: dict[object, object] = {}
    for subtask, part in enumerate(assign(checkpointed(written), after)):
        keyed = backend(subtask, after)
        operator_state(keyed, read_snapshot(storage, part))
        here = content(keyed, "s")
        assert not here.keys() & found.keys()
        assert all(key_group(key[0], MAX_PARALLELISM) in keyed.key_groups for key in here)  # type: ignore[index]
        found |= here
    assert found == {(key, "n"): value for key, value in values.items()}


@pytest.mark.parametrize("savepoint", [False, True])
@pytest.mark.parametrize("limit_bytes", [0, 2**20])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 4), (2, 3), (3, 2), (4, 1)])
def test_rows_and_entries_move_with_their_keys(
    tmp_path: Path,
    before: int,
    after: int,
    limit_bytes: int,
    savepoint: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "_PIECE_BYTES", 100)  # six rows
    storage = CheckpointStorage(str(tmp_path))
    target = None if savepoint else checkpoint(storage)
    written = {}
    for subtask in range(before):
        keyed = backend(subtask, before)
        state = operator_state(keyed, None)
        own = owned(before)[subtask]
        for key in own[::3]:
            keyed.put("s", key, str(key))
        for name, rows in (("r", own), ("others", own[::2])):
            table = pa.table({"key": pa.array(rows * 2), "n": pa.array(range(2 * len(rows)))})
            state.keyed_rows(name, ["key"]).keep(lambda table=table: table)  # type: ignore[misc]
        written[subtask] = write_snapshot(
            storage,
            f"chk-1/{subtask}",
            OPERATOR,
            state.snapshot(),
            target,
            inline_bytes=limit_bytes,
        )
    assert len(storage.files()) == (0 if limit_bytes else before)
    for part in written.values():
        for handle in part.keyed:
            assert bool(handle.tables) is not savepoint
            assert len(handle.tables) != 2, "more than one piece of each state"
    counts = {"s": 0, "r": 0, "others": 0}
    for subtask, part in enumerate(assign(checkpointed(written), after)):
        keyed = backend(subtask, after)
        state = operator_state(keyed, read_snapshot(storage, part))
        counts["s"] += len(content(keyed, "s"))
        for name in ("r", "others"):
            rows = state.keyed_rows(name, ["key"]).restored()
            for key in [] if rows is None else rows["key"].to_pylist():
                assert key_group(key, MAX_PARALLELISM) in keyed.key_groups
                counts[name] += 1
    assert counts["r"] == 100
    assert counts["others"] == 2 * sum(len(own[::2]) for own in owned(before))
    assert counts["s"] == sum(len(own[::3]) for own in owned(before))


def checkpoint(storage: CheckpointStorage) -> SnapshotTarget:
    return SnapshotTarget(storage=storage, checkpoint_id=1, name="f", base=None, written=[])


def test_rows_of_a_checkpoint_stay_as_they_are(tmp_path: Path) -> None:
    storage = CheckpointStorage(str(tmp_path))
    state = operator_state(backend(1, 2), None)
    own = owned(2)[1]
    table = pa.table({"key": own * 2, "n": range(2 * len(own))})
    state.keyed_rows("r", ["key"]).keep(lambda: table)
    written = write_snapshot(storage, "f", OPERATOR, state.snapshot(), checkpoint(storage))
    ((rows,),) = (handle.tables for handle in written.keyed)
    assert rows.key_groups == key_group_range(1, 2, MAX_PARALLELISM)
    assert written.size_bytes == rows.size_bytes == written.files[0].size_bytes
    again = operator_state(backend(1, 2), read_snapshot(storage, written))
    assert again.keyed_rows("r", ["key"]).restored() == table


def test_rows_that_are_not_of_their_key_groups_are_refused(tmp_path: Path) -> None:
    """They would be lost with another parallelism."""
    storage = CheckpointStorage(str(tmp_path))
    state = operator_state(backend(1, 2), None)
    table = pa.table({"key": range(50)})
    state.keyed_rows("r", ["key"]).keep(lambda: table)
    written = write_snapshot(storage, "f", OPERATOR, state.snapshot(), checkpoint(storage))
    again = operator_state(backend(2, 3), read_snapshot(storage, written))
    with pytest.raises(
        StorageError, match=r"the restored r .* groups 8 to 15, but .* groups 0 to 15"
    ):
        again.keyed_rows("r", ["key"]).restored()


def owned(parallelism: int) -> list[list[int]]:
    """Which of the keys 0 to 49 each subtask has."""
    return [
        [key for key in range(50) if key_group(key, MAX_PARALLELISM) in of]
        for of in (
            key_group_range(subtask, parallelism, MAX_PARALLELISM) for subtask in range(parallelism)
        )
    ]


def checkpointed(written: dict[int, OperatorSnapshot]) -> CheckpointedOperator:
    return CheckpointedOperator(
        operator_id=OPERATOR,
        uid="",
        name="a",
        parallelism=len(written),
        max_parallelism=MAX_PARALLELISM,
        subtasks=written,
    )


def test_small_keyed_state_needs_no_file(tmp_path: Path) -> None:
    storage = CheckpointStorage(str(tmp_path))
    keyed = backend(0, 1)
    for key in range(100):
        keyed.put("s", key, key)

    def write(limit_bytes: int) -> OperatorSnapshot:
        snapshot = operator_state(keyed, None).snapshot()
        written = write_snapshot(storage, "f", OPERATOR, snapshot, inline_bytes=limit_bytes)
        snapshot.keyed.release()
        return written

    small = write(2**20)
    assert storage.files() == []
    assert small.files == ()
    assert not small.empty
    assert small.size_bytes == len(small.inline[0].content)
    assert write(small.size_bytes) == small
    assert decode_snapshots(encode_snapshots((small,))) == (small,)
    operator_state(restored := backend(0, 1), read_snapshot(storage, small))
    assert content(restored, "s") == content(keyed, "s")
    filed = write(small.size_bytes - 1)
    assert not filed.inline, "one byte too much"
    assert [file.path for file in filed.files] == storage.files() == ["f"]
    assert filed == write(0)
    keyed.put("s", "large", "x" * 2**20)
    assert write(2**20).files, "a single value is too large"


def test_state_in_columns_takes_less_without_a_file(tmp_path: Path) -> None:
    """The schema is there once, not once per key group."""
    storage = CheckpointStorage(str(tmp_path))
    state = operator_state(backend(0, 1), None)
    table = pa.table({"key": pa.array(range(50)), "n": pa.array(range(50))})

    def write(limit_bytes: int) -> OperatorSnapshot:
        state.keyed_rows("r", ["key"]).keep(lambda: table)
        return write_snapshot(storage, "f", OPERATOR, state.snapshot(), inline_bytes=limit_bytes)

    assert write(2**20).size_bytes < write(0).size_bytes / 4


@pytest.mark.parametrize(
    ("threshold_bytes", "parallelism", "expected"),
    [(20_480, 1, 20_480), (20_480, 51, 20_480), (20_480, 52, 20_164), (20_480, 2**15, 32)],
)
def test_an_operator_with_many_subtasks_has_less_state_without_files(
    threshold_bytes: int, parallelism: int, expected: int
) -> None:
    assert inline_bytes(threshold_bytes, parallelism) == expected
    assert expected * parallelism <= 2**20


def test_operator_state_is_read_as_it_was(tmp_path: Path) -> None:
    state = operator_state(backend(0, 1), None)
    state.list_state("l").extend([1, {"a": 2}])
    state.union_list_state("u").append((3,))
    state.broadcast_state("b")["k"] = "v"
    state.list_state("empty")
    storage = CheckpointStorage(str(tmp_path))
    written = write_snapshot(storage, "f", OPERATOR, state.snapshot())
    assert storage.files() == [], "there is no keyed state"
    restored = operator_state(backend(0, 1), read_snapshot(storage, written))
    assert restored.list_state("l") == [1, {"a": 2}]
    assert restored.union_list_state("u") == [(3,)]
    assert restored.broadcast_state("b") == {"k": "v"}
    assert restored.list_state("empty") == []


def test_a_snapshot_is_what_was_when_it_was_taken(tmp_path: Path) -> None:
    keyed = backend(0, 1)
    keyed.put("s", 1, "before")
    keyed.put("s", 2, "removed later")
    snapshot = operator_state(keyed, None).snapshot()
    keyed.put("s", 1, "after")
    keyed.remove("s", 2)
    keyed.put("s", 3, "new")
    storage = CheckpointStorage(str(tmp_path))
    restored = backend(0, 1)
    written = write_snapshot(storage, "f", OPERATOR, snapshot)
    operator_state(restored, read_snapshot(storage, written))
    assert content(restored, "s") == {(1, None): "before", (2, None): "removed later"}


def test_a_value_that_cannot_be_pickled_is_named_and_leaves_no_file(tmp_path: Path) -> None:
    storage = CheckpointStorage(str(tmp_path))
    keyed = backend(0, 1)
    keyed.put("lock", "k", threading.Lock())
    with pytest.raises(FiresteelError, match=r"the state 'lock' of key 'k' has a value that cann"):
        write_snapshot(storage, "f", OPERATOR, operator_state(keyed, None).snapshot())
    assert storage.files() == []


def test_a_damaged_slice_is_never_restored(tmp_path: Path) -> None:
    storage = CheckpointStorage(str(tmp_path))
    keyed = backend(0, 1)
    for key in range(100):
        keyed.put("s", key, key)
    written = write_snapshot(storage, "f", OPERATOR, operator_state(keyed, None).snapshot())
    path = tmp_path / "f"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(StorageError, match="the file f of .* is damaged"):
        operator_state(backend(0, 1), read_snapshot(storage, written))
