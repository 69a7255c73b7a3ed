"""A session cluster of simulated processes; its shape and its jobs are drawn from the seed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from dispatcher.service import Dispatcher
from firesteel._proto import job_graph_pb2
from firesteel.common.config import Configuration, options
from firesteel.common.ids import JobId
from firesteel.common.job_graph import JobGraph, JobVertex, Partitioner
from firesteel.common.resources import UNKNOWN, ResourceProfile
from firesteel.common.rpc.convert import job_graph_to_proto
from firesteel.common.states import ExecutionState
from jobmaster.service import JobMasterProcess
from jobmaster.testing import job, vertex
from resourcemanager.service import ResourceManager
from taskexecutor.shell import TaskExecutor
from tests.simulation.checkers import Checkers
from tests.simulation.checkpoints import Partition
from tests.simulation.client import Client
from tests.simulation.executor import SlotProcess, slot_process
from tests.simulation.loop import START_S
from tests.simulation.services import (
    FILES,
    HOST,
    RESOURCE_MANAGER_PORT,
    Services,
)
from tests.simulation.store import Disk
from tests.simulation.tables import SharedFiles
from tests.simulation.world import SimulatedProcess, World

MIB = 2**20
SLOT = ResourceProfile(cpu_cores=1.0, heap_bytes=512 * MIB, off_heap_bytes=768 * MIB)
SMALL_SLOT = replace(SLOT, heap_bytes=480 * MIB, off_heap_bytes=512 * MIB)
_FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None
LOOK_S = 20.0  # between two looks at a cluster that should come to rest
LOOKS = 2  # so many in a row find nothing wrong, longer apart than any idle or heartbeat timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What does not change while a cluster runs."""

    task_executors: int
    slots: int  # of each
    max_slots: int
    spread: bool
    spares: int
    # Probabilities, while faults are on:
    task_failures: float = 0.0  # per task and phase
    hanging_cancels: float = 0.0
    crashes_at_start: float = 0.0  # per process
    failing_writes: float = 0.0  # per transaction of the job store
    lost_answers: float = 0.0  # of transactions that succeed
    deaths_after_checkpoints: float = 0.0  # per complete checkpoint
    heartbeat_interval_s: float = 2.0
    heartbeat_timeout_s: float = 8.0


def draw_shape(world: World) -> Shape:
    random = world.random
    task_executors, slots = random.randint(1, 3), random.randint(1, 3)
    interval_s, timeout_s = random.choice([(2.0, 8.0), (2.0, 20.0), (5.0, 20.0)])
    return Shape(
        task_executors=task_executors,
        slots=slots,
        max_slots=random.choice([0, 0, task_executors * slots + slots, 12]),
        spread=random.random() < 0.5,
        spares=random.randint(0, 2),
        task_failures=random.choice([0.0, 0.0, 0.02, 0.1]),
        hanging_cancels=random.choice([0.0, 0.0, 0.2]),
        crashes_at_start=random.choice([0.0, 0.03, 0.2]),
        failing_writes=random.choice([0.0, 0.0, 0.1]),
        lost_answers=random.choice([0.0, 0.0, 0.1]),
        deaths_after_checkpoints=random.choice([0.0, 0.1, 0.3, 0.6]),
        heartbeat_interval_s=interval_s,
        heartbeat_timeout_s=timeout_s,
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
    """All of it in one world. Close it, or use it as a context manager."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.world = World(seed)
        self.network = self.world.network
        self.shape = shape or draw_shape(self.world)
        self.directory = Path(tempfile.mkdtemp(prefix="simulation-", dir=_FAST))
        for name in ("dispatcher", "resourcemanager"):
            (self.directory / name).mkdir()
        self.store = Disk(self.world, self.directory)
        self.checkers = Checkers(self)
        self.partitions: dict[Partition, ExecutionState] = {}  # how their producers ended
        self.data_ended: set[Partition] = set()  # all rows are there
        self.barriers: dict[Partition, set[int]] = {}  # checkpoints whose barrier has passed
        self.bases: dict[tuple[str, int], int] = {}  # of incremental checkpoints, by job and id
        self.shared = SharedFiles(self)
        self.jobs: dict[JobId, SubmittedJob] = {}
        self.faults_on = True
        self._ids = self.world.ids()
        services = Services(self)
        self.world.programs = {
            "dispatcher": (services.dispatcher, (0.05, 0.2)),
            "resourcemanager": (services.resource_manager, (0.05, 0.2)),
            "jobmaster": (services.job_master, (0.3, 1.0)),
            "taskexecutor": (services.task_executor, (0.2, 1.5)),
            "taskexecutor.executor": (partial(slot_process, self), (0.5, 2.0)),
            "client": (Client(self).run, (0.0, 0.0)),
        }
        self.world.note("cluster", str(self.shape))
        self.start_resource_manager()
        self.start_dispatcher()
        self.client = self.world.start("client", ())
        self.set_faults(True)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for process in self.living("dispatcher"):
            process.service.store.close()
        self.world.close()
        shutil.rmtree(self.directory, ignore_errors=True)

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

    def set_faults(self, on: bool) -> None:
        """Those that come by chance: failing tasks, starts and writes."""
        self.faults_on = on
        self.world.crash_at_start = self.shape.crashes_at_start if on else 0.0
        self.store.failing_writes = self.shape.failing_writes if on else 0.0
        self.store.lost_answers = self.shape.lost_answers if on else 0.0

    def end_faults(self) -> None:
        """From now on nothing goes wrong; what is broken stays broken until somebody notices."""
        self.world.note("faults", "stop")
        self.set_faults(False)
        self.network.traps.clear()
        for process in list(self.world.processes):
            process.resume()

    # ---- processes

    def living(self, program: str) -> list[SimulatedProcess]:
        return [p for p in self.world.processes if p.program == program]

    @property
    def dispatcher(self) -> Dispatcher | None:
        return next((p.service for p in self.living("dispatcher")), None)

    @property
    def resource_manager(self) -> ResourceManager | None:
        return next((p.service for p in self.living("resourcemanager")), None)

    @property
    def task_executors(self) -> list[tuple[SimulatedProcess, TaskExecutor]]:
        """Those that have started."""
        return [(p, p.service) for p in self.living("taskexecutor") if p.service is not None]

    @property
    def job_masters(self) -> list[tuple[SimulatedProcess, JobMasterProcess]]:
        return [(p, p.service) for p in self.living("jobmaster") if p.service is not None]

    @property
    def slot_processes(self) -> list[tuple[SimulatedProcess, SlotProcess]]:
        processes = self.living("taskexecutor.executor")
        return [(p, p.service) for p in processes if p.service is not None]

    def start_resource_manager(self) -> None:
        if not self.living("resourcemanager"):
            self.world.start("resourcemanager", self._conf().to_arguments())

    def start_dispatcher(self) -> None:
        if not self.living("dispatcher"):
            arguments = ["--resource-manager", f"{HOST}:{RESOURCE_MANAGER_PORT}"]
            self.world.start("dispatcher", [*arguments, *self._conf().to_arguments()])

    def _conf(self) -> Configuration:
        shape = self.shape
        return Configuration(
            {
                options.HEARTBEAT_INTERVAL.key: f"{shape.heartbeat_interval_s} s",
                options.HEARTBEAT_TIMEOUT.key: f"{shape.heartbeat_timeout_s} s",
                options.TASK_SLOTS.key: shape.slots,
                options.MAX_SLOTS.key: shape.max_slots,
                options.SPREAD_SLOTS.key: str(shape.spread).lower(),
                options.JOBMASTER_SPARES.key: shape.spares,
                options.CANCELLATION_TIMEOUT.key: "5 s",
                options.MEMORY_WATCH_INTERVAL.key: "0 s",
                options.JOB_HISTORY.key: 1000,
            }
        )

    # ---- clients

    def submit(self, submitted: SubmittedJob) -> None:
        """Tries until it is answered, as a client with patience does."""
        self.jobs[submitted.graph.job_id] = submitted
        self.client.service.start(self.client.service.submit(submitted))

    def cancel(self, submitted: SubmittedJob) -> None:
        self.client.service.start(self.client.service.cancel(submitted))

    # ---- jobs

    def draw_job(self) -> SubmittedJob:
        random = self.world.random
        checkpoints = self._draw_checkpoints()
        endless = random.random() < (0.2 if checkpoints else 0.4)
        groups = random.choice(
            [("default", "default", "default")] * 3 + [("default", "default", "other")]
        )
        sizes = random.choice([(UNKNOWN, UNKNOWN, UNKNOWN)] * 4 + [(SMALL_SLOT, UNKNOWN, UNKNOWN)])
        # Few jobs need more slots than the cluster starts with.
        most = 4 if random.random() < 0.2 else min(4, self.shape.task_executors * self.shape.slots)
        source, splits = None, 0
        if not endless:
            splits = random.choice([20, 40, 80] if checkpoints else [0, 3, 8, 30])
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
                random.randint(1, most),
                coordinator=source,
                slot_sharing_group=groups[0],
                resources=sizes[0],
            )
        ]
        vertices += self._further_vertices(
            groups, sizes, most, collects=not endless and not checkpoints
        )
        fails = " with a bad plan" if random.random() < 0.05 else ""
        graph = replace(
            job(*vertices, partitioner=random.choice([Partitioner.REBALANCE, Partitioner.RESCALE])),
            job_id=JobId(self._ids.next()),
            name=f"job {len(self.jobs) + 1}{fails}",
            config={**self._draw_config(checkpoints=bool(checkpoints)), **checkpoints},
        )
        operator_id = vertices[0].operators[0].operator_id
        return SubmittedJob(
            graph=graph,
            message=job_graph_to_proto(graph),
            endless=endless,
            splits={} if endless else {operator_id: splits},
        )

    def _further_vertices(
        self,
        groups: tuple[str, ...],
        sizes: tuple[ResourceProfile, ...],
        most: int,
        *,
        collects: bool,
    ) -> list[JobVertex]:
        random = self.world.random
        more = []
        for number in range(1, random.randint(1, 3)):
            collect = (
                ("collect", {}) if number == 1 and collects and random.random() < 0.3 else None
            )
            more.append(
                vertex(
                    f"operator {number}",
                    random.randint(1, most),
                    coordinator=collect,
                    slot_sharing_group=groups[number],
                    resources=sizes[number],
                )
            )
        return more

    def _draw_checkpoints(self) -> dict[str, str]:
        """Empty: the job takes none."""
        random = self.world.random
        if random.random() < 0.4:
            return {}
        return {
            options.CHECKPOINT_INTERVAL.key: f"{random.choice([0.2, 1, 1, 3, 10])} s",
            options.CHECKPOINT_DIR.key: str(self.directory / "checkpoints"),
            options.CHECKPOINT_TIMEOUT.key: f"{random.choice([3, 600])} s",
            options.CHECKPOINT_INCREMENTAL.key: random.choice(["false", "true", "true"]),
            options.CHECKPOINT_MAX_CONCURRENT.key: str(random.choice([1, 1, 2])),
            options.CHECKPOINT_TOLERABLE_FAILURES.key: str(random.choice([0, 100])),
        }

    def _draw_config(self, *, checkpoints: bool) -> dict[str, str]:
        """A job with checkpoints mostly survives many failures: it has something to go on from."""
        random = self.world.random
        return {
            options.HEARTBEAT_INTERVAL.key: f"{self.shape.heartbeat_interval_s} s",
            options.HEARTBEAT_TIMEOUT.key: f"{self.shape.heartbeat_timeout_s} s",
            options.SLOT_REQUEST_TIMEOUT.key: f"{random.choice([15, 40])} s",
            options.SLOT_IDLE_TIMEOUT.key: f"{random.choice([1, 20])} s",
            options.CANCELLATION_TIMEOUT.key: "5 s",
            options.RESTART_STRATEGY.key: random.choice(
                ["none", "fixed-delay", "fixed-delay"] + ["fixed-delay"] * 6 * checkpoints
            ),
            options.RESTART_ATTEMPTS.key: str(random.choice([1, 3, 100] + [100] * 3 * checkpoints)),
            options.RESTART_DELAY.key: f"{random.choice([0, 1])} s",
        }
