"""Every process of a cluster is replaced under a job that running, one after the other."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from firesteel import Environment
from firesteel.client.job_details import JobDetails
from firesteel.common.process import BlockingChild, spawn_blocking
from tests.e2e.conftest import (
    ROOT,
    SLOTS,
    Session,
    attempt_ids,
    firesteel,
    own_cluster,
    running,
    services,
)
from tests.e2e.exactly_once import ExactlyOnceJob, exactly_once_job
from tests.e2e.jobs import nothing_left, unhurried
from tests.waiting import PATIENCE_S, eventually
from tests.zookeeper import ZooKeeper


def places(details: JobDetails) -> set[str]:
    """The TaskExecutors of its tasks."""
    return {s.attempts[-1].task_executor_id for v in details.vertices for s in v.subtasks}


def replace_masters(session: Session, job: ExactlyOnceJob, sent: signal.Signals) -> None:
    for module in ("resourcemanager", "dispatcher"):
        (former,) = services(session, module)
        former.send_signal(sent)
        eventually(
            lambda of=module, pid=former.pid: [  # type: ignore[misc]
                p for p in services(session, of) if p.pid != pid
            ],
            f"another {module} runs",
        )
        job.progress(f"the end of the {module}")


def replace_task_executors(session: Session, job: ExactlyOnceJob, slots: int) -> None:
    first = {each.task_executor_id for each in session.overview().task_executors}
    assert len(first) == 2
    for leaving in sorted(first):
        before = session.client.job_details(job.job_id)
        drained = firesteel("stop-task-executor", "-m", session.address, "--drain", leaving[:8])
        assert drained.returncode == 0, drained.stderr + drained.stdout
        assert f"Draining TaskExecutor {leaving}: it gets no new tasks." in drained.stdout
        assert drained.stdout.endswith(f"TaskExecutor {leaving} has ended.\n")
        job.progress(f"the end of TaskExecutor {leaving}")
        after = session.wait_until(job.job_id, running)
        assert leaving not in places(after)
        restarted = len(attempt_ids(before)[0]) + (leaving in places(before))
        assert {len(each) for each in attempt_ids(after)} == {restarted}, "if it had tasks, once"
        assert after.exceptions == ()

    def replaced() -> bool:
        overview = session.overview()
        known = {each.task_executor_id for each in overview.task_executors}
        return not first & known and overview.slots_total == slots

    eventually(replaced, "others are in their places")


def rolling_restart(
    session: Session, folder: Path, postgres: str, slots: int, sent: signal.Signals
) -> None:
    never = {"restart-strategy.type": "none"}  # what counts as a failure ends the job
    with exactly_once_job(session, folder, postgres, **never) as job:
        job.progress("the start")
        before = attempt_ids(session.wait_until(job.job_id, running))
        replace_masters(session, job, sent)
        eventually(lambda: session.overview().slots_total == slots, "all TaskExecutors are known")
        after = attempt_ids(session.wait_until(job.job_id, running))
        assert after == before, "masters take no task with them"
        replace_task_executors(session, job, slots)


def test_a_rolling_restart_loses_no_row_and_fails_nothing(
    session: Session, tmp_path: Path, postgres: str
) -> None:
    rolling_restart(session, tmp_path, postgres, SLOTS, signal.SIGKILL)


@pytest.mark.long  # test_kubernetes_pods.py does it with other elections
def test_neither_does_one_of_elected_masters(
    tmp_path: Path, postgres: str, zookeeper: ZooKeeper
) -> None:
    with own_cluster(
        tmp_path / "cluster",
        task_executors=2,
        high_availability__type="zookeeper",
        high_availability__zookeeper__client__session_timeout="3 s",
        high_availability__zookeeper__quorum=zookeeper.quorum,
        high_availability__cluster_id=tmp_path.name,
    ) as session:
        rolling_restart(session, tmp_path, postgres, 2, signal.SIGTERM)


@contextlib.contextmanager
def started_by_hand(session: Session, folder: Path) -> Iterator[BlockingChild]:
    """A TaskExecutor with one slot more."""
    master = session.overview().resource_manager_address
    conf = session.cluster.conf.with_overrides({"taskmanager.numberOfTaskSlots": "1"})
    child = spawn_blocking(
        [
            *(sys.executable, "-m", "taskexecutor", "--resource-manager", master),
            *("--dir", str(folder), *conf.to_arguments()),
        ],
        log_path=folder / "taskexecutor.log",
    )
    try:
        eventually(lambda: session.overview().slots_warm == SLOTS + 1, "its slot is warm")
        yield child
    finally:
        child.stop()


def test_an_abandoned_drain_changes_nothing_and_a_forced_one_never_waits(
    session: Session, tmp_path: Path
) -> None:
    with started_by_hand(session, tmp_path) as child:
        leaving = child.ready["task_executor_id"]
        env = Environment(parallelism=SLOTS)
        unhurried(env).map_in_arrow(nothing_left, name="Discard").print()
        job_id = session.submit(env)  # it takes no checkpoints
        details = session.wait_until(job_id, running)
        assert leaving in places(details)
        command = ("stop-task-executor", "-m", session.address, "--drain", leaving)
        drain = subprocess.Popen(
            [sys.executable, "-u", "-m", "firesteel", *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Tests that run in the background are started with SIGINT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert drain.stdout is not None
        drain.stdout.readline()
        assert drain.stdout.readline() == f"Waiting for 1 slot of job 'job' ({job_id}).\n"
        assert [x.stops for x in session.overview().task_executors].count(True) == 1
        drain.send_signal(signal.SIGINT)
        _, told = drain.communicate(timeout=PATIENCE_S)
        assert (drain.returncode, told.split(":")[0]) == (130, "Interrupted")
        eventually(
            lambda: not any(x.stops for x in session.overview().task_executors), "it goes on"
        )
        assert attempt_ids(session.client.job_details(job_id)) == attempt_ids(details)

        forced = firesteel(*command, "--force")
        assert forced.returncode == 0, forced.stderr + forced.stdout
        assert child.process.wait(PATIENCE_S) == 0
        after = session.wait_until(job_id, lambda d: running(d) and leaving not in places(d))
        assert after.exceptions == ()
        unknown = firesteel(*command)
        assert unknown.returncode == 1
        assert f"there is no TaskExecutor '{leaving}' in the cluster at" in unknown.stderr
