"""JobMasters die, or stop and come back, under a job with state and a sink of every kind. The next
one adopts its tasks: not one of them is restarted, and the ledger is right all the time.
"""

from __future__ import annotations

import signal
from pathlib import Path

from firesteel.client.job_details import JobDetails

from .chaos import Chaos
from .conftest import Session
from .exactly_once import exactly_once_job


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
