"""Starts the ResourceManager (which starts the TaskExecutors) and the Dispatcher, and keeps them
running.

Every process of the cluster holds the supervisor's lifeline, so they all end when it does. A dead
Dispatcher or ResourceManager is restarted on its old port, where its peers reconnect.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

import firesteel
from firesteel.client.cluster.directory import CLUSTER_ID, ClusterDirectory, ClusterState
from firesteel.common.backoff import Backoff
from firesteel.common.config import Configuration, options
from firesteel.common.high_availability import elected, elected_address
from firesteel.common.ids import random_id
from firesteel.common.process import Child, StartFailed, spawn

log = structlog.get_logger(__name__)

STOP_GRACE_S = 5.0
FIRST_RESTART_PAUSE_S = 0.1
LONGEST_RESTART_PAUSE_S = 10.0
STEADY_S = 10.0  # the backoff of a service that lived this long starts over


class Supervisor:
    """`directory` must be acquired. `port`: the Dispatcher's, 0 for any free one."""

    def __init__(
        self, *, conf: Configuration, directory: ClusterDirectory, task_executors: int, port: int
    ) -> None:
        self._conf = conf
        self._directory = directory
        self._task_executors = task_executors
        self._host = conf.get(options.BIND_HOST)
        self._reserved: list[socket.socket] = []
        self._dispatcher_port = port or self._reserve_port()
        self._resource_manager_port = conf.get(options.RM_PORT) or self._reserve_port()
        self._children: dict[str, Child] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self.cluster_id = random_id()
        os.environ[CLUSTER_ID] = self.cluster_id

    async def start(self) -> ClusterState:
        """Returns when both services serve, while the TaskExecutors warm up. Raises StartFailed."""
        started = await asyncio.gather(
            self._spawn("resourcemanager"), self._spawn("dispatcher"), return_exceptions=True
        )
        for failure in started:
            if isinstance(failure, BaseException):
                await self.stop()
                raise failure
        self._keepers = [
            asyncio.create_task(self._keep(service))
            for service in ("resourcemanager", "dispatcher")
        ]
        state = ClusterState(
            cluster_id=self.cluster_id,
            supervisor_pid=os.getpid(),
            dispatcher_address=self._dispatcher_address,
            resource_manager_address=self._resource_manager_address,
            task_executors=self._task_executors,
            slots_per_task_executor=self._conf.get(options.TASK_SLOTS),
            started_ms=time.time_ns() // 1_000_000,
            version=firesteel.__version__,
        )
        self._directory.write(state)
        return state

    async def stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*(child.stop(STOP_GRACE_S) for child in self._children.values()))
        for reserved in self._reserved:
            reserved.close()

    def _reserve_port(self) -> int:
        reserved, port = reserved_port(self._host)
        self._reserved.append(reserved)
        return port

    async def _keep(self, service: str) -> None:
        """Restarts the service whenever it ends."""
        backoff = Backoff(FIRST_RESTART_PAUSE_S, LONGEST_RESTART_PAUSE_S)
        while True:
            started = time.monotonic()
            code = await self._children[service].wait()
            if time.monotonic() - started > STEADY_S:
                backoff.reset()
            await self._restart(service, code, backoff)

    async def _restart(self, service: str, exit_code: int, backoff: Backoff) -> None:
        """Tries until the service has started."""
        while True:
            pause_s = backoff.next()
            log.error("restarting a service", service=service, exit_code=exit_code, pause_s=pause_s)
            await asyncio.sleep(pause_s)
            try:
                await self._spawn(service)
                return
            except (StartFailed, OSError) as error:
                log.error("a service did not start", service=service, reason=str(error))

    async def _spawn(self, service: str) -> None:
        child = await spawn(
            [sys.executable, "-m", service, *self._arguments(service), *self._conf.to_arguments()],
            log_path=self._directory.logs / f"{service}.log",
            cwd=self._directory.path,
        )
        self._children[service] = child
        log.info("service started", service=service, pid=child.pid, **child.ready)

    def _arguments(self, service: str) -> Sequence[str]:
        common = ["--host", self._host, "--dir", str(self._directory.path)]
        if service == "resourcemanager":
            port, own = self._resource_manager_port, ["--task-executors", str(self._task_executors)]
        else:
            port, own = self._dispatcher_port, []
            if not elected(self._conf):
                own = ["--resource-manager", self._resource_manager_address]
        return [*common, "--port", str(port), *own]

    @property
    def _dispatcher_address(self) -> str:
        """As clients take it."""
        if elected(self._conf):
            return elected_address(self._conf)
        return f"{self._host}:{self._dispatcher_port}"

    @property
    def _resource_manager_address(self) -> str:
        return f"{self._host}:{self._resource_manager_port}"


def reserved_port(host: str) -> tuple[socket.socket, int]:
    """A free port, and the socket that keeps it free until it is closed.

    The socket is bound and never listens: servers that reuse addresses, as gRPC's do, can listen on
    the port, one after the other, and the system gives it to nobody else meanwhile, not even to a
    connection that goes out.
    """
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((host, 0))
    return reserved, int(reserved.getsockname()[1])


def import_path() -> str:
    """A PYTHONPATH on which the services are found, even if Firesteel runs from its sources."""
    home = str(Path(firesteel.__file__).resolve().parent.parent)
    return os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
