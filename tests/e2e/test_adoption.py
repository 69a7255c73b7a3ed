"""JobMasters die, or stop and come back, under a job with state and a sink of every kind. The next
one adopts its tasks: not one of them is restarted, and the ledger is right all the time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from firesteel import Environment
from firesteel.client.job_details import JobDetails
from firesteel.common.checkpoints.metadata import read_metadata
from firesteel.common.failpoints import Failpoint
from firesteel.common.ids import stable_id
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.connectors import CollectSink, DiscardSink, FileSink, FileSource, SequenceSource
from firesteel.errors import FiresteelError, JobFailed
from jobmaster.core.checkpoints.recovery import CHECKPOINTS_PER_MASTER
from tests.waiting import eventually

from . import every_state
from .batches import batch_jobs
from .chaos import Chaos
from .conftest import Session, firesteel, job_masters
from .exactly_once import exactly_once_job

ROWS, READ_S = 10_000, 8.0
_TO_BEGIN = (ExecutionState.CREATED, ExecutionState.SCHEDULED)


def attempts(details: JobDetails, *, begun: bool = False) -> set[str]:
    """Returns the attempts of the job's tasks, only started ones if `begun`."""
    found = (a for v in details.vertices for s in v.subtasks for a in s.attempts)
    return {a.attempt_id for a in found if not begun or a.state not in _TO_BEGIN}


@pytest.mark.long  # test_chaos.py makes the same faults, and others
def test_the_death_of_a_job_master_restarts_no_task(
    session: Session, tmp_path: Path, postgres: str
) -> None:
    with exactly_once_job(
        session,
        tmp_path,
        postgres,
        operators=every_state,
        heartbeat__timeout="5 s",
        state__backend__type="rocksdb",
        execution__checkpointing__incremental="true",
    ) as job:
        chaos = Chaos(session, job, 0)
        job.progress("the start")
        before = attempts(session.client.job_details(job.job_id))
        for _ in range(2):
            victim = chaos.job_master()
            victim.send_signal(signal.SIGKILL)
            chaos.succeeded(victim)
            job.progress("the death of the JobMaster")
        chaos.replace(chaos.job_master())
        details = session.client.job_details(job.job_id)
        assert details.status.name == "RUNNING"
        assert attempts(details) == before, "those that the first JobMaster has started"
        job.await_few_checkpoints()
        job.await_few_shared_files()


def test_a_job_without_checkpoints_also_continues(session: Session) -> None:
    """A client gets each of its rows once, although nothing of it is stored anywhere."""
    env = Environment(parallelism=2)
    numbers = env.from_source(SequenceSource(0, ROWS, rate_per_s=ROWS / READ_S)).rebalance()
    numbers.transform(lambda df: df.where("value >= 0")).sink_to(CollectSink(), uid="collected")
    job_id = session.submit(env)
    rows = session.client.fetch_results(job_id, stable_id("uid", "collected"))
    read = next(rows)["value"].to_pylist()
    before = attempts(session.client.job_details(job_id))
    masters = job_masters(session.cluster.directory, job_id)
    psutil.Process(masters[max(masters)]).kill()
    read += [value for batch in rows for value in batch["value"].to_pylist()]
    details = session.client.wait(job_id)
    assert details.status.name == "FINISHED"
    assert attempts(session.client.job_details(job_id)) == before
    assert sorted(read) == list(range(ROWS))


def test_the_next_job_master_knows_when_the_job_started_and_why_it_failed(
    session: Session, tmp_path: Path
) -> None:
    failed = tmp_path / "failed"

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not failed.exists():
                failed.touch()
                raise ValueError("only once")
            yield batch

    env = Environment(
        parallelism=1,
        configuration={
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.delay": "0 s",
        },
    )
    numbers = env.from_source(SequenceSource(0, ROWS, rate_per_s=ROWS / READ_S))
    numbers.map_in_arrow(fail_once).sink_to(DiscardSink())
    job_id = session.submit(env)
    eventually(
        lambda: (
            session.client.job_details(job_id).exceptions
            and session.client.job_details(job_id).status is JobStatus.RUNNING
        ),
        "the job has failed and runs again",
    )
    before = session.client.job_details(job_id)
    masters = job_masters(session.cluster.directory, job_id)
    psutil.Process(masters[max(masters)]).kill()
    after = session.client.wait(job_id)
    assert after.start_ms == before.start_ms
    assert after.entered_ms[: len(before.entered_ms)] == before.entered_ms
    assert [error.summary for error in after.exceptions] == [
        error.summary for error in before.exceptions
    ]
    (listed,) = (job for job in session.client.list_jobs() if job.job_id == job_id)
    assert listed.start_ms == after.start_ms
    shown = firesteel("show", "-m", session.address, job_id).stdout
    assert "FINISHED" in shown.splitlines()[0]
    history = shown.index("Exception history, newest first")
    assert shown.index("[1] ") < history < shown.index("ValueError: only once")


@pytest.mark.parametrize("drain", [False, True])
def test_a_stop_with_a_savepoint_survives_the_job_masters_death(
    session: Session, tmp_path: Path, failpoints: Path, drain: bool
) -> None:
    """The JobMaster dies when the savepoint is written but not stored: it is unknown afterwards."""
    out, savepoints = tmp_path / "out", tmp_path / "savepoints"
    env = Environment(
        parallelism=1,  # so that what was read is without gaps
        configuration={
            "execution.checkpointing.interval": "1 h",
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            "execution.checkpointing.savepoint-dir": str(savepoints),
        },
    )
    numbers = env.from_source(SequenceSource(0, 10**9, rate_per_s=2000))
    numbers.transform(lambda df: df.where("value >= 0")).sink_to(FileSink(str(out)))
    job_id = session.submit(env)
    eventually(
        lambda: set(session.client.job_details(job_id).states) == {ExecutionState.RUNNING},
        "all tasks run",
    )
    before = attempts(session.client.job_details(job_id))
    (failpoints / Failpoint.METADATA_AFTER.value).touch()
    with pytest.raises(FiresteelError, match="the next JobMaster continues to stop the job"):
        session.client.stop(job_id, drain=drain)
    details = session.client.wait(job_id)
    assert details.status.name == "FINISHED"
    assert attempts(session.client.job_details(job_id)) == before
    taken = [read_metadata(str(path.parent)) for path in savepoints.glob("*/_metadata")]
    second = [found for found in taken if found.checkpoint_id > CHECKPOINTS_PER_MASTER]
    assert [found.savepoint for found in second] == [True]
    rows = sorted(ds.dataset(out, format="parquet").to_table()["value"].to_pylist())
    assert rows == list(range(len(rows))) and rows, "each that was read, once"


def test_files_listed_without_a_checkpoint_are_read_once_after_a_takeover(
    session: Session, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(4):
        write(source, number)
    env = Environment(parallelism=2)
    numbers = env.from_source(
        FileSource(str(source), format="csv", schema="value INT", watch="50 ms")
    )
    numbers.transform(lambda df: df.where("value >= 0")).sink_to(CollectSink(), uid="collected")
    job_id = session.submit(env)
    batches = session.client.fetch_results(job_id, stable_id("uid", "collected"))
    read: list[int] = []

    def read_all(count: int) -> None:
        while len(read) < count:
            read.extend(next(batches)["value"].to_pylist())

    read_all(4)
    write(source, 4)
    read_all(5)
    before = attempts(session.client.job_details(job_id))
    for number in (5, 6):
        masters = job_masters(session.cluster.directory, job_id)
        psutil.Process(masters[max(masters)]).kill()
        write(source, number)
        read_all(number + 1)
    details = session.client.job_details(job_id)
    assert details.status.name == "RUNNING"
    assert attempts(details) == before
    assert sorted(read) == list(range(7))


def write(folder: Path, number: int) -> None:
    """Writes a file of one row; it appears under its name in one step."""
    (folder / f".{number}").write_text(f"{number}\n")
    (folder / f".{number}").rename(folder / f"{number}.csv")


def test_the_death_of_a_job_master_repeats_nothing_of_a_batch(
    session: Session, tmp_path: Path
) -> None:
    """The JobMaster dies while sources read, and again while their results are read. Each task runs
    once, including finished tasks and tasks that start later.
    """
    with batch_jobs(session, tmp_path, **{"restart-strategy.type": "none"}) as jobs:
        job_id = jobs.job_id
        begun = set[str]()
        for read in (False, True):
            details = session.wait_until(job_id, runs(read=read))
            masters = job_masters(session.cluster.directory, job_id)
            psutil.Process(masters[max(masters)]).kill()
            begun |= attempts(details, begun=True)
        jobs.progress("the death of two JobMasters")
        ended = session.client.job_details(job_id)
    assert len(job_masters(session.cluster.directory, job_id)) == 3
    assert begun <= attempts(ended)
    assert len(attempts(ended)) == sum(vertex.parallelism for vertex in ended.vertices)
    assert not ended.exceptions


def runs(*, read: bool) -> Callable[[JobDetails], bool]:
    """All sources; or those that read what all sources have left."""

    def holds(details: JobDetails) -> bool:
        first, *others = details.vertices
        running = ExecutionState.RUNNING
        if not read:
            return set(first.states) == {running}
        return set(first.states) == {ExecutionState.FINISHED} and any(
            running in vertex.states for vertex in others
        )

    return holds


def test_a_batch_survives_the_death_of_its_job_master_and_a_task_executor(
    session: Session, tmp_path: Path
) -> None:
    """The results that the TaskExecutor kept are produced again."""
    with batch_jobs(session, tmp_path) as jobs:
        session.wait_until(jobs.job_id, runs(read=True))
        chaos = Chaos(session, jobs, 0)
        for victim in (chaos.job_master(), chaos.task_executor()):
            victim.kill()
        jobs.progress("the death of the JobMaster and a TaskExecutor")


def test_a_failing_job_is_not_run_again_when_its_job_master_dies(
    session: Session, tmp_path: Path
) -> None:
    """It dies while a task cannot be cancelled yet."""
    first, second, held = tmp_path / "first", tmp_path / "second", tmp_path / "held"
    os.mkfifo(held)

    def fails_or_holds(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with contextlib.suppress(FileExistsError):
                first.mkdir()
                while not second.exists():
                    time.sleep(0.01)
                raise ValueError("a bug of the program's")
            second.touch()
            with held.open("rb"):  # which waits for a writer, cancelled or not
                yield batch

    env = Environment(
        parallelism=2,
        configuration={
            "execution.checkpointing.interval": "1 h",
            "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
            "restart-strategy.type": "none",
        },
    )
    numbers = env.from_source(SequenceSource(0, 10**9, rate_per_s=2000))
    numbers.map_in_arrow(fails_or_holds).print()
    job_id = session.submit(env)
    eventually(
        lambda: any(
            job.job_id == job_id and job.status.name == "FAILING"
            for job in session.client.list_jobs()
        ),
        "the job is being ended",
    )
    before = attempts(session.client.job_details(job_id))
    masters = job_masters(session.cluster.directory, job_id)
    psutil.Process(masters[max(masters)]).kill()
    with contextlib.suppress(OSError):  # there is no reader
        os.close(os.open(held, os.O_WRONLY | os.O_NONBLOCK))
    with pytest.raises(JobFailed, match="a bug of the program's"):
        session.client.wait(job_id)
    assert len(job_masters(session.cluster.directory, job_id)) == 2
    assert attempts(session.client.job_details(job_id)) <= before, "nothing was restarted"
