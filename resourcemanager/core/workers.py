"""Decides how many TaskExecutors a driver starts and stops, and when.

    STARTING ──registered──▶ RUNNING
              │ failed, or too late    │ exited, lost, or released as idle
              ▼                        ▼
            (removed; replaced while needed)

The initial workers are always needed, and as many more as unmet requirements would fill, up to the
limit on slots. Their number comes from matching the unmet requirements with the slots of
hypothetical workers, so no second calculation can disagree with `match_slots`.

Live workers of an earlier ResourceManager get a short time to register. Until then it is unknown
which slots are taken, so nothing is matched or started.

Workers that fail to start or die young delay the next start by 0.5 s, doubling up to 30 s. A worker
that dies young when the one before did not is replaced immediately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from firesteel.common.backoff import Backoff
from firesteel.common.ids import IdSource, JobId, TaskExecutorId
from firesteel.common.resources import ResourceProfile
from resourcemanager.core.events import WorkerId
from resourcemanager.core.matching import Need, Offer, match_slots

YOUNG_S = 10.0  # a worker that dies earlier counts as a failed start
BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 30.0


class WorkerState(Enum):
    STARTING = "starting"
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """The slots of every worker that the driver starts."""

    slots: int
    total: ResourceProfile
    default_slot: ResourceProfile

    def offer(self, name: str) -> Offer:
        return Offer(
            task_executor_id=TaskExecutorId(name),
            free_slots=tuple(range(self.slots)),
            slots_total=self.slots,
            remaining=self.total,
            default_slot=self.default_slot,
        )


@dataclass(slots=True, kw_only=True)
class Worker:
    worker_id: WorkerId
    state: WorkerState
    since: float  # when it entered this state
    problem: str = ""  # STARTING only: why it does not start yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How many workers to start, and the slots that the starting ones will provide."""

    workers_to_start: int  # to request now
    growing: dict[JobId, int]  # per job: slots that it will get from starting workers
    limited: bool  # more workers would help, but the limit on slots is reached


class Workers:
    """The driver's workers as the SlotManager sees them. The SlotManager owns it."""

    def __init__(
        self, *, initial: int, max_slots: int, spec: WorkerSpec | None, ids: IdSource
    ) -> None:
        self.initial = initial
        self.max_slots = max_slots  # of all TaskExecutors together; 0: the initial workers only
        self.spec = spec  # None: no driver; the operator starts TaskExecutors
        self.known: dict[WorkerId, Worker] = {}
        self.recovering: set[WorkerId] = set()  # of an earlier ResourceManager, not registered yet
        self.undiscovered = False  # the driver does not know those yet: none are started
        self.waits_for_discovery = False  # slots are not matched
        self.impediment = ""  # why the driver can neither start nor stop workers
        self.ending: set[WorkerId] = set()  # released, but not known to have ended
        self._cordoned: dict[WorkerId, Worker] = {}  # to be released
        self.leaving: set[WorkerId] = set()  # something else ends them soon
        self.outdated: set[WorkerId] = set()  # started with an earlier configuration
        self.last_failure = ""  # why the last worker did not start; empty once one has
        self.last_end = ""  # why a worker has ended that was lost before; empty once one starts
        self.not_before = 0.0  # the next start happens no earlier
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MAX_S)
        self._died_young = False  # the last worker failed
        self._ids = ids
        self._numbered = 0

    @property
    def starting(self) -> int:
        return sum(w.state is WorkerState.STARTING for w in self.known.values())

    @property
    def recovers(self) -> bool:
        """Whether workers of an earlier ResourceManager may register at any moment."""
        return bool(self.recovering) or self.waits_for_discovery

    @property
    def problem(self) -> str:
        """Why starting workers do not start yet: the reason of the first one that has one."""
        found = (w.problem for w in self.known.values() if w.state is WorkerState.STARTING)
        return next(filter(None, found), "")

    def plan_growth(self, unmet: Sequence[Need], slots_total: int, *, now: float) -> Growth:
        """Decides what to start for `unmet`; `slots_total` is the number of registered slots."""
        if self.spec is None:
            return Growth(workers_to_start=0, growing={}, limited=False)
        starting = self.starting
        base = max(0, self.initial - len(self.known))
        lacking = sum(r.count for need in unmet for r in need.requirements)
        reached = slots_total + (starting + base) * self.spec.slots
        room = max(0, self.max_slots - reached) // self.spec.slots
        offers = [
            self.spec.offer(f"worker {n}") for n in range(starting + base + min(room, lacking))
        ]
        # Packed, so that only needed workers get requirements; workers that are already starting
        # come first.
        plan = match_slots(offers, unmet, spread=False)
        used = {assignment.task_executor_id for assignment in plan.assignments}
        to_start = max(base, sum(offer.task_executor_id in used for offer in offers[starting:]))
        more_would_help = bool(
            match_slots([self.spec.offer("one more")], plan.unmet, spread=False).assignments
        )
        if now < self.not_before or self.undiscovered:
            to_start = 0
        growing: dict[JobId, int] = {}
        coming = {offer.task_executor_id for offer in offers[: starting + to_start]}
        for assignment in plan.assignments:
            if assignment.task_executor_id in coming:
                growing[assignment.job_id] = growing.get(assignment.job_id, 0) + 1
        return Growth(workers_to_start=to_start, growing=growing, limited=more_would_help)

    def request(self, now: float) -> Worker:
        self._numbered += 1
        worker_id = WorkerId(f"worker-{self._numbered}-{self._ids.next()[:6]}")
        worker = Worker(worker_id=worker_id, state=WorkerState.STARTING, since=now)
        self.known[worker_id] = worker
        return worker

    def recover(self, worker_ids: Sequence[WorkerId], now: float) -> None:
        """Adds live workers of an earlier ResourceManager, unless they have registered."""
        self.undiscovered = self.waits_for_discovery = False
        for worker_id in worker_ids:
            if worker_id in self.known or worker_id in self._cordoned or worker_id in self.ending:
                continue
            self.known[worker_id] = Worker(
                worker_id=worker_id, state=WorkerState.STARTING, since=now
            )
            self.recovering.add(worker_id)

    def overdue(self, worker_id: WorkerId) -> None:
        """Stops waiting for its registration: a replacement may start. The worker may still
        register.
        """
        self.recovering.discard(worker_id)
        self.cordon(worker_id)

    def registered(self, worker_id: WorkerId, brought: WorkerSpec, now: float) -> None:
        """Records its TaskExecutor's registration; adopts workers of an earlier ResourceManager."""
        if self.spec is not None:
            self.spec = brought  # more exact than the estimate from the configuration
        self.recovering.discard(worker_id)
        self.uncordon(worker_id)
        worker = self.known.get(worker_id)
        if worker is None:
            self.known[worker_id] = Worker(
                worker_id=worker_id, state=WorkerState.RUNNING, since=now
            )
        elif worker.state is WorkerState.STARTING:
            worker.state, worker.since, worker.problem = WorkerState.RUNNING, now, ""
        self.last_failure = self.last_end = ""

    def cordon(self, worker_id: WorkerId) -> None:
        """Marks it for release: a replacement may start."""
        if (worker := self.known.pop(worker_id, None)) is not None:
            self._cordoned[worker_id] = worker

    def uncordon(self, worker_id: WorkerId) -> None:
        if (worker := self._cordoned.pop(worker_id, None)) is not None:
            self.known[worker_id] = worker

    def released(self, worker_id: WorkerId) -> None:
        """Records that it is no longer needed, so its end is not a failure. If its TaskExecutor
        registers again, it is shut down.
        """
        self._forget(worker_id)
        self.known.pop(worker_id, None)
        self._cordoned.pop(worker_id, None)
        self.ending.add(worker_id)

    def failed(self, worker_id: WorkerId, cause: str, now: float) -> bool:
        """Records that it did not start or ended by itself. Returns False if it was released
        before.
        """
        self._forget(worker_id)
        if self._cordoned.pop(worker_id, None) is not None:
            return True  # its replacement was already considered
        worker = self.known.pop(worker_id, None)
        if worker is None:
            return False
        if worker_id in self.recovering:
            self.recovering.remove(worker_id)
            return True  # the next one need not fail in the same way
        started = worker.state is WorkerState.RUNNING
        if started and now - worker.since >= YOUNG_S:
            self._backoff.reset()
            self._died_young = False
            return True
        if not started:
            self.last_failure = cause
        if self._died_young or not started:
            self.not_before = now + self._backoff.next()
        self._died_young = True  # the first in a row that had started is replaced immediately
        return True

    def _forget(self, worker_id: WorkerId) -> None:
        self.leaving.discard(worker_id)
        self.outdated.discard(worker_id)

    @property
    def slots_limit(self) -> int:
        """The number of slots that may exist at a time."""
        initial = self.initial * self.spec.slots if self.spec is not None else 0
        return max(self.max_slots, initial)

    def may_release(self) -> bool:
        return len(self.known) > self.initial
