"""The ResourceManager as a whole: its server, its epoch and its shell.

The entry point and the simulation run the same object; what differs is its platform and its driver.
"""

from __future__ import annotations

from pathlib import Path

from firesteel._proto import job_logs_pb2, resource_manager_pb2, resource_manager_pb2_grpc
from firesteel.common.config import Configuration, options
from firesteel.common.ids import IdSource
from firesteel.common.job_log.reader import LogFile
from firesteel.common.metrics import Sample
from firesteel.common.rpc import job_logs
from firesteel.common.service.platform import SYSTEM, Platform
from firesteel.common.slot_resources import slot_resources
from resourcemanager.core.core import SlotManager
from resourcemanager.core.settings import Settings
from resourcemanager.core.workers import WorkerSpec
from resourcemanager.driver import NoDriver, WorkerDriver
from resourcemanager.epoch import EpochFile
from resourcemanager.servicer import ResourceManagerServicer
from resourcemanager.shell import Shell


class ResourceManager:
    """Listens at `address` from its construction on, and answers while it runs."""

    def __init__(
        self,
        conf: Configuration,
        *,
        host: str,
        port: int,
        epochs: EpochFile,
        workers: WorkerDriver | None = None,
        initial_workers: int = 0,
        ids: IdSource | None = None,
        log_path: Path | None = None,
        platform: Platform = SYSTEM,
    ) -> None:
        """Without `workers`, TaskExecutors are started by hand. `log_path`: of this process."""
        settings = Settings(
            # The clock gives the first epoch, so a ResourceManager that starts in a new directory
            # is likely to come after one that ran in another.
            epoch=epochs.next(first=round(platform.clock.time() * 1000)),
            heartbeat_interval_s=conf.get(options.HEARTBEAT_INTERVAL),
            heartbeat_timeout_s=conf.get(options.HEARTBEAT_TIMEOUT),
            spread=conf.get(options.SPREAD_SLOTS),
            requirements_delay_s=conf.get(options.REQUIREMENTS_DELAY),
            idle_timeout_s=conf.get(options.TM_IDLE_TIMEOUT),
            recovery_timeout_s=conf.get(options.PREVIOUS_WORKER_TIMEOUT),
            initial_workers=initial_workers,
            max_slots=conf.get(options.MAX_SLOTS),
            worker=_worker_spec(conf) if workers is not None else None,
        )
        transport = platform.transport
        self._server = transport.server(
            [
                resource_manager_pb2.DESCRIPTOR.services_by_name["ResourceManager"],
                job_logs_pb2.DESCRIPTOR.services_by_name["JobLogs"],
            ]
        )
        self.address = transport.bind(self._server, host, port)
        workers = workers or NoDriver()
        self._log_path = log_path
        self._workers = workers
        self.shell = Shell(SlotManager(settings, ids or IdSource()), workers, platform=platform)
        resource_manager_pb2_grpc.add_ResourceManagerServicer_to_server(  # type: ignore[no-untyped-call]
            ResourceManagerServicer(self.shell), self._server
        )
        job_logs.add_to_server(self._server, self._logs)

    async def start(self) -> None:
        """From now on it answers."""
        await self._server.start()

    async def run(self) -> None:
        """Until `stop`; its workers have ended when this returns."""
        try:
            await self.shell.run(self.address)
        finally:
            await self.shell.close()
            await self._server.stop(grace=0.5)

    def stop(self) -> None:
        self.shell.stop()

    def _logs(self) -> dict[Path, LogFile]:
        """Its own and those of workers that have ended: the others hand theirs out themselves."""
        live = {executor.worker_id for executor in list(self.shell.core.table.executors.values())}
        own = {self._log_path: LogFile()} if self._log_path is not None else {}
        return own | {
            path: LogFile(origin=logs.task_executor_id)
            for logs in self._workers.logs()
            if logs.worker_id not in live
            for path in logs.paths
        }

    def metrics(self, labels: dict[str, str]) -> list[Sample]:
        return self.shell.metrics(labels)


def _worker_spec(conf: Configuration) -> WorkerSpec:
    """What a TaskExecutor of this configuration brings; the first that registers corrects it."""
    slots, total, default_slot = slot_resources(conf)
    return WorkerSpec(slots=slots, total=total, default_slot=default_slot)
