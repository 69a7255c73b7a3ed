"""A job store as tests find it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dispatcher.core.records import JobAdded, JobAssigned
from dispatcher.job_store import JobStore
from firesteel.common.ids import JobId, JobMasterId

JOB = JobId("a" * 32)


@contextmanager
def store_with_a_job(url: str) -> Iterator[JobStore]:
    """`JOB` has its first JobMaster."""
    store = JobStore(url)
    store.persist(
        [
            JobAdded(job_id=JOB, name="a job", graph_id="g", start_ms=7, recovers=True),
            JobAssigned(job_id=JOB, epoch=1, job_master_id=JobMasterId("m")),
        ]
    )
    try:
        yield store
    finally:
        store.close()
