"""Decides which pods to create, inspect and delete, as a pure core: events in, commands out.

The SlotManager requests and releases workers; each worker is one pod. The snapshot of the pods is
the truth: the core compares it with the workers, and it does not matter which changes led to it.

              created                   has ended, or is to be      reason reported
        QUEUED ──▶ CREATING ──▶ EXISTS ──▶ ENDING ───────────────▶ DELETING ──▶ (forgotten)
          ▲           │           │        its log is saved                        ▲
          └───────────┘           └── released ──────────────────▶ DELETING        │
          postponed                   └── vanished ────────────────────────────────┘

Rules:

* A name is used for one pod of one worker. A request whose outcome is unknown is repeated under the
  same name, so it cannot create two pods.
* At most `pods_max` pods are alive, including those whose creation is not known to have failed.
* The end of each worker is reported once, whatever happens to its pod.
* A pod that belongs to no worker is deleted, unless a newer ResourceManager has created it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, assert_never

from firesteel.common.backoff import Backoff
from firesteel.common.service.core import Effects, Tick
from firesteel.common.states import IllegalTransition
from firesteel.kubernetes.pods.status import Life, latest_problem
from resourcemanager.core.events import (
    PreviousWorkersFound,
    WorkerDelayed,
    WorkerEvent,
    WorkerExited,
    WorkerId,
    WorkerLeaving,
    WorkerLogRead,
    WorkersOutdated,
    WorkerStarted,
    WorkerStartFailed,
)
from resourcemanager.core.timers import Timers
from resourcemanager.kubernetes.pod import Pod

REASON_PATIENCE_S = 0.15  # the replacement of a dead worker waits no longer for its last log lines
INSPECTION_S = 10.0  # a pod is deleted even if its log cannot be read within this time
LEAVING_PATIENCE_S = 10.0  # beyond its grace period, for the kubelet to report the end of a pod
STATUS_PATIENCE_S = 2.0  # for the kubelet to report the end of a worker that is known to be dead
UNSEEN_S = 10.0  # a created pod that the snapshot does not have after this time has vanished
STUCK_S = 15.0  # a pod that does not start for this long without a reason: its Events are read
STUCK_PAUSE_S = 10.0  # between two such requests
FIRST_PAUSE_S = 0.2  # after a request that the API server did not execute
LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsSettings:
    cluster_id: str
    attempt: int  # the epoch of this ResourceManager
    pods_max: int
    rate_per_s: float = 100.0  # of pods created
    burst: int = 20
    concurrency: int = 16  # creations at a time
    template: str = ""  # of the pods that this ResourceManager creates


# ---- events


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequested:
    worker_id: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReleased:
    worker_id: WorkerId
    failed: bool = False  # the worker is dead or has not registered: save the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsObserved:
    """The snapshot of the pods has changed, or is repeated as a whole."""

    pods: Mapping[str, Pod | None]  # by name; None: there is no such pod
    complete: bool = False  # `pods` is the whole snapshot
    current_at: float = 0.0  # the snapshot was current at this time


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCreated:
    """The API server has created the pod, or an earlier request has."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NameTaken:
    """A pod of another worker has this name."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRefused:
    """The API server refuses the pod, and would refuse others like it."""

    name: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPostponed:
    """The API server has not answered, or requests a pause."""

    name: str
    cause: str
    retry_after_s: float = 0.0
    executed: bool | None = False  # None: the pod may have been created


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInspected:
    name: str
    ended: bool = True  # as in the request
    log: str = ""  # its last lines
    events: str = ""  # the texts of the last warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDeleted:
    """The API server has accepted the deletion."""

    name: str
    uid: str = ""  # as in the request
    gone: bool = False  # there is no such pod


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNotDeleted:
    name: str
    cause: str
    retry_after_s: float = 0.0


Event = (
    PodRequested
    | PodReleased
    | PodsObserved
    | PodCreated
    | NameTaken
    | PodRefused
    | PodPostponed
    | PodInspected
    | PodDeleted
    | PodNotDeleted
    | Tick
)

# ---- commands


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePod:
    """Answered by PodCreated, NameTaken, PodRefused or PodPostponed."""

    name: str
    number: int
    worker_id: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectPod:
    """Answered by PodInspected, also if nothing could be read."""

    name: str
    uid: str
    ended: bool  # the reason of its end is of interest; else, why it does not start
    log: bool  # read the last lines of its log
    events: bool  # read its Events


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """Answered by PodDeleted or PodNotDeleted."""

    name: str
    uid: str  # empty: unknown
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Send this to the SlotManager."""

    event: WorkerEvent


Command = CreatePod | InspectPod | DeletePod | Report

# ---- workers


class State(Enum):
    QUEUED = "its pod is to be created"
    CREATING = "the creation of its pod is requested"
    EXISTS = "its pod exists, and is wanted"
    ENDING = "its pod has ended or is not wanted; the reason is collected"
    DELETING = "the deletion of its pod is requested"
    FORGOTTEN = "it has no pod"


_S = State
TRANSITIONS: dict[State, frozenset[State]] = {
    # sent; released, and no pod can exist; released, and a pod may exist; seen in the snapshot
    _S.QUEUED: frozenset({_S.CREATING, _S.FORGOTTEN, _S.DELETING, _S.EXISTS}),
    # postponed; created; refused; seen, and over
    _S.CREATING: frozenset({_S.QUEUED, _S.EXISTS, _S.FORGOTTEN}),
    # over, or released as failed; released; vanished
    _S.EXISTS: frozenset({_S.ENDING, _S.DELETING, _S.FORGOTTEN}),
    # the reason is known, or not available; vanished
    _S.ENDING: frozenset({_S.DELETING, _S.FORGOTTEN}),
    # vanished
    _S.DELETING: frozenset({_S.FORGOTTEN}),
    _S.FORGOTTEN: frozenset(),
}


@dataclass(slots=True, kw_only=True, eq=False)
class Worker:
    worker_id: WorkerId
    state: State
    name: str = ""  # of its pod; empty before the first request
    number: int = 0
    uid: str = ""
    created_at: float = 0.0
    pod: Pod | None = None  # as last seen
    released: bool = False
    leaving: bool = False  # something else deletes its pod; that was reported
    reported: bool = False  # its end was reported, or need not be
    maybe_created: bool = False  # the outcome of a request is unknown
    delete_accepted: bool = False
    inspecting: bool = False
    problem: str = ""  # as last reported
    events: str = ""  # the reason of a pod that does not start, from its Events
    cause: str = ""  # of its end
    pause: Backoff | None = None  # between requests to delete it

    @property
    def alive(self) -> bool:
        """Whether its pod uses resources of the cluster, or may."""
        if self.pod is not None and not self.pod.counts:
            return False
        match self.state:
            case State.QUEUED:
                return self.maybe_created
            case State.CREATING | State.EXISTS | State.ENDING:
                return True
            case State.DELETING:
                return not self.delete_accepted
            case State.FORGOTTEN:
                return False
            case _:
                assert_never(self.state)


class Deadline(Enum):
    PUMP = "more pods may be created"
    LEAVING = "the grace period of a pod that something else deletes is over"
    STATUS = "the kubelet has not reported the end of a dead worker"
    REASON = "the end of a worker is reported without its log"
    INSPECTION = "a pod is deleted without its log"
    DELETE = "the deletion is requested again"
    STUCK = "look for pods that do not start, for an unknown reason"


class Timer(NamedTuple):
    kind: Deadline
    name: str = ""


class PodsCore:
    def __init__(self, settings: PodsSettings) -> None:
        self.settings = settings
        self.synced = False  # the first snapshot has arrived
        self.workers: dict[WorkerId, Worker] = {}
        self.by_name: dict[str, Worker] = {}  # also pods without a worker, until they are gone
        self.created = 0  # the number of requests to create pods
        self._queue: deque[Worker] = deque()
        self._creating: set[str] = set()  # names whose request is not answered
        self._alive: set[str] = set()  # names
        self._numbered = 0
        self._tokens = float(settings.burst)
        self._tokens_at = 0.0
        self._not_before = 0.0  # no creation earlier: the API server requests a pause
        self._pause = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._stuck_not_before = 0.0
        self._timers: Timers[Timer] = Timers()
        self._commands: list[Command] = []
        self._now = 0.0

    # ------------------------------------------------------------ the core's interface

    def handle(self, event: Event, now: float) -> Effects[None, Command]:
        self._now = now
        self._commands = []
        self._apply(event)
        self._pump()
        return Effects(commands=tuple(self._commands))

    def next_deadline(self) -> float | None:
        return self._timers.next()

    @property
    def alive(self) -> int:
        """The number of pods that use resources, or may."""
        return len(self._alive)

    @property
    def queued(self) -> int:
        return len(self._queue)

    def _apply(self, event: Event) -> None:
        match event:
            case PodRequested(worker_id=worker_id):
                worker = Worker(worker_id=worker_id, state=State.QUEUED)
                self.workers[worker_id] = worker
                self._queue.append(worker)
            case PodReleased(worker_id=worker_id, failed=failed):
                if (known := self.workers.get(worker_id)) is not None and not known.released:
                    known.released = True
                    self._release(known, failed)
            case PodsObserved():
                self._observe(event)
            case PodCreated(name=name, uid=uid):
                self._pause.reset()
                self._answered(name)
                if (created := self.by_name.get(name)) is not None:
                    self._exists(created, uid)
                else:
                    self._unwanted(name, uid)
            case NameTaken(name=name):
                self._answered(name)
                self._rename(name)
            case PodRefused(name=name, cause=cause):
                self._answered(name)
                self._refused(name, cause)
            case PodPostponed():
                self._answered(event.name)
                self._postponed(event)
            case PodInspected():
                self._inspected(event)
            case PodDeleted(name=name):
                if (deleted := self.by_name.get(name)) is not None:
                    self._deleted(deleted, event)
            case PodNotDeleted(name=name, retry_after_s=retry_after_s):
                if (kept := self.by_name.get(name)) is not None and kept.state is State.DELETING:
                    kept.pause = kept.pause or Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
                    self._arm(Deadline.DELETE, name, max(kept.pause.next(), retry_after_s))
            case Tick():
                self._run_timers()
            case _:
                assert_never(event)

    # ------------------------------------------------------------ creation

    def _pump(self) -> None:
        """Creates pods for queued workers, as the limits allow."""
        self._timers.cancel(Timer(Deadline.PUMP))
        if not self.synced:
            return  # pods of an earlier ResourceManager count
        while self._queue and len(self._creating) < self.settings.concurrency:
            worker = self._queue[0]
            if worker.state is not State.QUEUED:
                self._queue.popleft()
                continue
            others = len(self._alive) - (worker.name in self._alive)
            if others >= self.settings.pods_max:
                problem = f"the limit of {self.settings.pods_max} pods is reached"
                self._delayed(worker, problem)
                return
            wait_s = self._wait_s()
            if wait_s > 0:
                self._arm(Deadline.PUMP, "", wait_s)
                return
            self._queue.popleft()
            self._create(worker)

    def _wait_s(self) -> float:
        """Returns the time until the next creation; takes part in it if it is 0."""
        if self._now < self._not_before:
            return self._not_before - self._now
        rate = self.settings.rate_per_s
        earned = (self._now - self._tokens_at) * rate
        self._tokens = min(self._tokens + earned, float(self.settings.burst))
        self._tokens_at = self._now
        if self._tokens < 1 - 1e-6:
            return max((1 - self._tokens) / rate, 0.001)
        self._tokens -= 1
        return 0.0

    def _create(self, worker: Worker) -> None:
        if not worker.name:
            self._numbered += 1
            worker.number = self._numbered
            cluster_id, attempt = self.settings.cluster_id, self.settings.attempt
            worker.name = f"{cluster_id}-taskexecutor-{attempt}-{worker.number}"
            self.by_name[worker.name] = worker
        self.created += 1
        self._creating.add(worker.name)
        self._go(worker, State.CREATING)
        self._commands.append(
            CreatePod(name=worker.name, number=worker.number, worker_id=worker.worker_id)
        )

    def _answered(self, name: str) -> None:
        self._creating.discard(name)
        if name not in self.by_name:
            self._alive.discard(name)

    def _exists(self, worker: Worker, uid: str) -> None:
        """Notes that the pod exists, according to the answer to the request or to the snapshot."""
        if worker.state not in (State.QUEUED, State.CREATING):
            return
        worker.uid, worker.created_at, worker.maybe_created = uid, self._now, False
        self._go(worker, State.EXISTS)
        self._report(WorkerStarted(worker_id=worker.worker_id))
        self._delayed(worker, "")
        self._look_for_stuck()
        if worker.released:
            self._delete(worker, "it was released while it started")

    def _rename(self, name: str) -> None:
        """Requests the pod under another name."""
        worker = self.by_name.get(name)
        if worker is None or worker.state is not State.CREATING:
            return
        self._go(worker, State.QUEUED)
        del self.by_name[name]
        self._alive.discard(name)
        worker.name, worker.maybe_created = "", False
        if worker.released:
            self._end(worker, "it was released while it started", started=False)
            self._go(worker, State.FORGOTTEN)
        else:
            self._queue.appendleft(worker)

    def _refused(self, name: str, cause: str) -> None:
        """Reports the failure of all workers that wait: the SlotManager requests them again after a
        pause.
        """
        refused = [self.by_name[name]] if name in self.by_name else []
        waiting = [w for w in self._queue if w.state is State.QUEUED and not w.maybe_created]
        for worker in (*refused, *waiting):
            if worker.state in (State.QUEUED, State.CREATING):
                self._end(worker, cause, started=False)
                self._go(worker, State.FORGOTTEN)

    def _postponed(self, event: PodPostponed) -> None:
        if event.retry_after_s or self._now >= self._not_before:
            pause_s = max(self._pause.next(), event.retry_after_s)
            self._not_before = max(self._not_before, self._now + pause_s)
        worker = self.by_name.get(event.name)
        if worker is None and event.executed is not False:
            self._unwanted(event.name, "")
        if worker is None or worker.state is not State.CREATING:
            return
        worker.maybe_created |= event.executed is not False
        self._go(worker, State.QUEUED)
        self._queue.appendleft(worker)
        if worker.released:
            self._withdraw(worker)
        else:
            self._delayed(worker, event.cause)

    # ------------------------------------------------------------ release

    def _release(self, worker: Worker, failed: bool) -> None:
        match worker.state:
            case State.QUEUED:
                self._withdraw(worker)
            case State.CREATING | State.ENDING | State.DELETING | State.FORGOTTEN:
                pass  # continues when the request is answered
            case State.EXISTS if failed:
                self._go(worker, State.ENDING)
                self._arm(Deadline.STATUS, worker.name, STATUS_PATIENCE_S)
                if worker.pod is None or worker.pod.life is not Life.RUNNING:
                    self._inspect(worker)  # nothing to wait for
            case State.EXISTS:
                self._delete(worker, "it was released")
            case _:
                assert_never(worker.state)

    def _withdraw(self, worker: Worker) -> None:
        """Releases a worker whose pod is not known to exist."""
        cause = "it was released while it started"
        if worker.maybe_created:
            self._delete(worker, cause)
        else:
            self._end(worker, cause, started=False)
            self._go(worker, State.FORGOTTEN)

    # ------------------------------------------------------------ the snapshot

    def _observe(self, event: PodsObserved) -> None:
        if event.complete and not self.synced:
            self.synced = True
            self._adopt(event.pods)
            return
        if not self.synced:
            return
        for name, pod in event.pods.items():
            worker = self.by_name.get(name)
            if worker is not None and pod is not None and worker.uid not in ("", pod.uid):
                if worker.pod is None:
                    continue  # of an earlier request; the snapshot does not have its pod yet
                self._absent(worker)  # another pod has its name
                worker = None
            if worker is not None and pod is not None:
                self._seen(worker, pod)
            elif worker is not None and worker.pod is not None:
                self._absent(worker)
            elif worker is None and pod is not None:
                self._stray(pod)
        if event.complete:
            for name in [name for name in self.by_name if name not in event.pods]:
                worker = self.by_name[name]
                if worker.pod is not None or worker.created_at + UNSEEN_S < event.current_at:
                    self._absent(worker)

    def _adopt(self, pods: Mapping[str, Pod | None]) -> None:
        """Takes over the pods of earlier ResourceManagers; deletes the ones that have ended."""
        found: list[WorkerId] = []
        for pod in pods.values():
            if pod is None or pod.attempt > self.settings.attempt:
                continue
            if pod.attempt == self.settings.attempt:
                self._numbered = max(self._numbered, pod.number)
            if pod.deleting and not pod.leaving:
                continue
            if pod.life is Life.ENDED or pod.worker_id in self.workers:
                self._stray(pod)
                continue
            worker = Worker(
                worker_id=pod.worker_id,
                state=State.EXISTS,
                name=pod.name,
                uid=pod.uid,
                number=pod.number,
                created_at=self._now,
                pod=pod,
            )
            self.workers[pod.worker_id] = self.by_name[pod.name] = worker
            self._recount(worker)
            found.append(pod.worker_id)
        self._report(PreviousWorkersFound(worker_ids=tuple(found)))
        adopted = [self.workers[each] for each in found]
        if outdated := [w.worker_id for w in adopted if self._is_outdated(w)]:
            self._report(WorkersOutdated(worker_ids=tuple(outdated)))
        for worker in adopted:
            self._notice_leaving(worker)
        self._look_for_stuck()

    def _is_outdated(self, worker: Worker) -> bool:
        return worker.pod is not None and worker.pod.template != self.settings.template

    def _notice_leaving(self, worker: Worker) -> None:
        """Reports that something else deletes its pod: its tasks can move until it ends."""
        pod = worker.pod
        if pod is None or not pod.leaving or worker.leaving or worker.reported:
            return
        worker.leaving = True
        self._arm(Deadline.LEAVING, worker.name, pod.grace_s + LEAVING_PATIENCE_S)
        cause = f"its pod {worker.name} {pod.end}"
        self._report(WorkerLeaving(worker_id=worker.worker_id, cause=cause))

    def _seen(self, worker: Worker, pod: Pod) -> None:
        self._exists(worker, pod.uid)
        before, worker.pod, worker.uid = worker.pod, pod, pod.uid
        self._recount(worker)
        match worker.state:
            case State.EXISTS if pod.over:
                self._go(worker, State.ENDING)
                self._inspect(worker)
            case State.EXISTS:
                self._notice_leaving(worker)
                problem = pod.problem
                if not problem and pod.life is Life.PENDING:
                    problem = worker.events
                self._delayed(worker, latest_problem(worker.problem, problem))
            case State.ENDING if pod.over and (before is None or not before.over):
                self._inspect(worker)
            case State.DELETING if pod.life is Life.ENDED:
                self._end(worker, self._cause(worker))
            case _:
                pass

    def _absent(self, worker: Worker) -> None:
        """The snapshot had its pod and no longer has it, or never had it although it is newer."""
        if worker.state not in (State.QUEUED, State.CREATING):  # there, the answer decides
            self._gone(worker)

    def _gone(self, worker: Worker) -> None:
        if not worker.reported:
            reason = self._cause(worker) if worker.cause or self._known_end(worker) else ""
            self._end(worker, reason or f"its pod {worker.name} has vanished: someone deleted it")
        self._go(worker, State.FORGOTTEN)

    def _stray(self, pod: Pod) -> None:
        """Deletes a pod without a worker, such as one that an earlier leader created late."""
        if pod.attempt > self.settings.attempt or pod.deleting:
            return
        worker = Worker(
            worker_id=pod.worker_id,
            state=State.EXISTS,
            name=pod.name,
            uid=pod.uid,
            number=pod.number,
            pod=pod,
            released=True,
            reported=True,
        )
        self.by_name[pod.name] = worker
        self._delete(worker, "no worker of this ResourceManager needs it")

    def _unwanted(self, name: str, uid: str) -> None:
        """Deletes a pod whose repeated creation was under way when an earlier one vanished."""
        worker = Worker(
            worker_id=WorkerId(""),
            state=State.EXISTS,
            name=name,
            uid=uid,
            created_at=self._now,
            released=True,
            reported=True,
        )
        self.by_name[name] = worker
        self._delete(worker, "its worker has ended")

    # ------------------------------------------------------------ the end of a pod

    def _inspect(self, worker: Worker) -> None:
        """Collects the reason of its end; then deletes the pod."""
        if worker.inspecting:
            return
        pod = worker.pod
        worker.inspecting = True
        self._timers.cancel(Timer(Deadline.STATUS, worker.name))
        if not worker.reported:
            self._arm(Deadline.REASON, worker.name, REASON_PATIENCE_S)
        self._arm(Deadline.INSPECTION, worker.name, INSPECTION_S)
        self._commands.append(
            InspectPod(
                name=worker.name,
                uid=worker.uid,
                ended=True,
                log=pod is not None and pod.has_log,
                events=pod is None or not pod.end or pod.deleting or not pod.has_log,
            )
        )

    def _inspected(self, event: PodInspected) -> None:
        worker = self.by_name.get(event.name)
        if worker is None:
            return
        match worker.state:
            case State.ENDING if event.ended:
                if worker.reported and event.log:
                    log = _last_lines(event.log)
                    self._report(WorkerLogRead(worker_id=worker.worker_id, log=log))
                self._end(worker, self._cause(worker, event.log, event.events))
                self._delete(worker, "it has ended" if self._over(worker) else "it has failed")
            case State.EXISTS if not event.ended:
                pod = worker.pod
                if event.events and not (pod is not None and pod.life is Life.RUNNING):
                    worker.events = event.events
                    self._delayed(worker, worker.problem or event.events)
            case _:
                pass  # the answer comes too late

    def _delete(self, worker: Worker, cause: str) -> None:
        for kind in (Deadline.LEAVING, Deadline.STATUS, Deadline.REASON, Deadline.INSPECTION):
            self._timers.cancel(Timer(kind, worker.name))
        self._go(worker, State.DELETING)
        worker.cause = worker.cause or cause
        if worker.pod is None or not worker.pod.deleting:
            self._commands.append(DeletePod(name=worker.name, uid=worker.uid, cause=cause))

    def _deleted(self, worker: Worker, event: PodDeleted) -> None:
        if worker.state is not State.DELETING:
            return
        if event.gone and event.uid != worker.uid:  # another pod had its name
            self._commands.append(DeletePod(name=worker.name, uid=worker.uid, cause=worker.cause))
            return
        worker.delete_accepted = True
        self._timers.cancel(Timer(Deadline.DELETE, worker.name))
        if event.gone:
            self._gone(worker)
        else:
            self._recount(worker)

    def _over(self, worker: Worker) -> bool:
        return worker.pod is not None and worker.pod.over

    def _known_end(self, worker: Worker) -> bool:
        return worker.pod is not None and bool(worker.pod.end)

    def _cause(self, worker: Worker, log: str = "", events: str = "") -> str:
        """Returns the reason of its end, with the last lines of its log."""
        pod = worker.pod
        if worker.released and worker.state is State.DELETING and worker.cause:
            return worker.cause
        if pod is not None and pod.end:
            text = f"its pod {worker.name} {pod.end}"
        elif worker.problem:
            text = worker.problem
        else:
            text = f"its pod {worker.name} has not reported its end"
        if events:
            text += f"; {events}"
        if log:
            text += f"\n{_last_lines(log)}"
        return text

    def _end(self, worker: Worker, cause: str, *, started: bool = True) -> None:
        """Reports the end of the worker, once."""
        if worker.reported:
            return
        worker.reported = True
        if started:
            killed = worker.pod is not None and worker.pod.out_of_memory
            self._report(
                WorkerExited(worker_id=worker.worker_id, cause=cause, out_of_memory=killed)
            )
        else:
            self._report(WorkerStartFailed(worker_id=worker.worker_id, cause=cause))

    def _delayed(self, worker: Worker, problem: str) -> None:
        if problem != worker.problem and not worker.released:
            worker.problem = problem
            self._report(WorkerDelayed(worker_id=worker.worker_id, problem=problem))

    # ------------------------------------------------------------ time

    def _run_timers(self) -> None:
        for kind, name in self._timers.due(self._now):
            if kind is Deadline.STUCK:
                self._inspect_stuck()
            elif (worker := self.by_name.get(name)) is not None:
                self._overdue(worker, kind)

    def _overdue(self, worker: Worker, kind: Deadline) -> None:
        match kind:
            case Deadline.LEAVING:
                if worker.state is State.EXISTS:
                    self._go(worker, State.ENDING)
                    self._inspect(worker)
            case Deadline.STATUS:
                self._inspect(worker)
            case Deadline.REASON:
                self._end(worker, self._cause(worker))
            case Deadline.INSPECTION:
                self._end(worker, self._cause(worker))
                self._delete(worker, "its log cannot be read")
            case Deadline.DELETE:
                self._commands.append(
                    DeletePod(name=worker.name, uid=worker.uid, cause=worker.cause)
                )
            case Deadline.PUMP | Deadline.STUCK:
                pass
            case _:
                assert_never(kind)

    def _look_for_stuck(self) -> None:
        if Timer(Deadline.STUCK) not in self._timers:
            self._arm(Deadline.STUCK, "", STUCK_S)

    def _inspect_stuck(self) -> None:
        """Reads the Events of the oldest pod that does not start for an unknown reason."""
        waiting = [
            worker
            for worker in self.by_name.values()
            if worker.state is State.EXISTS
            and (worker.pod is None or worker.pod.life is Life.PENDING)
        ]
        if not waiting:
            return
        silent = [
            worker
            for worker in waiting
            if not worker.problem and worker.created_at + STUCK_S <= self._now
        ]
        if silent:
            oldest = min(silent, key=lambda worker: (worker.created_at, worker.name))
            self._commands.append(
                InspectPod(name=oldest.name, uid=oldest.uid, ended=False, log=False, events=True)
            )
        self._arm(Deadline.STUCK, "", STUCK_PAUSE_S)

    def _arm(self, kind: Deadline, name: str, after_s: float) -> None:
        self._timers.set(Timer(kind, name), self._now + after_s)

    # ------------------------------------------------------------ states

    def _report(self, event: WorkerEvent) -> None:
        self._commands.append(Report(event=event))

    def _go(self, worker: Worker, to: State) -> None:
        if to not in TRANSITIONS[worker.state]:
            raise IllegalTransition(
                f"worker {worker.worker_id} (pod {worker.name}): {worker.state.name} -> {to.name}"
            )
        worker.state = to
        if to is State.FORGOTTEN:
            if self.workers.get(worker.worker_id) is worker:
                del self.workers[worker.worker_id]
            if self.by_name.get(worker.name) is worker:
                del self.by_name[worker.name]
            for kind in Deadline:
                if kind not in (Deadline.PUMP, Deadline.STUCK):
                    self._timers.cancel(Timer(kind, worker.name))
        self._recount(worker)
        if to is State.FORGOTTEN and worker.name in self._creating:
            self._alive.add(worker.name)  # the request may create the pod again

    def _recount(self, worker: Worker) -> None:
        if worker.name:
            if worker.alive:
                self._alive.add(worker.name)
            else:
                self._alive.discard(worker.name)

    # ------------------------------------------------------------ invariants

    def validate(self) -> None:
        """Raises AssertionError if a rule is violated. O(pods)."""
        alive = {worker.name for worker in self.by_name.values() if worker.alive}
        alive |= self._creating - self.by_name.keys()
        assert alive == self._alive, (alive, self._alive)
        for name, worker in self.by_name.items():
            assert worker.name == name
            assert worker.state is not State.FORGOTTEN, worker
            if worker.state is State.CREATING:
                assert name in self._creating, worker
            if worker.state is State.ENDING:
                timers = (Timer(Deadline.STATUS, name), Timer(Deadline.INSPECTION, name))
                assert any(timer in self._timers for timer in timers), worker
        for worker in self.workers.values():
            assert worker.state is not State.FORGOTTEN, worker
            if worker.state is State.QUEUED:
                assert worker in self._queue, worker


def _last_lines(log: str) -> str:
    lines = "\n".join(f"  {line}" for line in log.splitlines())
    return f"The last lines of its log:\n{lines}"
