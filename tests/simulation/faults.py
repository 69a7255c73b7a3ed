"""The fault DSL: what can go wrong, to whom, and when.

    cluster = Cluster(seed) schedule(cluster, at(5.0, Kill(Victim.TASK_EXECUTOR)), at(7.0,
    BreakStream("job-master to dispatcher")))

Who exactly is hit, where there are several, is drawn from the seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from dispatcher.core.events import JobStatusReported
from firesteel.common.ids import AllocationId, Epoch
from firesteel.common.states import JobStatus
from resourcemanager.core import events
from taskexecutor.core import events as task_executor_events
from tests.simulation.cluster import Cluster
from tests.simulation.processes import Process

STREAMS = (
    "task-executor to resource-manager",
    "task-executor to job-master",
    "job-master to resource-manager",
    "job-master to dispatcher",
)
# Kinds of messages that exist once, so that losing one must be noticed and mended.
KINDS = (
    *(
        "register",
        "registered",
        "request_slot",
        "slot_request_result",
        "slot_report",
        "free_slot",
        "declare",
        "not_enough",
    ),
    *(
        "task_executor_lost",
        "hello",
        "offer_slots",
        "slots_answer",
        "analyze",
        "analyze_result",
        "submit",
        "task_states",
    ),
    *("slot_lost", "cancel", "free_slots", "operator_event", "goodbye", "start", "status", "ack"),
)
SORTS = ("kill", "break", "lose", "silence", "cut", "slow", "stale")


class Victim(Enum):
    SLOT_PROCESS = "a slot's process"
    TASK_EXECUTOR = "a TaskExecutor"
    JOB_MASTER = "a JobMaster with a job"
    SPARE = "a JobMaster without one"
    RESOURCE_MANAGER = "the ResourceManager"
    DISPATCHER = "the Dispatcher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """SIGKILL. Masters come back `back_after_s` later; others as their supervisors see fit."""

    victim: Victim
    silently: bool = False  # its machine is gone: no stream is reset
    back_after_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakStream:
    """Both ends notice; what was under way is lost."""

    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseNext:
    """The next message of this kind is lost, together with the stream that carries it."""

    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceStream:
    """Nothing arrives any more on it, and nobody is told."""

    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Two processes that talk to each other cannot, for a while."""

    method: str
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNetwork:
    factor: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleMessages:
    """Masters of the past speak up, in all that could be harmful; nothing may come of it."""


Fault = Kill | BreakStream | LoseNext | SilenceStream | Cut | SlowNetwork | StaleMessages
At = tuple[float, Fault]


def at(when_s: float, fault: Fault) -> At:
    return when_s, fault


def schedule(cluster: Cluster, *faults: At) -> None:
    for when_s, fault in faults:
        cluster.at(when_s, lambda fault=fault: inject(cluster, fault))


def draw_faults(cluster: Cluster, until_s: float) -> list[At]:
    """Each seed has a few sorts of faults, and those again and again: some defects need the same
    thing to happen twice.
    """
    random = cluster.world.random
    count = random.choice([0, 1, 2, 4, 8, 16, 32])
    sorts = random.sample(SORTS, random.randint(1, len(SORTS)))
    victims = random.sample(list(Victim), random.randint(1, 3))
    kinds = random.sample(KINDS, random.randint(1, 4))
    drawn = [
        _draw_fault(cluster, random.choice(sorts), random.choice(victims), random.choice(kinds))
        for _ in range(count)
    ]
    return [(random.uniform(2.0, until_s), fault) for fault in drawn]


def _draw_fault(cluster: Cluster, sort: str, victim: Victim, kind: str) -> Fault:
    random = cluster.world.random
    match sort:
        case "kill":
            return Kill(
                victim=victim,
                silently=random.random() < 0.2,
                back_after_s=random.choice([0.3, 3.0, 12.0]),
            )
        case "break":
            return BreakStream(method=random.choice(STREAMS))
        case "lose":
            return LoseNext(kind=kind)
        case "silence":
            return SilenceStream(method=random.choice(STREAMS))
        case "cut":
            return Cut(method=random.choice(STREAMS), for_s=random.choice([0.5, 3.0, 10.0]))
        case "slow":
            return SlowNetwork(factor=random.choice([10.0, 100.0]), for_s=random.choice([1.0, 5.0]))
        case _:
            return StaleMessages()


def inject(cluster: Cluster, fault: Fault) -> None:
    world, network = cluster.world, cluster.network
    world.note("fault", str(fault))
    match fault:
        case Kill():
            _kill(cluster, fault)
        case BreakStream():
            if streams := network.open_streams(fault.method):
                network.break_stream(world.random.choice(streams))
        case LoseNext():
            network.traps.append(fault.kind)
        case SilenceStream():
            if streams := network.open_streams(fault.method):
                network.silence(world.random.choice(streams))
        case Cut():
            if streams := network.open_streams(fault.method):
                one, other = world.random.choice(streams)
                network.cut(one.owner, other.owner, fault.for_s)
        case SlowNetwork():
            network.slowness = fault.factor
            world.after(fault.for_s, lambda: setattr(network, "slowness", 1.0))
        case StaleMessages():
            _speak_of_the_past(cluster)
        case _:
            assert_never(fault)


def _kill(cluster: Cluster, fault: Kill) -> None:
    world = cluster.world
    match fault.victim:
        case Victim.RESOURCE_MANAGER:
            if cluster.resource_manager.alive:
                cluster.restart_resource_manager(fault.back_after_s)
            return
        case Victim.DISPATCHER:
            if cluster.dispatcher.alive:
                cluster.restart_dispatcher(fault.back_after_s)
            return
        case Victim.SLOT_PROCESS:
            living = [x for x in cluster.task_executors if x.alive]
            victims: list[Process] = [
                executor for x in living for executor in x.executors.values() if executor.alive
            ]
        case Victim.TASK_EXECUTOR:
            victims = [x for x in cluster.task_executors if x.alive]
        case Victim.JOB_MASTER:
            victims = [x for x in cluster.job_masters if x.alive and x.job is not None]
        case Victim.SPARE:
            victims = [x for x in cluster.job_masters if x.alive and x.job is None]
        case _:
            assert_never(fault.victim)
    if victims:
        world.random.choice(victims).die(
            silently=fault.silently and fault.victim is not Victim.SLOT_PROCESS
        )


def _speak_of_the_past(cluster: Cluster) -> None:
    """Straight into the cores, past streams that would not carry it. Whatever they do about it is a
    fault of theirs.
    """
    for task_executor in [x for x in cluster.task_executors if x.alive]:
        table = task_executor.core.table
        stale_epoch = Epoch(table.resource_manager_epoch - 1)
        held = [slot.allocation for slot in table.slots if slot.allocation is not None]
        for allocation in held:
            job_id, allocation_id = allocation.job_id, allocation.allocation_id
            older = {"job_id": job_id, "job_master_epoch": Epoch(table.jobs[job_id].epoch - 1)}
            task_executor.probe(
                task_executor_events.SlotRevoked(
                    resource_manager_epoch=stale_epoch, allocation_id=allocation_id, cause="old"
                )
            )
            task_executor.probe(
                task_executor_events.SlotsFreed(
                    **older, allocation_ids=(allocation_id,), cause="old"
                )
            )
            task_executor.probe(
                task_executor_events.TasksCancelled(**older, attempt_ids=tuple(allocation.tasks))
            )
            task_executor.probe(task_executor_events.JobMasterLeft(**older, cause="old"))
    if cluster.resource_manager.alive:
        _speak_of_the_past_to_the_resource_manager(cluster)
    if cluster.dispatcher.alive:
        _speak_of_the_past_to_the_dispatcher(cluster)


def _speak_of_the_past_to_the_resource_manager(cluster: Cluster) -> None:
    manager = cluster.resource_manager
    other_epoch = Epoch(manager.core.settings.epoch - 1) or Epoch(99)
    for executor in list(manager.core.table.executors.values()):
        if executor.connection is not None:
            nothing = tuple(
                events.SlotStatus(slot_index=i, profile=executor.default_slot)
                for i in executor.slots
            )
            manager.probe(
                events.SlotsReported(
                    connection=executor.connection, epoch=other_epoch, sequence=10**9, slots=nothing
                )
            )
    for job in list(manager.core.jobs.values()):
        if job.connection is not None:
            older_epoch = Epoch(job.epoch - 1)
            manager.probe(
                events.RequirementsDeclared(
                    connection=job.connection,
                    job_id=job.job_id,
                    epoch=older_epoch,
                    sequence=10**9,
                    requirements=(),
                )
            )
            manager.probe(
                events.SlotRequestAccepted(
                    connection=job.connection,
                    epoch=older_epoch,
                    allocation_id=AllocationId("0" * 32),
                )
            )


def _speak_of_the_past_to_the_dispatcher(cluster: Cluster) -> None:
    dispatcher = cluster.dispatcher
    for process in list(dispatcher.core.processes):
        job_id = process.job_id
        known = dispatcher.core.jobs.get(job_id) if job_id is not None else None
        if known is None or process.connection is None or known.status.globally_terminal:
            continue
        dispatcher.probe(
            JobStatusReported(
                connection=process.connection,
                job_id=known.job_id,
                epoch=known.epoch - 1,
                status=JobStatus.FINISHED,
                timestamp_ms=0,
            )
        )
