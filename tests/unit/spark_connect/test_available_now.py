"""When the sources of a query have read what they had."""

from __future__ import annotations

from typing import Any

from firesteel.client.job_details import Attempt, JobDetails, Subtask, Vertex
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.common.task_metrics import TaskMetrics
from firesteel.spark_connect.available_now import AvailableRows, has_read_everything

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
