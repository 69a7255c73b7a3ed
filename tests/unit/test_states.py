from __future__ import annotations

import itertools

import pytest

from firesteel._proto import common_pb2
from firesteel.common.states import (
    JOB_TRANSITIONS,
    TASK_TRANSITIONS,
    ExecutionState,
    IllegalTransition,
    JobStatus,
    check_job_transition,
    check_task_transition,
)


def reachable(transitions: dict, start: object) -> set:
    found, todo = {start}, [start]
    while todo:
        for following in transitions[todo.pop()] - found:
            found.add(following)
            todo.append(following)
    return found


def test_every_state_has_its_row_and_can_be_reached() -> None:
    assert (
        set(TASK_TRANSITIONS)
        == reachable(TASK_TRANSITIONS, ExecutionState.CREATED)
        == set(ExecutionState)
    )
    assert (
        set(JOB_TRANSITIONS) == reachable(JOB_TRANSITIONS, JobStatus.INITIALIZING) == set(JobStatus)
    )


def test_terminal_states_are_exactly_those_without_a_way_out() -> None:
    assert {s for s in ExecutionState if s.terminal} == {
        s for s in ExecutionState if not TASK_TRANSITIONS[s]
    }
    assert {s for s in JobStatus if s.terminal} == {s for s in JobStatus if not JOB_TRANSITIONS[s]}
    assert not JobStatus.SUSPENDED.globally_terminal


def test_every_state_can_still_end() -> None:
    for state in ExecutionState:
        assert ExecutionState.FAILED in reachable(TASK_TRANSITIONS, state) or state.terminal
    for status in JobStatus:
        assert JobStatus.FAILED in reachable(JOB_TRANSITIONS, status) or status.terminal
        assert JobStatus.SUSPENDED in JOB_TRANSITIONS[status] or status.terminal


def test_a_task_fails_from_any_state_that_is_not_terminal() -> None:
    assert all(
        ExecutionState.FAILED in TASK_TRANSITIONS[state]
        for state in ExecutionState
        if not state.terminal
    )


def test_checks_agree_with_the_tables() -> None:
    for old, new in itertools.product(ExecutionState, repeat=2):
        if new in TASK_TRANSITIONS[old]:
            check_task_transition("a", old, new)
        else:
            with pytest.raises(IllegalTransition, match=f"task a: {old.name} -> {new.name}"):
                check_task_transition("a", old, new)
    for before, after in itertools.product(JobStatus, repeat=2):
        if after in JOB_TRANSITIONS[before]:
            check_job_transition("a", before, after)
        else:
            with pytest.raises(IllegalTransition, match=f"job a: {before.name} -> {after.name}"):
                check_job_transition("a", before, after)


def test_messages_have_the_same_states() -> None:
    assert {f"TASK_{s.name}": s.value for s in ExecutionState} == dict(
        common_pb2.ExecutionState.items()
    )
    assert {f"JOB_{s.name}": s.value for s in JobStatus} == dict(common_pb2.JobStatus.items())
