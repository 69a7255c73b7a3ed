"""Databases of the `rocksdb` backend when the parallelism changes, and tables on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from firesteel.common.checkpoints.key_group_content import EVENT_TIME_TIMERS
from firesteel.common.checkpoints.state import DatabaseHandle
from firesteel.common.checkpoints.storage import CheckpointStorage, StorageError
from firesteel.common.key_groups import KeyGroupRange, key_group, key_group_range
from taskexecutor.executor.state import StateBackends
from taskexecutor.executor.state.keyed import RestoredDatabase, SnapshotTarget
from taskexecutor.executor.state.rocksdb import (
    LocalTables,
    RocksDbKeyedStateBackend,
    RocksDbMemory,
)
from taskexecutor.executor.timing.timers import Timer
from tests.backends import databases

GROUPS, KEYS = 16, 2_000
Handles = tuple[DatabaseHandle, ...]


def group_of(key: Any) -> int:
    return key_group(key, GROUPS)


@pytest.fixture
def folder() -> Iterator[Path]:
    with databases() as found:
        yield found


@pytest.fixture
def storage(folder: Path) -> CheckpointStorage:
    return CheckpointStorage(str(folder / "checkpoints"))


def subtask(
    folder: Path, number: int = 0, parallelism: int = 1, local: LocalTables | None = None
) -> RocksDbKeyedStateBackend:
    memory = RocksDbMemory(8 << 20)
    memory.layer_bytes = 10_000
    return RocksDbKeyedStateBackend(
        key_group_range(number, parallelism, GROUPS),
        group_of,
        memory=memory,
        local_tables=local,
        new_directory=lambda: Path(tempfile.mkdtemp(dir=folder)),
    )


def checkpoint(
    backend: RocksDbKeyedStateBackend,
    storage: CheckpointStorage,
    number: int,
    name: str = "task",
    base: int = 0,
) -> Handles:
    target = SnapshotTarget(storage=storage, checkpoint_id=number, name=name, base=base, written=[])
    snapshot = backend.snapshot()
    handles = snapshot.write(target)
    snapshot.release()
    return handles


def restored(storage: CheckpointStorage, handles: Sequence[DatabaseHandle]) -> Any:
    return (), [RestoredDatabase(storage=storage, handle=handle) for handle in handles]


def values(backend: RocksDbKeyedStateBackend) -> dict[int, int]:
    return {entry.key: entry.value for entry in backend.entries("s")}


def written(folder: Path, storage: CheckpointStorage, parallelism: int) -> Handles:
    """Every key has its number as value and a timer at its number."""
    found: Handles = ()
    for number in range(parallelism):
        backend = subtask(folder, number, parallelism)
        timers = backend.timers(EVENT_TIME_TIMERS)
        for key in range(KEYS):
            if group_of(key) in backend.key_groups:
                backend.put("s", key, key)
                timers.add(Timer(key, key, None))
        found += checkpoint(backend, storage, 1, f"task-{number}")
        backend.close()
    return found


@pytest.mark.parametrize("before", [2, 3, 4, 7])  # of the last ones, some are copied
def test_one_subtask_restores_the_databases_of_several(
    before: int, folder: Path, storage: CheckpointStorage
) -> None:
    handles = written(folder, storage, before)
    backend = subtask(folder)
    backend.restore(*restored(storage, handles))
    expected = {key: key for key in range(KEYS)}
    assert values(backend) == expected
    for key in range(0, KEYS, 3):
        backend.put("s", key, -key)
        expected[key] = -key
    for key in range(0, KEYS, 5):
        backend.remove("s", key)
        del expected[key]
    assert values(backend) == expected
    assert all(backend.get("s", key) == expected.get(key) for key in range(KEYS))
    due = backend.timers(EVENT_TIME_TIMERS)
    assert [timer.key for timer in due.due(KEYS // 2)] == list(range(KEYS // 2 + 1))

    second = checkpoint(backend, storage, 2, base=1)
    assert len(second) == min(before, 4)
    ranges = [handle.key_groups for handle in second]
    assert ranges[0].first == 0 and ranges[-1].end == GROUPS
    assert [r.end for r in ranges[:-1]] == [r.first for r in ranges[1:]]
    adopted = {file for handle in handles for file in handle.tables}
    assert adopted & {file for handle in second for file in handle.tables}, "written once"
    assert len({file.path for h in second for file in h.files}) == sum(
        len(handle.files) for handle in second
    )
    backend.close()

    found: dict[int, int] = {}
    timed: list[int] = []
    for number in range(3):
        own = subtask(folder, number, 3)
        own.restore(
            *restored(storage, [h for h in second if h.key_groups.overlaps(own.key_groups)])
        )
        assert not found.keys() & values(own).keys()
        assert all(group_of(key) in own.key_groups for key in values(own))
        found |= values(own)
        timed += [timer.key for timer in own.timers(EVENT_TIME_TIMERS).due(KEYS)]
        own.close()
    assert found == expected
    assert sorted(timed) == list(range(KEYS // 2 + 1, KEYS))


def test_a_subtask_without_a_database_leaves_its_key_groups_to_the_others(
    folder: Path, storage: CheckpointStorage
) -> None:
    handles = written(folder, storage, 4)
    backend = subtask(folder)
    backend.restore(*restored(storage, [handles[1], handles[3]]))
    for key in range(KEYS):
        backend.put("s", key, key + 1)
    second = checkpoint(backend, storage, 2)
    assert [handle.key_groups for handle in second] == [
        KeyGroupRange(0, 12),
        KeyGroupRange(12, 16),
    ]
    again = subtask(folder)
    again.restore(*restored(storage, second))
    assert values(again) == {key: key + 1 for key in range(KEYS)}
    backend.close()
    again.close()


def test_entries_of_a_snapshot_are_in_the_order_of_key_groups(
    folder: Path, storage: CheckpointStorage
) -> None:
    backend = subtask(folder)
    backend.restore(*restored(storage, written(folder, storage, 3)))
    snapshot = backend.snapshot()
    backend.put("s", 0, "later")
    groups = [
        (group, {e.key: e.value for e in entries if e.name == "s"})
        for group, entries in snapshot.entries_by_key_group()
    ]
    snapshot.release()
    assert [group for group, _ in groups] == list(range(GROUPS))
    assert {k: v for _, entries in groups for k, v in entries.items()} == {
        key: key for key in range(KEYS)
    }
    backend.close()


def tables_kept(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("firesteel-tables-*/*.sst")}


def test_a_task_links_tables_that_another_process_here_keeps(
    folder: Path, storage: CheckpointStorage
) -> None:
    writer, reader, last = (LocalTables(folder) for _ in range(3))
    backend = subtask(folder, local=writer)
    for key in range(KEYS):
        backend.put("s", key, key)
    handles = checkpoint(backend, storage, 1)
    backend.close()
    storage.delete(table.file.path for table in handles[0].tables)
    again = subtask(folder, local=reader)
    again.restore(*restored(storage, handles))
    assert values(again) == {key: key for key in range(KEYS)}
    writer.close()
    third = subtask(folder, local=last)
    third.restore(*restored(storage, handles))
    assert third.get("s", 7) == 7, "the reader keeps the tables that it restored"
    reader.close()
    last.close()
    assert not tables_kept(folder)
    with pytest.raises(StorageError, match=handles[0].tables[0].file.path):
        subtask(folder).restore(*restored(storage, handles))
    again.close()
    third.close()


def test_tables_of_old_checkpoints_are_removed(folder: Path, storage: CheckpointStorage) -> None:
    local = LocalTables(folder)
    backend = subtask(folder, local=local)
    sets = []
    for number in range(1, 30):
        for key in range(0, KEYS, number):
            backend.put("s", key, number)
        (handle,) = checkpoint(backend, storage, number, base=number - 1)
        sets.append({f"{table.file.checksum}.sst" for table in handle.tables})
        assert tables_kept(folder) == set().union(*sets[-2:])
    assert len(set().union(*sets)) > len(tables_kept(folder)) + 10
    backend.close()
    local.close()
    assert not list(folder.glob("firesteel-tables-*"))


def test_a_table_of_another_size_or_behind_a_link_is_read_from_the_checkpoint(
    folder: Path, storage: CheckpointStorage
) -> None:
    local = LocalTables(folder)
    backend = subtask(folder, local=local)
    for key in range(KEYS):
        backend.put("s", key, key)
    handles = checkpoint(backend, storage, 1)
    backend.close()
    for n, path in enumerate(folder.glob("firesteel-tables-*/*.sst")):
        content = path.read_bytes()
        path.unlink()
        if n % 2:
            (folder / "elsewhere").write_bytes(content)
            path.symlink_to(folder / "elsewhere")
        else:
            path.write_bytes(content[:-1])
    again = subtask(folder, local=local)
    again.restore(*restored(storage, handles))
    assert values(again) == {key: key for key in range(KEYS)}
    again.close()
    local.close()


def test_the_tables_of_a_job_are_removed_when_it_leaves_the_slot(
    tmp_path: Path, storage: CheckpointStorage
) -> None:
    backends = StateBackends(managed_bytes=8 << 20, directory=str(tmp_path))
    backend = backends.of("rocksdb")(KeyGroupRange(0, GROUPS), group_of)
    assert isinstance(backend, RocksDbKeyedStateBackend)
    backend.put("s", 1, 1)
    checkpoint(backend, storage, 1)
    backend.close()
    assert tables_kept(tmp_path)
    backends.close()
    assert not list(tmp_path.iterdir())
