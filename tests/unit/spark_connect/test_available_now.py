"""When the sources of a query have read what they had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from firesteel.client.client import Client
from firesteel.client.job_details import Attempt, JobDetails, Subtask, Vertex
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.common.task_metrics import TaskMetrics
from firesteel.errors import FiresteelError
from firesteel.spark_connect.available_now import (
    AvailableRows,
    has_read_everything,
    process_available,
)

RUNNING, FINISHED = ExecutionState.RUNNING, ExecutionState.FINISHED


def attempt(name: str, caught_up: int, state: ExecutionState = RUNNING) -> Attempt:
    return Attempt(
        attempt_id=name,
        number=0,
        state=state,
        host="",
        task_executor_id="",
        slot_index=0,
        entered_ms={},
        metrics=TaskMetrics(caught_up=caught_up),
        error=None,
    )


def vertex(*attempts: Attempt, inputs: tuple[str, ...] = ()) -> Vertex:
    return Vertex(
        vertex_id="v",
        name="v",
        parallelism=len(attempts),
        max_parallelism=128,
        slot_sharing_group="",
        operators=(),
        subtasks=tuple(Subtask(index=i, attempts=(a,)) for i, a in enumerate(attempts)),
        input_vertex_ids=inputs,
    )


def job(*vertices: Vertex, status: JobStatus = JobStatus.RUNNING) -> JobDetails:
    return JobDetails(job_id="j", name="j", status=status, start_ms=0, vertices=vertices)


def reads(caught_up: int, **more: Any) -> JobDetails:
    name = more.pop("name", "a")
    return job(vertex(attempt(name, caught_up)), vertex(attempt("sink", 0), inputs=("v",)), **more)


def test_every_subtask_of_every_source_must_have_caught_up() -> None:
    sink = vertex(attempt("sink", 0), inputs=("v",))
    assert not has_read_everything(job(vertex(attempt("a", 1), attempt("b", 0)), sink))
    assert has_read_everything(job(vertex(attempt("a", 1), attempt("b", 4)), sink))
    assert has_read_everything(job(vertex(attempt("a", 1), attempt("b", 0, FINISHED)), sink))
    other = vertex(attempt("c", 0))
    assert not has_read_everything(job(vertex(attempt("a", 1)), sink, other))
    assert not has_read_everything(reads(1, status=JobStatus.RESTARTING))
    assert not has_read_everything(job())


def test_a_source_catches_up_in_three_reports() -> None:
    rows = AvailableRows()
    found = [rows.are_read(reads(count)) for count in (7, 7, 40, 41, 41, 60)]
    assert found == [False, False, False, False, False, True]


def test_a_new_attempt_has_started_with_all_rows() -> None:
    rows = AvailableRows()
    assert not rows.are_read(reads(7))
    assert not rows.are_read(reads(7, status=JobStatus.RESTARTING))
    assert not rows.are_read(reads(0, name="b"))
    assert rows.are_read(reads(1, name="b"))


def test_a_source_that_has_ended_has_read_everything() -> None:
    assert AvailableRows().are_read(job(vertex(attempt("a", 0, FINISHED))))


class Checkpointing:
    """A client whose first checkpoint fails, after which the job has this status."""

    def __init__(self, after_failure: JobStatus) -> None:
        self.watched = self.taken = 0
        self._after_failure = after_failure

    def watch_job(self, job_id: str) -> Iterator[JobDetails]:
        self.watched += 1
        if self.watched > 1 and self._after_failure.globally_terminal:
            yield reads(0, status=self._after_failure)
        for count in (7, 40, 41, 60, 80):
            yield reads(count)

    def checkpoint(self, job_id: str) -> int:
        self.taken += 1
        if self.taken == 1:
            raise FiresteelError("the job is no longer running")
        return self.taken

    def job_details(self, job_id: str) -> JobDetails:
        return reads(0, status=self._after_failure)


def test_rows_are_awaited_again_if_the_job_restarts_before_their_checkpoint() -> None:
    client = Checkpointing(JobStatus.RESTARTING)
    assert process_available(cast(Client, client), "j") == 3
    assert client.watched == 2
    assert process_available(cast(Client, Checkpointing(JobStatus.FAILED)), "j") is None
    with pytest.raises(FiresteelError, match="no longer running"):
        process_available(cast(Client, Checkpointing(JobStatus.RUNNING)), "j")


def test_a_checkpoint_is_taken_once_all_tasks_run() -> None:
    client = Checkpointing(JobStatus.RUNNING)
    client.taken = 1  # the next one succeeds
    source, seen = vertex(attempt("a", 3, FINISHED)), []

    def watch_job(job_id: str) -> Iterator[JobDetails]:
        for state in (ExecutionState.DEPLOYING, ExecutionState.INITIALIZING, RUNNING):
            seen.append(state)
            yield job(source, vertex(attempt("sink", 0, state), inputs=("v",)))

    client.watch_job = watch_job  # type: ignore[method-assign]
    assert process_available(cast(Client, client), "j") == 3
    assert seen[-1] is RUNNING


def test_rows_are_awaited_again_if_a_task_was_replaced_before_their_checkpoint() -> None:
    client = Checkpointing(JobStatus.RUNNING)
    client.job_details = lambda job_id: reads(0, name="b")  # type: ignore[method-assign]
    assert process_available(cast(Client, client), "j") == 3
    assert client.watched == 2
