"""A process dies at each edge of the checkpoints' protocol, one after the other, in one job with a
sink of every kind; the ledger is right all the time.
"""

from __future__ import annotations

from pathlib import Path

from firesteel.common.failpoints import Failpoint

from .conftest import Session
from .exactly_once import exactly_once_job


def test_rows_count_once_wherever_a_process_dies(
    session: Session, tmp_path: Path, postgres: str, failpoints: Path
) -> None:
    try:
        with exactly_once_job(
            session,
            tmp_path,
            postgres,
            state__backend__type="rocksdb",
            execution__checkpointing__incremental="true",
        ) as job:
            job.progress("the start")
            for point in Failpoint:
                armed = failpoints / point.value
                armed.touch()
                job.wait(lambda armed=armed: not armed.exists(), f"somebody dies at {point}")
                job.progress(f"the death at {point}")
            job.await_few_checkpoints()
            job.await_few_shared_files()
    finally:
        for point in Failpoint:
            (failpoints / point.value).unlink(missing_ok=True)
