"""The complete ResourceManager: its server, its epoch and its shell.

The entry point and the simulation run the same object with a different platform and driver.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from firesteel._proto import (
    inspections_pb2,
    job_logs_pb2,
    resource_manager_pb2,
    resource_manager_pb2_grpc,
)
from firesteel.common.config import Configuration, options
from firesteel.common.fencing import Refusals
from firesteel.common.ids import IdSource
from firesteel.common.job_log.reader import LogFile
from firesteel.common.leader import NO_EPOCH, FixedElection, LeaderElection, Office, lead
from firesteel.common.logs import get_logger
from firesteel.common.metrics import Sample, leader_sample
from firesteel.common.resources import slot_resources
from firesteel.common.rpc import job_logs, threads
from firesteel.common.rpc.gate import Gate
from firesteel.common.service.platform import SYSTEM, Platform
from resourcemanager.core.core import SlotManager
from resourcemanager.core.settings import Settings
from resourcemanager.core.workers import WorkerSpec
from resourcemanager.driver import NoDriver, WorkerDriver
from resourcemanager.epoch import EpochFile
from resourcemanager.servicer import ResourceManagerServicer
from resourcemanager.shell import Shell

log = get_logger(__name__)

PEERS_METHODS = ("ConnectTaskExecutor", "ConnectJobMaster")


class ResourceManager:
    """Listens at `address` once constructed, answers while it runs, and serves slots while it
    leads.
    """

    def __init__(
        self,
        conf: Configuration,
        *,
        host: str,
        port: int,
        epochs: EpochFile,
        election: LeaderElection | None = None,
        workers: WorkerDriver | None = None,
        initial_workers: int = 0,
        ids: IdSource | None = None,
        log_path: Path | None = None,
        platform: Platform = SYSTEM,
    ) -> None:
        """Without `election` it leads, under the next of `epochs`. Without `workers`, the operator
        starts TaskExecutors. `log_path` is the log of this process.
        """
        self._settings = Settings(
            epoch=NO_EPOCH,  # until it leads
            heartbeat_interval_s=conf.get(options.HEARTBEAT_INTERVAL),
            heartbeat_timeout_s=conf.get(options.HEARTBEAT_TIMEOUT),
            spread=conf.get(options.SPREAD_SLOTS),
            requirements_delay_s=conf.get(options.REQUIREMENTS_DELAY),
            idle_timeout_s=conf.get(options.TM_IDLE_TIMEOUT),
            recovery_timeout_s=conf.get(options.PREVIOUS_WORKER_TIMEOUT),
            reason_patience_s=workers.reason_patience_s if workers is not None else 0.0,
            worker_start_timeout_s=conf.get(options.REGISTRATION_TIMEOUT),
            initial_workers=initial_workers,
            max_slots=conf.get(options.MAX_SLOTS),
            worker=_worker_spec(conf) if workers is not None else None,
        )
        transport = platform.transport
        self._server = transport.server(
            [
                resource_manager_pb2.DESCRIPTOR.services_by_name["ResourceManager"],
                job_logs_pb2.DESCRIPTOR.services_by_name["JobLogs"],
                inspections_pb2.DESCRIPTOR.services_by_name["Threads"],
            ]
        )
        self.address = transport.bind(self._server, host, port)
        self._epochs = epochs
        self._election = election or FixedElection()
        self._ids = ids or IdSource()
        self._log_path = log_path
        self._workers = workers or NoDriver()
        self._platform = platform
        self._stopping = asyncio.Event()
        self.shell: Shell | None = None  # while it leads
        self._refusals = Refusals()
        self._gate = Gate(
            ResourceManagerServicer, self._election, peers=PEERS_METHODS, refusals=self._refusals
        )
        resource_manager_pb2_grpc.add_ResourceManagerServicer_to_server(  # type: ignore[no-untyped-call]
            self._gate, self._server
        )
        job_logs.add_to_server(self._server, self._logs)
        threads.add_to_server(self._server, threads.ThreadsServicer("ResourceManager"))

    async def start(self) -> None:
        """Starts to answer; an uncontested ResourceManager also leads from now on."""
        if not self._election.contested:
            await self._take_office()
        await self._election.start(self.address)
        await self._server.start()

    async def run(self) -> None:
        """Runs until `stop` is called. Its workers have then ended, unless ResourceManagers are
        elected. Raises LeadershipLost when another ResourceManager leads.
        """
        try:
            await lead(
                self._election,
                self._take_office,
                self._lead,
                stop=self.stop,
                stopping=self._stopping,
            )
        finally:
            await self._election.close()
            if self.shell is not None:
                await self.shell.close(end_workers=not self._election.contested)
            await self._server.stop(grace=0.5)

    def stop(self) -> None:
        self._stopping.set()
        if self.shell is not None:
            self.shell.stop()

    async def _take_office(self) -> None:
        epoch = await self._election.granted()
        if epoch is None:
            epoch = self._epochs.next()
        self.shell = Shell(
            SlotManager(replace(self._settings, epoch=epoch), self._ids),
            self._workers,
            permit=self._election,
            platform=self._platform,
        )
        self._gate.open(ResourceManagerServicer(self.shell), epoch)
        log.info("the ResourceManager leads", epoch=epoch)

    async def _lead(self) -> None:
        assert self.shell is not None, "it has taken office"
        await self.shell.run("" if self._election.contested else self.address)

    def _logs(self) -> dict[Path, LogFile]:
        """Returns its own log and those of ended workers; live workers serve their own."""
        own = {self._log_path: LogFile(own=True)} if self._log_path is not None else {}
        if self.shell is None:
            return own
        live = {executor.worker_id for executor in list(self.shell.core.table.executors.values())}
        return own | {
            path: LogFile(task_executor_id=logs.task_executor_id)
            for logs in self._workers.logs()
            if logs.worker_id not in live
            for path in logs.paths
        }

    def metrics(self, labels: dict[str, str]) -> list[Sample]:
        leads = self.shell is not None
        own = [
            *self._refusals.samples("flink_jobmanager_", labels),
            leader_sample(Office.RESOURCE_MANAGER, leads=leads, labels=labels),
        ]
        return own if self.shell is None else [*own, *self.shell.metrics(labels)]


def _worker_spec(conf: Configuration) -> WorkerSpec:
    """Returns the estimated spec of a worker; the first one that registers corrects it."""
    slots, total, default_slot = slot_resources(conf)
    return WorkerSpec(slots=slots, total=total, default_slot=default_slot)
