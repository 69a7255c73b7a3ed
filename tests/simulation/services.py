"""The programs that simulated processes run: the services' real objects, put together as their
entry points do it, on the simulated platform.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatcher.job_store import Fenced
from dispatcher.service import Dispatcher
from firesteel.common.config import Configuration, parse_definitions
from firesteel.common.file_parts import ListedFile
from firesteel.common.ids import TaskExecutorId
from firesteel.common.metrics import Registry
from jobmaster.service import JobMasterProcess
from resourcemanager.core.workers import WorkerId
from resourcemanager.epoch import EpochFile
from resourcemanager.local_driver import LocalDriver
from resourcemanager.service import ResourceManager
from taskexecutor.configuration import settings_from
from taskexecutor.shell import TaskExecutor
from tests.simulation.results import SimulatedResults
from tests.simulation.store import JudgedJobStore
from tests.simulation.world import SimulatedProcess, WorkerHandle

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

HOST = "127.0.0.1"
DISPATCHER_PORT, RESOURCE_MANAGER_PORT = 6123, 6124
FILES = 5  # that every file source finds
CORES = 2


def option(arguments: Sequence[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def configuration(arguments: Sequence[str]) -> Configuration:
    given = [value for flag, value in itertools.pairwise(arguments) if flag == "-D"]
    return Configuration(parse_definitions(given))


class Services:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world

    async def dispatcher(self, process: SimulatedProcess, arguments: Sequence[str]) -> None:
        cluster = self._cluster
        dispatcher = Dispatcher(
            configuration(arguments),
            host=HOST,
            port=DISPATCHER_PORT,
            directory=cluster.directory / "dispatcher",
            resource_manager=option(arguments, "--resource-manager"),
            registry=Registry(),
            open_store=lambda epoch: JudgedJobStore(cluster.store, process),
            platform=process.platform,
        )
        _stop_with(process, dispatcher.stop)
        await dispatcher.start()
        process.service = dispatcher
        assert dispatcher.shell is not None
        self._watch(process, dispatcher.shell.core)
        process.announce_ready(address=dispatcher.address)
        try:
            await dispatcher.run()
        except Fenced as error:
            self._world.note(process.name, f"is fenced: {error}")

    async def resource_manager(self, process: SimulatedProcess, arguments: Sequence[str]) -> None:
        cluster = self._cluster
        conf = configuration(arguments)
        directory = cluster.directory / "resourcemanager"
        resource_manager = ResourceManager(
            conf,
            host=HOST,
            port=RESOURCE_MANAGER_PORT,
            epochs=EpochFile(directory),
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
        _stop_with(process, resource_manager.stop)
        await resource_manager.start()
        process.service = resource_manager
        assert resource_manager.shell is not None
        self._watch(process, resource_manager.shell.core)
        process.announce_ready(address=resource_manager.address)
        await resource_manager.run()

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
    ) -> None:
        """Notes every event of a core, and checks its invariants after each."""
        handle = core.handle
        validate = getattr(core, "validate", lambda: None)

        def watched(event: Any, now: float) -> Any:
            self._world.note(process.name, event)
            deadline = core.next_deadline()
            stale = any(event is old and applies() for old, applies in self._world.stale)
            try:
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


def _stop_with(process: SimulatedProcess, stop: Callable[[], None]) -> None:
    process.signal_handlers[signal.SIGTERM] = stop


def _list_paths(paths: Sequence[str], watched: bool) -> list[ListedFile]:
    if "missing" in paths[0]:
        from jobmaster.paths import PathProblem

        raise PathProblem(f"source path {paths[0]!r} matches no file")
    return [ListedFile(f"/data/{number}.csv", 1, 0) for number in range(FILES)]
