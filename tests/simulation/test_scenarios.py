"""Single faults at chosen moments, and what the whole cluster makes of them. Also: a seed is one
history, for ever.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from firesteel.common.ids import AllocationId, JobId
from firesteel.common.rpc.convert import JOB_GRAPH
from firesteel.common.states import JobStatus
from resourcemanager.core.events import StopRequested
from taskexecutor.shell import TaskExecutor
from tests.long import long_after
from tests.simulation.faults import (
    CHECKPOINT_KINDS,
    KINDS,
    Cut,
    Kill,
    LoseNext,
    Pause,
    SilenceStream,
    Victim,
    at,
    schedule,
)
from tests.simulation.loop import START_S
from tests.simulation.stories import (
    REST_S,
    batch_job,
    bounded_job,
    endless_job,
    quiet_cluster,
    run,
)

pytestmark = pytest.mark.one_in(2)  # of its seeds


def test_without_faults_a_job_finishes_at_its_first_attempt() -> None:
    assert run(1, bounded_job(attempts=0)) is JobStatus.FINISHED


@pytest.mark.parametrize("when_s", long_after(1, [2.9, 4.0]))
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_lost_with_its_stream_costs_no_restart(kind: str, when_s: float) -> None:
    """Streams come back in time, and whatever was lost is said again: not one restart is needed,
    and nothing is stuck.
    """
    assert run(1, bounded_job(attempts=0), at(when_s, LoseNext(kind=kind))) is JobStatus.FINISHED


@pytest.mark.parametrize("victim", [Victim.RESOURCE_MANAGER, Victim.DISPATCHER, Victim.SPARE])
def test_a_master_that_is_away_for_a_moment_costs_no_restart(victim: Victim) -> None:
    assert run(2, bounded_job(attempts=0), at(5.0, Kill(victim=victim))) is JobStatus.FINISHED


@pytest.mark.parametrize("victim", [Victim.SLOT_PROCESS, Victim.TASK_EXECUTOR])
@pytest.mark.parametrize("silently", [False, True])
def test_a_dead_worker_costs_one_restart(victim: Victim, silently: bool) -> None:
    assert (
        run(3, bounded_job(attempts=1), at(5.0, Kill(victim=victim, silently=silently)))
        is JobStatus.FINISHED
    )


@pytest.mark.parametrize("seed", long_after(4, range(16)))
def test_a_dead_job_master_costs_a_batch_no_restart(seed: int) -> None:
    """Each task runs once, whether it ran, had finished or had not started at that moment."""
    submitted = batch_job()
    with quiet_cluster(seed) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        schedule(cluster, at(3.6 + 0.5 * seed, Kill(victim=Victim.JOB_MASTER)))
        cluster.run(12.0)
        cluster.rest(REST_S)
        stored = cluster.store.by_id[submitted.graph.job_id]
        assert stored.status is JobStatus.FINISHED and stored.epoch == 2
        assert not cluster.checkers.happened()["job restarts"]
        assert not cluster.checkers.happened()["region restarts"]
        if seed > 1:
            assert len(cluster.checkers.finished[submitted.graph.job_id]) == 2 + 3 + 2


@pytest.mark.parametrize("seed", long_after(4, range(12)))
def test_a_dead_job_master_costs_no_restart_without_checkpoints(seed: int) -> None:
    """Each chunk of its rows is collected once; some sources may have finished."""
    submitted = bounded_job(0, splits=40)
    with quiet_cluster(seed) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        schedule(cluster, at(4.5 + 0.85 * seed, Kill(victim=Victim.JOB_MASTER)))
        cluster.run(9.0)
        cluster.rest(REST_S)
        stored = cluster.store.by_id[submitted.graph.job_id]
        assert stored.status is JobStatus.FINISHED and stored.epoch == 2
        assert not cluster.checkers.happened()["job restarts"]


@pytest.mark.parametrize("kind", CHECKPOINT_KINDS)
@pytest.mark.parametrize("when_s", long_after(1, [4.5, 7.0]))
def test_what_is_said_about_a_checkpoint_may_be_lost_with_its_stream(
    tmp_path: Path, kind: str, when_s: float
) -> None:
    """The checkpoint is given up, or said again to be complete: not one restart is needed."""
    submitted = bounded_job(0, tmp_path)
    assert run(8, submitted, at(when_s, LoseNext(kind=kind))) is JobStatus.FINISHED


def test_a_job_with_checkpoints_resumes_from_the_latest(tmp_path: Path) -> None:
    submitted = bounded_job(1, tmp_path)
    with quiet_cluster(9) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        schedule(cluster, at(7.0, Kill(victim=Victim.TASK_EXECUTOR)))
        cluster.run(7.0)
        job_id = submitted.graph.job_id
        before = cluster.store.checkpoints[job_id][-1]
        cluster.rest(REST_S)
        assert cluster.store.by_id[job_id].status is JobStatus.FINISHED
        assert cluster.checkers.snapshots.begun_from[job_id] in (before, before + 1)


@pytest.mark.parametrize("seed", long_after(3, range(8)))
@pytest.mark.parametrize("kills", [1, 3])
def test_a_dead_job_master_costs_no_restart(tmp_path: Path, seed: int, kills: int) -> None:
    """The next one adopts the tasks, whatever they and the dead one were about; not one attempt may
    fail. Every split is read once: the ledger and the owners of splits are checked all the time.
    """
    submitted = bounded_job(0, tmp_path, interval="200 ms", splits=40)
    with quiet_cluster(seed) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        died_s = [5.0 + 0.37 * seed + 1.9 * kill for kill in range(kills)]
        schedule(cluster, *(at(when_s, Kill(victim=Victim.JOB_MASTER)) for when_s in died_s))
        cluster.run(9.0)
        cluster.rest(REST_S)
        job_id = submitted.graph.job_id
        assert cluster.store.by_id[job_id].status is JobStatus.FINISHED
        assert cluster.store.by_id[job_id].epoch == kills + 1
        assert len(cluster.checkers.adopted) == 2 + 3  # each attempt, however often
        assert job_id not in cluster.checkers.snapshots.begun_from, "tasks were restored"


@pytest.mark.parametrize("seed", long_after(3, range(6)))
def test_a_canceled_job_whose_job_master_died_runs_no_task(tmp_path: Path, seed: int) -> None:
    submitted = bounded_job(0, tmp_path)
    job_id = submitted.graph.job_id
    with quiet_cluster(seed) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        cluster.at(7.0, lambda: cluster.cancel(submitted))
        schedule(cluster, at(6.9 + 0.05 * seed, Kill(victim=Victim.JOB_MASTER)))
        cluster.run(7.2)
        while not cluster.store.by_id[job_id].status.globally_terminal:
            cluster.run(0.01)
        assert cluster.store.by_id[job_id].status is JobStatus.CANCELED
        tasks = [task for _, process in cluster.slot_processes for task in process.tasks.values()]
        assert all(task.state.terminal for task in tasks)
        cluster.rest(REST_S)


@pytest.mark.parametrize("victim", [Victim.TASK_EXECUTOR, Victim.JOB_MASTER])
@pytest.mark.parametrize("seed", range(3))
def test_who_comes_back_from_the_dead_changes_nothing(
    tmp_path: Path, victim: Victim, seed: int
) -> None:
    """It is paused until the job continues without it; then it acts on its outdated view."""
    submitted = bounded_job(3, tmp_path)
    with quiet_cluster(seed) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        schedule(cluster, at(7.0, Pause(victim=victim, for_s=30.0)))
        cluster.run(7.0)
        before = cluster.store.checkpoints[submitted.graph.job_id][-1]
        cluster.rest(REST_S)
        job_id = submitted.graph.job_id
        assert cluster.store.by_id[job_id].status is JobStatus.FINISHED
        if victim is Victim.JOB_MASTER:
            assert len(cluster.checkers.adopted) == 2 + 3
            assert job_id not in cluster.checkers.snapshots.begun_from
        else:
            assert cluster.checkers.snapshots.begun_from[job_id] in (before, before + 1)


def test_a_promised_cancel_outlives_its_dispatcher() -> None:
    """The JobMaster could not be asked before the Dispatcher died: its successor must know."""
    submitted = endless_job()
    with quiet_cluster(6) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        schedule(
            cluster,
            at(4.0, Cut(stream=("jobmaster", "dispatcher"), for_s=1.5)),
            at(4.5, Kill(victim=Victim.DISPATCHER)),
        )
        cluster.at(4.1, lambda: cluster.cancel(submitted))
        cluster.run(6.0)
        cluster.rest(REST_S)
        assert cluster.store.by_id[submitted.graph.job_id].status is JobStatus.CANCELED


def test_a_returning_resource_manager_starts_no_second_set_of_workers() -> None:
    with quiet_cluster(7) as cluster:
        schedule(cluster, at(5.0, Kill(victim=Victim.RESOURCE_MANAGER)))
        cluster.run(5.5)
        before = [process.name for process in cluster.living("taskexecutor")]
        cluster.rest(REST_S)
        assert [process.name for process in cluster.living("taskexecutor")] == before


def test_a_silent_stream_to_the_resource_manager_is_found_out() -> None:
    silence = SilenceStream(stream=("jobmaster", "resourcemanager"))
    assert run(5, bounded_job(attempts=0), at(3.2, silence)) is JobStatus.FINISHED


@pytest.mark.parametrize("seed", range(3))
def test_a_task_executor_cut_off_from_one_job_master_keeps_running(seed: int) -> None:
    """That job loses its slots there until the cut has ended; other jobs lose nothing."""
    submitted = bounded_job(attempts=3)
    with quiet_cluster(seed) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        schedule(cluster, at(4.5, Cut(stream=("taskexecutor", "jobmaster"), for_s=20.0)))
        cluster.run(4.5)
        before = [process.name for process in cluster.living("taskexecutor")]
        cluster.rest(REST_S)
        assert [process.name for process in cluster.living("taskexecutor")] == before
        assert cluster.store.by_id[submitted.graph.job_id].status is JobStatus.FINISHED


@pytest.mark.parametrize("seed", long_after(2, range(5)))
@pytest.mark.parametrize("victim", [Victim.RESOURCE_MANAGER, Victim.DISPATCHER, Victim.SPARE])
def test_a_master_that_is_paused_costs_no_restart(victim: Victim, seed: int) -> None:
    """For much longer than the heartbeat timeout: none of its peers has died in the meantime."""
    pause = Pause(victim=victim, for_s=20.0)
    assert run(seed, bounded_job(attempts=0), at(4.0, pause)) is JobStatus.FINISHED


@pytest.mark.parametrize("seed", long_after(2, range(5)))
def test_a_paused_resource_manager_declares_no_healthy_task_executor_dead(seed: int) -> None:
    with quiet_cluster(seed) as cluster:
        schedule(cluster, at(5.0, Pause(victim=Victim.RESOURCE_MANAGER, for_s=20.0)))
        cluster.run(10.0)
        before = [process.name for process in cluster.living("taskexecutor")]
        cluster.rest(REST_S)
        assert [process.name for process in cluster.living("taskexecutor")] == before
        assert "TaskExecutor lost" not in cluster.world.story("TaskExecutor lost")


@pytest.mark.parametrize("seed", long_after(2, range(5)))
def test_what_a_job_still_needs_is_known_to_the_next_resource_manager(seed: int) -> None:
    """It dies while one job runs, and another one has some of its slots and waits for more."""
    first, second = endless_job(), bounded_job(attempts=0)
    second = replace(second, graph=replace(second.graph, job_id=JobId("b" * 32)))
    second = replace(second, message=JOB_GRAPH.encode(second.graph))
    with quiet_cluster(seed) as cluster:
        cluster.at(3.0, lambda: cluster.submit(first))
        cluster.at(5.0, lambda: cluster.submit(second))
        schedule(cluster, at(8.0, Kill(victim=Victim.RESOURCE_MANAGER)))
        cluster.run(7.9)
        before = {p.name: held_slots(service) for p, service in cluster.task_executors}
        assert cluster.resource_manager is not None and cluster.resource_manager.shell is not None
        assert cluster.resource_manager.shell.core.missing == 2
        cluster.run(16.0)
        assert cluster.resource_manager is not None and cluster.resource_manager.shell is not None
        assert cluster.resource_manager.shell.core.missing == 2, "it was declared again"
        after = {p.name: held_slots(service) for p, service in cluster.task_executors}
        assert after == before, "none is lost, none doubled, and no TaskExecutor replaced"
        cluster.cancel(first)
        cluster.rest(REST_S)
        assert cluster.store.by_id[second.graph.job_id].status is JobStatus.FINISHED


def held_slots(task_executor: TaskExecutor) -> list[AllocationId | None]:
    return [
        None if slot.allocation is None else slot.allocation.allocation_id
        for slot in task_executor.core.table.slots
    ]


@pytest.mark.parametrize("victim", [None, Victim.RESOURCE_MANAGER, Victim.JOB_MASTER])
@pytest.mark.parametrize("seed", long_after(2, range(4)))
def test_a_drain_uses_no_restart_whichever_process_dies(
    tmp_path: Path, seed: int, victim: Victim | None
) -> None:
    """The cluster's own TaskExecutors are replaced; without its ResourceManager, a drain is over."""
    submitted = bounded_job(attempts=0, checkpoints=tmp_path, splits=100)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(quiet_cluster(seed))
        cluster.at(3.0, lambda: cluster.submit(submitted))
        cluster.run(6.0)
        before = {process.name for process in cluster.living("taskexecutor")}
        assert cluster.resource_manager is not None
        shell = cluster.resource_manager.shell
        assert shell is not None
        leaving = sorted(shell.core.table.executors)[0]
        stop = StopRequested(request=1, task_executor_id=leaving, drain=True)
        stack.enter_context(shell.stop_task_executor(stop))
        if victim is not None:
            schedule(cluster, at(6.0 + 0.3 * seed, Kill(victim=victim)))
        cluster.run(30.0)
        now = {process.name for process in cluster.living("taskexecutor")}
        if victim is not Victim.RESOURCE_MANAGER:  # what it has started is idle one day
            assert len(now) == 2 and len(before & now) == 1
        cluster.rest(REST_S)
        assert cluster.store.by_id[submitted.graph.job_id].status is JobStatus.FINISHED


@pytest.mark.parametrize("victim", [None, Victim.JOB_MASTER, Victim.DISPATCHER])
@pytest.mark.parametrize("seed", long_after(2, range(20)))
def test_a_rescaled_job_reads_each_split_once_whichever_process_dies(
    tmp_path: Path, seed: int, victim: Victim | None
) -> None:
    """The victim dies at any step of the second of three changes; no restart is used up."""
    submitted = bounded_job(attempts=0, checkpoints=tmp_path, splits=200)
    with quiet_cluster(seed) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        for when_s, parallelism in ((6.0, 4), (12.0, 1), (24.0, 2)):
            cluster.at(when_s, partial(cluster.scale, submitted, parallelism))
        if victim is not None:
            schedule(cluster, at(12.0 + 0.15 * seed, Kill(victim=victim)))
        cluster.run(40.0)
        cluster.rest(REST_S)
        job_id = submitted.graph.job_id
        assert cluster.store.by_id[job_id].status is JobStatus.FINISHED
        stored = [set(each.by_vertex.values()) for each in cluster.store.parallelism[job_id]]
        assert stored in ([{4}, {1}, {2}], [{4}, {2}]), submitted.not_rescaled
        if victim is None:
            assert submitted.rescaled == [4, 1, 2]


@pytest.mark.parametrize("victim", [None, Victim.JOB_MASTER, Victim.DISPATCHER])
@pytest.mark.parametrize("seed", long_after(1, range(16)))
def test_a_reactive_job_follows_slots_that_go_and_come_back(
    tmp_path: Path, seed: int, victim: Victim | None
) -> None:
    """A TaskExecutor with half of the slots dies, and another one replaces it; a master may die in
    between. Each split is read once.
    """
    config = {
        "scheduler_mode": "reactive",
        "jobmanager__adaptive_scheduler__submission__resource_stabilization_timeout": "100 ms",
        "jobmanager__adaptive_scheduler__executing__resource_stabilization_timeout": "1 s",
        "jobmanager__adaptive_scheduler__executing__cooldown_after_rescaling": "0 s",
    }
    submitted = bounded_job(attempts=1, checkpoints=tmp_path, splits=200, **config)
    with quiet_cluster(seed) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        schedule(cluster, at(12.0, Kill(victim=Victim.TASK_EXECUTOR)))
        if victim is not None:
            schedule(cluster, at(12.0 + 0.4 * seed, Kill(victim=victim)))
        cluster.run(40.0)
        cluster.rest(REST_S)
        job_id = submitted.graph.job_id
        assert cluster.store.by_id[job_id].status is JobStatus.FINISHED
        widest = [max(each.by_vertex.values()) for each in cluster.store.parallelism[job_id]]
        assert 4 in widest and widest[-1] > 1, widest
        assert cluster.checkers.happened()["rescales to more slots"]


@pytest.mark.parametrize("seed", long_after(3, range(12)))
def test_a_task_that_fails_at_once_restores_the_old_parallelism(tmp_path: Path, seed: int) -> None:
    submitted = bounded_job(attempts=0, checkpoints=tmp_path, splits=200)
    with quiet_cluster(seed) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        cluster.at(6.0, lambda: cluster.scale(submitted, 4))
        while not cluster.checkers.started_again:
            cluster.run(0.01)
        schedule(cluster, (cluster.world.now - START_S, Kill(victim=Victim.SLOT_PROCESS)))
        cluster.rest(REST_S)
        job_id = submitted.graph.job_id
        assert cluster.store.by_id[job_id].status is JobStatus.FINISHED
        parallelism = cluster.store.parallelism[job_id]
        assert len(parallelism) == 2 and sorted(parallelism[-1].by_vertex.values()) == [2, 3]
        (why,) = submitted.not_rescaled
        assert "the old one is restored" in why


@pytest.mark.parametrize("parallelism", [1, 4])
@pytest.mark.parametrize("seed", long_after(2, range(8)))
def test_no_task_of_another_parallelism_is_adopted(
    tmp_path: Path, seed: int, parallelism: int
) -> None:
    """The JobMaster dies once the parallelism is stored: all tasks run with the old one."""
    submitted = bounded_job(attempts=0, checkpoints=tmp_path, splits=60)
    with quiet_cluster(seed) as cluster:
        cluster.at(3.0, lambda: cluster.submit(submitted))
        cluster.at(6.0, lambda: cluster.scale(submitted, parallelism))
        while not cluster.store.parallelism:
            cluster.run(0.0005)
        schedule(cluster, (cluster.world.now - START_S, Kill(victim=Victim.JOB_MASTER)))
        cluster.rest(REST_S)
        stored = cluster.store.by_id[submitted.graph.job_id]
        assert stored.status is JobStatus.FINISHED and stored.epoch == 2
        assert len(cluster.store.parallelism[submitted.graph.job_id]) == 1
        assert cluster.checkers.snapshots.rescaled, "they restore the checkpoint"
        assert not cluster.checkers.adopted
