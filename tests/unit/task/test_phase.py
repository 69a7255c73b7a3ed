"""The phases of a task, and the events that drive them."""

from __future__ import annotations

import pytest

from firesteel.common.states import IllegalTransition
from taskexecutor.executor.task.phase import TRANSITIONS, TaskEvent, TaskLifecycle, TaskPhase


def test_every_phase_but_the_last_can_be_interrupted_and_leads_to_the_end() -> None:
    for phase, edges in TRANSITIONS.items():
        if phase is TaskPhase.ENDED:
            assert not edges
        elif phase is not TaskPhase.INTERRUPTED:
            assert edges[TaskEvent.INTERRUPTED] is TaskPhase.INTERRUPTED
            assert len(edges) == 2
    assert TRANSITIONS[TaskPhase.INTERRUPTED] == {TaskEvent.CLOSED: TaskPhase.ENDED}


def test_an_event_out_of_order_is_reported_with_the_history() -> None:
    lifecycle = TaskLifecycle("map (1/2)#0")
    lifecycle.on(TaskEvent.STARTED)
    lifecycle.on(TaskEvent.OPENED)
    with pytest.raises(IllegalTransition, match=r"map \(1/2\)#0: ACKNOWLEDGED .* while RUNNING"):
        lifecycle.on(TaskEvent.ACKNOWLEDGED)
    with pytest.raises(IllegalTransition, match="CREATED, INITIALIZING before"):
        lifecycle.on(TaskEvent.STARTED)
    lifecycle.on(TaskEvent.INTERRUPTED)
    lifecycle.on(TaskEvent.CLOSED)
    assert lifecycle.phase is TaskPhase.ENDED
