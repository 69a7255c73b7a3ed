"""Spark programs on a session cluster: the driver and each executor in a slot."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from firesteel.client.job_details import JobDetails
from firesteel.common.states import ExecutionState, JobStatus
from tests.waiting import eventually

from .conftest import WARM_S, Session, command, firesteel, name

# Adds the numbers of 8 partitions, which wait for a file, by key.
COUNTS = """
import sys, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession

out, started, released = map(Path, sys.argv[1:])

def slow(rows):
    import os
    started.mkdir(exist_ok=True)
    (started / str(os.getppid())).touch()
    while not released.exists():
        time.sleep(0.05)
    return rows

spark = SparkSession.builder.getOrCreate()
print("program starts")
pairs = spark.sparkContext.parallelize(range(10_000), 8).mapPartitions(slow)
counts = pairs.map(lambda n: (n % 10, n)).reduceByKey(lambda a, b: a + b, 4).collect()
out.write_text(repr(sorted(counts)))
"""
EXPECTED = repr([(k, sum(range(k, 10_000, 10))) for k in range(10)])


class Run:
    """A job of `COUNTS`, submitted detached, as a user would."""

    def __init__(self, session: Session, folder: Path, source: str = COUNTS) -> None:
        self.session, self.folder = session, folder
        self.out, self.started, self.released = (
            folder / each for each in ("out", "started", "released")
        )
        program = folder / "program.py"
        program.write_text(source)
        printed = run_spark(
            session, "-d", str(program), *map(str, (self.out, self.started, self.released))
        )
        assert printed.returncode == 0, printed.stderr
        found = re.search(r"JobID (\w{32})", printed.stdout)
        assert found, printed.stdout
        self.job_id = found[1]

    def await_tasks(self, executors: int = 1) -> None:
        eventually(
            lambda: self.started.exists() and len(list(self.started.iterdir())) >= executors,
            "tasks run on the executors",
            patience_s=WARM_S,
        )

    def slot_of(self, vertex: str, subtask: int = 0) -> psutil.Process:
        """Returns the process of the slot in which the task runs."""
        details = self.session.client.job_details(self.job_id)
        (found,) = [each for each in details.vertices if each.name == vertex]
        current = found.subtasks[subtask].current
        assert current is not None
        (process,) = [
            each
            for each in psutil.process_iter()
            if f"--slot {current.slot_index} " in (line := command(each))
            and "taskexecutor.executor " in line
            and current.task_executor_id in line
        ]
        return process

    def finish(self) -> JobDetails:
        self.released.touch()
        details: JobDetails = self.session.client.wait(self.job_id)
        return details


def run_spark(session: Session, *arguments: str) -> subprocess.CompletedProcess[str]:
    ended: subprocess.CompletedProcess[str] = firesteel(
        "run", "-m", session.address, "--spark", "--slots", "2", *arguments
    )
    return ended


def attempts(details: JobDetails, vertex: str) -> list[int]:
    (found,) = [each for each in details.vertices if each.name == vertex]
    return sorted(s.current.number for s in found.subtasks if s.current is not None)


def jvms(of: psutil.Process) -> list[psutil.Process]:
    """Returns the JVMs that Spark's programs have in this slot."""
    with contextlib.suppress(psutil.Error):
        below = of.children(recursive=True)
        return [p for p in below if name(p) == "java" and "org.apache.spark.deploy" in command(p)]
    return []


@pytest.fixture
def run(session: Session, tmp_path: Path) -> Run:
    return Run(session, tmp_path)


def test_a_killed_executor_is_replaced_and_the_result_is_right(run: Run) -> None:
    run.await_tasks(executors=2)  # both do work: their Python workers have other parents
    ui = run.session.client.job_details(run.job_id).spark_ui
    assert ui.startswith("http://"), "the address of Spark's UI"
    slot = run.slot_of("executors")
    below = slot.children(recursive=True)
    os.kill(slot.pid, signal.SIGKILL)
    psutil.wait_procs(below, timeout=60)
    assert not [p for p in below if name(p) == "java"], "no JVM outlives its slot"
    details = run.session.wait_until(run.job_id, lambda d: attempts(d, "executors") == [0, 1])
    details = run.finish()
    assert run.out.read_text() == EXPECTED
    assert attempts(details, "driver") == [0], "only the executor restarts"
    assert "program starts" in "".join(
        log.read_text() for log in run.session.cluster.directory.rglob("slot-*.log")
    )


def test_a_killed_driver_starts_the_program_again(run: Run) -> None:
    run.await_tasks()
    driver, executor = run.slot_of("driver"), run.slot_of("executors")
    os.kill(driver.pid, signal.SIGKILL)
    run.session.wait_until(
        run.job_id,
        lambda d: attempts(d, "driver") == [1] and d.states[ExecutionState.RUNNING] == 3,
    )
    assert executor.is_running(), "the slots of the executors stay"
    details = run.finish()
    assert details.status is JobStatus.FINISHED
    assert run.out.read_text() == EXPECTED


def test_cancel_ends_the_program_and_all_of_its_processes(run: Run) -> None:
    run.await_tasks()
    slots = [run.slot_of("driver"), run.slot_of("executors", 0), run.slot_of("executors", 1)]
    processes = [process for slot in slots for process in jvms(slot)]
    assert len(processes) == 4, "a master, a driver and two workers"
    run.session.client.cancel(run.job_id)
    eventually(
        lambda: run.session.client.job_details(run.job_id).status is JobStatus.CANCELED,
        "the job is cancelled",
    )
    assert not [p for p in processes if p.is_running() and name(p) == "java"]


def test_an_error_of_the_program_comes_first_and_is_not_repeated(
    session: Session, tmp_path: Path
) -> None:
    program = tmp_path / "fails.py"
    program.write_text("def broken():\n    raise ValueError('of the user')\n\nbroken()\n")
    ended = run_spark(session, str(program))
    assert ended.returncode == 1
    shown = ended.stderr
    assert f'File "{program}", line 2, in broken' in shown
    assert shown.index("ValueError: of the user") < shown.index("failed in driver (1/1)#0")
    program.write_text(
        "import sys\n"
        "from pyspark.sql import SparkSession\n"
        "name = lambda: SparkSession.builder.appName('leaves early')\n"
        "sys.exit(3)\n"
    )
    ended = run_spark(session, str(program))
    assert ended.returncode == 3
    assert "(leaves early) failed in driver (1/1)#0" in ended.stderr


def test_executors_join_and_leave_while_the_program_runs(run: Run) -> None:
    run.await_tasks()
    driver = run.slot_of("driver")
    for number in (3, 1):
        scaled = firesteel(
            "scale", "-m", run.session.address, run.job_id, "--vertex", f"executors={number}"
        )
        assert scaled.returncode == 0, scaled.stdout + scaled.stderr
        if number == 3:
            run.await_tasks(executors=3)  # of 8 tasks, 2 run; another executor gets a third
    details = run.finish()
    assert run.out.read_text() == EXPECTED
    assert attempts(details, "driver") == [0] and driver.is_running()
    assert attempts(details, "executors") == [0]
