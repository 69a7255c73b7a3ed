"""Decides in which order the flows of a pipeline run: a flow starts once all flows that it reads
from, directly or through others, have completed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class FlowState(Enum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"  # because a flow upstream failed


# QUEUED -> RUNNING -> COMPLETED
#    |         +-----> FAILED
#    +---------------> SKIPPED
TRANSITIONS = {
    FlowState.QUEUED: {
        FlowState.RUNNING,  # all flows upstream have completed, and there is room
        FlowState.SKIPPED,  # a flow upstream failed or was skipped
    },
    FlowState.RUNNING: {FlowState.COMPLETED, FlowState.FAILED},
    FlowState.COMPLETED: set(),
    FlowState.FAILED: set(),
    FlowState.SKIPPED: set(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNode:
    name: str
    streaming: bool
    upstream: frozenset[str] = frozenset()  # flows that are not part of the run do not count


class FlowOrder:
    """The states of the flows of one run. `limits` has how many streaming flows (True) and how
    many batch flows (False) run at a time.
    """

    def __init__(self, flows: Sequence[FlowNode], limits: Mapping[bool, int]) -> None:
        self._flows = {flow.name: flow for flow in flows}
        self._limits = limits
        self._states = dict.fromkeys(self._flows, FlowState.QUEUED)

    def state(self, name: str) -> FlowState:
        return self._states[name]

    @property
    def running(self) -> bool:
        """Whether flows run."""
        return FlowState.RUNNING in self._states.values()

    def start(self) -> list[str]:
        """Returns the flows to start now, which count as running."""
        started = []
        for name, flow in self._flows.items():
            if self._states[name] is FlowState.QUEUED and self._ready(flow) and self._room(flow):
                self._become(name, FlowState.RUNNING)
                started.append(name)
        return started

    def completed(self, name: str) -> None:
        self._become(name, FlowState.COMPLETED)

    def failed(self, name: str) -> list[str]:
        """Returns the flows that are skipped because this one failed."""
        self._become(name, FlowState.FAILED)
        skipped: list[str] = []
        while more := [each for each in self._flows if self._is_lost(each)]:
            for each in more:
                self._become(each, FlowState.SKIPPED)
            skipped += more
        return skipped

    def _is_lost(self, name: str) -> bool:
        lost = (FlowState.FAILED, FlowState.SKIPPED)
        return self._states[name] is FlowState.QUEUED and any(
            self._states.get(each) in lost for each in self._flows[name].upstream
        )

    def _ready(self, flow: FlowNode) -> bool:
        completed = FlowState.COMPLETED
        return all(self._states.get(each, completed) is completed for each in flow.upstream)

    def _room(self, flow: FlowNode) -> bool:
        running = sum(
            self._states[name] is FlowState.RUNNING and each.streaming == flow.streaming
            for name, each in self._flows.items()
        )
        return running < self._limits[flow.streaming]

    def _become(self, name: str, state: FlowState) -> None:
        before = self._states[name]
        if state not in TRANSITIONS[before]:
            raise AssertionError(f"flow {name} is {before.value}, and cannot become {state.value}")
        self._states[name] = state
