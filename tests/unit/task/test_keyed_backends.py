"""What both keyed state backends have to do, against a dictionary."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from firesteel.common.checkpoints.metadata import CheckpointedOperator
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.ids import OperatorId
from firesteel.common.key_groups import KeyGroupRange, key_group, key_group_range
from firesteel.errors import FiresteelError
from jobmaster.core.checkpoints.restore import assign
from taskexecutor.executor.state import (
    CreateKeyedState,
    KeyedState,
    KeyedStateEntry,
    TaskOperatorState,
)
from taskexecutor.executor.state.files import read_snapshot, write_snapshot
from taskexecutor.executor.state.rocksdb import RocksDbKeyedStateBackend
from tests.backends import BACKENDS, creator, databases

GROUPS = 8
OPERATOR = OperatorId("0" * 32)
VALUES = st.lists(st.integers(), max_size=3)


def group_of(key: Any) -> int:
    return key_group(key, GROUPS)


@pytest.fixture(params=BACKENDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def create(kind: str) -> Iterator[CreateKeyedState]:
    with databases() as folder:
        yield creator(kind, folder)


@pytest.fixture
def backend(create: CreateKeyedState) -> Iterator[KeyedState]:
    made = create(KeyGroupRange(0, GROUPS), group_of)
    yield made
    made.close()


def contents(entries: Any) -> dict[Any, Any]:
    return {(e.name, e.key, e.namespace): e.value for e in entries}


def test_state_is_kept_by_name_key_and_namespace(backend: KeyedState) -> None:
    backend.put("count", "a", 1)
    backend.put("count", "a", 2, "window")
    backend.put("sum", "a", 3)
    assert backend.get("count", "a") == 1
    assert backend.get("count", "a", "window") == 2
    assert backend.get("sum", "a") == 3
    assert backend.get("count", "b") is None
    backend.remove("count", "a")
    assert backend.get("count", "a") is None
    assert contents(backend.entries("count")) == {("count", "a", "window"): 2}


def test_restoring_takes_only_the_own_key_groups(create: CreateKeyedState) -> None:
    entries = [KeyedStateEntry("count", key, None, key) for key in range(50)]
    halves = [create(KeyGroupRange(*ends), group_of) for ends in ((0, 3), (3, GROUPS))]
    for half in halves:
        half.restore(entries)
    kept = [contents(half.entries("count")) for half in halves]
    assert kept[0].keys().isdisjoint(kept[1])
    assert len(kept[0]) + len(kept[1]) == 50
    for half in halves:
        half.close()


KEYS = [
    (1, "a"),
    (None,),
    (True, 1.5),
    (b"\x00", ""),
    (decimal.Decimal("1.50"),),
    (datetime.date(1969, 12, 31), datetime.time(23, 59)),
    (datetime.datetime(2013, 1, 1, 5, tzinfo=datetime.UTC),),
    (datetime.timedelta(days=-1),),
    "plain",
    2**80,
    ("same", "same"),
    (0.0,),
]


def test_keys_come_back_as_they_were(backend: KeyedState) -> None:
    for n, key in enumerate(KEYS):
        backend.put("s", key, n, ("window", n))
    assert contents(backend.entries("s")) == {
        ("s", key, ("window", n)): n for n, key in enumerate(KEYS)
    }
    equal = "".join(["sa", "me"])  # another object, of the same value
    assert backend.get("s", (equal, equal), ("window", KEYS.index(("same", "same")))) is not None
    assert backend.get("s", (-0.0,), ("window", KEYS.index((0.0,)))) is not None


def test_a_value_that_is_owned_is_changed_in_place_and_no_snapshot_sees_it(
    backend: KeyedState,
) -> None:
    backend.put("l", "a", [1])
    backend.put("l", "b", [1])
    before = backend.snapshot()
    for key in ("a", "b", "a"):
        kept = backend.owned("l", key, list)
        kept.append(2)
    assert backend.owned("l", "missing", list) is None
    after = backend.snapshot()
    backend.owned("l", "b", list).append(3)
    assert backend.get("l", "a") == [1, 2, 2]
    assert contents(backend.entries("l")) == {
        ("l", "a", None): [1, 2, 2],
        ("l", "b", None): [1, 2, 3],
    }
    backend.owned("l", "a", list).append(4)
    backend.remove("l", "a")
    backend.owned("l", "b", list).append(4)
    backend.put("l", "b", [9])
    assert contents(backend.entries("l")) == {("l", "b", None): [9]}
    for snapshot, a, b in ((after, [1, 2, 2], [1, 2]), (before, [1], [1])):
        found = contents(e for _, es in snapshot.entries_by_key_group() for e in es)
        assert found == {("l", "a", None): a, ("l", "b", None): b}
        snapshot.release()


class History(RuleBasedStateMachine):
    """State of an operator over its changes, snapshots, failures and parallelisms."""

    kind = ""

    @initialize(layer_bytes=st.sampled_from([0, 1_000, 1 << 20]), parallelism=st.integers(1, 3))
    def begin(self, layer_bytes: int, parallelism: int) -> None:
        self.folder = databases()
        self.path = self.folder.__enter__()
        self.storage = CheckpointStorage(str(self.path / "checkpoints"))
        self.create = creator(self.kind, self.path, layer_bytes=layer_bytes)
        self.checkpoints = 0
        self.model: dict[tuple[str, Any, Any], Any] = {}
        self.waiting: list[tuple[list[Any], dict[Any, Any]]] = []
        self.subtasks: list[KeyedState] = []
        self.start(parallelism, None)

    def start(self, parallelism: int, operator: CheckpointedOperator | None) -> None:
        self.subtasks = []
        parts = assign(operator, parallelism) if operator is not None else [None] * parallelism
        for subtask, part in enumerate(parts):
            keyed = self.create(key_group_range(subtask, parallelism, GROUPS), group_of)
            restored = None if part is None else read_snapshot(self.storage, part)
            TaskOperatorState(keyed, restored, max_parallelism=GROUPS)
            self.subtasks.append(keyed)

    def at(self, key: Any) -> KeyedState:
        return next(keyed for keyed in self.subtasks if group_of(key) in keyed.key_groups)

    names = st.sampled_from(["s", "state"])
    keys = st.sampled_from([(n,) for n in range(12)])
    namespaces = st.sampled_from([None, "w"])

    @rule(name=names, key=keys, namespace=namespaces, value=VALUES)
    def put(self, name: str, key: Any, namespace: Any, value: list[int]) -> None:
        self.at(key).put(name, key, list(value), namespace)
        self.model[name, key, namespace] = value

    @rule(name=names, key=keys, namespace=namespaces, more=VALUES)
    def grow(self, name: str, key: Any, namespace: Any, more: list[int]) -> None:
        kept = self.at(key).owned(name, key, list, namespace)
        before = self.model.get((name, key, namespace))
        assert kept == before
        if before is not None:
            kept.extend(more)
            self.model[name, key, namespace] = [*before, *more]

    @rule(name=names, key=keys, namespace=namespaces)
    def remove(self, name: str, key: Any, namespace: Any) -> None:
        self.at(key).remove(name, key, namespace)
        self.model.pop((name, key, namespace), None)

    @rule()
    def snapshot(self) -> None:
        self.waiting.append(([keyed.snapshot() for keyed in self.subtasks], dict(self.model)))

    @precondition(lambda self: self.waiting)
    @rule(written=st.booleans())
    def end_snapshot(self, written: bool) -> None:
        snapshots, then = self.waiting.pop(0)
        if written:
            found = {}
            for snapshot in snapshots:
                for group, entries in snapshot.entries_by_key_group():
                    assert all(group_of(entry.key) == group for entry in entries)
                    found |= contents(entries)
            assert found == then
        for snapshot in snapshots:
            snapshot.release()

    @rule(parallelism=st.integers(1, 3))
    def restore(self, parallelism: int) -> None:
        """A checkpoint, then a failure."""
        self.checkpoints += 1
        written = {}
        for subtask, keyed in enumerate(self.subtasks):
            snapshot = TaskOperatorState(keyed, None, max_parallelism=GROUPS).snapshot()
            path = f"chk-{self.checkpoints}/{subtask}"
            written[subtask] = write_snapshot(self.storage, path, OPERATOR, snapshot)
            snapshot.keyed.release()
        operator = CheckpointedOperator(
            operator_id=OPERATOR,
            uid="",
            name="a",
            parallelism=len(self.subtasks),
            max_parallelism=GROUPS,
            subtasks=written,
        )
        self.end()
        self.start(parallelism, operator)

    @invariant()
    def is_the_dictionary(self) -> None:
        for name in ("s", "state"):
            found: dict[Any, Any] = {}
            for keyed in self.subtasks:
                found |= contents(keyed.entries(name))
            assert found == {where: v for where, v in self.model.items() if where[0] == name}
        for (name, key, namespace), value in self.model.items():
            assert self.at(key).get(name, key, namespace) == value

    def end(self) -> None:
        for snapshots, _ in self.waiting:
            for snapshot in snapshots:
                snapshot.release()
        self.waiting = []
        for keyed in self.subtasks:
            keyed.close()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.end()
            self.folder.__exit__(None, None, None)


def test_any_history_is_that_of_a_dictionary(kind: str) -> None:
    machine = type("History", (History,), {"kind": kind})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=25, stateful_step_count=25, deadline=None)
    )


# -- rocksdb


@pytest.fixture
def folder() -> Iterator[Path]:
    with databases() as made:
        yield made


def rocksdb(folder: Path, layer_bytes: int = 1_000) -> RocksDbKeyedStateBackend:
    made = creator("rocksdb", folder, layer_bytes=layer_bytes)(KeyGroupRange(0, GROUPS), group_of)
    assert isinstance(made, RocksDbKeyedStateBackend)
    return made


def test_a_backend_without_state_has_no_database(folder: Path) -> None:
    backend = rocksdb(folder)
    snapshot = backend.snapshot()
    assert list(snapshot.entries_by_key_group()) == []
    snapshot.release()
    assert list(folder.glob("tmp*")) == []
    backend.close()


def test_nothing_is_left_of_a_closed_backend(folder: Path) -> None:
    backend = rocksdb(folder)
    backend.put("s", 1, "x" * 2_000)
    snapshot = backend.snapshot()
    assert len(list(snapshot.entries_by_key_group())) == 1
    assert list(folder.glob("tmp*"))
    backend.close()
    snapshot.release()
    assert list(folder.glob("tmp*")) == []


def test_a_snapshot_of_an_ended_task_is_not_written(folder: Path) -> None:
    backend = rocksdb(folder)
    backend.put("s", 1, "x")
    snapshot = backend.snapshot()
    backend.close()
    with pytest.raises(FiresteelError, match="the task has ended"):
        list(snapshot.entries_by_key_group())


def test_a_value_that_cannot_be_pickled_is_named_when_it_is_put(folder: Path) -> None:
    backend = rocksdb(folder)
    with pytest.raises(FiresteelError, match=r"the state 'lock' of key 'k' has a value that cann"):
        backend.put("lock", "k", threading.Lock())
    backend.close()


def test_a_namespace_that_has_no_bytes_of_its_own_is_refused(folder: Path) -> None:
    backend = rocksdb(folder)
    with pytest.raises(FiresteelError, match=r"the state 's' has .* type object .*hashmap"):
        backend.put("s", 1, 1, object())
    backend.close()


def test_a_snapshot_is_written_while_the_state_goes_on_changing(folder: Path) -> None:
    backend = rocksdb(folder, layer_bytes=20_000)
    for key in range(2_000):
        backend.put("s", key, 0)
    for n in range(1, 6):
        snapshot = backend.snapshot()
        found: dict[Any, Any] = {}

        def write(snapshot: Any = snapshot, found: dict[Any, Any] = found) -> None:
            for _, entries in snapshot.entries_by_key_group():
                found.update(contents(entries))
            snapshot.release()

        thread = threading.Thread(target=write)
        thread.start()
        for key in range(2_000):
            assert backend.get("s", key) == n - 1
            backend.put("s", key, n)
        thread.join()
        assert set(found.values()) == {n - 1} and len(found) == 2_000
    backend.close()


LARGE = """
import os, sys
from pathlib import Path
from firesteel.common.key_groups import KeyGroupRange, key_group
from taskexecutor.executor.state.rocksdb import RocksDbKeyedStateBackend, RocksDbMemory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

backend = RocksDbKeyedStateBackend(
    KeyGroupRange(0, 128), lambda key: key_group(key, 128),
    memory=RocksDbMemory(8 << 20), new_directory=lambda: Path(sys.argv[1]) / "state",
)
before = resident()
for key in range(50_000):
    backend.put("s", key, os.urandom(1_500))
for key in range(0, 50_000, 7):
    assert len(backend.get("s", key)) == 1_500
print(resident() - before)
backend.close()
"""


def test_state_is_larger_than_memory(folder: Path) -> None:
    """75 MB of it, in 8 MiB of managed memory."""
    found = subprocess.run(
        [sys.executable, "-c", LARGE, str(folder)], capture_output=True, text=True, check=True
    )
    assert int(found.stdout) < 32, "MiB more than before"
