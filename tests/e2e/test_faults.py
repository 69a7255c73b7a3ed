"""kill -9 of any process: noticed immediately, reported clearly, repaired, and no orphan is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from dispatcher.core.core import JOB_MASTERS_IN_A_ROW
from firesteel import Environment, ResourceProfile
from firesteel.client.cluster import LocalCluster
from firesteel.client.job_details import Attempt, JobDetails
from firesteel.common.config import Configuration
from firesteel.common.metrics_targets import targets
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.datastream import DataStream
from firesteel.errors import JobCanceled, JobFailed
from tests.credentials import scrape
from tests.waiting import PATIENCE_S, eventually

from .conftest import (
    SLOTS,
    Session,
    command,
    job_masters,
    name,
    own_cluster,
    processes,
    running,
    services,
)
from .jobs import endless, nothing_left

MIB = 2**20


def supervisor_of(directory: Path) -> psutil.Process:
    (supervisor,) = processes(
        lambda line: "firesteel.client.cluster" in line and str(directory) in line
    )
    return supervisor


def metrics_address(session: Session, process: str, pid: int) -> str:
    """Where Prometheus finds the process, which serves its metrics there."""
    found = targets(session.cluster.directory / "metrics")
    (target,) = (each for each in found if (each.process, each.pid) == (process, pid))
    assert "flink_" in scrape(target.address)
    assert [each.pid for each in found if each.address == target.address] == [pid]
    return target.address


def attempts_of(details: JobDetails) -> set[str]:
    return {
        subtask.current.attempt_id
        for v in details.vertices
        for subtask in v.subtasks
        if subtask.current is not None
    }


def busy_slot(session: Session, job_id: str) -> tuple[psutil.Process, JobDetails]:
    """A slot's process that runs tasks of the job."""
    details = session.wait_until(job_id, running)
    current = details.vertices[0].subtasks[0].current
    assert current is not None
    return slot_of(session, current), details


def slot_of(session: Session, attempt: Attempt) -> psutil.Process:
    """The process that runs the attempt."""
    worker = next(
        t
        for t in session.overview().task_executors
        if t.task_executor_id == attempt.task_executor_id
    )
    (process,) = (
        p
        for p in psutil.Process(worker.pid).children()
        if f"--slot {attempt.slot_index}" in command(p)
    )
    return process


def test_the_death_of_a_slots_process_fails_its_job_and_is_mended(session: Session) -> None:
    job_id = session.submit(endless(2))
    victim, _ = busy_slot(session, job_id)
    victim.kill()
    # Not "has not answered": a death is noticed immediately, without a heartbeat timeout.
    with pytest.raises(JobFailed, match="SIGKILL"):
        session.client.wait(job_id)
    session.wait_until_all_slots_are_free()
    env = Environment(parallelism=SLOTS)
    env.from_sequence(0, 1_000).rebalance().map_in_arrow(nothing_left).print()
    assert session.run(env).status is JobStatus.FINISHED


def jvm_of(slot: psutil.Process) -> psutil.Process:
    (jvm,) = [p for p in slot.children(recursive=True) if name(p) == "java"]
    return jvm


def in_spark() -> DataStream:
    """Nearly all of its time is Spark's."""

    def some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 1)

    env = Environment(parallelism=1)
    return (
        env.from_sequence(0, 10**15)
        .transform(lambda df: df.where("value % 2 = 0"))
        .map_in_arrow(some)
    )


def between_bundles() -> DataStream:
    """Spark has processed its bundle and gets no other: Python never requests one."""

    def waiting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            threading.Event().wait()

    env = Environment(parallelism=1)
    return (
        env.from_sequence(0, 1_000)
        .rebalance()
        .transform(lambda df: df.where("value % 2 = 0"))
        .map_in_arrow(waiting)
    )


@pytest.mark.parametrize("program", [in_spark, between_bundles])
def test_the_death_of_a_slots_jvm_fails_its_job_with_the_reason(
    session: Session, program: Callable[[], DataStream]
) -> None:
    job_id = session.submit(program().rebalance().print()._program)
    victim, _ = busy_slot(session, job_id)
    session.wait_until(job_id, lambda details: details.vertices[-2].metrics.records_out > 0)
    jvm = jvm_of(victim)
    jvm.kill()
    with pytest.raises(
        JobFailed, match=rf"Spark JVM \(pid {jvm.pid}\) is gone: it was killed by signal 9"
    ):
        session.client.wait(job_id)
    session.wait_until_all_slots_are_free()


def test_the_death_of_a_slots_jvm_is_one_failure(session: Session) -> None:
    restarts = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1",
        "restart-strategy.fixed-delay.delay": "0 s",
    }
    job_id = session.submit(in_spark().rebalance().print()._program, **restarts)
    victim, _ = busy_slot(session, job_id)
    session.wait_until(job_id, lambda details: details.vertices[-2].metrics.records_out > 0)
    jvm_of(victim).kill()
    details = session.wait_until(
        job_id,
        lambda details: all(
            vertex.subtasks[0].attempts[-1].state is ExecutionState.RUNNING
            and vertex.subtasks[0].attempts[-1].number == 1
            for vertex in details.vertices
        ),
    )
    assert len(details.exceptions) == 1
    session.client.cancel(job_id)
    session.wait_until_all_slots_are_free()


def test_a_transform_that_uses_up_the_heap_fails_its_job_with_the_reason(session: Session) -> None:
    env = Environment(parallelism=1)
    env.from_sequence(0, 100).transform(
        lambda df: df.selectExpr("size(sequence(0, value + 90000000)) AS value")
    ).print()
    with pytest.raises(
        JobFailed, match=r"its heap of 512 MiB is used up; raise taskmanager\.slot\.heap\.size"
    ):
        session.run(env)
    session.wait_until_all_slots_are_free()
    env = Environment(parallelism=SLOTS)
    env.from_sequence(0, 1_000).transform(lambda df: df.where("value % 2 = 0")).map_in_arrow(
        nothing_left
    ).print()
    assert session.run(env).status is JobStatus.FINISHED


def test_an_analysis_whose_jvm_dies_is_repeated(session: Session, tmp_path: Path) -> None:
    analyzes, release = str(tmp_path / "analyzes"), str(tmp_path / "release")

    def waiting(df: Any) -> Any:
        Path(analyzes).write_text(str(os.getpid()))
        while not Path(release).exists():
            time.sleep(0.02)
        return df.where("value > 0")

    env = Environment(parallelism=1)
    env.from_sequence(0, 100).transform(waiting).print()
    job_id = session.submit(
        env,
        **{"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "1"},
    )
    slot = eventually(lambda: Path(analyzes).exists() and Path(analyzes).read_text())
    jvm_of(psutil.Process(int(slot))).kill()
    Path(release).touch()
    assert session.client.wait(job_id).status is JobStatus.FINISHED
    session.wait_until_all_slots_are_free()


def test_an_analysis_that_uses_up_the_heap_fails_its_job_with_the_reason(session: Session) -> None:
    env = Environment()
    constant = "size(sequence(0, 90000000))"  # Spark computes it when it makes the plan
    env.from_sequence(0, 100).transform(lambda df: df.where(f"value < {constant}")).print()
    with pytest.raises(
        JobFailed, match=r"its heap of 512 MiB is used up; raise taskmanager\.slot\.heap\.size"
    ):
        session.run(env)


def test_a_task_executors_death_fails_its_job_and_it_is_replaced(
    session: Session,
) -> None:
    """It is replaced immediately, even if it is not a child of the ResourceManager."""
    job_id = session.submit(endless(SLOTS))
    session.wait_until(job_id, running)
    (former,) = services(session, "resourcemanager")
    former.kill()
    eventually(
        lambda: services(session, "resourcemanager") not in ([], [former]), "a new ResourceManager"
    )
    eventually(
        lambda: session.client.cluster_overview().slots_total == SLOTS,
        "every TaskExecutor registered again",
    )
    victim = psutil.Process(session.overview().task_executors[0].pid)
    family = victim.children(recursive=True)
    assert len(family) >= 4, "two Pythons and two JVMs"
    victim.kill()
    with pytest.raises(
        JobFailed, match=r"TaskExecutor \w+ is lost: its process has ended: its address"
    ):
        session.client.wait(job_id)
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert alive == [], "its slots and their JVMs went with it"
    session.wait_until_all_slots_are_free()


def test_a_slot_over_its_memory_limit_ends_and_both_numbers_are_shown(session: Session) -> None:
    def greedy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        hoard = []
        for _ in batches:
            while True:
                hoard.append(b"x" * (16 * MIB))
                time.sleep(0.01)
        yield from ()

    env = Environment()
    env.resource_group(
        "small", ResourceProfile(cpu_cores=1, heap_bytes=256 * MIB, off_heap_bytes=768 * MIB)
    )
    env.from_sequence(0, 1_000).rebalance().map_in_arrow(greedy, name="Greedy").resource_group(
        "small"
    ).print()
    job_id = session.submit(env)
    with pytest.raises(JobFailed, match=r"MiB.*1,024 MiB"):
        session.client.wait(job_id)


def test_the_death_of_the_resource_manager_leaves_jobs_running(session: Session) -> None:
    job_id = session.submit(endless(1))
    session.wait_until(job_id, running)
    (victim,) = services(session, "resourcemanager")
    before = {t.task_executor_id for t in session.overview().task_executors}
    victim.kill()
    eventually(
        lambda: services(session, "resourcemanager") not in ([], [victim]), "a new ResourceManager"
    )
    eventually(
        lambda: session.client.cluster_overview().slots_total == SLOTS,
        "every TaskExecutor registered again",
    )
    assert {t.task_executor_id for t in session.overview().task_executors} == before
    eventually(lambda: session.free_slots() == SLOTS - 1, "the job's slot is taken")
    assert session.client.job_details(job_id).status is JobStatus.RUNNING
    log = (session.cluster.directory / "logs" / "resourcemanager.log").read_text()
    assert "starting TaskExecutor" not in log.rpartition("the ResourceManager leads")[2], (
        "those that live were waited for"
    )
    session.client.cancel(job_id)


@pytest.mark.long  # integration/test_dispatcher.py kills them without tasks
def test_a_job_whose_job_masters_die_again_and_again_fails_and_no_other(session: Session) -> None:
    other = session.submit(endless(1))
    session.wait_until(other, running)
    job_id = session.submit(endless(1))
    for number in range(1, JOB_MASTERS_IN_A_ROW + 2):
        masters: dict[int, int] = {}
        while len(masters) < number:
            session.wait_until(job_id, running)
            masters = job_masters(session.cluster.directory, job_id)
        psutil.Process(masters[max(masters)]).kill()
    with pytest.raises(
        JobFailed,
        match=r"exit code -9 \(killed by SIGKILL\)(.|\n)*it ends with(.|\n)*job_id=" + job_id,
    ):
        session.client.wait(job_id)
    eventually(lambda: session.free_slots() == SLOTS - 1, "the dead job's slot is free")
    assert session.client.job_details(other).status is JobStatus.RUNNING
    session.client.cancel(other)


def test_the_death_of_the_dispatcher_leaves_jobs_running(session: Session) -> None:
    job_id = session.submit(endless(1))
    attempts = attempts_of(session.wait_until(job_id, running))
    (victim,) = services(session, "dispatcher")
    served = metrics_address(session, "dispatcher", victim.pid)
    victim.kill()
    for details in session.client.watch_job(job_id):  # the job continues by itself
        if running(details):
            break
    eventually(lambda: running(session.client.job_details(job_id)), "the job is adopted")
    assert attempts_of(session.client.job_details(job_id)) == attempts, "and was never restarted"
    (successor,) = services(session, "dispatcher")
    assert metrics_address(session, "dispatcher", successor.pid) == served
    session.client.cancel(job_id)
    with pytest.raises(JobCanceled):
        session.client.wait(job_id)
    session.wait_until_all_slots_are_free()
    env = Environment()
    env.from_sequence(0, 1_000).map_in_arrow(nothing_left).print()
    assert session.run(env).status is JobStatus.FINISHED


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_its_cluster(tmp_path: Path, number: int) -> None:
    conf = Configuration.load(overrides={"metrics.reporter.prom.port": "0"})
    with LocalCluster(conf, task_executors=1, slots=1, directory=tmp_path):
        supervisor = supervisor_of(tmp_path)
        modules = (
            "dispatcher",
            "resourcemanager",
            "jobmaster",
            "taskexecutor",
            "taskexecutor.executor",
        )
        family: list[psutil.Process] = []

        def complete() -> bool:
            family[:] = supervisor.children(recursive=True)
            lines = " ".join(map(command, family))
            return "java" in map(name, family) and all(f"-m {m} " in lines for m in modules)

        eventually(complete, "all kinds of processes, with the slot's JVM")
        os.kill(supervisor.pid, number)
        _, alive = psutil.wait_procs([supervisor, *family], timeout=PATIENCE_S)
        assert alive == []


def test_task_executors_come_on_demand_and_go_when_idle(tmp_path: Path) -> None:
    with own_cluster(
        tmp_path,
        slotmanager__number_of_slots__max="2",
        resourcemanager__taskmanager_timeout="1 s",
    ) as own:
        job_id = own.submit(endless(2))
        own.wait_until(job_id, running)
        assert len(own.overview().task_executors) == 2
        own.client.cancel(job_id)
        eventually(
            lambda: len(own.overview().task_executors) == 1,
            "the idle TaskExecutor gone",
        )
        with pytest.raises(JobFailed, match="1 .*slot"):
            own.client.wait(own.submit(endless(3), slot__request__timeout="1 s"))
