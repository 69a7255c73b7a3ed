"""Processes of a slot that hang: found by their silence, named and replaced."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import psutil
import pyarrow as pa
import pytest

from firesteel import Environment
from firesteel.common.states import JobStatus
from firesteel.errors import JobFailed
from tests.waiting import PATIENCE_S, eventually

from .conftest import Session, own_cluster
from .jobs import nothing_left, unbounded
from .test_faults import busy_slot, jvm_of


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A cluster that soon takes a silent process for hung, long before it gives up a task that does
    not end when it is cancelled.
    """
    with own_cluster(
        tmp_path_factory.mktemp("impatient"),
        slots=2,
        heartbeat__interval="1 s",
        heartbeat__timeout="6 s",
        task__cancellation__timeout="10 min",
    ) as session:
        yield session


def test_native_code_that_keeps_the_interpreter_fails_its_job(impatient: Session) -> None:
    """The slot's process stops responding, although gRPC's threads in it stay alive."""

    def stuck(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            ctypes.PyDLL(None).sleep(3600)  # unlike CDLL, it does not release the lock

    env = Environment(parallelism=1)
    env.from_sequence(0, 1_000).rebalance().map_in_arrow(stuck).print()
    job_id = impatient.submit(env)
    with pytest.raises(JobFailed, match=r"has not answered for \d+ s \(heartbeat.timeout\)"):
        impatient.client.wait(job_id)
    eventually(lambda: impatient.free_slots() == 2, "2 free slots")


def python_of(slot: psutil.Process) -> psutil.Process:
    return slot


@pytest.mark.one_in(2)
@pytest.mark.parametrize("part", [python_of, jvm_of])
def test_a_slots_process_that_hangs_fails_its_job_with_what_was_seen(
    impatient: Session, part: Callable[[psutil.Process], psutil.Process]
) -> None:
    """Both of its tasks have an exchange with the other slot's."""
    env = Environment(parallelism=2)
    evens = unbounded(env).transform(lambda df: df.where("value % 2 = 0"))
    evens.rebalance().map_in_arrow(nothing_left, name="Discard").print()
    job_id = impatient.submit(env)
    slot, _ = busy_slot(impatient, job_id)
    family = [slot, *slot.children(recursive=True)]
    hung = part(slot)
    hung.suspend()
    with pytest.raises(
        JobFailed,
        match=rf"\(pid {hung.pid}\).* has not answered for \d+ s \(heartbeat.timeout\) and was",
    ):
        impatient.client.wait(job_id)  # which does not wait for task.cancellation.timeout
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert alive == []
    eventually(lambda: impatient.free_slots() == 2, "2 free slots")
    env = Environment(parallelism=2)
    env.from_sequence(0, 1_000).rebalance().map_in_arrow(nothing_left).print()
    assert impatient.run(env).status is JobStatus.FINISHED
