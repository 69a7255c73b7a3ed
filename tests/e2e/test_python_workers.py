"""Spark's own Python workers (a Python UDF inside transform): they find the job's modules, and
nothing of them is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from firesteel import Environment
from firesteel.common.states import JobStatus
from firesteel.errors import JobCanceled, JobFailed
from taskexecutor.executor.columnar.jvm.session import PYTHON_DAEMON
from tests.waiting import PATIENCE_S, eventually

from .conftest import SLOTS, Session, command, firesteel
from .test_faults import busy_slot, jvm_of

JOB = """
from firesteel import Environment

def steps(batches):
    import helper
    for batch in batches:
        batch["value"] += helper.STEP
        yield batch

def apply(df):
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType

    @F.udf(LongType())
    def step(value):
        import helper
        return value + helper.STEP

    return df.mapInPandas(steps, "value LONG").select(step("value").alias("value"))

env = Environment()
print("rows", sorted(env.from_sequence(0, 3).transform(apply).execute_and_collect("udf")["value"].to_pylist()))
"""


def test_python_udfs_find_the_files_of_their_job_and_no_others(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    library = tmp_path / "lib"
    library.mkdir()
    for step in (10, 20):  # a worker that was used again would still have the first
        (library / "helper.py").write_text(f"STEP = {step}\n")
        done = firesteel(
            "run",
            "-m",
            session.address,
            "--py-files",
            str(library / "helper.py"),
            str(tmp_path / "job.py"),
        )
        assert f"rows [{2 * step}, {2 * step + 1}, {2 * step + 2}]" in done.stdout, (
            done.stdout + done.stderr
        )
    done = firesteel("run", "-m", session.address, str(tmp_path / "job.py"))
    assert done.returncode == 1
    assert "No module named 'helper'" in done.stdout + done.stderr


def stuck(env: Environment, marker: Path) -> None:
    """Adds a Python UDF that never returns and ignores signals that ask it to stop."""

    def never(batches: Iterator[Any]) -> Iterator[Any]:
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        marker.touch()
        for batch in batches:
            time.sleep(600)
            yield batch

    env.from_sequence(0, 1_000).transform(lambda df: df.mapInPandas(never, "value LONG")).print()


def doubled() -> Environment:
    def double(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch * 2

    env = Environment(parallelism=SLOTS)  # on every slot
    env.from_sequence(0, 1_000).transform(lambda df: df.mapInPandas(double, "value LONG")).print()
    return env


def python_workers(slot: psutil.Process) -> list[psutil.Process]:
    return [p for p in slot.children(recursive=True) if PYTHON_DAEMON in command(p)]


def kill_slot(session: Session, slot: psutil.Process, job_id: str) -> None:
    slot.kill()


def kill_jvm(session: Session, slot: psutil.Process, job_id: str) -> None:
    jvm_of(slot).kill()


def cancel(session: Session, slot: psutil.Process, job_id: str) -> None:
    session.client.cancel(job_id)


@pytest.mark.parametrize("end", [kill_slot, kill_jvm, cancel])
def test_a_stuck_python_worker_goes_with_its_job(
    session: Session, tmp_path: Path, end: Callable[[Session, psutil.Process, str], None]
) -> None:
    env = Environment()
    stuck(env, tmp_path / "reached")
    job_id = session.submit(env)
    slot, _ = busy_slot(session, job_id)
    eventually((tmp_path / "reached").exists, "the UDF is called")
    workers = python_workers(slot)
    assert len(workers) >= 2, "Spark's daemon and a worker"
    assert psutil.Process(workers[0].ppid()).name() == "java"
    # Spark's daemon stays with its JVM: it is what workers are forked from, and holds nothing of a
    # job.
    ending = workers[1:] if end is cancel else workers
    end(session, slot, job_id)
    with pytest.raises(JobCanceled if end is cancel else JobFailed):
        session.client.wait(job_id)
    _, alive = psutil.wait_procs(ending, timeout=PATIENCE_S)
    assert alive == []
    session.wait_until_all_slots_are_free()
    if end is cancel:
        assert slot.is_running(), "the slot need not be replaced for that"
        assert session.run(doubled()).status is JobStatus.FINISHED
        assert session.run(doubled()).status is JobStatus.FINISHED, (
            "workers that were ended are started again"
        )
