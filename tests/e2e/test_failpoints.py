"""A process dies at each edge of the checkpoints' protocol, one after the other, in one job with a
sink of every kind; the ledger is right all the time. A JobMaster stops there, and is replaced.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc
from firesteel.common.checkpoints.metadata import COMPLETE_CHECKPOINT
from firesteel.common.checkpoints.state import CompleteCheckpoint
from firesteel.common.failpoints import STOP, Failpoint
from firesteel.common.security.roles import Role
from tests.credentials import channel_as
from tests.e2e.chaos import Chaos, orphan
from tests.e2e.conftest import Session
from tests.e2e.exactly_once import exactly_once_job
from tests.long import long_after
from tests.waiting import eventually

# The failpoints that a running job passes; integration/test_kafka_deaths.py has those of Kafka, and
# test_scale.py those of rescaling.
PASSED = [
    point
    for point in Failpoint
    if point is not Failpoint.SUBMITTED and not point.value.startswith(("kafka-", "parallelism-"))
]
# One of each phase and kind of process: each of the others is next to one of these.
REPRESENTATIVE = [
    Failpoint.SNAPSHOT_AFTER,
    Failpoint.UPLOAD_AFTER,
    Failpoint.METADATA_AFTER,
    Failpoint.ROW_COMMITTED,
    Failpoint.NOTIFICATION_BEFORE,
    Failpoint.FILE_AFTER,
    Failpoint.SPOOLED,
    Failpoint.MOVED,
    Failpoint.NOTIFICATION_AFTER,
]


@pytest.mark.parametrize(
    "points", long_after(1, [REPRESENTATIVE, PASSED]), ids=["representative", "all"]
)
def test_rows_count_once_wherever_a_process_dies(
    session: Session, tmp_path: Path, postgres: str, failpoints: Path, points: list[Failpoint]
) -> None:
    assert set(points) <= set(PASSED)
    try:
        with exactly_once_job(
            session,
            tmp_path,
            postgres,
            state__backend__type="rocksdb",
            execution__checkpointing__incremental="true",
        ) as job:
            job.progress("the start")
            for point in points:
                armed = failpoints / point.value
                armed.touch()
                job.wait(
                    lambda armed=armed: not armed.exists(),  # type: ignore[misc]
                    f"somebody dies at {point}",
                )
                job.progress(f"the death at {point}")
            job.await_few_checkpoints()
            job.await_few_shared_files()
    finally:
        for point in points:
            (failpoints / point.value).unlink(missing_ok=True)


def test_what_a_master_that_was_replaced_stores_is_refused(
    session: Session, tmp_path: Path, postgres: str, failpoints: Path
) -> None:
    """The JobMaster stops between writing a checkpoint's metadata and its row; when it resumes,
    another one has the job.
    """
    point = failpoints / f"{Failpoint.METADATA_AFTER.value}{STOP}"
    with exactly_once_job(session, tmp_path, postgres) as job:
        chaos = Chaos(session, job, 0)
        job.progress("the start")
        zombie = chaos.job_master()
        orphan(zombie)  # while it runs: see there
        point.touch()
        eventually(lambda: zombie.status() == psutil.STATUS_STOPPED, "the JobMaster stops")
        unstored = job.newest_metadata()
        assert unstored not in _stored(session, job.job_id)
        (epoch,) = set(_stored(session, job.job_id).values())
        chaos.replace(zombie)  # it resumes at the end
        stored = _stored(session, job.job_id)
        assert min(stored) > unstored
        assert set(stored.values()) == {epoch + 1}

        # It was ended with its Dispatcher. One that cannot be ended may still send this.
        late = CompleteCheckpoint(checkpoint_id=max(stored) + 1, path=str(tmp_path))
        request = dispatcher_pb2.CommitCheckpointRequest(
            job_id=job.job_id, epoch=epoch, checkpoint=COMPLETE_CHECKPOINT.encode(late)
        )
        with channel_as(Role.JOB_MASTER, session.address) as channel:
            stub: Any = dispatcher_pb2_grpc.DispatcherStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.RpcError, match="FAILED_PRECONDITION.*epoch"):
                stub.CommitCheckpoint(request)
        assert set(_stored(session, job.job_id).values()) == {epoch + 1}
        job.progress("the refusal")
        job.await_few_checkpoints()


def _stored(session: Session, job_id: str) -> dict[int, int]:
    """The epochs of the JobMasters that have stored the job's checkpoints, by checkpoint."""
    (path,) = session.cluster.directory.rglob("jobs.db")
    query = "SELECT checkpoint_id, epoch FROM checkpoints WHERE job_id = ?"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return dict(connection.execute(query, [job_id]))
