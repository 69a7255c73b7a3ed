"""Cancelling a job whose tasks cannot end by themselves: each job ends once
task.cancellation.timeout has passed, and its slots become free again.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from firesteel import Environment
from firesteel.errors import JobCanceled
from tests.long import long_after
from tests.waiting import PATIENCE_S, eventually

from .conftest import SLOTS, Session, logs_below
from .jobs import nothing_left
from .test_faults import busy_slot
from .test_python_workers import python_workers

pytestmark = pytest.mark.usefixtures("shipped_module")

FOR_EVER_S = 10**6


def in_a_fifo(folder: Path) -> None:
    (folder / "fifo").open("rb").read()  # which no process ever writes to


def in_a_sleep(folder: Path) -> None:
    time.sleep(FOR_EVER_S)


def in_native_code(folder: Path) -> None:
    ctypes.PyDLL(None).sleep(FOR_EVER_S)  # unlike CDLL, it does not release the interpreter's lock


def in_a_thread(folder: Path) -> None:
    """The task ends when it is cancelled, and leaves a thread."""
    threading.Thread(target=in_a_fifo, args=(folder,)).start()


@pytest.mark.parametrize(
    "blocked", long_after(3, [in_a_fifo, in_native_code, in_a_thread, in_a_sleep])
)
def test_a_job_is_cancelled_although_its_function_does_not_return(
    session: Session, tmp_path: Path, blocked: Callable[[Path], None]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    runs, reached = tmp_path / "runs", tmp_path / "reached"

    def hangs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            # A process whose lock is held reports no state, so this waits until all tasks run.
            if batch.num_rows and runs.exists() and not reached.exists():
                reached.touch()
                blocked(tmp_path)
            yield batch

    env = Environment(parallelism=1)
    env.from_sequence(0, 10**15).rebalance().map_in_arrow(hangs).map_in_arrow(nothing_left).print()
    job_id = session.submit(env)
    slot, details = busy_slot(session, job_id)
    runs.touch()
    eventually(reached.exists, "the function hangs")
    attempts = {s.current.attempt_id for v in details.vertices for s in v.subtasks if s.current}
    session.client.cancel(job_id)
    with pytest.raises(JobCanceled):
        session.client.wait(job_id)
    slot.wait(PATIENCE_S)
    eventually(lambda: session.free_slots() == SLOTS, "its slot is free")
    assert any(ended_for(blocked, line, attempts) for line in killings(session))


def killings(session: Session) -> Iterator[str]:
    """The lines that say why a TaskExecutor has killed a slot's process."""
    for log in logs_below(session.cluster.directory, "taskexecutor-*.log"):
        yield from (line for line in log.splitlines() if "killing a slot's process" in line)


def ended_for(blocked: Callable[[Path], None], line: str, attempts: set[str]) -> bool:
    if blocked is in_a_thread:
        return "the job left threads that do not end" in line and "(in_a_fifo)" in line
    return "(task.cancellation.timeout)" in line and any(attempt in line for attempt in attempts)


def test_a_job_is_cancelled_although_its_python_worker_is_stopped(session: Session) -> None:
    def passed(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    env = Environment(parallelism=1)
    env.from_sequence(0, 10**15).transform(
        lambda df: df.mapInPandas(passed, "value LONG")
    ).map_in_arrow(nothing_left).print()
    job_id = session.submit(env)
    slot, _ = busy_slot(session, job_id)
    eventually(lambda: len(python_workers(slot)) >= 2, "Spark's daemon has a worker")
    workers = python_workers(slot)
    for worker in workers:
        worker.suspend()
    session.client.cancel(job_id)
    with pytest.raises(JobCanceled):
        session.client.wait(job_id)
    eventually(lambda: session.free_slots() == SLOTS, "its slot is free")
    _, alive = psutil.wait_procs(workers[1:], timeout=PATIENCE_S)
    assert alive == []
