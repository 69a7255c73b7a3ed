"""Messages between a JobMaster and its tasks arrive late: nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firesteel.common.checkpoints.metadata import read_metadata
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.states import ExecutionState, JobStatus
from jobmaster.core import commands
from tests.unit.recovery.counted import CONTROLS, Control, check_counted_once, program
from tests.unit.recovery.small_cluster import JobStore, small_cluster

RUNNING = {ExecutionState.RUNNING}


def configuration(folder: Path, **more: str) -> dict[str, str]:
    return {
        "heartbeat.timeout": "1 h",
        "execution.checkpointing.interval": "1 h",
        "execution.checkpointing.dir": str(folder / "checkpoints"),
        **more,
    }


def test_a_split_that_comes_behind_its_checkpoints_trigger_is_part_of_it(tmp_path: Path) -> None:
    """The enumerator counts on it: who restored the checkpoint without it would never read it."""
    name = "late splits"
    control = CONTROLS[name] = Control(rows={"a": 30, "b": 30})
    control.free.set()
    store = JobStore()
    env = program(name, tmp_path / "out", 1, configuration(tmp_path))
    with small_cluster(env, store) as cluster:
        cluster.delays = (commands.SendOperatorMessage,)
        cluster.run_until(lambda: set(cluster.states("")) == RUNNING, "all tasks run")
        cluster.run_until(lambda: len(cluster.delayed) == 2, "both sources have requested a split")
        cluster.begin_checkpoint()
        sources: Any = [task._kind for task in cluster.tasks("Source")]
        cluster.run_until(
            lambda: cluster.stored or all(source._triggered for source in sources),
            "the triggers have come",
        )
        assert not cluster.stored, "it waits for the splits"
        cluster.deliver_delayed()
        cluster.delays = (commands.NotifyCheckpoint,)
        cluster.run_until(lambda: cluster.stored, "it is complete")
    with small_cluster(env, store, job_id=cluster.graph.job_id) as cluster:
        cluster.run_to_end()
        assert cluster.core.graph.status is JobStatus.FINISHED, cluster.problems
    check_counted_once(tmp_path / "out", control)


def test_a_replaced_master_commits_nothing_and_deletes_nothing(
    tmp_path: Path,
) -> None:
    """Nor do its tasks, which learn late what the next master's have long committed."""
    name = "two masters"
    control = CONTROLS[name] = Control(rows={"a": 200, "b": 200})
    control.limits = {(source, split): 40 for source in "ab" for split in range(4)}
    control.free.set()
    out, store = tmp_path / "out", JobStore()
    env = program(name, out, 2, configuration(tmp_path))
    with small_cluster(env, store) as old:
        old.run_until(lambda: set(old.states("")) == RUNNING, "all tasks run")
        old.run_until(lambda: old.records_out("Source") == 4 * 40, "all that may be read is read")
        old.delays = (commands.NotifyCheckpoint,)
        assert not old.take_checkpoint().problem
        assert old.delayed, "no task has committed"
        old.begin_checkpoint()
        old.await_inbox(len(old.core.graph.attempts))
        with small_cluster(env, store, job_id=old.graph.job_id) as new:
            new.run_until(lambda: set(new.states("")) == RUNNING, "all tasks run")
            assert not new.take_checkpoint().problem
            (row,) = store.checkpoints
            committed = {path.name for path in out.glob("part-*")}
            assert committed, "what was prepared for the old master is"
            old.deliver_delayed()
            control.limits.clear()
            old.run_until(lambda: old.core.graph.status is JobStatus.SUSPENDED, "it is told")
            assert store.checkpoints == [row]
            check_readable(row.path)
            new.run_to_end()
            assert new.core.graph.status is JobStatus.FINISHED, new.problems
            assert {path.name for path in out.glob("part-*")} >= committed
    check_counted_once(out, control)
    assert not list(out.glob(".*")), "no uncommitted file is left"


def test_a_task_executor_that_was_declared_dead_is_not_listened_to(tmp_path: Path) -> None:
    """It has acknowledged a checkpoint, requests splits, and is notified late that it may commit."""
    name = "zombie"
    control = CONTROLS[name] = Control(rows={"a": 200, "b": 200})
    control.limits = {(source, split): 40 for source in "ab" for split in range(4)}
    control.free.set()
    out = tmp_path / "out"
    restart = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "0 s"}
    env = program(name, out, 2, configuration(tmp_path, **restart))
    with small_cluster(env, JobStore(), slots=1) as cluster:
        cluster.run_until(lambda: set(cluster.states("")) == RUNNING, "all tasks run")
        cluster.run_until(lambda: cluster.records_out("Source") == 4 * 40, "all is read")
        cluster.delays = (commands.NotifyCheckpoint,)
        assert not cluster.take_checkpoint().problem
        notices, cluster.delays, cluster.delayed = cluster.delayed, (), []
        cluster.begin_checkpoint("given up")
        cluster.await_inbox(len(cluster.core.graph.attempts))
        victim = cluster.tasks("count")[0]
        (slot,) = (slot for slot in cluster.slots if victim in slot.tasks)
        zombies = cluster.lose(slot.task_executor)
        assert len(cluster.core.pool.slots) == 1, "the other one lives"
        cluster.add_task_executor("spare", 1)
        cluster.run_until(
            lambda: (
                all(e.attempt == 1 for e in cluster.core.graph.executions())
                and set(cluster.states("")) == RUNNING
            ),
            "all tasks run again",
        )
        assert not cluster.take_checkpoint().problem
        committed = {path.name for path in out.glob("part-*")}
        cluster.slots += zombies
        cluster.delayed = notices
        cluster.deliver_delayed()
        control.limits.clear()
        cluster.run_to_end()
        assert cluster.core.graph.status is JobStatus.FINISHED, cluster.problems
        assert cluster.answers["given up"].problem
        assert {path.name for path in out.glob("part-*")} >= committed
    check_counted_once(out, control)
    assert not list(out.glob(".*")), "no uncommitted file is left"


def check_readable(path: str) -> None:
    """A checkpoint has all of its files."""
    storage = CheckpointStorage(str(Path(path).parent))
    for operator in read_metadata(path).operators:
        for part in operator.subtasks.values():
            for file in part.files:
                storage.read(file)
