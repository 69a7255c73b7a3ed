"""Faults of elected masters and of ZooKeeper. Each test is named after a fault of a real system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from firesteel.common.checkpoints.storage import METADATA
from firesteel.common.ids import JobId
from firesteel.common.states import JobStatus
from tests.long import long_after
from tests.simulation.cluster import Cluster
from tests.simulation.faults import (
    MASTERS,
    Fault,
    FlapSession,
    Isolate,
    Kill,
    LoseQuorum,
    Pause,
    Stop,
    Victim,
    at,
    schedule,
)
from tests.simulation.loop import START_S
from tests.simulation.stories import (
    ELECTED,
    REST_S,
    bounded_job,
    endless_job,
    endless_job_with_checkpoints,
    quiet_cluster,
)

pytestmark = pytest.mark.one_in(2)  # of its seeds


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


@pytest.mark.parametrize("seed", long_after(2, range(4)))
def test_masters_that_die_together_restart_no_task(tmp_path: Path, seed: int) -> None:
    """The JobMaster and both leaders die together: the next JobMaster adopts the tasks."""
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
    """It does not run even if it is submitted again (invariants 1 and 2)."""
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


@pytest.mark.parametrize("other_program", [False, True])
def test_a_second_submission_deletes_nothing_of_a_running_job(
    tmp_path: Path, other_program: bool
) -> None:
    """It does not start the job again either (invariant 4)."""
    submitted = bounded_job(0, tmp_path, splits=60)
    again = submitted
    if other_program:
        other = bounded_job(1, tmp_path, splits=60)
        other.message.job_id = submitted.graph.job_id
        again = replace(other, graph=submitted.graph)
    with quiet_cluster(13, ELECTED) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        cluster.run(7.0)
        job_id = submitted.graph.job_id
        ran = cluster.checkers.tasks_started
        assert ran and latest_metadata(cluster, job_id) in cluster.shared.files(job_id)
        cluster.client.service.start(cluster.client.service.submit(again))
        cluster.run(0.5)
        assert again.submitted and len(again.refusals) == other_program
        assert latest_metadata(cluster, job_id) in cluster.shared.files(job_id)
        cluster.run(5.0)
        cluster.rest(REST_S)
        assert cluster.store.by_id[job_id].status is JobStatus.FINISHED
        assert cluster.checkers.tasks_started == ran


@pytest.mark.parametrize("victim", [*MASTERS, Victim.JOB_MASTER], ids=lambda victim: victim.name)
def test_a_master_that_stops_in_order_deletes_nothing(tmp_path: Path, victim: Victim) -> None:
    """The master's job has not ended: the next one continues with the same tasks (invariant 7)."""
    submitted = bounded_job(0, tmp_path, splits=60)
    with quiet_cluster(14, ELECTED) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        schedule(cluster, at(7.0, Stop(victim=victim)))
        cluster.run(7.0)
        job_id = submitted.graph.job_id
        cluster.run(0.6)
        assert latest_metadata(cluster, job_id) in cluster.shared.files(job_id)
        assert not cluster.store.by_id[job_id].status.globally_terminal
        cluster.rest(REST_S)
        assert cluster.store.by_id[job_id].status is JobStatus.FINISHED
        assert cluster.checkers.started_again == []


def test_checkpoints_continue_during_an_outage_of_zookeeper(tmp_path: Path) -> None:
    """Checkpoint ids rise, also under the next JobMaster and Dispatcher (invariant 8; the store's
    checker checks the order).
    """
    submitted = endless_job_with_checkpoints(tmp_path)
    with quiet_cluster(15, ELECTED) as cluster:
        job_id = submitted.graph.job_id
        cluster.at(3.0, lambda: cluster.submit(submitted))
        schedule(
            cluster,
            at(8.0, LoseQuorum(for_s=20.0)),
            at(40.0, Kill(victim=Victim.DISPATCHER)),
            at(41.0, Kill(victim=Victim.JOB_MASTER)),
        )
        complete = [0]
        for until_s in (8.0, 27.0, 40.0, 80.0):
            cluster.run(until_s - (cluster.world.now - START_S))
            complete.append(cluster.store.checkpoints[job_id][-1])
        assert complete == sorted(set(complete)), "some completed none"
        assert cluster.checkers.started_again == []


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_written_through_a_dispatcher_that_was_replaced(
    tmp_path: Path, seed: int
) -> None:
    """The JobMaster, also cut off from ZooKeeper, does not learn of the next one. The store
    accepts no checkpoint from the old one (invariant 20), and the job continues.
    """
    submitted = endless_job_with_checkpoints(tmp_path)
    with quiet_cluster(seed, ELECTED) as cluster:
        job_id = submitted.graph.job_id
        cluster.at(3.0, lambda: cluster.submit(submitted))
        schedule(
            cluster,
            at(8.0, Isolate(victim=Victim.JOB_MASTER, for_s=20.0)),
            at(8.0, Isolate(victim=Victim.DISPATCHER, for_s=30.0)),
        )
        cluster.run(27.0)
        assert cluster.checkers.offices.changes == 1
        assert cluster.world.story("has taken over the job store"), "no Dispatcher has tried"
        stored = cluster.store.checkpoints[job_id][-1]
        cluster.run(20.0)
        assert cluster.store.checkpoints[job_id][-1] > stored
        cluster.rest(REST_S)
        assert cluster.checkers.started_again == []


@pytest.mark.parametrize("seed", long_after(2, range(4)))
def test_a_checkpoint_with_an_answer_lost_with_the_leader_is_stored(
    tmp_path: Path, seed: int
) -> None:
    """The JobMaster queries the next Dispatcher and deletes nothing before it answers
    (invariant 5): at rest, every file of the latest checkpoint exists.
    """
    submitted = endless_job_with_checkpoints(tmp_path)
    with quiet_cluster(seed, replace(ELECTED, lost_answers=1.0)) as cluster:
        job_id = submitted.graph.job_id
        cluster.at(3.0, lambda: cluster.submit(submitted))
        cluster.run(8.0)
        cluster.store.lost_answers = 1.0  # of every write, until the leader is gone
        before = cluster.store.checkpoints[job_id][-1]
        cluster.run(2.0)
        ambiguous = cluster.store.checkpoints[job_id][-1]
        assert ambiguous > before
        schedule(cluster, at(10.1, Kill(victim=Victim.DISPATCHER)))
        cluster.run(0.2)
        cluster.store.lost_answers = 0.0
        cluster.run(20.0)
        cluster.rest(REST_S)
        assert cluster.store.checkpoints[job_id][-1] > ambiguous
        assert "deleting the files of a failed" not in cluster.world.story("deleting the files")


def latest_metadata(cluster: Cluster, job_id: JobId) -> str:
    """The file that the store's latest row leads to."""
    latest = cluster.store.checkpoints[job_id][-1]
    return str(cluster.shared.of_job(job_id) / f"chk-{latest}" / METADATA)
