"""The slots of all TaskExecutors as the SlotManager sees them.

              request sent               accepted, or seen in a report
          FREE ───────────────────▶ PENDING ───────────────────────────────▶ ALLOCATED
           ▲ ▲                         │ rejected or abandoned                  │  ▲
           │ │  reported free, or      ▼                                        │  │ reported
           │ └──a pause has passed── UNCLEAR ───────────────────────────────────┼──┘ (or from FREE)
           └────────────────────────────────────────────────────────────────────┘
                                      reported free

The TaskExecutor owns the truth: its report overrides the SlotManager's view, with one exception.
While a request is under way (PENDING), a report that shows the slot free was written before the
request arrived and is ignored.

Invariants, checked by `validate`: an allocation is on at most one slot and a slot has at most one
allocation; a TaskExecutor's taken slots and what remains add up to its total.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from firesteel.common.ids import AllocationId, JobId, TaskExecutorId
from firesteel.common.resources import UNKNOWN, ResourceProfile, SlotStatus
from firesteel.common.states import IllegalTransition
from resourcemanager.core.commands import StopProgress
from resourcemanager.core.events import Connection, WorkerId
from resourcemanager.core.matching import Offer


class SlotState(Enum):
    FREE = "free"
    PENDING = "pending"
    ALLOCATED = "allocated"
    UNCLEAR = "unclear"


class SlotEvent(Enum):
    """Drives a slot from one state to the next."""

    REQUESTED = "matched with a job: its request is sent"
    ACCEPTED = "its TaskExecutor accepted the request"
    GIVEN_UP = "rejected, unanswered too often, or no longer needed"
    REPORTED_HELD = "its TaskExecutor reports an allocation on it"
    REPORTED_FREE = "its TaskExecutor reports it free"
    PAUSE_OVER = "the pause ended without a report that clears it"


TRANSITIONS: dict[SlotState, dict[SlotEvent, SlotState]] = {
    SlotState.FREE: {
        SlotEvent.REQUESTED: SlotState.PENDING,
        # An earlier ResourceManager allocated it, or its abandoned request was accepted.
        SlotEvent.REPORTED_HELD: SlotState.ALLOCATED,
    },
    SlotState.PENDING: {
        SlotEvent.ACCEPTED: SlotState.ALLOCATED,
        SlotEvent.REPORTED_HELD: SlotState.ALLOCATED,
        SlotEvent.GIVEN_UP: SlotState.UNCLEAR,
    },
    SlotState.ALLOCATED: {
        SlotEvent.REPORTED_FREE: SlotState.FREE,
        SlotEvent.REPORTED_HELD: SlotState.ALLOCATED,  # by a different job: messages were lost
    },
    SlotState.UNCLEAR: {
        SlotEvent.REPORTED_FREE: SlotState.FREE,
        SlotEvent.PAUSE_OVER: SlotState.FREE,
        SlotEvent.REPORTED_HELD: SlotState.ALLOCATED,
    },
}

STORY_MAX = 20


class Transition(NamedTuple):
    at: float
    event: SlotEvent
    state: SlotState
    allocation_id: AllocationId | None
    job_id: JobId | None

    def __str__(self) -> str:
        holder = f" as {self.allocation_id} of job {self.job_id}" if self.allocation_id else ""
        return f"{self.at:.3f} -> {self.state.name} by {self.event.name}{holder}"


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    executor: TaskExecutor
    index: int
    state: SlotState = SlotState.FREE
    allocation_id: AllocationId | None = None  # PENDING and ALLOCATED only
    job_id: JobId | None = None
    profile: ResourceProfile = UNKNOWN  # decided with the allocation; UNKNOWN otherwise
    requests_sent: int = 0  # PENDING only
    warm: bool = False  # as last reported
    problem: str = ""  # why its process cannot start, as last reported
    environment: str = ""  # of its process, as last reported
    transitions: deque[Transition] = field(default_factory=lambda: deque(maxlen=STORY_MAX))

    def __str__(self) -> str:
        holder = f" for job {self.job_id} as {self.allocation_id}" if self.allocation_id else ""
        where = f"slot {self.index} of TaskExecutor {self.executor.task_executor_id}"
        return f"{where} ({self.state.value}{holder})"

    def story(self) -> list[str]:
        return [str(transition) for transition in self.transitions]


@dataclass(slots=True, kw_only=True)
class Stop:
    """The callers that wait for the end of a TaskExecutor; see stopping.py."""

    force: bool  # does not wait for results that the TaskExecutor stores
    final: bool = False  # continues without a caller
    without_slots: bool = False  # jobs need not wait for slots elsewhere
    # JobMasters that were requested to vacate it.
    told: set[Connection] = field(default_factory=set)
    # By request: the progress sent last.
    waiting: dict[int, StopProgress | None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class TaskExecutor:
    task_executor_id: TaskExecutorId
    address: str
    host: str
    pid: int
    worker_id: WorkerId | None
    total: ResourceProfile
    default_slot: ResourceProfile
    connection: Connection | None = None  # None: broken, perhaps back soon
    heard_at: float = 0.0
    report_sequence: int = 0  # of the newest report of this registration
    gone: bool = False  # its process has ended; the driver is about to report why
    leaving: bool = False  # requested to shut down: it offers no slots
    draining: bool = False  # offers no slots; shut down once it is empty
    stop: Stop | None = None  # present while callers wait for its end
    slots: dict[int, Slot] = field(default_factory=dict)
    taken: int = 0  # slots that are not FREE
    remaining: ResourceProfile = UNKNOWN  # total minus the profiles of its slots
    stored_partitions: int = 0  # BLOCKING results that jobs may still read
    stored_bytes: int = 0
    stored_jobs: frozenset[JobId] = frozenset()  # the jobs that own them

    @property
    def idle(self) -> bool:
        return self.taken == 0 and self.stored_partitions == 0

    @property
    def gives_slots(self) -> bool:
        return not (self.leaving or self.draining)

    def free_slots(self) -> tuple[int, ...]:
        """Returns slots whose processes cannot start last: a job's environment may mend those."""
        free = [slot for slot in self.slots.values() if slot.state is SlotState.FREE]
        free.sort(key=lambda slot: bool(slot.problem))
        return tuple(slot.index for slot in free)

    def offer(self) -> Offer:
        return Offer(
            task_executor_id=self.task_executor_id,
            free_slots=self.free_slots(),
            warm={
                slot.index: slot.environment
                for slot in self.slots.values()
                if slot.warm and slot.state is SlotState.FREE
            },
            slots_total=len(self.slots),
            remaining=self.remaining,
            default_slot=self.default_slot,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """The changes that a report made."""

    changed: bool = False  # slots became free, taken, usable or unusable: match again
    doubled: tuple[AllocationId, ...] = ()  # held by another slot: this TaskExecutor must free them
    given_up: tuple[Slot, ...] = ()  # were PENDING for an allocation that another slot holds


class SlotTable:
    """Every registered TaskExecutor with its slots. The SlotManager owns it."""

    def __init__(self) -> None:
        self.now = 0.0  # set for each event; stamps the slots' stories
        self.executors: dict[TaskExecutorId, TaskExecutor] = {}  # in order of registration
        self._by_allocation: dict[AllocationId, Slot] = {}
        self._by_job: dict[JobId, dict[AllocationId, Slot]] = {}
        self._count = dict.fromkeys(SlotState, 0)

    # ------------------------------------------------------------ questions

    @property
    def total(self) -> int:
        return sum(self._count.values())

    def count(self, state: SlotState) -> int:
        return self._count[state]

    @property
    def given(self) -> int:
        """The number of slots of TaskExecutors that are not to stop."""
        return sum(len(x.slots) for x in self.executors.values() if x.gives_slots)

    @property
    def lasting(self) -> int:
        """The number of slots except those of draining TaskExecutors, which are replaced."""
        return sum(len(x.slots) for x in self.executors.values() if not x.draining)

    @property
    def free(self) -> int:
        """The number of free slots of TaskExecutors that are not to stop."""
        return sum(len(x.slots) - x.taken for x in self.executors.values() if x.gives_slots)

    def unusable(self) -> list[Slot]:
        """Returns slots without an allocation whose processes cannot start."""
        return [
            slot
            for executor in self.executors.values()
            for slot in executor.slots.values()
            if slot.problem and slot.allocation_id is None and executor.gives_slots
        ]

    def slot_of(self, allocation_id: AllocationId) -> Slot | None:
        return self._by_allocation.get(allocation_id)

    def held_by(self, job_id: JobId) -> list[ResourceProfile]:
        """Returns the profiles of the slots that the job holds or has requested."""
        return [slot.profile for slot in self._by_job.get(job_id, {}).values()]

    def slots_of(self, job_id: JobId) -> list[Slot]:
        return list(self._by_job.get(job_id, {}).values())

    def offers(self) -> list[Offer]:
        ready = (e for e in self.executors.values() if e.connection is not None and e.gives_slots)
        return [executor.offer() for executor in ready if executor.taken < len(executor.slots)]

    # ------------------------------------------------------------ TaskExecutors

    def add(self, executor: TaskExecutor, slot_indexes: Iterable[int]) -> None:
        executor.remaining = executor.total
        self.executors[executor.task_executor_id] = executor
        for index in sorted(slot_indexes):
            executor.slots[index] = Slot(executor=executor, index=index)
            self._count[SlotState.FREE] += 1

    def remove(self, executor: TaskExecutor) -> None:
        for slot in executor.slots.values():
            self._forget_allocation(slot)
            self._count[slot.state] -= 1
        del self.executors[executor.task_executor_id]

    # ------------------------------------------------------------ transitions

    def request(
        self, slot: Slot, allocation_id: AllocationId, job_id: JobId, profile: ResourceProfile
    ) -> None:
        self._drive(slot, SlotEvent.REQUESTED, allocation_id, job_id, profile)
        slot.requests_sent = 1

    def accept(self, slot: Slot) -> None:
        self._drive(slot, SlotEvent.ACCEPTED, slot.allocation_id, slot.job_id, slot.profile)

    def give_up(self, slot: Slot) -> None:
        self._drive(slot, SlotEvent.GIVEN_UP)

    def end_pause(self, slot: Slot) -> None:
        self._drive(slot, SlotEvent.PAUSE_OVER)

    def reconcile(self, executor: TaskExecutor, statuses: Sequence[SlotStatus]) -> Reconciled:
        """Adopts a TaskExecutor's report of its slots."""
        changed = False
        doubled: list[AllocationId] = []
        given_up: list[Slot] = []
        # Free slots first: an allocation that moved within the TaskExecutor is not a duplicate.
        for status in sorted(statuses, key=lambda s: s.allocation_id is not None):
            slot = executor.slots.get(status.slot_index)
            if slot is None:
                continue  # the registration fixed the number of slots
            changed |= slot.problem != status.problem
            slot.warm, slot.problem = status.warm, status.problem
            slot.environment = status.environment
            if status.allocation_id is None:
                changed |= self._reported_free(slot)
                continue
            elsewhere = self._by_allocation.get(status.allocation_id)
            if elsewhere is not None and elsewhere is not slot:
                if elsewhere.state is SlotState.ALLOCATED:
                    doubled.append(status.allocation_id)
                    continue
                self.give_up(elsewhere)  # requested there, held here
                given_up.append(elsewhere)
            changed |= self._reported_held(slot, status)
        return Reconciled(changed=changed, doubled=tuple(doubled), given_up=tuple(given_up))

    def _reported_free(self, slot: Slot) -> bool:
        if slot.state not in (SlotState.ALLOCATED, SlotState.UNCLEAR):
            return False
        self._drive(slot, SlotEvent.REPORTED_FREE)
        return True

    def _reported_held(self, slot: Slot, status: SlotStatus) -> bool:
        profile = slot.executor.default_slot if status.profile.unknown else status.profile
        if (slot.state, slot.allocation_id, slot.profile) == (
            SlotState.ALLOCATED,
            status.allocation_id,
            profile,
        ):
            return False
        expected = slot.allocation_id == status.allocation_id and slot.profile == profile
        self._drive(slot, SlotEvent.REPORTED_HELD, status.allocation_id, status.job_id, profile)
        return not expected

    def _drive(
        self,
        slot: Slot,
        event: SlotEvent,
        allocation_id: AllocationId | None = None,
        job_id: JobId | None = None,
        profile: ResourceProfile = UNKNOWN,
    ) -> None:
        """Changes a slot's state; no other function does. Raises IllegalTransition."""
        state = TRANSITIONS[slot.state].get(event)
        if state is None:
            story = "".join(f"\n  {line}" for line in slot.story())
            raise IllegalTransition(
                f"{slot}: {event.name} is illegal in {slot.state.name}; its story:{story}"
            )
        slot.transitions.append(Transition(self.now, event, state, allocation_id, job_id))
        self._forget_allocation(slot)
        self._count[slot.state] -= 1
        self._count[state] += 1
        slot.executor.taken += (state is not SlotState.FREE) - (slot.state is not SlotState.FREE)
        slot.state, slot.requests_sent = state, 0
        if allocation_id is not None and job_id is not None:
            slot.allocation_id, slot.job_id, slot.profile = allocation_id, job_id, profile
            slot.executor.remaining = slot.executor.remaining - profile
            self._by_allocation[allocation_id] = slot
            self._by_job.setdefault(job_id, {})[allocation_id] = slot

    def _forget_allocation(self, slot: Slot) -> None:
        if slot.allocation_id is None or slot.job_id is None:
            return
        del self._by_allocation[slot.allocation_id]
        of_job = self._by_job[slot.job_id]
        del of_job[slot.allocation_id]
        if not of_job:
            del self._by_job[slot.job_id]
        slot.executor.remaining = slot.executor.remaining + slot.profile
        slot.allocation_id, slot.job_id, slot.profile = None, None, UNKNOWN

    # ------------------------------------------------------------ invariants

    def violations(self) -> list[str]:
        """Returns the violations of invariant 19."""
        found: list[str] = []
        seen: dict[AllocationId, Slot] = {}
        counts = dict.fromkeys(SlotState, 0)
        for executor in self.executors.values():
            left = executor.total
            for slot in executor.slots.values():
                counts[slot.state] += 1
                holds = slot.state in (SlotState.PENDING, SlotState.ALLOCATED)
                if holds != (slot.allocation_id is not None) or holds != (slot.job_id is not None):
                    found.append(f"{slot}: state and allocation disagree")
                if holds == slot.profile.unknown:
                    found.append(f"{slot}: exactly held slots have a size; it has {slot.profile}")
                if slot.allocation_id is None:
                    continue
                left = left - slot.profile
                if slot.allocation_id in seen:
                    first = seen[slot.allocation_id]
                    found.append(f"allocation {slot.allocation_id} is on {first} and on {slot}")
                seen[slot.allocation_id] = slot
                if self._by_allocation.get(slot.allocation_id) is not slot:
                    found.append(f"{slot}: the index of allocations does not lead to it")
            if not (left.fits_in(executor.remaining) and executor.remaining.fits_in(left)):
                found.append(
                    f"TaskExecutor {executor.task_executor_id}: {executor.remaining} remain,"
                    f" counted {left}"
                )
            if executor.taken != len(executor.slots) - len(executor.free_slots()):
                found.append(
                    f"TaskExecutor {executor.task_executor_id}: {executor.taken} slots taken"
                    " is miscounted"
                )
        if seen.keys() != self._by_allocation.keys():
            found.append(
                f"allocations without a slot: {sorted(self._by_allocation.keys() - seen.keys())}"
            )
        by_job = {
            allocation: slot for held in self._by_job.values() for allocation, slot in held.items()
        }
        if by_job != self._by_allocation:
            found.append("the index of jobs differs from the index of allocations")
        if counts != self._count:
            found.append(f"slots counted {counts}, kept {self._count}")
        return found
