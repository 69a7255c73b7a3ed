"""flink_jobmanager_job_*, from the job's states."""

from __future__ import annotations

from firesteel.common.metric_reference import GROUPS
from firesteel.common.states import ExecutionState
from firesteel.errors import ErrorInfo
from jobmaster.core.failover.restart_strategy import FixedDelay
from jobmaster.core.settings import JobSettings
from jobmaster.details import job_details
from jobmaster.job_metrics import samples
from tests.job_master import World, job, vertex


def test_a_restarted_job_counts_its_restart_and_shows_both_attempts() -> None:
    world = World(job(vertex("a", 1)), JobSettings(restart=FixedDelay(attempts=1, delay_s=1.0)))
    world.run(("te-1", 1))
    world.now += 4.0
    world.report(world.executions(), ExecutionState.FAILED, error=ErrorInfo(summary="boom"))
    world.pass_time(1.0)
    values = {
        name: value for name, _, value in samples(world.core, "host", world.core.now_ms(world.now))
    }
    assert values["flink_jobmanager_job_numRestarts"] == 1.0
    assert values["flink_jobmanager_job_restartingTime"] == 1000.0
    (group,) = (group for group in GROUPS if group.prefix == "flink_jobmanager_job_")
    documented = {group.prefix + name for name in group.metrics}
    of_dispatcher = {"flink_jobmanager_job_failedTimestamp"}
    missing = documented - of_dispatcher - values.keys()
    assert {name for name in missing if "heckpoint" not in name} == set()
    assert values.keys() <= documented
    details = job_details(world.core, {}, world.now)
    failed, current = details.vertices[0].subtasks[0].attempts
    assert (failed.error.summary, failed.number, current.number) == ("boom", 0, 1)
    assert details.exceptions[0].task_name == "a (1/1)#0"
