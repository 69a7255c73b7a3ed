"""The driver of pods with the SlotManager: TaskExecutors run in the simulated pods, and jobs hold
their slots. Nodes are drained, and ResourceManagers take office with another configuration.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from firesteel.common.ids import AllocationId, Epoch, IdSource, JobId, TaskExecutorId, stable_id
from firesteel.common.resources import UNKNOWN, ResourceProfile, SlotStatus
from firesteel.common.service.core import Tick
from resourcemanager.core import commands, events
from resourcemanager.core.core import SlotManager
from resourcemanager.core.events import Connection, WorkerEvent, WorkerId
from resourcemanager.core.settings import Settings
from resourcemanager.core.workers import WorkerSpec
from resourcemanager.kubernetes import core as deciding
from tests.simulation.pods import FAULTS_S, PODS_MAX, QUIET_S, PodsSimulation
from tests.slot_manager import SLOT

LATENCY_S = 0.02  # of a message
SLOTS = 2  # per TaskExecutor
WORKER = WorkerSpec(slots=SLOTS, total=SLOT * SLOTS, default_slot=SLOT)


@dataclass(eq=False, kw_only=True)
class Executor:
    """A TaskExecutor's process: it owns the truth about its slots."""

    uid: str  # of its pod
    worker_id: WorkerId
    name: TaskExecutorId
    slots: list[tuple[AllocationId, JobId, ResourceProfile] | None]
    connection: Connection | None = None
    sequence: int = 0

    def statuses(self) -> tuple[SlotStatus, ...]:
        return tuple(
            SlotStatus(slot_index=index, profile=UNKNOWN)
            if held is None
            else SlotStatus(
                slot_index=index, allocation_id=held[0], job_id=held[1], profile=held[2]
            )
            for index, held in enumerate(self.slots)
        )


@dataclass(eq=False, kw_only=True)
class Job:
    """A JobMaster: it owns the truth about its requirements."""

    job_id: JobId
    wanted: int = 0
    held: dict[AllocationId, Executor] = field(default_factory=dict)
    # TaskExecutors to leave, and whether it need not wait for slots elsewhere.
    vacating: dict[TaskExecutorId, bool] = field(default_factory=dict)
    connection: Connection | None = None
    sequence: int = 0

    def there(self, name: TaskExecutorId) -> list[AllocationId]:
        return [each for each, executor in self.held.items() if executor.name == name]

    @property
    def elsewhere(self) -> int:
        """The number of its slots that stay."""
        return sum(executor.name not in self.vacating for executor in self.held.values())

    @property
    def required(self) -> int:
        moving = sum(len(self.there(n)) for n, without in self.vacating.items() if not without)
        return self.wanted + moving


class SlotsSimulation(PodsSimulation):
    def __init__(self, seed: int) -> None:
        self.executors: dict[str, Executor] = {}  # by the uid of the pod
        self.jobs = [Job(job_id=JobId(stable_id("job", str(n)))) for n in range(3)]
        self.peers: dict[Connection, Executor | Job] = {}
        self.connections = itertools.count(1)
        self.drained = 0  # TaskExecutors that left before their pods ended
        super().__init__(seed)

    # ---- the ResourceManager

    def take_office(self) -> None:
        if self.attempt and self.random.random() < 0.4:
            self.template = f"template-{self.attempt}"
        super().take_office()
        self.manager = SlotManager(
            Settings(
                epoch=Epoch(self.attempt),
                worker=WORKER,
                max_slots=PODS_MAX * SLOTS,
                initial_workers=2,
                reason_patience_s=0.5,
                worker_start_timeout_s=60.0,
            ),
            IdSource(f"attempt {self.attempt}".encode()),
        )
        self.peers.clear()
        for peer in (*self.executors.values(), *self.jobs):
            peer.connection = None
            self.connect_soon(peer)
        self.tell(events.Started(previous_workers=None))

    def cores(self) -> list[tuple[Any, Callable[[], None]]]:
        return [*super().cores(), (self.manager, lambda: self.tell(Tick()))]

    def tell(self, event: events.Event) -> None:
        for command in self.manager.handle(event, self.now).commands:
            self.carry_out(command)
        self.manager.validate()

    def tell_soon(self, event: events.Event) -> None:
        """Sends an event to this ResourceManager, not to a later one. Streams keep the order."""
        attempt = self.attempt
        self.after(LATENCY_S, lambda: self.tell(event) if attempt == self.attempt else None)

    def hear(self, event: WorkerEvent) -> None:
        attempt = self.attempt
        self.after(0.0, lambda: self.tell(event) if attempt == self.attempt else None)

    def carry_out(self, command: commands.Command) -> None:
        match command:
            case commands.RequestWorker(worker_id=worker_id):
                self.after(0.0, self.to_driver(deciding.PodRequested(worker_id=worker_id)))
            case commands.ReleaseWorker(worker_id=worker_id, failed=failed):
                released = deciding.PodReleased(worker_id=worker_id, failed=failed)
                self.after(0.0, self.to_driver(released))
            case commands.ProbeTaskExecutor(task_executor_id=name):
                if all(executor.name != name for executor in self.executors.values()):
                    self.tell_soon(events.TaskExecutorGone(task_executor_id=name))
            case commands.CloseConnection(connection=connection):
                if (peer := self.peers.pop(connection, None)) is not None:
                    peer.connection = None
                    self.connect_soon(peer)
            case _:
                peer = self.peers.get(getattr(command, "connection", Connection(0)))
                if isinstance(peer, Executor):
                    self.after(LATENCY_S, lambda: self.to_executor(peer, command))
                elif isinstance(peer, Job):
                    self.after(LATENCY_S, lambda: self.to_job(peer, command))

    # ---- TaskExecutors

    def set_status(self, uid: str, phase: str, **status: Any) -> None:
        super().set_status(uid, phase, **status)
        if phase == "Running":
            self.soon(lambda: self.start_process(uid), 5.0)
        else:
            self.end_process(uid)

    def vanish(self, uid: str) -> None:
        super().vanish(uid)
        self.end_process(uid)

    def start_process(self, uid: str) -> None:
        pod = self.by_uid(uid)
        if pod is None or pod["status"]["phase"] != "Running" or uid in self.executors:
            return
        executor = Executor(
            uid=uid,
            worker_id=WorkerId(pod["metadata"]["labels"]["firesteel/worker-id"]),
            name=TaskExecutorId(stable_id("task executor", uid)),
            slots=[None] * SLOTS,
        )
        self.executors[uid] = executor
        self.connect(executor)

    def end_process(self, uid: str) -> None:
        executor = self.executors.pop(uid, None)
        if executor is None:
            return
        for job in self.jobs:  # JobMasters have their own streams to TaskExecutors
            for allocation_id in job.there(executor.name):
                del job.held[allocation_id]
            job.vacating.pop(executor.name, None)
            self.soon(lambda job=job: self.declare(job), 3.0)  # type: ignore[misc]
        if executor.connection is not None:
            self.peers.pop(executor.connection, None)
            broken = events.ConnectionBroken(connection=executor.connection, cause="broken")
            self.tell_soon(broken)

    def connect_soon(self, peer: Executor | Job) -> None:
        attempt = self.attempt
        self.soon(lambda: self.connect(peer) if attempt == self.attempt else None, 3.0)

    def connect(self, peer: Executor | Job) -> None:
        if peer.connection is not None:
            return
        if isinstance(peer, Executor) and self.executors.get(peer.uid) is not peer:
            return
        peer.connection = Connection(next(self.connections))
        self.peers[peer.connection] = peer
        if isinstance(peer, Job):
            peer.vacating.clear()
            self.tell(
                events.JobMasterRegistered(
                    connection=peer.connection,
                    job_id=peer.job_id,
                    epoch=Epoch(1),
                    address="jm:1",
                    job_name=peer.job_id,
                )
            )
            self.declare(peer)
            return
        self.tell(
            events.TaskExecutorRegistered(
                connection=peer.connection,
                task_executor_id=peer.name,
                address=f"{peer.uid}:1",
                host=peer.uid,
                pid=1,
                worker_id=peer.worker_id,
                total=WORKER.total,
                default_slot=SLOT,
                slots=peer.statuses(),
            )
        )

    def to_executor(self, executor: Executor, command: commands.Command) -> None:
        if self.executors.get(executor.uid) is not executor or executor.connection is None:
            return
        epoch, connection = Epoch(self.attempt), executor.connection
        match command:
            case commands.SendHeartbeat():
                self.tell_soon(events.TaskExecutorHeartbeat(connection=connection, epoch=epoch))
            case commands.RequestSlot():
                self.grant(executor, command)
            case commands.FreeSlot(allocation_id=allocation_id):
                self.free(executor, allocation_id)
            case commands.Shutdown():
                self.drained += 1
                self.set_status(executor.uid, "Succeeded")
            case _:
                pass

    def grant(self, executor: Executor, request: commands.RequestSlot) -> None:
        epoch, connection = Epoch(self.attempt), executor.connection
        assert connection is not None
        if executor.slots[request.slot_index] is not None:
            self.tell(
                events.SlotRequestRejected(
                    connection=connection,
                    epoch=epoch,
                    allocation_id=request.allocation_id,
                    reason="taken",
                )
            )
            self.report(executor)
            return
        held = (request.allocation_id, request.job_id, request.profile)
        executor.slots[request.slot_index] = held
        accepted = events.SlotRequestAccepted(
            connection=connection, epoch=epoch, allocation_id=request.allocation_id
        )
        self.tell_soon(accepted)
        job = next(each for each in self.jobs if each.job_id == request.job_id)
        if len(job.held) < job.required:
            job.held[request.allocation_id] = executor
            self.move(job)
        else:
            self.free(executor, request.allocation_id)  # the JobMaster returns it

    def free(self, executor: Executor, allocation_id: AllocationId) -> None:
        for index, held in enumerate(executor.slots):
            if held is not None and held[0] == allocation_id:
                executor.slots[index] = None
        for job in self.jobs:
            job.held.pop(allocation_id, None)
        self.report(executor)

    def report(self, executor: Executor) -> None:
        if executor.connection is None:
            return
        executor.sequence += 1
        self.tell_soon(
            events.SlotsReported(
                connection=executor.connection,
                epoch=Epoch(self.attempt),
                sequence=executor.sequence,
                slots=executor.statuses(),
            )
        )

    # ---- jobs

    def to_job(self, job: Job, command: commands.Command) -> None:
        if job.connection is None:
            return
        match command:
            case commands.SendHeartbeat():
                beat = events.JobMasterHeartbeat(
                    connection=job.connection, job_id=job.job_id, epoch=Epoch(1)
                )
                self.tell_soon(beat)
            case commands.TaskExecutorLost(task_executor_id=name):
                for allocation_id in job.there(name):
                    self.free(job.held[allocation_id], allocation_id)
                job.vacating.pop(name, None)
                self.declare(job)
            case commands.Vacate(task_executor_id=name, without_slots=without_slots):
                job.vacating[name] = without_slots
                self.declare(job)
                self.move(job)
            case _:
                pass

    def declare(self, job: Job) -> None:
        if job.connection is None:
            return
        job.sequence += 1
        wanted = (events.Requirement(profile=UNKNOWN, count=job.required),) if job.required else ()
        self.tell(
            events.RequirementsDeclared(
                connection=job.connection,
                job_id=job.job_id,
                epoch=Epoch(1),
                sequence=job.sequence,
                requirements=wanted,
            )
        )

    def move(self, job: Job) -> None:
        """Leaves TaskExecutors that are to end, once there are slots elsewhere."""
        for name, without_slots in list(job.vacating.items()):
            leaving = job.there(name)
            if leaving and (without_slots or job.elsewhere >= job.wanted):
                for allocation_id in leaving:
                    self.free(job.held[allocation_id], allocation_id)
                self.declare(job)

    def change(self, job: Job, wanted: int) -> None:
        job.wanted = wanted
        self.declare(job)
        self.move(job)
        for allocation_id in list(job.held)[job.required :]:
            self.free(job.held[allocation_id], allocation_id)

    # ---- faults and checkers

    def disturb(self) -> None:
        super().disturb()
        if self.faulty and self.random.random() < 0.3:
            longest = PODS_MAX * SLOTS // len(self.jobs)
            self.change(self.random.choice(self.jobs), self.random.randrange(longest + 1))

    def check(self) -> None:
        super().check()
        workers = self.manager.workers
        replaced = [
            executor
            for executor in self.manager.table.executors.values()
            if executor.draining and executor.worker_id in workers.outdated - workers.leaving
        ]
        assert len(replaced) <= 1, f"at {self.now}: {replaced} are replaced at the same time"

    def check_rest(self) -> None:
        running = {executor.name: executor for executor in self.executors.values()}
        held = {each: job.job_id for job in self.jobs for each in job.held}
        for job in self.jobs:
            assert len(job.held) == job.wanted, f"{job.job_id} has {len(job.held)} slots"
        given = {s[0]: s[1] for e in running.values() for s in e.slots if s is not None}
        assert given == held, "a slot is leaked"
        table = self.manager.table
        assert set(table.executors) == set(running)
        for name, executor in running.items():
            known = {s.index: s.allocation_id for s in table.executors[name].slots.values()}
            assert known == {n: s and s[0] for n, s in enumerate(executor.slots)}
        alive = sorted(pod["metadata"]["labels"]["firesteel/worker-id"] for pod in self.alive)
        assert alive == sorted(self.manager.workers.known), "a pod has no owner"
        assert alive == sorted(executor.worker_id for executor in running.values())
        templates = {pod["metadata"]["labels"]["firesteel/template"] for pod in self.alive}
        assert templates <= {self.template}, "pods have an earlier configuration"
        assert len(self.pods) == len(self.alive), "ended pods stay"
        assert not self.manager.workers.leaving and not self.manager.workers.outdated


def simulate(seed: int) -> SlotsSimulation:
    """Raises AssertionError unless slots, workers and pods agree after all faults."""
    simulation = SlotsSimulation(seed)
    for job in simulation.jobs:
        simulation.change(job, 3)
    simulation.disturb()
    simulation.run_until(FAULTS_S / 2)
    simulation.faulty, simulation.down_until = False, 0.0
    for job in simulation.jobs:
        simulation.change(job, simulation.random.randrange(1, PODS_MAX * SLOTS // 3 + 1))
    simulation.run_until(FAULTS_S / 2 + QUIET_S)
    simulation.check_rest()
    return simulation
