"""The core's history of each entity, which it adds to errors."""

from __future__ import annotations

import pytest

from firesteel.common.states import ExecutionState, IllegalTransition
from taskexecutor.core.slots import SlotEvent
from tests.unit.taskexecutor.slot_world import JOB, World


def world_with_a_task() -> World:
    world = World(slots=2)
    world.start_all()
    world.give("a", index=1)
    world.submit("t", allocation="a")
    world.states(1, t=ExecutionState.RUNNING)
    return world


def test_a_slots_history_has_time_event_and_reason_of_each_transition() -> None:
    world = world_with_a_task()
    executor = world.executor(1)
    world.now += 5
    world.die(1, cause="exit code 3")
    assert world.core.story(1)[1:] == [
        "at 100.000 s: slot 1: free -> allocated (REQUESTED): allocation a for job job",
        f"at 100.000 s: process {executor}: ready -> busy (OFFERED): its slot was offered",
        "at 100.000 s: slot 1: allocated -> active (OFFERED): a process that fits is ready and "
        "the JobMaster is connected",
        "at 100.000 s: task t is deployed",
        "at 100.000 s: task t: DEPLOYING -> RUNNING",
        f"at 105.000 s: process {executor}: busy -> dead (DIED): the PySpark executor of slot 1 "
        "of TaskExecutor te died: exit code 3",
        "at 105.000 s: slot 1: active -> free (PROCESS_DIED): the PySpark executor of slot 1 "
        "of TaskExecutor te died: exit code 3",
    ]


def test_jobs_allocations_processes_and_tasks_have_stories_too() -> None:
    world = world_with_a_task()
    assert world.core.story("t") == world.core.story(1)[-2:]
    assert world.core.story("a")[-1] == world.core.story(JOB)[-1] == world.core.story("t")[-1]
    assert world.core.story(world.executor(1))[-1] == world.core.story("t")[-1]
    assert world.core.story("unknown") == []


def test_an_illegal_transition_is_an_error_with_the_story() -> None:
    world = world_with_a_task()
    with pytest.raises(IllegalTransition, match=r"slot 1 is active: REQUESTED is illegal; .*te"):
        world.core.table.drive_slot(world.core.table.slots[1], SlotEvent.REQUESTED, "")


def test_a_broken_invariant_is_an_error_with_the_story() -> None:
    world = world_with_a_task()
    world.core.table.slots[1].allocation = None
    with pytest.raises(AssertionError, match=r"slot 1: it is active with allocation None; .*t is"):
        world.core.validate()
