"""A session cluster of simulated processes; its shape and its jobs are drawn from the seed
(jobs.py).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dispatcher.service import Dispatcher
from firesteel.common.config import Configuration, options
from firesteel.common.ids import JobId
from firesteel.common.states import ExecutionState
from jobmaster.service import JobMasterProcess
from resourcemanager.service import ResourceManager
from taskexecutor.shell import TaskExecutor
from tests.simulation.checkers import Checkers
from tests.simulation.checkpoints import Partition
from tests.simulation.client import Client
from tests.simulation.executor import SlotProcess, slot_process
from tests.simulation.jobs import Jobs, Shape, SubmittedJob, draw_shape
from tests.simulation.loop import START_S
from tests.simulation.results import KeptResults
from tests.simulation.services import (
    DISPATCHER_PORT,
    HOST,
    RESOURCE_MANAGER_PORT,
    Services,
    option,
)
from tests.simulation.store import Disk
from tests.simulation.tables import SharedFiles
from tests.simulation.world import SimulatedProcess, World
from tests.simulation.zookeeper import ZooKeeper

_FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None
LOOK_S = 20.0  # between two looks at a cluster that should come to rest
LOOKS = 2  # successive looks without a finding, further apart than any idle or heartbeat timeout


class Cluster:
    """All of it in one world. Close it, or use it as a context manager."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.world = World(seed)
        self.network = self.world.network
        self.shape = shape or draw_shape(self.world)
        self.directory = Path(tempfile.mkdtemp(prefix="simulation-", dir=_FAST))
        for name in ("dispatcher", "resourcemanager"):
            (self.directory / name).mkdir()
        self.zookeeper = ZooKeeper(self.world)
        self.store = Disk(self.world, self.directory)
        self.checkers = Checkers(self)
        self.partitions: dict[Partition, ExecutionState] = {}  # how their producers ended
        self.data_ended: set[Partition] = set()  # all rows are there
        self.barriers: dict[Partition, set[int]] = {}  # checkpoints whose barrier has passed
        self.bases: dict[tuple[str, int], int] = {}  # of incremental checkpoints, by job and id
        self.shared = SharedFiles(self)
        self.results = KeptResults()
        self.jobs: dict[JobId, SubmittedJob] = {}
        self.faults_on = True
        self._draws = Jobs(self.world, self.shape, self.world.ids(), self.directory)
        services = Services(self)
        self.world.programs = {
            "dispatcher": (services.dispatcher, (0.05, 0.2)),
            "resourcemanager": (services.resource_manager, (0.05, 0.2)),
            "jobmaster": (services.job_master, (0.3, 1.0)),
            "taskexecutor": (services.task_executor, (0.2, 1.5)),
            "taskexecutor.executor": (partial(slot_process, self), (0.5, 2.0)),
            "client": (Client(self, services.leaders).run, (0.0, 0.0)),
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
            if process.service is not None and process.service.shell is not None:
                process.service.shell.store.close()
        self.world.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, for_s: float) -> None:
        self.world.run_until(self.world.now + for_s)

    def rest(self, at_most_s: float) -> None:
        """Runs until the cluster is at rest and stays so; raises if it is not after `at_most_s`."""
        quiet = 0
        for _ in range(int(at_most_s / LOOK_S)):
            self.run(LOOK_S)
            quiet = quiet + 1 if not self.checkers.problems() else 0
            if quiet == LOOKS:
                return
        self.checkers.at_rest()

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        """Calls `action` at `when_s` seconds after the start."""
        self.world.after(START_S + when_s - self.world.now, action)

    def set_faults(self, on: bool) -> None:
        """Turns random faults on or off: failing tasks, starts and writes."""
        self.faults_on = on
        self.world.crash_at_start = self.shape.crashes_at_start if on else 0.0
        self.store.failing_writes = self.shape.failing_writes if on else 0.0
        self.store.lost_answers = self.shape.lost_answers if on else 0.0

    def end_faults(self) -> None:
        """Stops injecting faults. Existing damage stays until a service notices it."""
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
        """The one that leads."""
        return self._leader("dispatcher", lambda shell: int(shell.store.epoch))

    @property
    def resource_manager(self) -> ResourceManager | None:
        """The one that leads."""
        return self._leader("resourcemanager", lambda shell: int(shell.core.settings.epoch))

    def _leader(self, program: str, epoch: Callable[[Any], int]) -> Any:
        services = [process.service for process in self.living(program)]
        lead = [x for x in services if x is not None and x.shell is not None]
        return max(lead, key=lambda service: epoch(service.shell), default=None)

    @property
    def task_executors(self) -> list[tuple[SimulatedProcess, TaskExecutor]]:
        """Returns the TaskExecutors that have started."""
        return [(p, p.service) for p in self.living("taskexecutor") if p.service is not None]

    @property
    def job_masters(self) -> list[tuple[SimulatedProcess, JobMasterProcess]]:
        return [(p, p.service) for p in self.living("jobmaster") if p.service is not None]

    @property
    def slot_processes(self) -> list[tuple[SimulatedProcess, SlotProcess]]:
        processes = self.living("taskexecutor.executor")
        return [(p, p.service) for p in processes if p.service is not None]

    def start_resource_manager(self) -> None:
        """Starts the missing ResourceManagers."""
        self._start_masters("resourcemanager", RESOURCE_MANAGER_PORT)

    def start_dispatcher(self) -> None:
        """Starts the missing Dispatchers."""
        fixed = ["--resource-manager", f"{HOST}:{RESOURCE_MANAGER_PORT}"]
        self._start_masters("dispatcher", DISPATCHER_PORT, () if self.shape.masters else fixed)

    def _start_masters(self, program: str, port: int, arguments: Sequence[str] = ()) -> None:
        taken = {option(process.arguments, "--port") for process in self.living(program)}
        for number in range(self.shape.masters or 1):
            own_port = str(port + 10 * number)
            if own_port in taken:
                continue
            process = self.world.start(
                program, ["--port", own_port, *arguments, *self.conf().to_arguments()]
            )
            if self.shape.masters:  # its supervisor starts another one
                process.on_end.append(
                    lambda: self.world.after(
                        self.world.between(0.3, 5.0),
                        lambda: self._start_masters(program, port, arguments),
                    )
                )

    def conf(self) -> Configuration:
        shape = self.shape
        availability = {
            options.HA_TYPE.key: "zookeeper",
            options.ZOOKEEPER_QUORUM.key: "zookeeper:2181",
            options.ZOOKEEPER_SESSION_TIMEOUT.key: f"{shape.session_timeout_s} s",
        }
        return Configuration(
            {
                **(availability if shape.masters else {}),
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

    def scale(self, submitted: SubmittedJob, parallelism: int) -> None:
        self.client.service.start(self.client.service.scale(submitted, parallelism))

    def draw_job(self) -> SubmittedJob:
        return self._draws.draw()
