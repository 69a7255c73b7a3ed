"""States over time, and the number of current executions in each: O(1) per transition."""

from __future__ import annotations

from typing import NamedTuple

from firesteel.common.states import ExecutionState, JobStatus

# Indexed by number: hashing an Enum member is a Python call, and a job may have 20,000 tasks.
STATES = tuple(ExecutionState)
assert [state.value for state in STATES] == list(range(len(STATES)))
IS_TERMINAL = tuple(state.terminal for state in STATES)


class StateChange(NamedTuple):
    """A change of a task's state."""

    state: ExecutionState
    at_ms: int  # wall clock


class StatusChange(NamedTuple):
    """A change of the job's status."""

    status: JobStatus
    timestamp_ms: int  # wall clock


class JobCounts:
    """Counters of a whole job."""

    __slots__ = ("by_state", "live", "version")

    def __init__(self) -> None:
        self.by_state = [0] * len(STATES)  # by the state's number
        self.live = 0  # executions that are not terminal
        self.version = 0  # increases with every change of any state
