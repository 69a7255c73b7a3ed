from __future__ import annotations

import itertools

import pytest

from firesteel._proto import common_pb2
from firesteel.common.states import (
    JOB_TRANSITIONS,
    TASK_TRANSITIONS,
    ExecutionState,
    IllegalTransition,
    JobEvent,
    JobStatus,
    TaskEvent,
    next_job_status,
    running_since_ms,
)


def reachable(transitions: dict, start: object) -> set:
    found, todo = {start}, [start]
    while todo:
        for following in set(transitions[todo.pop()].values()) - found:
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
        assert JobStatus.SUSPENDED in JOB_TRANSITIONS[status].values() or status.terminal


def test_a_task_fails_from_any_state_that_is_not_terminal() -> None:
    assert all(
        TASK_TRANSITIONS[state].get(TaskEvent.FAIL) is ExecutionState.FAILED
        for state in ExecutionState
        if not state.terminal
    )


def test_an_event_leads_where_the_table_says() -> None:
    for status, event in itertools.product(JobStatus, JobEvent):
        if event in JOB_TRANSITIONS[status]:
            assert next_job_status("a", status, event) is JOB_TRANSITIONS[status][event]
        else:
            with pytest.raises(IllegalTransition, match=f"job a: {event.name} .* {status.name}"):
                next_job_status("a", status, event)


def test_every_event_drives_an_edge_and_every_edge_has_one_event() -> None:
    assert {e for row in JOB_TRANSITIONS.values() for e in row} == set(JobEvent)
    assert {e for row in TASK_TRANSITIONS.values() for e in row} == set(TaskEvent)
    for row in JOB_TRANSITIONS.values():
        assert len(set(row.values())) == len(row)


def test_messages_have_the_same_states() -> None:
    assert {f"TASK_{s.name}": s.value for s in ExecutionState} == dict(
        common_pb2.ExecutionState.items()
    )
    assert {f"JOB_{s.name}": s.value for s in JobStatus} == dict(common_pb2.JobStatus.items())


@pytest.mark.parametrize(
    ("statuses", "since_ms"),
    [
        ([], None),
        ([JobStatus.INITIALIZING, JobStatus.CREATED, JobStatus.RUNNING], 2),
        (
            [
                JobStatus.INITIALIZING,
                JobStatus.CREATED,
                JobStatus.RUNNING,
                JobStatus.INITIALIZING,
                JobStatus.RECONCILING,
                JobStatus.RUNNING,
            ],
            2,
        ),
        (
            [
                JobStatus.INITIALIZING,
                JobStatus.CREATED,
                JobStatus.RUNNING,
                JobStatus.INITIALIZING,
                JobStatus.RECONCILING,
            ],
            None,
        ),
        (
            [
                JobStatus.INITIALIZING,
                JobStatus.CREATED,
                JobStatus.RUNNING,
                JobStatus.INITIALIZING,
                JobStatus.CREATED,
                JobStatus.RUNNING,
            ],
            5,
        ),
        ([JobStatus.CREATED, JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.RUNNING], 3),
        ([JobStatus.CREATED, JobStatus.RUNNING, JobStatus.FINISHED], None),
    ],
)
def test_a_job_runs_since_its_last_interruption(
    statuses: list[JobStatus], since_ms: int | None
) -> None:
    assert running_since_ms([(each, at_ms) for at_ms, each in enumerate(statuses)]) == since_ms
