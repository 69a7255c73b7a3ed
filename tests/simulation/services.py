"""The programs that simulated processes run: the services' real objects, put together as their
entry points do it, on the simulated platform.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatcher.job_store import job_store_facts
from dispatcher.service import JOB_MASTERS_METHODS, Dispatcher
from firesteel.common.config import Configuration, parse_definitions
from firesteel.common.file_parts import ListedFile
from firesteel.common.ids import Epoch, TaskExecutorId
from firesteel.common.leader import FixedLeaders, Leaders, Office
from firesteel.common.metrics import Registry
from firesteel.errors import FiresteelError
from firesteel.high_availability import elected
from firesteel.high_availability.zookeeper.contender import ZooKeeperElection
from firesteel.high_availability.zookeeper.ensemble import Ensemble
from firesteel.high_availability.zookeeper.leaders import ZooKeeperLeaders
from jobmaster.paths import Listing, PathProblem
from jobmaster.service import JobMasterProcess
from resourcemanager.core.workers import WorkerId
from resourcemanager.epoch import EpochFile
from resourcemanager.local_driver import LocalDriver
from resourcemanager.service import PEERS_METHODS, ResourceManager
from taskexecutor.configuration import settings_from
from taskexecutor.shell import TaskExecutor
from tests.simulation.results import SimulatedResults
from tests.simulation.store import JudgedJobStore
from tests.simulation.world import SimulatedProcess, WorkerHandle
from tests.simulation.zookeeper import Client

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

HOST = "127.0.0.1"
DISPATCHER_PORT, RESOURCE_MANAGER_PORT = 6123, 6124
FILES = 5  # that every file source finds
CORES = 2


def option(arguments: Sequence[str], name: str) -> str:
    """Empty if it is not given."""
    return arguments[arguments.index(name) + 1] if name in arguments else ""


def configuration(arguments: Sequence[str]) -> Configuration:
    given = [value for flag, value in itertools.pairwise(arguments) if flag == "-D"]
    return Configuration(parse_definitions(given))


class Services:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world

    async def dispatcher(self, process: SimulatedProcess, arguments: Sequence[str]) -> None:
        cluster = self._cluster
        conf = configuration(arguments)
        election = None
        if elected(conf):
            facts = job_store_facts(cluster.store.url)
            election = self._election(
                process,
                conf,
                Office.DISPATCHER,
                store_id=facts.store_id,
                above=Epoch(facts.epoch),
            )
        dispatcher = Dispatcher(
            conf,
            host=HOST,
            port=int(option(arguments, "--port")),
            directory=cluster.directory / "dispatcher",
            resource_manager=option(arguments, "--resource-manager"),
            registry=Registry(),
            election=election,
            leaders=self.leaders(conf),
            open_store=lambda epoch: JudgedJobStore(cluster.store, process, epoch),
            platform=process.platform,
        )
        self._takes_office(process, dispatcher, election, JOB_MASTERS_METHODS)
        _stop_with(process, dispatcher.stop)
        await self._run_master(process, dispatcher)

    async def resource_manager(self, process: SimulatedProcess, arguments: Sequence[str]) -> None:
        cluster = self._cluster
        conf = configuration(arguments)
        directory = cluster.directory / "resourcemanager"
        election = None
        if elected(conf):
            election = self._election(process, conf, Office.RESOURCE_MANAGER)
        resource_manager = ResourceManager(
            conf,
            host=HOST,
            port=int(option(arguments, "--port")),
            epochs=EpochFile(directory),
            election=election,
            workers=LocalDriver(
                directory=directory,
                arguments=conf.to_arguments(),
                platform=process.platform,
                find_workers=self._find_workers,
            ),
            initial_workers=cluster.shape.task_executors,
            ids=self._world.ids(),
            platform=process.platform,
        )
        self._takes_office(process, resource_manager, election, PEERS_METHODS)
        _stop_with(process, resource_manager.stop)
        await self._run_master(process, resource_manager)

    async def _run_master(self, process: SimulatedProcess, service: Any) -> None:
        try:
            await service.start()
            process.service = service
            process.announce_ready(address=service.address)
            await service.run()
        except FiresteelError as error:  # it lost its office, or there was no quorum to elect it
            self._world.note(process.name, f"ends: {error}")
            raise SystemExit(1) from None

    def _election(
        self, process: SimulatedProcess, conf: Configuration, office: Office, **facts: Any
    ) -> ZooKeeperElection:
        ensemble = Ensemble.of(conf)
        return ZooKeeperElection(
            ensemble,
            office,
            client=Client(self._cluster.zookeeper, ensemble),  # type: ignore[arg-type]
            clock=process.platform.clock.monotonic,
            **facts,
        )

    def leaders(self, conf: Configuration) -> Leaders:
        """For the process that runs."""
        if not elected(conf):
            return FixedLeaders()
        ensemble = Ensemble.of(conf)
        client = Client(self._cluster.zookeeper, ensemble)
        return ZooKeeperLeaders(ensemble, client)  # type: ignore[arg-type]

    def _takes_office(
        self,
        process: SimulatedProcess,
        service: Any,
        election: ZooKeeperElection | None,
        peers: Sequence[str],
    ) -> None:
        """Watches what it does from when it leads on."""
        offices = self._cluster.checkers.offices
        office = Office.DISPATCHER if isinstance(service, Dispatcher) else Office.RESOURCE_MANAGER
        open_gate = service._gate.open

        def opened(servicer: Any, of_epoch: int) -> None:
            if election is None:
                self._watch(process, service.shell.core)
                open_gate(servicer, of_epoch)
                return
            epoch = election.core.epoch
            offices.granted(office, epoch, process)
            self._watch(
                process,
                service.shell.core,
                before=lambda: offices.acts(office, epoch, process),
            )
            open_gate(
                Asked(
                    servicer, peers, lambda method: offices.answers(office, epoch, process, method)
                ),
                of_epoch,
            )

        service._gate.open = opened

    def _find_workers(self, directory: Path) -> dict[WorkerId, Any]:
        """The TaskExecutors that run, also those of an earlier ResourceManager."""
        return {
            WorkerId(option(process.arguments, "--worker-id")): WorkerHandle(process)
            for process in self._cluster.living("taskexecutor")
        }

    async def job_master(self, process: SimulatedProcess, arguments: Sequence[str]) -> None:
        job_master = JobMasterProcess(
            configuration(arguments),
            dispatcher_address=option(arguments, "--dispatcher"),
            host=HOST,
            platform=process.platform,
            registry=Registry(),
            ids=self._world.ids(),
            leaders=self.leaders(configuration(arguments)),
            list_paths=_list_paths,
            job_built=lambda job: self._watch(
                process,
                job.core,
                lambda event, effects: self._cluster.checkers.job_master(job, event, effects),
            ),
        )
        process.service = job_master
        _stop_with(process, job_master.stop)
        await job_master.start()
        process.announce_ready(address=job_master.address)
        await job_master.run()

    async def task_executor(self, process: SimulatedProcess, arguments: Sequence[str]) -> None:
        conf = configuration(arguments)
        ids = self._world.ids()
        task_executor = TaskExecutor(
            conf,
            settings_from(conf, task_executor_id=TaskExecutorId(ids.next()), cores=CORES),
            resource_manager_address=option(arguments, "--resource-manager"),
            worker_id=option(arguments, "--worker-id"),
            host=HOST,
            directory=Path(option(arguments, "--dir")),
            metrics=Registry(),
            metrics_address="",
            leaders=self.leaders(conf),
            results=SimulatedResults(process, self._cluster.results),  # type: ignore[arg-type]
            platform=process.platform,
            ids=ids,
        )
        process.service = task_executor
        self._watch(process, task_executor.core)
        _stop_with(process, lambda: task_executor.request_end("SIGTERM"))
        await task_executor.start()
        process.announce_ready(address=task_executor.address)
        await task_executor.stop(await task_executor.ended)

    def _watch(
        self,
        process: SimulatedProcess,
        core: Any,
        check: Callable[[Any, Any], None] = lambda event, effects: None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Notes every event of a core, and checks its invariants after each."""
        handle = core.handle
        validate = getattr(core, "validate", lambda: None)

        def watched(event: Any, now: float) -> Any:
            self._world.note(process.name, event)
            deadline = core.next_deadline()
            stale = any(event is old and applies() for old, applies in self._world.stale)
            try:
                before()
                effects = handle(event, now)
                validate()
                check(event, effects)
                if stale:
                    overdue = deadline is not None and deadline <= now
                    idle = not effects.records and not effects.commands
                    assert overdue or idle, f"stale {event} led to {effects}"
            except Exception as error:
                self._world.crashed(process, error)
                raise
            return effects

        core.handle = watched


class Asked:
    """A leader's servicer; `answers` hears of each call of a client."""

    def __init__(self, servicer: Any, peers: Sequence[str], answers: Callable[[str], None]) -> None:
        self._servicer = servicer
        self._peers = peers
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        if name not in self._peers:
            self._answers(name)
        return getattr(self._servicer, name)


def _stop_with(process: SimulatedProcess, stop: Callable[[], None]) -> None:
    process.signal_handlers[signal.SIGTERM] = stop


def _list_paths(paths: Sequence[str], watched: bool) -> Listing:
    if "missing" in paths[0]:
        raise PathProblem(f"source path {paths[0]!r} matches no file")
    return Listing([ListedFile(f"/data/{number}.csv", 1, 0) for number in range(FILES)])
