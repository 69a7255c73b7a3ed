"""What a job's master and its tasks tell each other comes late: nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firesteel.common.states import ExecutionState, JobStatus
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
        cluster.delays = True
        cluster.run_until(lambda: set(cluster.states("")) == RUNNING, "all tasks run")
        cluster.run_until(lambda: len(cluster.delayed) == 2, "both sources have asked for a split")
        cluster.begin_checkpoint()
        sources: Any = [task._kind for task in cluster.tasks("Source")]
        cluster.run_until(
            lambda: cluster.stored or all(source._triggered for source in sources),
            "the triggers have come",
        )
        assert not cluster.stored, "it waits for the splits"
        cluster.notifies = False
        cluster.deliver_delayed()
        cluster.run_until(lambda: cluster.stored, "it is complete")
    control.totals.clear()
    with small_cluster(env, store, job_id=cluster.graph.job_id) as cluster:
        cluster.run_to_end()
        assert cluster.core.graph.status is JobStatus.FINISHED, cluster.problems
    check_counted_once(tmp_path / "out", control)
