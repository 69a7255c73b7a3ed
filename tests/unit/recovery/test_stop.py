"""A stop with a savepoint at any moment of a short job: the job ends with the savepoint, or as if
there had been no request; the caller learns which, and every row counts once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.common.states import JobStatus
from tests.unit.recovery.counted import CONTROLS, Control, check_counted_once, program
from tests.unit.recovery.small_cluster import JobStore, small_cluster


def configuration(folder: Path, **more: str) -> dict[str, str]:
    return {
        "heartbeat.timeout": "1 h",
        "execution.checkpointing.interval": "1 h",
        "execution.checkpointing.dir": str(folder / "checkpoints"),
        **more,
    }


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize("events", range(20, 80, 6))
def test_a_stop_that_races_the_end_has_a_definite_answer(
    tmp_path: Path, events: int, drains: bool
) -> None:
    name = f"stop {events} {drains}"
    control = CONTROLS[name] = Control(rows={"a": 30, "b": 30})
    control.free.set()
    out, savepoint = tmp_path / "out", str(tmp_path / "savepoint")
    env = program(name, out, 1, configuration(tmp_path))
    with small_cluster(env, JobStore()) as cluster:
        cluster.run_until(
            lambda: cluster.events >= events or cluster.core.graph.status.terminal, "its moment"
        )
        cluster.begin_checkpoint(savepoint_path=savepoint, stops=True, drains=drains)
        cluster.run_to_end()
        assert cluster.core.graph.status is JobStatus.FINISHED, cluster.problems
        # A savepoint may still be stored when the job has ended.
        cluster.run_until(lambda: "r" in cluster.answers, "the stop is answered")
        answer = cluster.answers["r"]
    if not answer.problem:
        control.totals.clear()
        restored = {"execution.state-recovery.path": savepoint}
        env = program(name, out, 2, configuration(tmp_path, **restored))
        with small_cluster(env, JobStore()) as cluster:
            cluster.run_to_end()
            assert cluster.core.graph.status is JobStatus.FINISHED, cluster.problems
    check_counted_once(out, control)
