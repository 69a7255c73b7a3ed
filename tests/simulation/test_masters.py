"""What becomes of a cluster whose masters are elected when one of them, or ZooKeeper, has a fault: each
test is named after one that real systems had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from firesteel.common.states import JobStatus
from tests.simulation.faults import (
    MASTERS,
    Fault,
    FlapSession,
    Isolate,
    Kill,
    LoseQuorum,
    Pause,
    Victim,
    at,
    schedule,
)
from tests.simulation.stories import ELECTED, REST_S, bounded_job, endless_job, quiet_cluster


@pytest.mark.parametrize("victim", MASTERS, ids=lambda victim: victim.name)
@pytest.mark.parametrize(
    ("fault", "followed"),
    [
        (Kill, True),
        (lambda victim: Pause(victim=victim, for_s=3.0), False),
        (lambda victim: Pause(victim=victim, for_s=20.0), True),
        (lambda victim: Isolate(victim=victim, for_s=2.0), False),
        (lambda victim: Isolate(victim=victim, for_s=20.0), True),
        (FlapSession, False),
        (lambda victim: LoseQuorum(for_s=60.0), False),
    ],
    ids=["killed", "paused", "paused-long", "cut-off", "cut-off-long", "flaps", "no-quorum"],
)
def test_another_leader_follows_only_when_a_session_has_ended(
    tmp_path: Path, victim: Victim, fault: Callable[..., Fault], followed: bool
) -> None:
    """No task notices either, and no job gets another JobMaster (invariant 20)."""
    submitted = bounded_job(0, tmp_path, splits=60)
    with quiet_cluster(11, replace(ELECTED, only_masters_fail=True)) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        schedule(cluster, at(6.0, fault(victim=victim)))
        cluster.run(6.0)
        cluster.rest(REST_S + 60.0)
        assert cluster.store.by_id[submitted.graph.job_id].status is JobStatus.FINISHED
        assert cluster.checkers.offices.changes == followed


@pytest.mark.parametrize("seed", range(4))
def test_masters_that_die_together_restart_no_task(tmp_path: Path, seed: int) -> None:
    """The JobMaster and both leaders at once: the next JobMaster adopts the tasks."""
    submitted = bounded_job(0, tmp_path, splits=60)
    with quiet_cluster(seed, ELECTED) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        schedule(cluster, *(at(6.0, Kill(victim=v)) for v in (Victim.JOB_MASTER, *MASTERS)))
        cluster.run(9.0)
        cluster.rest(REST_S)
        job_id = submitted.graph.job_id
        assert cluster.store.by_id[job_id].status is JobStatus.FINISHED
        assert cluster.store.by_id[job_id].epoch == 2
        assert len(cluster.checkers.adopted) == 2 + 3
        assert cluster.checkers.started_again == []


@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.CANCELED])
def test_an_ended_job_runs_under_no_later_dispatcher(status: JobStatus) -> None:
    """Not even if it is submitted once more (invariants 1 and 2)."""
    submitted = endless_job() if status is JobStatus.CANCELED else bounded_job(0)
    with quiet_cluster(12, ELECTED) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        if status is JobStatus.CANCELED:
            cluster.at(6.0, lambda: cluster.cancel(submitted))
        cluster.run(30.0)
        job_id = submitted.graph.job_id
        assert cluster.store.by_id[job_id].status is status
        ran = cluster.checkers.tasks_started
        assert ran
        schedule(cluster, at(31.0, Kill(victim=Victim.DISPATCHER)))
        submitted.submitted = False
        cluster.at(32.0, lambda: cluster.submit(submitted))
        cluster.run(20.0)
        cluster.rest(200.0)  # longer than JobMasters have to come back
        assert submitted.submitted and submitted.refusals == []
        assert cluster.store.by_id[job_id].status is status
        assert cluster.checkers.tasks_started == ran
