"""Files that several checkpoints refer to: kept exactly as long as one can be reached."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.common.checkpoints.messages import Snapshot
from firesteel.common.checkpoints.state import (
    DatabaseFile,
    DatabaseHandle,
    OperatorSnapshot,
    StateFile,
    shared_path,
    writer_of,
)
from firesteel.common.ids import AttemptId
from firesteel.common.key_groups import KeyGroupRange
from jobmaster.core.checkpoints.shared_files import SharedFiles
from jobmaster.core.commands import (
    Command,
    DropCheckpoint,
    DropCheckpointFiles,
    NotifyCheckpoint,
    SweepSharedFiles,
    TriggerCheckpoint,
)
from jobmaster.core.events import CheckpointRequested
from tests.job_master import operator_id
from tests.long import fewer
from tests.unit.jobmaster.checkpoints.test_coordinator import Coordination, of


@dataclass(frozen=True)
class Pending:
    checkpoint_id: int
    base: int
    tables: frozenset[str]


class Task:
    """A subtask's database, and the files that are there."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.tables: frozenset[str] = frozenset()
        self.known: dict[int, dict[str, str]] = {}  # by checkpoint, path by table

    def write(self, pending: Pending) -> list[str]:
        base = self.known.get(pending.base, {})
        paths = {t: base.get(t) or shared_path(pending.checkpoint_id, t) for t in pending.tables}
        self.files |= {p for p in paths.values() if writer_of(p) == pending.checkpoint_id}
        assert self.files.issuperset(paths.values()), "a file is gone that a checkpoint refers to"
        self.known[pending.checkpoint_id] = paths
        return list(paths.values())


@settings(max_examples=fewer(300))
@given(
    st.lists(st.sampled_from(["flush", "compact", "trigger", "complete", "fail"]), max_size=60),
    st.integers(1, 3),
)
def test_what_can_be_reached_is_there_and_nothing_else(steps: list[str], retained: int) -> None:
    task, registry = Task(), SharedFiles({})
    pending: list[Pending] = []
    complete: dict[int, list[str]] = {}
    for number, step in enumerate(steps, 1):
        match step:
            case "flush":
                task.tables |= {f"t{number}"}
            case "compact":
                task.tables = frozenset({f"t{number}"})
            case "trigger":
                latest = max(complete, default=0)
                registry.begun(number, latest)
                pending.append(Pending(number, latest, task.tables))
            case "complete" if pending:
                found = pending.pop(0)
                paths = task.write(found)
                assert registry.missing(found.checkpoint_id, paths) == []
                complete[found.checkpoint_id] = paths
                task.files.difference_update(registry.completed(found.checkpoint_id, paths))
                if len(complete) > retained:
                    oldest = min(complete)
                    del complete[oldest]
                    task.files.difference_update(registry.dropped(oldest))
            case "fail" if pending:
                found = pending.pop(number % len(pending))
                task.files.difference_update(registry.unreachable(task.write(found)))
                task.files.difference_update(registry.given_up(found.checkpoint_id))
        assert task.files.issuperset(path for paths in complete.values() for path in paths)
        if not pending:
            assert task.files == {path for paths in complete.values() for path in paths}


def test_a_new_master_knows_what_retained_checkpoints_refer_to() -> None:
    registry = SharedFiles({7: ["shared/3-a", "shared/7-b"], 8: ["shared/7-b"]})
    assert registry.knows(8)
    assert registry.dropped(7) == ["shared/3-a"]
    assert registry.dropped(8) == ["shared/7-b"]


# -- the coordinator


def snapshot(*paths: str) -> Snapshot:
    def file(path: str) -> StateFile:
        return StateFile(path=path, size_bytes=1, checksum="")

    database = DatabaseHandle(
        checkpoint_id=1,
        key_groups=KeyGroupRange(0, 128),
        tables=tuple(DatabaseFile(path, file(path)) for path in paths),
        rest=file("chk/rest"),
        new_bytes=1,
    )
    return Snapshot(
        operators=(OperatorSnapshot(operator_id=operator_id("sink"), databases=(database,)),)
    )


class Incremental(Coordination):
    def __init__(self, **settings: float | bool | None) -> None:
        super().__init__(incremental=True, **settings)

    def trigger(self) -> TriggerCheckpoint:
        (found,) = of(self.wait(), TriggerCheckpoint)
        return found

    def written(self, checkpoint_id: int, *paths: str) -> list[Command]:
        """By the first task; the others have no state."""
        first, *others = tuple(self.graph.attempts)
        return [
            *self._answer(first, checkpoint_id, snapshot(*paths)),
            *(c for task in others for c in self._answer(task, checkpoint_id, Snapshot())),
        ]

    def _answer(self, task: AttemptId, checkpoint_id: int, part: Snapshot) -> list[Command]:
        return self.do(self.coordinator.acknowledged(task, checkpoint_id, part, self.now))

    def complete(self, checkpoint_id: int, *paths: str) -> list[Command]:
        self.written(checkpoint_id, *paths)
        return self.do(self.coordinator.stored(checkpoint_id, self.now))


def test_a_checkpoint_builds_on_the_latest_complete_one() -> None:
    c = Incremental()
    assert c.trigger().base == 0
    c.complete(1, "shared/1-a", "shared/1-b")
    assert c.trigger().base == 1
    ended = c.complete(2, "shared/1-b", "shared/2-c")
    assert of(ended, DropCheckpoint) == [DropCheckpoint(checkpoint_id=1)]
    assert of(ended, DropCheckpointFiles) == [DropCheckpointFiles(paths=("shared/1-a",))]
    assert ended.index(of(ended, DropCheckpointFiles)[0]) > ended.index(
        of(ended, NotifyCheckpoint)[0]
    )


def test_the_files_of_a_base_stay_while_a_checkpoint_builds_on_it() -> None:
    c = Incremental(max_concurrent=3)
    c.trigger()
    c.trigger()
    c.complete(1, "shared/1-a")
    assert c.trigger().base == 1
    assert not of(c.complete(2, "shared/2-a"), DropCheckpointFiles), "3 may refer to shared/1-a"
    (dropped,) = of(c.complete(3, "shared/1-a", "shared/3-b"), DropCheckpointFiles)
    assert dropped.paths == ("shared/2-a",)
    assert c.coordinator.shared.reachable == {"shared/1-a", "shared/3-b"}


def test_a_failed_checkpoint_takes_only_its_own_files_along() -> None:
    c = Incremental(tolerable_failures=1)
    c.trigger()
    c.complete(1, "shared/1-a")
    c.trigger()
    first, *_, last = tuple(c.graph.attempts)
    c._answer(first, 2, snapshot("shared/1-a", "shared/2-b"))
    failed = c.do(c.coordinator.declined(last, 2, "no", c.now))
    (dropped,) = of(failed, DropCheckpointFiles)
    assert dropped.paths == ("shared/2-b", "chk/rest")


def test_a_file_that_nothing_retained_has_fails_the_checkpoint() -> None:
    c = Incremental(tolerable_failures=1)
    c.trigger()
    c.written(1, "shared/1-a", "shared/0-gone")
    assert not c.coordinator.pending
    assert "refers to shared/0-gone" in c.coordinator.history[-1].failure


def test_what_dead_attempts_have_written_is_swept_once() -> None:
    c = Incremental()
    c.trigger()
    assert of(c.complete(1, "shared/1-a"), SweepSharedFiles) == [
        SweepSharedFiles(before=1, kept=frozenset({"shared/1-a"}))
    ]
    c.trigger()
    assert not of(c.complete(2, "shared/1-a"), SweepSharedFiles)
    c.do(c.coordinator.stopped("it failed", c.now))
    c.do(c.coordinator.started(c.now))
    c.trigger()
    assert of(c.complete(3, "shared/1-a", "shared/3-b"), SweepSharedFiles)


def test_what_an_acknowledgement_names_that_comes_very_late_is_swept() -> None:
    c = Incremental(tolerable_failures=100)
    c.trigger()
    c.complete(1, "shared/1-a")
    first, *_ = tuple(c.graph.attempts)
    for _ in range(20):
        declined = c.trigger().checkpoint_id
        c.do(c.coordinator.declined(first, declined, "no", c.now))
    assert not of(c.written(2, "shared/2-b"), DropCheckpointFiles)
    last = c.trigger().checkpoint_id
    assert of(c.complete(last, "shared/1-a"), SweepSharedFiles)


def test_what_a_lost_acknowledgement_names_is_swept() -> None:
    c = Incremental()
    c.trigger()
    c.complete(1, "shared/1-a")
    c.trigger()
    c.do(c.coordinator.lost_messages(c.now))
    c.trigger()
    assert of(c.complete(3, "shared/1-a", "shared/3-b"), SweepSharedFiles)


def test_a_full_checkpoint_refers_to_no_earlier_one() -> None:
    c = Incremental()
    c.trigger()
    c.complete(1, "shared/1-a")
    asked = CheckpointRequested(request="mine", full=True)
    (trigger,) = of(c.do(c.coordinator.request(asked, c.now)), TriggerCheckpoint)
    assert trigger.base == 0
    c.complete(2, "shared/2-a")
    assert c.trigger().base == 2


def test_without_incremental_checkpoints_there_is_no_base() -> None:
    c = Coordination()
    (trigger,) = of(c.wait(), TriggerCheckpoint)
    assert trigger.base is None
