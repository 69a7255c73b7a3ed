"""Both keyed state backends against a dictionary."""

from __future__ import annotations

import datetime
import decimal
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
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

from firesteel.common.checkpoints.key_group_content import EVENT_TIME_TIMERS
from firesteel.common.checkpoints.messages import Snapshot
from firesteel.common.checkpoints.metadata import CheckpointedOperator
from firesteel.common.checkpoints.state import DatabaseHandle, OperatorSnapshot
from firesteel.common.checkpoints.storage import CheckpointStorage, StorageError
from firesteel.common.ids import OperatorId
from firesteel.common.key_groups import KeyGroupRange, key_group, key_group_range
from firesteel.errors import FiresteelError
from jobmaster.core.checkpoints.restore import assign
from jobmaster.core.checkpoints.shared_files import SharedFiles
from taskexecutor.executor.state import (
    CreateKeyedState,
    KeyedState,
    KeyedStateEntry,
    OperatorStateSnapshot,
    StateBackends,
    TaskOperatorState,
)
from taskexecutor.executor.state.files import read_snapshot, write_snapshot
from taskexecutor.executor.state.keyed import RestoredDatabase, SnapshotTarget
from taskexecutor.executor.state.rocksdb import RocksDbKeyedStateBackend
from taskexecutor.executor.state.rocksdb import timers as stored_timers
from taskexecutor.executor.timing.timers import Timer, Timers
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


def test_a_snapshot_knows_whether_it_is_empty(
    backend: KeyedState, create: CreateKeyedState
) -> None:
    nothing = backend.snapshot()
    backend.put("s", 1, "x")
    something = backend.snapshot()
    assert nothing.empty
    assert not something.empty
    list(something.entries_by_key_group())  # it is in the database now, if there is one
    later = backend.snapshot()
    assert not later.empty
    for snapshot in (nothing, something, later):
        snapshot.release()
    timed = create(KeyGroupRange(0, GROUPS), group_of)
    timed.timers(EVENT_TIME_TIMERS).add(Timer(5, "a", None))
    with_timer = timed.snapshot()
    assert not with_timer.empty
    with_timer.release()
    timed.close()


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


@dataclass
class Model:
    state: dict[tuple[str, Any, Any], Any] = field(default_factory=dict)
    timers: set[Timer] = field(default_factory=set)

    def copy(self) -> Model:
        return Model(dict(self.state), set(self.timers))


@dataclass
class Pending:
    checkpoint_id: int
    base: int | None
    savepoint: bool
    subtasks: list[tuple[TaskOperatorState, OperatorStateSnapshot]]
    model: Model


class History(RuleBasedStateMachine):
    """State of an operator across changes, checkpoints, failures, parallelisms and backends. Files
    that the registry releases are deleted immediately.
    """

    kind = ""

    @initialize(
        layer_bytes=st.sampled_from([0, 1_000, 1 << 20]),
        parallelism=st.integers(1, 3),
        incremental=st.booleans(),
    )
    def begin(self, layer_bytes: int, parallelism: int, incremental: bool) -> None:
        self.folder = databases()
        self.path = self.folder.__enter__()
        self.storage = CheckpointStorage(str(self.path / "checkpoints"))
        self.layer_bytes = layer_bytes
        self.incremental = incremental
        self.checkpoint_id = self.attempt = 0
        self.shared = SharedFiles({})
        self.latest: tuple[int, CheckpointedOperator, Model] | None = None
        self.pending: list[Pending] = []
        self.start(self.kind, parallelism)

    def start(self, kind: str, parallelism: int) -> None:
        """Starts the subtasks from the latest checkpoint."""
        self.attempt += 1
        create = creator(kind, self.path, layer_bytes=self.layer_bytes)
        self.model = Model()
        parts: list[OperatorSnapshot | None] = [None] * parallelism
        if self.latest is not None:
            _, operator, self.model = self.latest
            parts = list(assign(operator, parallelism))
        self.model = self.model.copy()
        self.subtasks: list[KeyedState] = []
        for subtask, part in enumerate(parts):
            keyed = create(key_group_range(subtask, parallelism, GROUPS), group_of)
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
        self.model.state[name, key, namespace] = value

    @rule(name=names, key=keys, namespace=namespaces, more=VALUES)
    def grow(self, name: str, key: Any, namespace: Any, more: list[int]) -> None:
        kept = self.at(key).owned(name, key, list, namespace)
        before = self.model.state.get((name, key, namespace))
        assert kept == before
        if before is not None:
            kept.extend(more)
            self.model.state[name, key, namespace] = [*before, *more]

    @rule(name=names, key=keys, namespace=namespaces)
    def remove(self, name: str, key: Any, namespace: Any) -> None:
        self.at(key).remove(name, key, namespace)
        self.model.state.pop((name, key, namespace), None)

    times = st.integers(-3, 9)

    def timers(self, key: Any) -> Timers:
        return self.at(key).timers(EVENT_TIME_TIMERS)

    @rule(key=keys, namespace=namespaces, times=st.lists(times, max_size=8))
    def register(self, key: Any, namespace: Any, times: list[int]) -> None:
        for time in times:
            self.timers(key).add(Timer(time, key, namespace))
            self.model.timers.add(Timer(time, key, namespace))

    @rule(key=keys, namespace=namespaces, time=times)
    def unregister(self, key: Any, namespace: Any, time: int) -> None:
        timer = Timer(time, key, namespace)
        assert (timer in self.timers(key)) == (timer in self.model.timers)
        self.timers(key).remove(timer)
        self.model.timers.discard(timer)

    @rule(until=times, at_most=st.integers(1, 5))
    def fire(self, until: int, at_most: int) -> None:
        """Some may be left."""
        for keyed in self.subtasks:
            queue = keyed.timers(EVENT_TIME_TIMERS)
            for _ in range(at_most):
                own = (
                    t.timestamp for t in self.model.timers if group_of(t.key) in keyed.key_groups
                )
                first = min(own, default=None)
                assert queue.next_timestamp() == first
                timer = queue.pop_due(until)
                if first is None or first > until:
                    assert timer is None
                    break
                assert timer is not None and timer.timestamp == first
                self.model.timers.remove(timer)

    @rule(savepoint=st.booleans())
    def trigger(self, savepoint: bool) -> None:
        self.checkpoint_id += 1
        base = None
        if self.incremental and not savepoint:
            latest = 0 if self.latest is None else self.latest[0]
            base = latest if self.shared.knows(latest) else 0
        self.shared.begun(self.checkpoint_id, base or 0)
        states = [TaskOperatorState(keyed, None, max_parallelism=GROUPS) for keyed in self.subtasks]
        taken = [(state, state.snapshot()) for state in states]
        self.pending.append(Pending(self.checkpoint_id, base, savepoint, taken, self.model.copy()))

    @precondition(lambda self: self.pending)
    @rule(completes=st.booleans())
    def write(self, completes: bool) -> None:
        found = self.pending.pop(0)
        written = {}
        for subtask, (_, snapshot) in enumerate(found.subtasks):
            name = f"{self.attempt}-{subtask}"
            target = SnapshotTarget(
                storage=self.storage,
                checkpoint_id=found.checkpoint_id,
                name=name,
                base=found.base,
                written=[],
            )
            written[subtask] = write_snapshot(
                self.storage,
                f"chk-{found.checkpoint_id}/{name}",
                OPERATOR,
                snapshot,
                None if found.savepoint else target,
            )
            snapshot.keyed.release()
        files = Snapshot(operators=tuple(written.values()))
        assert not self.shared.missing(found.checkpoint_id, files.shared_files)
        if not completes:
            self.storage.delete(self.shared.unreachable(files.files))
            self.storage.delete(self.shared.given_up(found.checkpoint_id))
            return
        operator = CheckpointedOperator(
            operator_id=OPERATOR,
            uid="",
            name="a",
            parallelism=len(self.subtasks),
            max_parallelism=GROUPS,
            subtasks=written,
        )
        before, self.latest = self.latest, (found.checkpoint_id, operator, found.model)
        self.storage.delete(self.shared.completed(found.checkpoint_id, files.shared_files))
        if before is not None:
            self.storage.delete_directory(f"chk-{before[0]}")
            self.storage.delete(self.shared.dropped(before[0]))

    @rule(kind=st.sampled_from(BACKENDS), parallelism=st.integers(1, 3))
    def fail(self, kind: str, parallelism: int) -> None:
        self.end()
        self.start(kind, parallelism)

    @invariant()
    def is_the_dictionary(self) -> None:
        for name in ("s", "state"):
            found: dict[Any, Any] = {}
            for keyed in self.subtasks:
                found |= contents(keyed.entries(name))
            state = self.model.state.items()
            assert found == {where: v for where, v in state if where[0] == name}
        for (name, key, namespace), value in self.model.state.items():
            assert self.at(key).get(name, key, namespace) == value

    @invariant()
    def nothing_unreachable_is_kept(self) -> None:
        """Nor is anything reachable gone."""
        found = {path for path in self.storage.files() if path.startswith("shared/")}
        assert found == self.shared.reachable

    def end(self) -> None:
        for pending in self.pending:
            for _, snapshot in pending.subtasks:
                snapshot.keyed.release()
            self.storage.delete(self.shared.given_up(pending.checkpoint_id))
        self.pending = []
        for keyed in self.subtasks:
            keyed.close()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.end()
            self.folder.__exit__(None, None, None)


def test_any_history_is_that_of_a_dictionary(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_timers, "_LOADED", 3)
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


def test_a_snapshot_is_written_although_the_task_has_ended(folder: Path) -> None:
    backend = rocksdb(folder)
    backend.put("s", 1, "x")
    snapshot, abandoned = backend.snapshot(), backend.snapshot()
    backend.close()
    ((_, (entry,)),) = snapshot.entries_by_key_group()
    assert entry.value == "x"
    snapshot.release()
    assert list(folder.glob("tmp*"))
    abandoned.release()
    assert not list(folder.glob("tmp*"))


def test_a_value_that_cannot_be_pickled_is_named_when_it_is_put(folder: Path) -> None:
    backend = rocksdb(folder)
    with pytest.raises(FiresteelError, match=r"the state 'lock' of key 'k' has a value that cann"):
        backend.put("lock", "k", threading.Lock())
    backend.close()


def test_of_many_timers_few_are_in_memory(folder: Path) -> None:
    backend = rocksdb(folder)
    timers = backend.timers(EVENT_TIME_TIMERS)
    times = random.Random(7).sample(range(100_000), 20_000)
    for n, time in enumerate(times):
        timers.add(Timer(time if n % 4 else 5, n, None))
    checkpoint_of = backend.snapshot()
    fired: list[Timer] = []
    while (timer := timers.pop_due(50_000)) is not None:
        fired.append(timer)
        assert len(timers._heap) <= 2 * stored_timers._LOADED
    assert [timer.timestamp for timer in fired] == sorted(timer.timestamp for timer in fired)
    expected = {(time if n % 4 else 5, n) for n, time in enumerate(times)}
    assert {(t.timestamp, t.key) for t in fired} == {at for at in expected if at[0] <= 50_000}
    assert len(fired) == len(set(fired))
    found = {e.namespace[0] for _, es in checkpoint_of.entries_by_key_group() for e in es}
    assert found == {time for time, _ in expected}
    checkpoint_of.release()
    backend.close()


def test_a_namespace_without_distinct_bytes_is_refused(folder: Path) -> None:
    backend = rocksdb(folder)
    with pytest.raises(FiresteelError, match=r"the state 's' has .* type object .*hashmap"):
        backend.put("s", 1, 1, object())
    backend.close()


def test_a_snapshot_is_written_while_the_state_keeps_changing(folder: Path) -> None:
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


def target(storage: CheckpointStorage, checkpoint_id: int, base: int | None) -> SnapshotTarget:
    return SnapshotTarget(
        storage=storage, checkpoint_id=checkpoint_id, name="task", base=base, written=[]
    )


def checkpoint(
    backend: KeyedState, storage: CheckpointStorage, checkpoint_id: int, base: int | None
) -> DatabaseHandle:
    snapshot = backend.snapshot()
    (handle,) = snapshot.write(target(storage, checkpoint_id, base))
    snapshot.release()
    return handle


def test_an_incremental_checkpoint_writes_only_what_has_changed(folder: Path) -> None:
    storage = CheckpointStorage(str(folder / "checkpoints"))
    backend = rocksdb(folder, layer_bytes=1 << 20)
    for key in range(5_000):
        backend.put("s", key, str(key) * 10)
    first = checkpoint(backend, storage, 1, 0)
    for key in range(0, 5_000, 100):
        backend.put("s", key, "changed")
    second = checkpoint(backend, storage, 2, 1)
    assert second.new_bytes < first.new_bytes / 5
    assert set(first.tables) < set(second.tables)
    third = checkpoint(backend, storage, 3, 0)
    assert third.new_bytes > first.new_bytes, "it was to refer to no earlier one"
    whole = checkpoint(backend, storage, 4, None)
    assert all(file.path.startswith("chk-4/") for file in whole.files)
    backend.close()


def test_a_restored_database_reuses_the_files_of_its_checkpoint(folder: Path) -> None:
    storage = CheckpointStorage(str(folder / "checkpoints"))
    backend = rocksdb(folder)
    for key in range(1_000):
        backend.put("s", key, key)
    first = checkpoint(backend, storage, 1, 0)
    backend.close()
    again = rocksdb(folder)
    again.restore((), [RestoredDatabase(storage=storage, handle=first)])
    assert again.get("s", 7) == 7
    again.put("s", 7, 8)
    second = checkpoint(again, storage, 2, 1)
    assert set(first.tables) < set(second.tables)
    assert contents(again.entries("s"))["s", 7, None] == 8
    again.close()


def test_a_damaged_table_is_never_restored(folder: Path) -> None:
    storage = CheckpointStorage(str(folder / "checkpoints"))
    backend = rocksdb(folder)
    for key in range(1_000):
        backend.put("s", key, key)
    handle = checkpoint(backend, storage, 1, 0)
    backend.close()
    path = folder / "checkpoints" / handle.tables[0].file.path
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    for kind in BACKENDS:
        again = creator(kind, folder)(KeyGroupRange(0, GROUPS), group_of)
        with pytest.raises(StorageError, match=f"the file {handle.tables[0].file.path} .* damaged"):
            again.restore((), [RestoredDatabase(storage=storage, handle=handle)])
        again.close()


LARGE = """
import os, sys
from pathlib import Path
from firesteel.common.key_groups import KeyGroupRange, key_group
from taskexecutor.executor.state.keyed import SnapshotTarget
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


def test_state_in_columns_of_a_batch_has_the_managed_memory_of_its_slot(tmp_path: Path) -> None:
    """All of its tasks share it; state beyond it is in the directory."""
    localdir = tmp_path / "local"
    backends = StateBackends(managed_bytes=16 << 20, directory=str(localdir))
    memory, of_another_task = (
        backends.of("paged")(KeyGroupRange(0, GROUPS), group_of).columns for _ in range(2)
    )
    assert memory is of_another_task
    assert memory.budget_bytes == 16 << 20
    arrays = [memory.full(1 << 20, n, np.int64) for n in range(3)]
    assert (memory.in_memory_bytes, memory.in_files_bytes) == (16 << 20, 8 << 20)
    assert [int(array[-1]) for array in arrays] == [0, 1, 2]
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert any(str(localdir) in line for line in maps)
    in_memory = backends.of("hashmap")(KeyGroupRange(0, GROUPS), group_of).columns
    assert in_memory.budget_bytes is None


KILLED = """
import os, signal, sys
from firesteel.common.key_groups import KeyGroupRange
from taskexecutor.executor.state import StateBackends

create = StateBackends(managed_bytes=0, directory=sys.argv[1]).of("rocksdb")
backend = create(KeyGroupRange(0, 1), lambda key: 0)
for key in range(100):
    backend.put("s", key, "x" * 10_000)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_has_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    """In `state.backend.rocksdb.localdir`; otherwise it is in a folder of the process."""
    localdir = tmp_path / "local"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(localdir)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = localdir.iterdir()
    create = StateBackends(managed_bytes=0, directory=str(localdir)).of("rocksdb")
    backend = create(KeyGroupRange(0, GROUPS), group_of)
    assert not left.exists()
    for key in range(100):
        backend.put("s", key, "x" * 10_000)
    (own,) = localdir.iterdir()
    backend.close()
    assert not own.exists()
