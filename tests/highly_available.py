"""A cluster with several masters of each kind on this machine, as a supervisor of services runs it:
what ends is started again.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from firesteel.client.client import Client
from firesteel.client.cluster import wait_for_slots
from firesteel.client.cluster.directory import CLUSTER_ID, end_processes
from firesteel.common.config import Configuration
from firesteel.common.ids import random_id
from firesteel.common.leader import Leader, Office
from firesteel.common.process import BlockingChild, spawn_blocking
from firesteel.high_availability import elected_address
from firesteel.high_availability.find import finder_at
from firesteel.high_availability.incumbent import Finder
from tests.compose import HA_CONFIGURATION, ComposedService, services
from tests.waiting import PATIENCE_S
from tests.zookeeper import ZooKeeper

_END_S = 20.0


@dataclass(eq=False)
class Service:
    """One process after another."""

    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    child: BlockingChild | None = None
    starts: int = 0

    @property
    def process(self) -> psutil.Process:
        """Raises psutil.NoSuchProcess once it has ended."""
        assert self.child is not None
        return psutil.Process(self.child.process.pid)

    def wait(self) -> None:
        """Returns when its process has ended."""
        assert self.child is not None
        self.child.process.wait(PATIENCE_S)

    @property
    def address(self) -> str:
        return self.ready["address"]

    @property
    def ready(self) -> Mapping[str, str]:
        assert self.child is not None
        return self.child.ready

    @property
    def runs(self) -> bool:
        return self.child is not None and self.child.process.poll() is None


class HighlyAvailableCluster:
    """The services of the `ha` profile of docker-compose.yml, in one folder: two Dispatchers, two
    ResourceManagers, and one or two TaskExecutors.

    `keeps`: each is started again as soon as it ends; else by `start_what_ended`. Without
    `zookeeper`, `overrides` say what elects the leaders.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper | None,
        directory: Path,
        *,
        task_executors: int = 2,
        slots: int = 2,
        keeps: bool = True,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self.conf = Configuration.load(
            HA_CONFIGURATION,
            {
                "high-availability.zookeeper.quorum": zookeeper.quorum if zookeeper else "",
                "high-availability.cluster-id": directory.name,
                "high-availability.storageDir": f"file://{directory}/storage",
                "database.url": f"sqlite:///{directory}/jobs.db",
                "taskmanager.numberOfTaskSlots": str(slots),
                "metrics.reporter.prom.port": "0",
                "jobmanager.rpc.port": "0",
                **(overrides or {}),
            },
        )
        self.directory = directory
        self.slots = task_executors * slots
        composed = list(services("ha", directory))
        workers = [each for each in composed if each.module == "taskexecutor"]
        surplus = workers[task_executors:]
        self.services = [
            self._service(number, each)
            for number, each in enumerate(composed)
            if each not in surplus
        ]
        self._keeps = keeps
        self._id = random_id()
        self._keepers: list[threading.Thread] = []
        self._ending = threading.Event()
        self._stack = contextlib.ExitStack()
        self._finders: dict[Office, Finder] = {}
        self._lifeline = -1

    @property
    def address(self) -> str:
        """As clients take it."""
        return elected_address(self.conf)

    def client(self) -> Client:
        """Closed with the cluster."""
        return self._stack.enter_context(Client(self.address, conf=self.conf))

    def wait_for_slots(self, *, timeout_s: float) -> None:
        wait_for_slots(self.client(), self.slots, logs=self.directory, timeout_s=timeout_s)

    def leader(self, office: Office) -> Leader | None:
        """Returns None if the office is vacant. Raises FiresteelError without a quorum."""
        return self._finders[office].find(timeout_s=0.0)

    def of(self, module: str) -> list[Service]:
        return [service for service in self.services if service.module == module]

    def leading(self, office: Office) -> Service:
        """Raises LookupError while there is none whose process runs."""
        leader = self.leader(office)
        for service in self.services:
            if service.runs and leader is not None and service.address == leader.address:
                return service
        raise LookupError(f"no {office} leads")

    def start_what_ended(self) -> None:
        ended = [service for service in self.services if not service.runs]
        with ThreadPoolExecutor(max(1, len(ended))) as threads:
            for _ in threads.map(self._start, ended):
                pass

    def __enter__(self) -> HighlyAvailableCluster:
        self._lifeline, write = os.pipe()
        self._stack.callback(os.close, self._lifeline)
        self._stack.callback(self._end)
        self._stack.callback(os.close, write)  # all processes end
        self._stack.callback(self._ending.set)
        try:
            for office in Office:
                self._finders[office] = finder_at(self.address, self.conf, office)
                self._stack.callback(self._finders[office].close)
            self.start_what_ended()
            if self._keeps:
                for service in self.services:
                    keeper = threading.Thread(target=self._keep, args=(service,), daemon=True)
                    keeper.start()
                    self._keepers.append(keeper)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    # ---- inside

    def _service(self, number: int, composed: ComposedService) -> Service:
        arguments = (*self.conf.to_arguments(), *composed.arguments)
        log = self.directory / f"{composed.module}-{number}.log"
        return Service(composed.module, arguments, composed.environment, log)

    def _start(self, service: Service) -> None:
        service.child = spawn_blocking(
            [sys.executable, "-m", service.module, *service.arguments],
            log_path=service.log,
            env={
                **os.environ,
                **self.conf.to_environment(),
                **service.environment,
                CLUSTER_ID: self._id,
            },
            lifeline=self._lifeline,
        )
        service.starts += 1

    def _keep(self, service: Service) -> None:
        while True:
            assert service.child is not None
            service.child.process.wait()
            if self._ending.is_set():
                return
            try:
                self._start(service)
            except Exception:  # without ZooKeeper, the service ends immediately
                if self._ending.wait(0.1):
                    return

    def _end(self) -> None:
        for keeper in self._keepers:
            keeper.join(PATIENCE_S)
        for service in self.services:
            if service.child is not None:
                service.wait()
        end_processes(self._id, timeout_s=_END_S)
