"""A job with a sink of every kind is rescaled under load, and masters die on the way; the ledger is
right all the time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel import Environment
from firesteel.client.job_details import JobDetails
from firesteel.common.failpoints import Failpoint
from firesteel.common.rescales import Outcome
from firesteel.errors import FiresteelError
from tests.kafka.broker import Kafka
from tests.waiting import eventually

from . import every_state
from .conftest import Session, attempt_ids, firesteel, running
from .exactly_once import ExactlyOnceJob, exactly_once_job
from .jobs import endless
from .kafka_exactly_once import kafka_job


def parallelism(details: JobDetails) -> set[int]:
    """That of the vertices that a request may change."""
    return {v.parallelism for v in details.vertices if "commit" not in v.name}


def await_parallelism(session: Session, job: ExactlyOnceJob, wanted: int) -> None:
    def has_it(details: JobDetails) -> bool:
        return running(details) and parallelism(details) == {wanted}

    session.wait_until(job.job_id, has_it)
    job.progress(f"parallelism {wanted}")


def test_rows_count_once_while_a_job_is_rescaled_and_masters_die(
    session: Session, tmp_path: Path, postgres: str, failpoints: Path
) -> None:
    with exactly_once_job(session, tmp_path, postgres) as job:
        job.progress("the start")
        done = firesteel("scale", "-m", session.address, job.job_id, "--parallelism", "4")
        assert done.returncode == 0, done.stderr
        assert ": 2 -> 4" in done.stdout
        await_parallelism(session, job, 4)

        dies_at(session, job, failpoints, Failpoint.PARALLELISM_BEFORE)
        await_parallelism(session, job, 4)
        dies_at(session, job, failpoints, Failpoint.PARALLELISM_AFTER)
        await_parallelism(session, job, 1)

        (failpoints / Failpoint.PARALLELISM_COMMITTED.value).touch()
        with pytest.raises(FiresteelError):  # the Dispatcher dies, and the JobMaster continues
            session.client.rescale(job.job_id, 2)
        await_parallelism(session, job, 2)
        job.await_few_checkpoints()
    session.wait_until_all_slots_are_free()


def test_every_kind_of_state_and_sink_survives_rescaling(
    session: Session, tmp_path: Path, postgres: str
) -> None:
    with exactly_once_job(session, tmp_path, postgres, operators=every_state) as job:
        job.progress("the start")
        for wanted in (1, 3, 2):
            changed = session.client.rescale(job.job_id, wanted).after.values()
            assert wanted in changed
            job.progress(f"parallelism {wanted}")
        records = session.client.job_details(job.job_id).rescales
        assert [each.outcome for each in records] == [Outcome.SUCCEEDED] * 3
    session.wait_until_all_slots_are_free()


@pytest.mark.long  # integration/test_kafka_sink.py restores them with another parallelism
def test_transactions_of_kafka_survive_rescaling(
    session: Session, kafka: Kafka, tmp_path: Path
) -> None:
    with kafka_job(session, kafka, tmp_path) as job:
        job.progress("the start")
        for wanted in (4, 3, 2):
            assert session.client.rescale(job.job_id, wanted).changes
            job.progress(f"parallelism {wanted}")
    session.wait_until_all_slots_are_free()


def dies_at(session: Session, job: ExactlyOnceJob, failpoints: Path, point: Failpoint) -> None:
    """The JobMaster dies at this point while it rescales the job to parallelism 1."""
    armed = failpoints / point.value
    armed.touch()
    try:
        with pytest.raises(FiresteelError, match="the old or the new parallelism"):
            session.client.rescale(job.job_id, 1)
        assert not armed.exists()
    finally:
        armed.unlink(missing_ok=True)


def test_a_job_that_cannot_be_rescaled_says_why(session: Session, tmp_path: Path) -> None:
    without = session.submit(endless(2))
    session.wait_until(without, running)
    refused = firesteel("scale", "-m", session.address, without, "-p", "4")
    assert refused.returncode == 1 and "takes no checkpoints" in refused.stderr
    unknown = firesteel("scale", "-m", session.address, without, "--vertex", "Discrad=2")
    assert "did you mean 'Discard'" in unknown.stderr
    session.client.cancel(without)
    session.wait_until_all_slots_are_free()

    checkpoints = {
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": str(tmp_path),
    }
    env: Environment = endless(2)
    job_id = session.submit(env, **{k.replace(".", "__"): v for k, v in checkpoints.items()})
    before = session.wait_until(job_id, running)
    checked = firesteel("scale", "-m", session.address, job_id, "-p", "6", "--dry-run")
    assert checked.returncode == 0 and "4 tasks would restart" in checked.stdout, checked.stdout
    assert "It needs 4 more slots; 2 are free now, 2 fewer than needed." in checked.stdout
    beyond = firesteel("scale", "-m", session.address, job_id, "-p", "129")
    assert beyond.returncode == 1 and "max parallelism 128" in beyond.stderr, beyond.stderr
    concluded = firesteel("scale", "-m", session.address, job_id, "--dry-run")
    assert "The autoscaler does not change this job" in concluded.stdout, concluded.stderr
    missing = firesteel("scale", "-m", session.address, job_id, "-p", "6", "--timeout", "1")
    assert missing.returncode == 1 and "2 more slots did not become available" in missing.stderr
    after = session.client.job_details(job_id)
    (record,) = after.rescales
    assert record.outcome is Outcome.EXCEPTION_OCCURRED and "2 more slots" in record.problem
    assert running(after) and attempt_ids(after) == attempt_ids(before)
    eventually(lambda: session.free_slots() == 2, "the slots are returned")


def test_a_reactive_job_uses_the_slots_that_another_job_returns(
    session: Session, tmp_path: Path
) -> None:
    first = session.submit(endless(3))
    session.wait_until(first, running)
    env = endless(2)
    reactive = {
        "scheduler-mode": "reactive",
        "pipeline.max-parallelism": "4",
        "jobmanager.adaptive-scheduler.submission.resource-stabilization-timeout": "1 s",
        "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout": "1 s",
        "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "0 s",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": str(tmp_path),
    }
    job_id = session.submit(env, **{k.replace(".", "__"): v for k, v in reactive.items()})
    small = session.wait_until(job_id, lambda d: running(d) and parallelism(d) == {1})
    assert {(v.lower_bound, v.upper_bound) for v in small.vertices} == {(1, 4)}
    session.client.cancel(first)
    session.wait_until(job_id, lambda d: running(d) and parallelism(d) == {4})
