"""The autoscaler of a running job, fed with the samples of its tasks."""

from __future__ import annotations

import pytest

from firesteel._proto.common_pb2 import TaskMetrics, TopicProgress
from firesteel.common.ids import IdSource
from firesteel.common.job_graph import Partitioner
from firesteel.common.operator_messages import SplitRequested
from jobmaster.autoscaling import Autoscaling
from jobmaster.core import commands, events
from jobmaster.core.autoscaler import AutoscalerSettings
from jobmaster.series import Attempt, JobSeries
from tests.job_master import World, job, vertex
from tests.unit.jobmaster.test_rescaling import (
    acknowledge,
    rescale,
    restarted,
    run_all,
    running,
)

STEP_S = 5.0


def overloaded(world: World, settings: AutoscalerSettings, seconds: float) -> Autoscaling:
    """Returns the autoscaling of a job whose sink is always busy and whose lag grows."""

    def post(event: events.Event) -> None:
        posted.append(event)

    posted: list[events.Event] = []
    autoscaling = Autoscaling(settings, world.core, IdSource(b"autoscaler"), post)
    series = JobSeries()
    for step in range(int(seconds / STEP_S)):
        attempts = {
            job_vertex.vertex.vertex_id: [
                Attempt(each.subtask, metrics(each.current.attempt_id, name, step))
                for each in job_vertex.vertices
            ]
            for job_vertex in world.core.graph.vertices
            for name in (job_vertex.vertex.name,)
        }
        world.now += STEP_S
        series.add(attempts, world.now * 1000)
        autoscaling.sampled(series.last, attempts, world.now)
        while posted:
            world.post(posted.pop())
    return autoscaling


def metrics(attempt_id: str, name: str, step: int) -> TaskMetrics:
    ms, busy = STEP_S * 1000 * step, 1.0 if name == "sink" else 0.6
    topics = {"t": TopicProgress(pending_records=1000 * step)} if name == "source" else {}
    return TaskMetrics(
        attempt_id=attempt_id,
        records_in=500 * step,
        records_out=500 * step,
        busy_ms=ms * busy,
        idle_ms=ms * (1 - busy),
        topics=topics,
    )


def test_an_overloaded_job_is_rescaled() -> None:
    world = running()
    autoscaling = overloaded(world, AutoscalerSettings(window_s=60.0), 100.0)
    assert "'sink' is raised from 2 to " in autoscaling.decided
    declared = world.of(commands.DeclareRequirements)[-1]
    assert sum(requirement.count for requirement in declared.requirements) > 2


def test_a_dry_run_only_says_what_it_would_do() -> None:
    world = running()
    autoscaling = overloaded(world, AutoscalerSettings(window_s=60.0, dry_run=True), 100.0)
    assert autoscaling.decided.endswith("(dry run)")
    assert len(world.of(commands.DeclareRequirements)) == 1


@pytest.mark.parametrize("interval_s", [60.0, 120.0])
def test_measurements_restart_with_the_tasks(interval_s: float) -> None:
    world = running()
    rescale(world, 1)
    acknowledge(world)
    world.post(events.ParallelismStored())
    settings = AutoscalerSettings(window_s=interval_s)
    assert not overloaded(world, settings, 2 * interval_s).decided, "its tasks are cancelled"
    restarted(world)
    run_all(world)
    assert overloaded(world, settings, 2 * interval_s).decided


def test_a_source_that_is_read_in_splits_has_a_backlog() -> None:
    """Each split has 100 records; the first subtask reads three of them in each step."""
    listed = ("splits", {"splits": [{"n": n} for n in range(500)]})
    source = vertex("source", 2, coordinator=listed)
    world = running(job(source, vertex("sink", 2), partitioner=Partitioner.HASH))
    autoscaling = Autoscaling(AutoscalerSettings(), world.core, IdSource(b"a"), lambda event: None)
    series, reader = JobSeries(), world.executions()[0]
    coordinator = world.core.coordinators.of_source(source)
    assert coordinator is not None
    for step in range(4):
        for received in range(3 * step, 3 * step + 3):
            coordinator.receive(reader.attempt_id, 0, SplitRequested(received=received))
        read = TaskMetrics(
            attempt_id=reader.attempt_id, records_out=300 * step, busy_ms=5000.0 * step
        )
        attempts = {source.vertex_id: [Attempt(0, read)]}
        world.now += STEP_S
        series.add(attempts, world.now * 1000)
        autoscaling.sampled(series.last, attempts, world.now)
    found = autoscaling.explain(world.now)[0]
    splits = coordinator.backlog()["unassignedSplits"]
    assert splits > 400 and found.backlog == pytest.approx(100 * splits)
