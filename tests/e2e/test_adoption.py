"""JobMasters die, or stop and come back, under a job with state and a sink of every kind. The next
one adopts its tasks: not one of them is restarted, and the ledger is right all the time.
"""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import pytest

from firesteel import Environment
from firesteel.client.job_details import JobDetails
from firesteel.common.checkpoints.metadata import read_metadata
from firesteel.common.failpoints import Failpoint
from firesteel.common.ids import stable_id
from firesteel.common.states import ExecutionState
from firesteel.connectors import CollectSink, FileSink, SequenceSource
from firesteel.errors import FiresteelError
from jobmaster.core.checkpoints.recovery import CHECKPOINTS_PER_MASTER

from .chaos import Chaos
from .conftest import Session, eventually, job_masters
from .exactly_once import exactly_once_job

ROWS, READ_S = 10_000, 8.0


def attempts(details: JobDetails) -> set[str]:
    return {a.attempt_id for v in details.vertices for s in v.subtasks for a in s.attempts}


def test_the_death_of_a_job_master_restarts_no_task(
    session: Session, tmp_path: Path, postgres: str
) -> None:
    with exactly_once_job(
        session,
        tmp_path,
        postgres,
        every_state=True,
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


def test_a_job_without_checkpoints_goes_on_too(session: Session) -> None:
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


@pytest.mark.parametrize("drain", [False, True])
def test_a_job_that_is_being_stopped_ends_with_a_savepoint_although_its_job_master_dies(
    session: Session, tmp_path: Path, failpoints: Path, drain: bool
) -> None:
    """It dies when the savepoint is written, and not stored: nobody knows of that one."""
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
    with pytest.raises(FiresteelError, match="the next one goes on to stop the job"):
        session.client.stop(job_id, drain=drain)
    details = session.client.wait(job_id)
    assert details.status.name == "FINISHED"
    assert attempts(session.client.job_details(job_id)) == before
    taken = [read_metadata(str(path.parent)) for path in savepoints.glob("*/_metadata")]
    second = [found for found in taken if found.checkpoint_id > CHECKPOINTS_PER_MASTER]
    assert [found.savepoint for found in second] == [True]
    rows = sorted(ds.dataset(out, format="parquet").to_table()["value"].to_pylist())
    assert rows == list(range(len(rows))) and rows, "each that was read, once"
