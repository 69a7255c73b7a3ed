"""The fault DSL: what can fail, its victim, and the time.

    with Cluster(seed) as cluster:
        schedule(
            cluster,
            at(5.0, Kill(victim=Victim.TASK_EXECUTOR)),
            at(7.0, BreakStream(stream=("jobmaster", "dispatcher"))),
        )

The seed decides which of several possible victims is hit.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, assert_never

from dispatcher.core.core import DispatcherCore
from dispatcher.core.events import JobStatusReported
from dispatcher.core.submitted_jobs import SubmittedJob
from firesteel.common.ids import AllocationId, Epoch, JobId
from firesteel.common.states import JobStatus
from resourcemanager.core import events
from resourcemanager.core.core import SlotManager
from taskexecutor.core import events as task_executor_events
from taskexecutor.shell import TaskExecutor
from tests.simulation.cluster import Cluster
from tests.simulation.transport import Connection
from tests.simulation.world import SimulatedProcess

# Pairs of programs with a connection: client, server.
STREAMS = (
    ("taskexecutor", "resourcemanager"),
    ("taskexecutor", "jobmaster"),
    ("jobmaster", "resourcemanager"),
    ("jobmaster", "dispatcher"),
)
CALLS = (("client", "dispatcher"), ("dispatcher", "jobmaster"))
# Kinds of messages that exist once, so that losing one must be noticed and mended.
KINDS = (
    *(
        "register",
        "registered",
        "request_slot",
        "slot_request_accepted",
        "slot_request_rejected",
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
    *("SubmitJob", "SubmitJob answer", "CancelJob", "CancelJob answer"),
)
# The same for those of checkpoints.
CHECKPOINT_KINDS = (
    *(
        "trigger_checkpoint",
        "notify_checkpoint",
        "checkpoint_acknowledged",
        "checkpoint_declined",
        "data_ended",
    ),
    *("CommitCheckpoint", "CommitCheckpoint answer"),
)
SORTS = ("kill", "pause", "break", "lose", "silence", "cut", "slow", "stale")
# Faults of elected masters; "kill" and "pause" also apply to them.
MASTERS_SORTS = ("kill", "stop", "pause", "isolate", "flap", "quorum")


class Victim(Enum):
    TASK = "a task"
    SLOT_PROCESS = "a slot's process"
    TASK_EXECUTOR = "a TaskExecutor"
    JOB_MASTER = "a JobMaster with a job"
    SPARE = "a JobMaster without one"
    RESOURCE_MANAGER = "the ResourceManager"
    DISPATCHER = "the Dispatcher"
    STANDBY = "an elected master that does not lead"


MASTERS = (Victim.RESOURCE_MANAGER, Victim.DISPATCHER)  # those that can be elected
_FOLLOWERS = (Victim.JOB_MASTER, Victim.TASK_EXECUTOR)  # they find the leaders in ZooKeeper
# The victims after a task has left a result; and after a checkpoint is complete, which outlives a
# JobMaster.
_WORKERS = (Victim.TASK, Victim.SLOT_PROCESS, Victim.SLOT_PROCESS, Victim.TASK_EXECUTOR)
_WORKERS_AND_MASTER = (*_WORKERS, Victim.JOB_MASTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """SIGKILL; a task fails. Masters come back `back_after_s` later; others as their supervisors
    see fit.
    """

    victim: Victim
    silently: bool = False  # its machine is gone: no stream is reset
    back_after_s: float = 1.0
    job_id: JobId | None = None  # one that works for this job


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """SIGTERM."""

    victim: Victim


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """SIGSTOP, and SIGCONT later."""

    victim: Victim
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakStream:
    """Both ends notice; what was under way is lost."""

    stream: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseNext:
    """The next message of this kind is lost, together with the stream that carries it."""

    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceStream:
    """Nothing arrives any more on it, and no operating system reports it."""

    stream: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Two processes that talk to each other cannot, for a while."""

    stream: tuple[str, str]
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNetwork:
    factor: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleMessages:
    """Masters of the past speak up, in all that could be harmful; nothing may come of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolate:
    """A process cannot reach ZooKeeper for a while; everybody else it can."""

    victim: Victim
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FlapSession:
    """The connection of a leader with ZooKeeper breaks; its session survives."""

    victim: Victim


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseQuorum:
    """ZooKeeper answers no client."""

    for_s: float


Fault = (
    Kill
    | Stop
    | Pause
    | BreakStream
    | LoseNext
    | SilenceStream
    | Cut
    | SlowNetwork
    | StaleMessages
    | Isolate
    | FlapSession
    | LoseQuorum
)
At = tuple[float, Fault]


def at(when_s: float, fault: Fault) -> At:
    return when_s, fault


def schedule(cluster: Cluster, *faults: At) -> None:
    for when_s, fault in faults:
        cluster.at(when_s, lambda fault=fault: inject(cluster, fault))


def draw_faults(cluster: Cluster, until_s: float) -> list[At]:
    """Draws a few sorts of faults for each seed and repeats them: some defects show only if the
    same fault happens twice.
    """
    random = cluster.world.random
    count = random.choice([0, 1, 2, 4, 8, 16, 32])
    sorts = random.sample(SORTS, random.randint(1, len(SORTS)))
    victims = random.sample(list(Victim), random.randint(1, 3))
    if cluster.shape.masters:
        elected = random.sample(MASTERS_SORTS, random.randint(1, len(MASTERS_SORTS)))
        if cluster.shape.only_masters_fail:
            sorts, victims = elected, [*MASTERS, Victim.STANDBY]
        else:
            sorts = sorted({*sorts, *elected})
            victims += MASTERS
    kinds = random.sample(KINDS + CHECKPOINT_KINDS, random.randint(1, 4))
    drawn = [
        _draw_fault(cluster, random.choice(sorts), random.choice(victims), random.choice(kinds))
        for _ in range(count)
    ]
    return [(random.uniform(2.0, until_s), fault) for fault in drawn]


def follow_progress(cluster: Cluster) -> None:
    """Sometimes kills a process of a job soon after the job has completed a checkpoint, or after
    one of its tasks has left a result, so that there is something to resume from.
    """
    world = cluster.world

    def progress(job_id: JobId, victims: Sequence[Victim]) -> None:
        if cluster.faults_on and world.chance(cluster.shape.deaths_after_progress):
            death = Kill(
                victim=world.random.choice(victims),
                silently=world.chance(0.2),
                job_id=job_id,
            )
            world.after(world.between(0.0, 2.0), lambda: inject(cluster, death))

    cluster.store.on_checkpoint.append(lambda job_id: progress(job_id, _WORKERS_AND_MASTER))
    cluster.results.on_kept.append(lambda job_id: progress(job_id, _WORKERS))


def _draw_fault(cluster: Cluster, sort: str, victim: Victim, kind: str) -> Fault:
    random = cluster.world.random
    match sort:
        case "kill":
            return Kill(
                victim=victim,
                silently=random.random() < 0.2,
                back_after_s=random.choice([0.3, 3.0, 12.0]),
            )
        case "stop":
            return Stop(victim=random.choice([*MASTERS, Victim.STANDBY]))
        case "pause":
            return Pause(victim=victim, for_s=random.choice([0.5, 3.0, 10.0, 20.0, 30.0]))
        case "break":
            return BreakStream(stream=random.choice(STREAMS + CALLS))
        case "lose":
            return LoseNext(kind=kind)
        case "silence":
            return SilenceStream(stream=random.choice(STREAMS))
        case "cut":
            return Cut(stream=random.choice(STREAMS), for_s=random.choice([0.5, 3.0, 10.0]))
        case "slow":
            return SlowNetwork(factor=random.choice([10.0, 100.0]), for_s=random.choice([1.0, 5.0]))
        case "isolate":
            return Isolate(
                victim=random.choice([*MASTERS, *MASTERS, *_FOLLOWERS, Victim.STANDBY]),
                for_s=cluster.shape.session_timeout_s * random.choice([0.3, 0.9, 1.1, 2.0, 5.0]),
            )
        case "flap":
            return FlapSession(victim=random.choice(MASTERS))
        case "quorum":
            return LoseQuorum(
                for_s=cluster.shape.session_timeout_s * random.choice([0.3, 1.0, 3.0])
            )
        case _:
            return StaleMessages()


def inject(cluster: Cluster, fault: Fault) -> None:
    world, network = cluster.world, cluster.network
    world.note("fault", str(fault))
    match fault:
        case Kill():
            _kill(cluster, fault)
        case Stop():
            if (victim := _draw_victim(cluster, fault.victim)) is not None:
                victim.signal(signal.SIGTERM)
        case Pause():
            if (victim := _draw_victim(cluster, fault.victim)) is not None:
                victim.pause()
                world.after(fault.for_s, victim.resume)
        case BreakStream():
            if (connection := _draw_connection(cluster, fault.stream)) is not None:
                connection.break_()
        case LoseNext():
            network.traps.append(fault.kind)
        case SilenceStream():
            if (connection := _draw_connection(cluster, fault.stream)) is not None:
                connection.block()
        case Cut():
            if (connection := _draw_connection(cluster, fault.stream)) is not None:
                network.cut(*connection.processes, fault.for_s)
        case SlowNetwork():
            network.slowness = fault.factor
            world.after(fault.for_s, lambda: setattr(network, "slowness", 1.0))
        case StaleMessages():
            _speak_of_the_past(cluster)
        case Isolate():
            if (victim := _draw_victim(cluster, fault.victim)) is not None:
                cluster.zookeeper.cut(victim, fault.for_s)
        case FlapSession():
            if (victim := _draw_victim(cluster, fault.victim)) is not None:
                cluster.zookeeper.flap(victim)
        case LoseQuorum():
            cluster.zookeeper.lose_quorum(fault.for_s)
        case _:
            assert_never(fault)


def _leader(cluster: Cluster, victim: Victim) -> SimulatedProcess | None:
    program = "dispatcher" if victim is Victim.DISPATCHER else "resourcemanager"
    leader = cluster.dispatcher if victim is Victim.DISPATCHER else cluster.resource_manager
    return next((p for p in cluster.living(program) if p.service is leader is not None), None)


def _standbys(cluster: Cluster) -> list[SimulatedProcess]:
    leaders = (cluster.dispatcher, cluster.resource_manager)
    masters = [*cluster.living("dispatcher"), *cluster.living("resourcemanager")]
    return [process for process in masters if process.service not in leaders]


def _kill(cluster: Cluster, fault: Kill) -> None:
    victim = _draw_victim(cluster, fault.victim, fault.job_id)
    if victim is None:
        return
    if fault.victim is Victim.TASK:
        victim.service.fail_a_task()
        return
    victim.die(-9, silently=fault.silently and fault.victim is not Victim.SLOT_PROCESS)
    if fault.victim is Victim.RESOURCE_MANAGER:
        cluster.world.after(fault.back_after_s, cluster.start_resource_manager)
    elif fault.victim is Victim.DISPATCHER:
        cluster.world.after(fault.back_after_s, cluster.start_dispatcher)


def _draw_victim(
    cluster: Cluster, victim: Victim, job_id: JobId | None = None
) -> SimulatedProcess | None:
    """`job_id`: only who works for this job. Of a task: its slot's process."""
    working = [
        process
        for process, slot in cluster.slot_processes
        if slot.tasks and job_id in (None, slot.job_id)
    ]
    match victim:
        case Victim.RESOURCE_MANAGER | Victim.DISPATCHER if cluster.shape.masters:
            return _leader(cluster, victim)
        case Victim.RESOURCE_MANAGER:
            living = cluster.living("resourcemanager")
        case Victim.DISPATCHER:
            living = cluster.living("dispatcher")
        case Victim.STANDBY:
            living = _standbys(cluster)
        case Victim.TASK:
            living = working
        case Victim.SLOT_PROCESS:
            living = working if job_id else cluster.living("taskexecutor.executor")
        case Victim.TASK_EXECUTOR:
            parents = {process.parent for process in working}
            all_of_them = cluster.living("taskexecutor")
            living = [p for p in all_of_them if job_id is None or p in parents]
        case Victim.JOB_MASTER:
            living = [
                process
                for process, service in cluster.job_masters
                if service.job and job_id in (None, service.job.job_id)
            ]
        case Victim.SPARE:
            living = [process for process, service in cluster.job_masters if not service.job]
        case _:
            assert_never(victim)
    return cluster.world.random.choice(living) if living else None


def _draw_connection(cluster: Cluster, stream: tuple[str, str]) -> Connection | None:
    found = [
        connection
        for connection in cluster.network.open_connections()
        if stream == tuple(getattr(process, "program", "") for process in connection.processes)
        and not connection.blocked
    ]
    return cluster.world.random.choice(found) if found else None


def _speak_of_the_past(cluster: Cluster) -> None:
    """Straight into the cores, past streams that would not carry it. Whatever they do about it is a
    fault of theirs (`World.stale`).
    """

    def post(service: Any, event: object, applies: Callable[[], bool] = lambda: True) -> None:
        cluster.world.stale.append((event, applies))
        service.post(event)

    for _, task_executor in cluster.task_executors:
        for event in _past_of_the_task_executor(task_executor):
            post(task_executor._core_loop, event)
    if (resource_manager := cluster.resource_manager) is not None:
        for event in _past_of_the_resource_manager(resource_manager.shell.core):
            post(resource_manager.shell, event)
    if (dispatcher := cluster.dispatcher) is not None:
        for event, job in _past_of_the_dispatcher(dispatcher.shell.core):
            # Once the job has ended, whoever reports about it may hear so.
            post(dispatcher.shell, event, lambda job=job: not job.status.globally_terminal)


def _past_of_the_task_executor(task_executor: TaskExecutor) -> Iterator[object]:
    table = task_executor.core.table
    stale_epoch = Epoch(table.resource_manager_epoch - 1)
    for allocation in [slot.allocation for slot in table.slots if slot.allocation is not None]:
        job_id, allocation_id = allocation.job_id, allocation.allocation_id
        older = {"job_id": job_id, "job_master_epoch": Epoch(table.jobs[job_id].epoch - 1)}
        yield task_executor_events.SlotRevoked(
            resource_manager_epoch=stale_epoch, allocation_id=allocation_id, cause="old"
        )
        yield task_executor_events.SlotsFreed(**older, allocation_ids=(allocation_id,), cause="old")
        yield task_executor_events.TasksCancelled(**older, attempt_ids=tuple(allocation.tasks))
        yield task_executor_events.JobMasterLeft(**older, cause="old")


def _past_of_the_resource_manager(core: SlotManager) -> Iterator[object]:
    # Not 0: that says that our welcome has not been read yet.
    other_epoch = Epoch(core.settings.epoch - 1 or 2)
    for executor in core.table.executors.values():
        if executor.connection is not None:
            nothing = tuple(
                events.SlotStatus(slot_index=i, profile=executor.default_slot)
                for i in executor.slots
            )
            yield events.SlotsReported(
                connection=executor.connection, epoch=other_epoch, sequence=10**9, slots=nothing
            )
    for job in core.jobs.values():
        if job.connection is not None:
            older_epoch = Epoch(job.epoch - 1)
            yield events.RequirementsDeclared(
                connection=job.connection,
                job_id=job.job_id,
                epoch=older_epoch,
                sequence=10**9,
                requirements=(),
            )
            yield events.SlotRequestAccepted(
                connection=job.connection,
                epoch=older_epoch,
                allocation_id=AllocationId("0" * 32),
            )


def _past_of_the_dispatcher(core: DispatcherCore) -> Iterator[tuple[object, SubmittedJob]]:
    for process in core.processes:
        job_id = process.job_id
        known = core.jobs.get(job_id) if job_id is not None else None
        if known is None or process.connection is None or known.status.globally_terminal:
            continue
        report = JobStatusReported(
            connection=process.connection,
            job_id=known.job_id,
            epoch=known.epoch - 1,
            status=JobStatus.FINISHED,
            timestamp_ms=0,
        )
        yield report, known
