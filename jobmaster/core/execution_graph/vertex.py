"""The parts of an ExecutionGraph: Execution (one attempt to run a subtask), ExecutionVertex (one
subtask), ExecutionJobVertex (all subtasks of a JobVertex), and IntermediateResult (what one vertex
produces for another along one JobEdge).

Spec 002: "An ExecutionVertex has a current Execution, and prior Executions".

Edges between subtasks are never stored. They follow from the pattern: every consumer reads from all
producers (ALL_TO_ALL), or from a range of neighbours (POINTWISE). So a result takes O(producers)
memory, not O(producers x consumers).
"""

from __future__ import annotations

# Indexed by number: hashing an Enum member is a Python call, and a job may have 20,000 tasks.
import itertools
from enum import Enum
from typing import NamedTuple

from firesteel.common.ids import AttemptId, IdSource
from firesteel.common.job_graph import (
    DistributionPattern,
    JobEdge,
    JobVertex,
    ResultType,
    pointwise_consumers,
    pointwise_producers,
)
from firesteel.common.states import (
    TASK_TRANSITIONS,
    ExecutionState,
    IllegalTransition,
    JobStatus,
    TaskEvent,
)
from firesteel.errors import ErrorInfo
from jobmaster.core.slots.slot import ExecutionSlotSharingGroup, Slot

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


_S = ExecutionState
CREATED = _S.CREATED
# TASK_TRANSITIONS by number: the state that an event leads to; None if it is illegal.
_NEXT = tuple(tuple(TASK_TRANSITIONS[state].get(event) for event in TaskEvent) for state in STATES)

# In these states, an attempt may occupy the slot's process: ending it takes a message.
DEPLOYED = frozenset({_S.DEPLOYING, _S.INITIALIZING, _S.RUNNING, _S.CANCELING})

_AGGREGATE_ORDER = (
    _S.FAILED, _S.CANCELING, _S.CANCELED, _S.CREATED, _S.SCHEDULED, _S.RECONCILING,
    _S.DEPLOYING, _S.INITIALIZING, _S.RUNNING, _S.FINISHED,
)  # fmt: skip


class Execution:
    """The state, history and slot of one attempt. Only the core changes it.

    There is one per subtask, so it is as small as possible.
    """

    __slots__ = ("attempt", "attempt_id", "error", "slot", "state", "timestamps", "vertex")

    def __init__(
        self,
        vertex: ExecutionVertex,
        attempt: int,
        attempt_id: AttemptId,
        created: StateChange,
    ) -> None:
        self.vertex = vertex
        self.attempt = attempt
        self.attempt_id = attempt_id
        self.state = CREATED
        self.timestamps = [created]  # in order
        self.slot: Slot | None = None  # set at deployment; kept to show where it ran
        self.error: ErrorInfo | None = None  # FAILED only

    @property
    def terminal(self) -> bool:
        return IS_TERMINAL[self.state._value_]

    @property
    def restored_finished(self) -> bool:
        """Whether it had finished in the restored checkpoint and was not deployed."""
        return self.state is _S.FINISHED and self.slot is None

    def apply(self, event: TaskEvent, now_ms: int) -> None:
        """Moves to the state that the event leads to. Raises IllegalTransition with the story."""
        old = self.state
        state = _NEXT[old._value_][event._value_]
        if state is None:
            raise IllegalTransition(f"task {self}: {event.name} is illegal in {old.name}")
        self.state = state
        self.timestamps.append(self.vertex.job_vertex.changed(old, state, now_ms))

    @property
    def name(self) -> str:
        """ "vertex (2/4)#0" means subtask 2 of 4, first attempt."""
        job_vertex = self.vertex.job_vertex
        subtask = f"{self.vertex.subtask + 1}/{len(job_vertex.vertices)}"
        return f"{job_vertex.vertex.name} ({subtask})#{self.attempt}"

    def story(self) -> list[str]:
        """Returns each transition with its time and event, and the cause of a failure."""
        first, at_ms = self.timestamps[0]
        steps = [f"{first.name} at {at_ms}"]
        for (old, _), (state, at_ms) in itertools.pairwise(self.timestamps):
            event = next(e for e, new in TASK_TRANSITIONS[old].items() if new is state)
            cause = f": {self.error.summary}" if self.error and state is _S.FAILED else ""
            steps.append(f"{state.name} at {at_ms} by {event.name}{cause}")
        return steps

    def __str__(self) -> str:
        slot = self.slot
        place = f" in slot {slot.allocation_id} of {slot.task_executor_id}" if slot else ""
        return f"{self.name} [{self.attempt_id}]{place} ({', '.join(self.story())})"


class ExecutionVertex:
    """One subtask: its current Execution and the prior ones. The graph owns the edges."""

    __slots__ = ("current", "group", "job_vertex", "prior", "subtask")

    def __init__(
        self,
        job_vertex: ExecutionJobVertex,
        subtask: int,
        attempt_id: AttemptId,
        created: StateChange,
        *,
        first_attempt: int = 0,
    ) -> None:
        self.job_vertex = job_vertex
        self.subtask = subtask
        self.current = Execution(self, first_attempt, attempt_id, created)
        self.prior: list[Execution] | None = None  # oldest first; None until there is one
        self.group: ExecutionSlotSharingGroup | None = None  # set by slot sharing

    def new_attempt(
        self, attempt_id: AttemptId, created: StateChange, *, first: int = 0
    ) -> Execution:
        """Starts a new attempt; the current one must have ended. `first` is its lowest number."""
        if not self.current.terminal:
            raise ValueError(f"a new attempt while the old one runs: {self.current}")
        if self.prior is None:
            self.prior = []
        old = self.current
        self.prior.append(old)
        self.current = Execution(self, max(first, old.attempt + 1), attempt_id, created)
        self.job_vertex.changed(old.state, created.state, created.at_ms)
        return self.current

    def adopt(self, attempt_id: AttemptId, attempt: int, now_ms: int) -> Execution:
        """Replaces the current attempt, which is RECONCILING or has ended, by an attempt of an
        earlier master.
        """
        old = self.current
        if old.terminal:
            self.prior = [*(self.prior or ()), old]
            reconciling = self.job_vertex.changed(old.state, _S.RECONCILING, now_ms)
        elif old.state is _S.RECONCILING:
            reconciling = old.timestamps[-1]
        else:
            raise ValueError(f"an adoption while another attempt runs: {old}")
        self.current = Execution(self, attempt, attempt_id, reconciling)
        self.current.state = _S.RECONCILING
        return self.current

    @property
    def attempts(self) -> list[Execution]:
        """All attempts, the current one last."""
        return [*(self.prior or ()), self.current]


class ExecutionJobVertex:
    """All subtasks of one JobVertex, with incrementally updated counts per state."""

    __slots__ = ("_job_counts", "_last_change", "counts", "vertex", "vertices")

    def __init__(self, vertex: JobVertex, job_counts: JobCounts) -> None:
        self.vertex = vertex
        self.vertices: list[ExecutionVertex] = []  # by subtask
        self.counts = [0] * len(STATES)  # current executions, by the state's number
        self._job_counts = job_counts
        self._last_change = StateChange(CREATED, 0)

    @property
    def parallelism(self) -> int:
        return len(self.vertices)

    def changed(self, old: ExecutionState, new: ExecutionState, now_ms: int) -> StateChange:
        """Counts that an execution went from `old` to `new`. Executions that change together share
        the returned StateChange.
        """
        old_index, new_index = old._value_, new._value_
        self.counts[old_index] -= 1
        self.counts[new_index] += 1
        job = self._job_counts
        job.by_state[old_index] -= 1
        job.by_state[new_index] += 1
        job.live += IS_TERMINAL[old_index] - IS_TERMINAL[new_index]
        job.version += 1
        change = self._last_change
        if change.state is not new or change.at_ms != now_ms:
            change = self._last_change = StateChange(new, now_ms)
        return change

    def resize(self, vertex: JobVertex, ids: IdSource, created: StateChange, number: int) -> None:
        """Creates a new attempt, with at least this number, of each subtask of `vertex`, which is
        this one with another parallelism. All current attempts have ended.
        """
        kept = self.vertices[: vertex.parallelism]
        self.resize_in_place(vertex, ids, created, number)
        for execution_vertex in kept:
            execution_vertex.new_attempt(AttemptId(ids.next(AttemptId)), created, first=number)

    def resize_in_place(
        self, vertex: JobVertex, ids: IdSource, created: StateChange, number: int
    ) -> None:
        """Removes surplus subtasks, whose attempts have ended, or adds subtasks, whose attempts
        have at least this number. The others keep their attempts.
        """
        self.vertex = vertex
        by_state = self._job_counts.by_state
        for execution_vertex in self.vertices[vertex.parallelism :]:
            state = execution_vertex.current.state._value_
            self.counts[state] -= 1
            by_state[state] -= 1
        del self.vertices[vertex.parallelism :]
        for subtask in range(len(self.vertices), vertex.parallelism):
            attempt_id = AttemptId(ids.next(AttemptId))
            self.vertices.append(
                ExecutionVertex(self, subtask, attempt_id, created, first_attempt=number)
            )
            self.counts[CREATED._value_] += 1
            by_state[CREATED._value_] += 1
            self._job_counts.live += 1
        self._job_counts.version += 1

    @property
    def aggregate_state(self) -> ExecutionState:
        """The state of the vertex as a whole: the worst state of its subtasks, or else the least
        advanced one.
        """
        return next((s for s in _AGGREGATE_ORDER if self.counts[s._value_]), CREATED)


class PartitionState(Enum):
    """The progress of one partition, derived from its producer's current execution."""

    CREATED = 0  # its producer does not run yet
    CONSUMABLE = 1  # pipelined and being produced, or complete
    LOST = 2  # its producer ended without completing it, or the complete partition is gone


class IntermediateResultPartition:
    """One producer subtask's contribution to a result (firesteel.common.job_graph)."""

    __slots__ = ("producer", "result")

    def __init__(self, result: IntermediateResult, producer: ExecutionVertex) -> None:
        self.result = result
        self.producer = producer

    @property
    def state(self) -> PartitionState:
        match self.producer.current.state:
            case ExecutionState.FINISHED:
                lost = self.producer.subtask in self.result.lost
                return PartitionState.LOST if lost else PartitionState.CONSUMABLE
            case ExecutionState.INITIALIZING | ExecutionState.RUNNING:
                pipelined = self.result.edge.result_type is ResultType.PIPELINED
                return PartitionState.CONSUMABLE if pipelined else PartitionState.CREATED
            case ExecutionState.FAILED | ExecutionState.CANCELED | ExecutionState.CANCELING:
                return PartitionState.LOST
            case _:
                return PartitionState.CREATED

    @property
    def consumers(self) -> range:
        return self.result.consumers_of(self.producer.subtask)


class IntermediateResult:
    __slots__ = ("consumer", "edge", "lost", "partitions", "producer")

    def __init__(
        self, edge: JobEdge, producer: ExecutionJobVertex, consumer: ExecutionJobVertex
    ) -> None:
        self.edge = edge
        self.producer = producer
        self.consumer = consumer
        # Producers whose partitions of a BLOCKING result must not be read: they are unreadable or
        # about to be produced again.
        self.lost: set[int] = set()
        self.partitions: list[IntermediateResultPartition] = []
        self.resize()

    def resize(self) -> None:
        """Follows the number of producers."""
        self.lost.clear()
        self.partitions = [
            IntermediateResultPartition(self, vertex) for vertex in self.producer.vertices
        ]

    def consumers_of(self, producer: int) -> range:
        """Returns the subtasks that read from this producer subtask."""
        if self.edge.pattern is DistributionPattern.ALL_TO_ALL:
            return range(self.consumer.parallelism)
        return pointwise_consumers(producer, self.producer.parallelism, self.consumer.parallelism)

    def producers_of(self, consumer: int) -> range:
        """Returns the subtasks that this consumer subtask reads from."""
        if self.edge.pattern is DistributionPattern.ALL_TO_ALL:
            return range(self.producer.parallelism)
        return pointwise_producers(consumer, self.producer.parallelism, self.consumer.parallelism)
