"""One attempt to run one subtask (spec 002: "An ExecutionVertex has a current Execution, and prior
Executions").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firesteel.common.ids import AttemptId
from firesteel.common.states import TASK_TRANSITIONS, ExecutionState, check_task_transition
from firesteel.errors import ErrorInfo

if TYPE_CHECKING:
    from jobmaster.core.execution_graph.vertex import ExecutionVertex
    from jobmaster.core.slot_pool import Slot

CREATED = ExecutionState.CREATED
# TASK_TRANSITIONS and `terminal` again, by number: an Enum member's hash is a Python call, and
# there are 20,000 tasks.
_STATES = tuple(ExecutionState)
assert [state.value for state in _STATES] == list(range(len(_STATES)))
_LEGAL = tuple(tuple(new in TASK_TRANSITIONS[old] for new in _STATES) for old in _STATES)
IS_TERMINAL = tuple(state.terminal for state in _STATES)

# States a slot's process is (or may be) busy with this attempt in: ending it takes a message.
DEPLOYED = frozenset(
    {
        ExecutionState.DEPLOYING,
        ExecutionState.INITIALIZING,
        ExecutionState.RUNNING,
        ExecutionState.CANCELING,
    }
)


class Execution:
    """State, history and place of one attempt. Only `ExecutionGraph`'s owner, the core, changes it.

    There are as many of these as subtasks, so it is as small as it can be.
    """

    __slots__ = ("attempt", "attempt_id", "error", "slot", "state", "timestamps", "vertex")

    def __init__(
        self,
        vertex: ExecutionVertex,
        attempt: int,
        attempt_id: AttemptId,
        created: tuple[ExecutionState, int],
    ) -> None:
        self.vertex = vertex
        self.attempt = attempt
        self.attempt_id = attempt_id
        self.state = CREATED
        self.timestamps = [
            created
        ]  # (state, wall clock in ms), in order; the story of this attempt
        self.slot: Slot | None = (
            None  # set when it is deployed, kept afterwards so that it can be told where it ran
        )
        self.error: ErrorInfo | None = None  # FAILED only

    @property
    def terminal(self) -> bool:
        return IS_TERMINAL[self.state._value_]

    def transition(self, state: ExecutionState, now_ms: int) -> None:
        """Moves to `state`, counting it; raises IllegalTransition, telling this attempt's story."""
        old = self.state
        if not _LEGAL[old._value_][state._value_]:
            check_task_transition(self.story(), old, state)
        self.state = state
        self.timestamps.append((state, now_ms))
        self.vertex.job_vertex.count(old, state)

    @property
    def name(self) -> str:
        """As people read it: "vertex (2/4)#0": subtask 2 of 4, first attempt."""
        job_vertex = self.vertex.job_vertex
        return f"{job_vertex.vertex.name} ({self.vertex.subtask + 1}/{len(job_vertex.vertices)})#{self.attempt}"

    def story(self) -> str:
        steps = ", ".join(f"{state.name} at {at_ms}" for state, at_ms in self.timestamps)
        place = (
            f" in slot {self.slot.allocation_id} of {self.slot.task_executor_id}"
            if self.slot
            else ""
        )
        return f"{self.name} [{self.attempt_id}]{place} ({steps})"
