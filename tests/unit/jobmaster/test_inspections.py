"""Inspections of running tasks: events in, commands out."""

from __future__ import annotations

import pytest

from firesteel.common.ids import TaskExecutorId, VertexId
from firesteel.common.inspections import Inspection, RowSampling, StackSampling
from firesteel.common.states import ExecutionState, JobStatus
from jobmaster.core import commands, events
from jobmaster.core.inspections import GRACE_S
from tests.job_master import World, job, vertex

ONE = TaskExecutorId("te-1")
A, B = vertex("a", 2), vertex("b", 2)
Refusal = commands.InspectionRefusal
STACKS = StackSampling(seconds=3.0)


@pytest.fixture
def world() -> World:
    world = World(job(A, B))
    world.run((ONE, 2))
    return world


def inspect(
    world: World,
    name: str,
    vertex_id: VertexId = A.vertex_id,
    subtask: int = 0,
    inspection: Inspection = STACKS,
) -> list[commands.Command]:
    return world.post(
        events.InspectionRequested(
            inspection_id=name, vertex_id=vertex_id, subtask=subtask, inspection=inspection
        )
    )


def answer(world: World, name: str, **fields: object) -> list[commands.Command]:
    given: dict[str, object] = {"result": b"", "problem": "", "busy": False} | fields
    return world.post(
        events.InspectionEnded(task_executor_id=ONE, inspection_id=name, **given)  # type: ignore[arg-type]
    )


def refusal(world: World, sent: list[commands.Command]) -> tuple[Refusal | None, str]:
    answered = world.one(commands.AnswerInspection, sent)
    return answered.refusal, answered.problem


def test_the_slot_of_the_current_attempt_is_asked_and_its_answer_returned(world: World) -> None:
    sent = inspect(world, "i", subtask=1, inspection=RowSampling(count=5))
    (asked,) = sent
    execution = world.executions("a")[1]
    assert asked == commands.InspectTask(
        task_executor_id=ONE,
        attempt_ids=(execution.attempt_id,),
        inspection_id="i",
        inspection=RowSampling(count=5),
    )
    answered = world.one(commands.AnswerInspection, answer(world, "i", result=b"rows"))
    assert answered == commands.AnswerInspection(inspection_id="i", result=b"rows")
    assert world.core.graph.status is JobStatus.RUNNING


def test_an_unknown_vertex_or_subtask_is_refused(world: World) -> None:
    refused, problem = refusal(world, inspect(world, "i", VertexId("f" * 32)))
    assert (refused, problem) == (Refusal.NOT_FOUND, f"the job has no vertex '{'f' * 32}'")
    refused, problem = refusal(world, inspect(world, "i", subtask=2))
    assert refused is Refusal.NOT_FOUND
    assert problem == "vertex 'a' has no subtask 2: expected 0 to 1"


def test_a_task_that_does_not_run_is_refused() -> None:
    world = World(job(A, B))
    world.start()
    refused, problem = refusal(world, inspect(world, "i"))
    assert (refused, problem) == (
        Refusal.NOT_RUNNING,
        "task a (1/2)#0 is SCHEDULED, not RUNNING",
    )


def test_a_slot_has_one_inspection_at_a_time(world: World) -> None:
    first, second = (world.executions(name)[0].slot for name in ("a", "b"))
    assert first is second, "both subtasks share the slot"
    inspect(world, "i")
    refused, problem = refusal(world, inspect(world, "j", B.vertex_id))
    assert refused is Refusal.BUSY
    assert "busy with an inspection of a (1/2)#0" in problem
    assert world.of(commands.InspectTask, inspect(world, "k", subtask=1)), "another slot"
    answer(world, "i")
    assert world.of(commands.InspectTask, inspect(world, "j", B.vertex_id))


@pytest.mark.parametrize(("busy", "expected"), [(True, Refusal.BUSY), (False, Refusal.FAILED)])
def test_a_slot_that_cannot_is_reported(world: World, busy: bool, expected: Refusal) -> None:
    inspect(world, "i")
    sent = answer(world, "i", problem="why", busy=busy)
    assert refusal(world, sent) == (expected, "why")


def test_a_lost_answer_is_reported_at_the_deadline_and_nothing_is_left(world: World) -> None:
    inspect(world, "i")
    assert not world.of(commands.AnswerInspection, world.pass_time(3.0 + GRACE_S - 0.1))
    refused, problem = refusal(world, world.pass_time(0.2))
    assert refused is Refusal.LOST
    assert problem == "task a (1/2)#0 has not answered the inspection in time"
    assert answer(world, "i", result=b"late") == []
    assert world.of(commands.InspectTask, inspect(world, "j")), "the slot is free again"


def test_an_inspection_ends_with_its_task(world: World) -> None:
    inspect(world, "i")
    inspect(world, "j", subtask=1)
    sent = world.report([world.executions("a")[0]], ExecutionState.FINISHED)
    assert refusal(world, sent) == (
        Refusal.NOT_RUNNING,
        "task a (1/2)#0 became FINISHED first",
    )


def test_an_inspection_ends_with_its_slot_and_its_job(world: World) -> None:
    inspect(world, "i")
    sent = world.post(events.TaskExecutorLost(task_executor_id=ONE, cause="it is gone"))
    assert refusal(world, sent)[0] is Refusal.NOT_RUNNING
    assert world.core.graph.status.terminal
    assert refusal(world, inspect(world, "j")) == (Refusal.NOT_RUNNING, "the job is FAILED")
