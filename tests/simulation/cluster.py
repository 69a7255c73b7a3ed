"""A whole session cluster of simulated processes: its shape and its jobs are drawn from the seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dispatcher.core.commands import Refusal
from firesteel._proto import job_graph_pb2
from firesteel.common.config import options
from firesteel.common.ids import JobId
from firesteel.common.job_graph import JobGraph, JobVertex, Partitioner
from firesteel.common.resources import UNKNOWN, ResourceProfile
from firesteel.common.rpc.convert import job_graph_to_proto
from firesteel.common.states import ExecutionState
from jobmaster.testing import job, vertex
from resourcemanager.core.events import WorkerId
from resourcemanager.core.workers import WorkerSpec
from tests.simulation.checkers import Checkers
from tests.simulation.dispatcher import DispatcherProcess, JobStore
from tests.simulation.job_master import JobMasterProcess
from tests.simulation.network import Network
from tests.simulation.resource_manager import ResourceManagerProcess
from tests.simulation.task_executor import TaskExecutorProcess
from tests.simulation.world import START_S, World

MIB = 2**20
SLOT = ResourceProfile(cpu_cores=1.0, heap_bytes=512 * MIB, off_heap_bytes=768 * MIB)
SMALL_SLOT = replace(SLOT, heap_bytes=480 * MIB, off_heap_bytes=512 * MIB)
FILES = 5  # that every file source finds
CLIENT_RETRY_S = 2.0
LOOK_S = 10.0  # between two looks at a cluster that should come to rest
LOOKS = 2  # so many in a row find nothing wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What does not change while a cluster runs."""

    task_executors: int
    slots: int  # of each
    max_slots: int
    spread: bool
    spares: int
    task_failures: float  # probability, per task and phase, while faults are on
    hanging_cancels: float

    @property
    def worker(self) -> WorkerSpec:
        return WorkerSpec(slots=self.slots, total=SLOT * self.slots, default_slot=SLOT)


def draw_shape(world: World) -> Shape:
    random = world.random
    task_executors, slots = random.randint(1, 3), random.randint(1, 3)
    return Shape(
        task_executors=task_executors,
        slots=slots,
        max_slots=random.choice([0, 0, task_executors * slots + slots, 12]),
        spread=random.random() < 0.5,
        spares=random.randint(0, 2),
        task_failures=random.choice([0.0, 0.0, 0.02, 0.1]),
        hanging_cancels=random.choice([0.0, 0.0, 0.2]),
    )


@dataclass(slots=True, kw_only=True)
class SubmittedJob:
    graph: JobGraph
    message: job_graph_pb2.JobGraph
    endless: bool
    splits: dict[str, int]  # how many each source has
    submitted: bool = False
    cancel_wanted: bool = False
    refusals: list[str] = field(default_factory=list)


class Cluster:
    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.shape = shape or draw_shape(self.world)
        self.faults_on = True
        self.checkers = Checkers(self)
        self.store = JobStore(self.world)
        self.partitions: dict[
            tuple[str, str, int, int], ExecutionState
        ] = {}  # how their producers ended
        self.jobs: dict[JobId, SubmittedJob] = {}
        self.task_executors: list[TaskExecutorProcess] = []
        self.job_masters: list[JobMasterProcess] = []
        self._numbers = itertools.count(1)
        self._pids = itertools.count(1001)
        self._epochs = itertools.count(1)
        self._incarnations = itertools.count(1)
        self._ids = self.world.ids()
        self.world.note("cluster", str(self.shape))
        self.resource_manager = ResourceManagerProcess(self, next(self._epochs))
        self.dispatcher = DispatcherProcess(self, next(self._incarnations))

    def run(self, for_s: float) -> None:
        self.world.run_until(self.world.now + for_s)

    def rest(self, at_most_s: float) -> None:
        """Until the cluster is at rest and has stayed so; raises if it is not after `at_most_s`."""
        quiet = 0
        for _ in range(int(at_most_s / LOOK_S)):
            self.run(LOOK_S)
            quiet = quiet + 1 if not self.checkers.problems() else 0
            if quiet == LOOKS:
                return
        self.checkers.at_rest()

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        """`when_s`: counted from the beginning."""
        self.world.after(START_S + when_s - self.world.now, action)

    def end_faults(self) -> None:
        """From now on nothing goes wrong; what is broken stays broken until somebody notices."""
        self.world.note("faults", "stop")
        self.faults_on = False
        self.network.traps.clear()

    # ---- processes

    def start_task_executor(self, worker_id: WorkerId) -> TaskExecutorProcess:
        process = TaskExecutorProcess(self, next(self._numbers), worker_id)
        self.task_executors = [x for x in self.task_executors if x.alive]
        self.task_executors.append(process)
        return process

    def start_job_master(self) -> JobMasterProcess:
        process = JobMasterProcess(self, next(self._pids))
        self.job_masters = [x for x in self.job_masters if x.alive]
        self.job_masters.append(process)
        return process

    def kill_job_master(self, pid: int) -> None:
        for process in self.job_masters:
            if process.pid == pid:
                process.die()

    def restart_resource_manager(self, after_s: float) -> None:
        def restart() -> None:
            self.resource_manager = ResourceManagerProcess(self, next(self._epochs))

        self.resource_manager.die()
        self.world.after(after_s, restart)

    def restart_dispatcher(self, after_s: float) -> None:
        def restart() -> None:
            self.dispatcher = DispatcherProcess(self, next(self._incarnations))

        self.dispatcher.die()
        self.world.after(after_s, restart)

    # ---- clients

    def submit(self, submitted: SubmittedJob) -> None:
        """Tries until it is answered, as a client with patience does."""
        self.jobs[submitted.graph.job_id] = submitted

        def answered(refusal: Refusal | None) -> None:
            if refusal is not None and not submitted.submitted:
                submitted.refusals.append(refusal.message)
            submitted.submitted = True

        self._until(
            lambda: submitted.submitted,
            lambda: self.dispatcher.submit(submitted.message, answered),
        )

    def cancel(self, submitted: SubmittedJob) -> None:
        done = [False]

        def answered(refusal: Refusal | None) -> None:
            if refusal is None:
                submitted.cancel_wanted = True  # it was promised
            done[0] = refusal is None or submitted.submitted  # else it may have come before the job

        self._until(
            lambda: done[0], lambda: self.dispatcher.cancel(submitted.graph.job_id, answered)
        )

    def _until(self, done: Callable[[], bool], ask: Callable[[], Any]) -> None:
        if done():
            return
        if self.dispatcher.alive:
            ask()
        self.world.after(CLIENT_RETRY_S, partial(self._until, done, ask))

    # ---- jobs

    def draw_job(self) -> SubmittedJob:
        random = self.world.random
        endless = random.random() < 0.4
        groups = random.choice(
            [("default", "default", "default")] * 3 + [("default", "default", "other")]
        )
        sizes = random.choice([(UNKNOWN, UNKNOWN, UNKNOWN)] * 4 + [(SMALL_SLOT, UNKNOWN, UNKNOWN)])
        source, splits = None, 0
        if not endless:
            splits = random.choice([0, 3, 8, 30])
            source = random.choice(
                [
                    ("sequence-source", {"start": 0, "end": splits * 10, "split_rows": 10}),
                    (
                        "file-source",
                        {"paths": ["/missing/*.csv" if random.random() < 0.05 else "/data/*.csv"]},
                    ),
                ]
            )
            splits = FILES if source[0] == "file-source" else splits
        vertices = [
            vertex(
                "source",
                random.randint(1, 4),
                coordinator=source,
                slot_sharing_group=groups[0],
                resources=sizes[0],
            )
        ]
        vertices += self._further_vertices(groups, sizes, endless=endless)
        fails = " with a bad plan" if random.random() < 0.05 else ""
        graph = replace(
            job(*vertices, partitioner=random.choice([Partitioner.REBALANCE, Partitioner.RESCALE])),
            job_id=JobId(self._ids.next()),
            name=f"job {len(self.jobs) + 1}{fails}",
            config=self._draw_config(),
        )
        operator_id = vertices[0].operators[0].operator_id
        return SubmittedJob(
            graph=graph,
            message=job_graph_to_proto(graph),
            endless=endless,
            splits={} if endless else {operator_id: splits},
        )

    def _further_vertices(
        self, groups: tuple[str, ...], sizes: tuple[ResourceProfile, ...], *, endless: bool
    ) -> list[JobVertex]:
        random = self.world.random
        more = []
        for number in range(1, random.randint(1, 3)):
            collect = (
                ("collect", {}) if number == 1 and not endless and random.random() < 0.3 else None
            )
            more.append(
                vertex(
                    f"operator {number}",
                    random.randint(1, 4),
                    coordinator=collect,
                    slot_sharing_group=groups[number],
                    resources=sizes[number],
                )
            )
        return more

    def _draw_config(self) -> dict[str, str]:
        random = self.world.random
        return {
            options.HEARTBEAT_INTERVAL.key: "2 s",
            options.HEARTBEAT_TIMEOUT.key: "8 s",
            options.SLOT_REQUEST_TIMEOUT.key: f"{random.choice([15, 40])} s",
            options.SLOT_IDLE_TIMEOUT.key: f"{random.choice([1, 20])} s",
            options.CANCELLATION_TIMEOUT.key: "5 s",
            options.RESTART_STRATEGY.key: random.choice(["none", "fixed-delay", "fixed-delay"]),
            options.RESTART_ATTEMPTS.key: str(random.choice([1, 3, 100])),
            options.RESTART_DELAY.key: f"{random.choice([0, 1])} s",
        }
