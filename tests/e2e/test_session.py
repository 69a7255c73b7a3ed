"""Life on a session cluster: concurrent jobs, cancellation, more jobs than slots, failures that
leave no trace.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from firesteel import Environment
from firesteel.client.client import Client
from firesteel.client.execution_context import ExecutionContext, active
from firesteel.common.config import Configuration
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.connectors import CollectSink, DiscardSink, SequenceSource
from firesteel.errors import JobCanceled, JobFailed, JobNotFound
from tests.waiting import eventually

from .conftest import SLOTS, Session, firesteel, running
from .jobs import endless, failing, nothing_left, unhurried


def test_a_job_takes_as_many_slots_as_its_highest_parallelism(session: Session) -> None:
    env = Environment(parallelism=1)
    numbers = unhurried(env).rebalance()
    numbers.map_in_arrow(nothing_left).set_parallelism(3).rebalance().map_in_arrow(
        nothing_left
    ).set_parallelism(2).print()
    job_id = session.submit(env)
    details = session.wait_until(job_id, running)
    eventually(lambda: session.free_slots() == SLOTS - 3, "the free slots are known")
    slots = {
        (s.current.task_executor_id, s.current.slot_index)
        for v in details.vertices
        for s in v.subtasks
        if s.current
    }
    assert len(slots) == 3
    session.client.cancel(job_id)


def test_jobs_run_side_by_side_and_their_failures_are_their_own(session: Session) -> None:
    def boom(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            raise ValueError("this one only")
        yield from ()

    long_running = session.submit(endless(), "long")
    session.wait_until(long_running, running)
    bad = session.submit(failing(boom, parallelism=1), "bad")
    good_env = Environment()
    good_env.from_sequence(0, 100).map_in_arrow(nothing_left).print()
    good = session.submit(good_env, "good")
    assert session.client.wait(good).status is JobStatus.FINISHED
    with pytest.raises(JobFailed, match="this one only"):
        session.client.wait(bad)
    assert session.client.job_details(long_running).status is JobStatus.RUNNING
    assert {
        j.name: j.status
        for j in session.client.list_jobs()
        if j.job_id in (long_running, bad, good)
    } == {
        "long": JobStatus.RUNNING,
        "bad": JobStatus.FAILED,
        "good": JobStatus.FINISHED,
    }
    session.client.cancel(long_running)


def test_a_cancelled_job_gives_its_slots_back(session: Session) -> None:
    job_id = session.submit(endless(2))
    session.wait_until(job_id, running)
    session.client.cancel(job_id)
    with pytest.raises(JobCanceled):
        session.client.wait(job_id)
    details = session.client.job_details(job_id)
    assert set(details.states) == {ExecutionState.CANCELED}
    assert [status for status, _ in details.entered_ms][-2:] == [
        JobStatus.CANCELLING,
        JobStatus.CANCELED,
    ]


def test_a_job_that_lacks_slots_waits_for_them(session: Session) -> None:
    first = session.submit(endless(SLOTS), "first")
    session.wait_until(first, running)
    env = Environment(parallelism=2)
    env.from_sequence(0, 100).map_in_arrow(nothing_left).print()
    second = session.submit(env, "second")
    waiting = session.wait_until(second, lambda d: "slot" in d.waiting_for)
    assert set(waiting.states) == {ExecutionState.SCHEDULED}
    assert "2" in waiting.waiting_for
    session.client.cancel(first)
    assert session.client.wait(second).status is JobStatus.FINISHED


def test_a_waiting_job_can_be_cancelled(session: Session) -> None:
    job_id = session.submit(endless(SLOTS + 1))
    session.wait_until(job_id, lambda d: "slot" in d.waiting_for)
    session.client.cancel(job_id)
    with pytest.raises(JobCanceled):
        session.client.wait(job_id)


def test_a_task_that_ignores_cancellation_ends_with_its_slot_only(
    session: Session,
) -> None:
    def deaf(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            while True:
                time.sleep(0.1)
        yield from ()

    before = {t.task_executor_id for t in session.overview().task_executors}
    env = Environment()
    env.from_sequence(0, 1_000).rebalance().map_in_arrow(deaf, name="Deaf").print()
    job_id = session.submit(env)
    session.wait_until(
        job_id, lambda d: any(v.metrics.records_in > 0 or running(d) for v in d.vertices)
    )
    session.client.cancel(job_id)
    with pytest.raises(JobCanceled):
        session.client.wait(job_id)
    assert {t.task_executor_id for t in session.overview().task_executors} == before


def test_the_commands_of_a_session(session: Session) -> None:
    job_id = session.submit(endless(), "endless numbers")
    session.wait_until(job_id, running)
    listed = firesteel("list", "-m", session.address)
    assert f" : {job_id} : endless numbers (RUNNING)" in listed.stdout
    shown = firesteel("show", "-m", session.address, job_id)
    assert "Discard" in shown.stdout
    assert "RUNNING" in shown.stdout
    cancelled = firesteel("cancel", "-m", session.address, job_id)
    assert f"Cancelled job {job_id}." in cancelled.stdout
    with pytest.raises(JobCanceled):
        session.client.wait(job_id)
    assert job_id in firesteel("list", "-a", "-m", session.address).stdout


def test_cancelling_a_job_that_has_ended_says_how_it_ended(session: Session) -> None:
    job_id = session.submit(endless(), "ended twice")
    session.client.cancel(job_id)
    with pytest.raises(JobCanceled):
        session.client.wait(job_id)
    again = firesteel("cancel", "-m", session.address, "ended twice")
    assert again.returncode == 0
    assert re.search(
        rf'Job {job_id} \("ended twice"\) had already ended at .*: it is CANCELED\.', again.stdout
    )
    env = Environment()
    env.from_sequence(0, 10).sink_to(DiscardSink())
    done = session.run(env, "ended twice").job_id
    completed = firesteel("cancel", "-m", session.address, "ended twice")
    assert completed.returncode == 1
    assert f"Job {done}" in completed.stderr, "the newest of this name"
    assert "it is FINISHED, and cannot be cancelled" in completed.stderr
    assert done in firesteel("show", "-m", session.address, "ended twice").stdout


def test_an_unknown_job_id_is_named(session: Session) -> None:
    unknown = "0" * 32
    with pytest.raises(JobNotFound, match=unknown):
        session.client.job_details(unknown)
    for verb in ("cancel", "show"):
        completed = firesteel(verb, "-m", session.address, unknown)
        assert completed.returncode == 1
        assert unknown in completed.stderr
        assert "Traceback" not in completed.stderr


def test_many_small_jobs_reuse_the_warm_slots(session: Session) -> None:
    for number in range(10):
        env = Environment(parallelism=2)
        env.from_sequence(0, 100).key_by("value").map_in_arrow(nothing_left).print()
        assert session.run(env, f"small {number}").status is JobStatus.FINISHED


def test_two_clients_see_the_same_job(session: Session) -> None:
    job_id = session.submit(endless())
    with Client(session.address) as other:
        other.cancel(job_id)
    with pytest.raises(JobCanceled):
        session.client.wait(job_id)


def test_a_program_continues_beside_its_jobs(session: Session) -> None:
    context = ExecutionContext(
        mode="remote", conf=Configuration.load(overrides={}), address=session.address
    )
    with active(context):
        env = Environment(parallelism=1)
        env.from_source(SequenceSource(0, rate_per_s=100)).sink_to(DiscardSink())
        endless_job = env.execute_async("endless")
        env.from_sequence(0, 3, column="n").sink_to(CollectSink())
        quick = env.execute_async("quick")  # only what no earlier job runs
        assert quick.result(timeout_s=60).table()["n"].to_pylist() == [0, 1, 2]
        assert quick.status() is JobStatus.FINISHED
        assert not endless_job.details().status.globally_terminal
        with pytest.raises(TimeoutError):
            endless_job.result(timeout_s=0.0)
        endless_job.cancel()
        with pytest.raises(JobCanceled):
            endless_job.result()
