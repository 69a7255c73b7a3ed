"""Ctrl-C, SIGTERM and SIGHUP in an attached run."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from firesteel.client.execution import _watch
from firesteel.client.execution_context import ExecutionContext
from firesteel.client.job_details import JobDetails
from firesteel.client.progress import PlainDisplay
from firesteel.client.signals import (
    Interrupts,
    counted_interrupts,
    exiting,
    repeating_lost_interrupts,
)
from firesteel.common.config import Configuration
from firesteel.common.states import JobStatus


@pytest.fixture(autouse=True)
def default_hang_up() -> Iterator[None]:
    """Tests that are started with nohup ignore SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


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


def interrupted(job: EndlessJob, times: int, number: int = signal.SIGINT) -> JobDetails:
    left = [times]

    class Pressing(PlainDisplay):
        def update(self, details: JobDetails) -> None:
            while left[0]:
                left[0] -= 1
                signal.raise_signal(number)

    display = Pressing(lambda: "localhost:1")
    context = ExecutionContext(mode="remote", conf=Configuration(), display=display)
    with counted_interrupts(exits=True) as interrupts:
        return _watch(job, "a" * 32, context, interrupts, None)  # type: ignore[arg-type]


def test_one_interrupt_cancels_the_job_and_waits_for_it() -> None:
    job = EndlessJob(cancellable=True)
    assert interrupted(job, 1).status is JobStatus.CANCELED
    assert job.cancelled == ["a" * 32]


def test_two_interrupts_leave_but_the_job_is_still_cancelled() -> None:
    job = EndlessJob(cancellable=False)
    with pytest.raises(KeyboardInterrupt):
        interrupted(job, 2)
    assert job.cancelled == ["a" * 32]
    job._cancellable = True  # ends the thread that reads


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_cancel_the_job_and_end_the_program(number: int, times: int) -> None:
    job = EndlessJob(cancellable=times == 1)
    with pytest.raises(SystemExit) as ended:
        interrupted(job, times, number)
    assert ended.value.code == 128 + number
    assert job.cancelled == ["a" * 32]
    assert signal.getsignal(number) is signal.SIG_DFL
    job._cancellable = True


def test_handlers_of_the_programs_own_and_of_nohup_stay() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with exiting(), counted_interrupts(exits=False) as interrupts:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert seen == [signal.SIGTERM]
    assert interrupts.count == 0


def test_a_run_that_waits_for_no_job_ends_with_its_finally_clauses() -> None:
    with pytest.raises(SystemExit) as ended, exiting():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143
    with pytest.raises(SystemExit) as ended, exiting(), counted_interrupts(exits=False):
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_ctrl_c_while_waiting_for_the_cluster_shows_no_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        command = subprocess.Popen(
            [sys.executable, "-m", "firesteel", "list", "-m", address],
            stderr=subprocess.PIPE,
            text=True,
            # Tests that run in the background are started with SIGINT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        connection, _ = silent.accept()
        command.send_signal(signal.SIGINT)
        _, told = command.communicate(timeout=60)
        connection.close()
    assert command.returncode == 130
    assert told == "Interrupted.\n"


def test_ctrl_c_that_python_ignores_is_raised_once_python_can() -> None:
    """As in the callbacks of weak references that imports make."""

    class Finalized:
        def __init__(self, finalize: Callable[[], object]) -> None:
            self._finalize = finalize

        def __del__(self) -> None:
            self._finalize()

    def interrupted() -> None:
        with repeating_lost_interrupts():
            Finalized(lambda: signal.raise_signal(signal.SIGINT))
            Finalized(threading.Event().wait)  # the repetition may be ignored again
            threading.Event().wait()

    hook = sys.unraisablehook
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        signal.signal(signal.SIGINT, before)
    assert sys.unraisablehook is hook


def test_a_deadline_leaves_the_job_alone() -> None:
    job = EndlessJob(cancellable=True)
    context = ExecutionContext(mode="remote", conf=Configuration())
    silent = threading.Event()
    job.watch_job = lambda job_id: iter([silent.wait()])  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(TimeoutError, match=f"job {'a' * 32} has not ended yet; it keeps running"):
        _watch(job, "a" * 32, context, Interrupts(), deadline_s=0.0)  # type: ignore[arg-type]
    silent.set()
    assert job.cancelled == []
