"""How many current executions are in each state. Counting is O(1) per transition."""

from __future__ import annotations

from firesteel.common.states import ExecutionState

# By number, because hashing an Enum member is a Python call and a job may have 20,000 tasks.
STATES = tuple(ExecutionState)
assert [state.value for state in STATES] == list(range(len(STATES)))
IS_TERMINAL = tuple(state.terminal for state in STATES)


class JobCounts:
    """Of a whole job."""

    __slots__ = ("by_state", "live", "version")

    def __init__(self) -> None:
        self.by_state = [0] * len(STATES)  # by the state's number
        self.live = 0  # executions that are not terminal
        self.version = 0  # increases with every change of any state
