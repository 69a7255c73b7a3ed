"""Ctrl-C in an attached run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from firesteel.client.execution import _counted_interrupts, _Interrupts, _watch
from firesteel.client.execution_context import ExecutionContext
from firesteel.client.job_details import JobDetails
from firesteel.client.progress import PlainDisplay
from firesteel.common.config import Configuration
from firesteel.common.states import JobStatus


class EndlessJob:
    """A client's view of a job that runs until it is cancelled."""

    def __init__(self, *, cancellable: bool) -> None:
        self.cancelled: list[str] = []
        self._cancellable = cancellable

    def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)

    def watch_job(self, job_id: str) -> Iterator[JobDetails]:
        while not (self.cancelled and self._cancellable):
            yield JobDetails(job_id=job_id, name="endless", status=JobStatus.RUNNING, start_ms=1)
        yield JobDetails(
            job_id=job_id, name="endless", status=JobStatus.CANCELED, start_ms=1, end_ms=2
        )


def interrupted(job: EndlessJob, times: int) -> JobDetails:
    left = [times]

    class Pressing(PlainDisplay):
        def update(self, details: JobDetails) -> None:
            while left[0]:
                left[0] -= 1
                signal.raise_signal(signal.SIGINT)

    display = Pressing(lambda: "localhost:1")
    context = ExecutionContext(mode="remote", conf=Configuration(), display=display)
    with _counted_interrupts() as interrupts:
        return _watch(job, "a" * 32, context, interrupts, None)  # type: ignore[arg-type]


def test_one_asks_for_the_jobs_cancellation_and_waits_for_it() -> None:
    job = EndlessJob(cancellable=True)
    assert interrupted(job, 1).status is JobStatus.CANCELED
    assert job.cancelled == ["a" * 32]


def test_two_at_once_leave_but_the_job_is_cancelled_all_the_same() -> None:
    job = EndlessJob(cancellable=False)
    with pytest.raises(KeyboardInterrupt):
        interrupted(job, 2)
    assert job.cancelled == ["a" * 32]
    job._cancellable = True  # ends the thread that reads


def test_a_deadline_leaves_the_job_alone() -> None:
    job = EndlessJob(cancellable=True)
    context = ExecutionContext(mode="remote", conf=Configuration())
    silent = threading.Event()
    job.watch_job = lambda job_id: iter([silent.wait()])  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(TimeoutError, match=f"job {'a' * 32} has not ended yet; it runs on"):
        _watch(job, "a" * 32, context, _Interrupts(), deadline_s=0.0)  # type: ignore[arg-type]
    silent.set()
    assert job.cancelled == []
