"""Starts the ResourceManager (which starts the TaskExecutors) and the Dispatcher, or several of
each, of which one leads, and keeps them running.

Every process of the cluster holds the supervisor's lifeline, so all of them end with it. A dead
Dispatcher or ResourceManager is restarted on its old port, where its peers reconnect.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

import firesteel
from firesteel.client.cluster.children import Children
from firesteel.client.cluster.directory import (
    ClusterDirectory,
    ClusterState,
    MasterProcess,
)
from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.ids import random_id
from firesteel.common.leader import Office
from firesteel.common.metrics import parse_ports
from firesteel.common.metrics_targets import CLUSTER_ID, FOLDER
from firesteel.high_availability import elected, elected_address

SERVERS = 3  # in an ensemble that the cluster starts
_ZOOKEEPER = "zookeeper"
_OF_OFFICE = {Office.RESOURCE_MANAGER: "resourcemanager", Office.DISPATCHER: "dispatcher"}


class _Master(NamedTuple):
    office: Office
    module: str
    port: int


class Supervisor:
    """`directory` must be locked. `port` is that of the first Dispatcher, 0 for any free one.
    `masters` is the number of Dispatchers, and of ResourceManagers; if there are several and no
    ensemble is configured that elects the leaders, ZooKeeper servers are also started here.
    """

    def __init__(
        self,
        *,
        conf: Configuration,
        directory: ClusterDirectory,
        task_executors: int,
        port: int,
        masters: int = 1,
    ) -> None:
        own_ensemble = needs_ensemble(conf, masters)
        self._conf = conf
        self._directory = directory
        self._task_executors = task_executors
        self._host = conf.get(options.BIND_HOST)
        self._reserved: list[socket.socket] = []
        first = {Office.DISPATCHER: port, Office.RESOURCE_MANAGER: conf.get(options.RM_PORT)}
        self._masters = {
            module if number == 1 else f"{module}-{number}": _Master(
                office, module, (number == 1 and first[office]) or self._reserve_port()
            )
            for office, module in _OF_OFFICE.items()
            for number in range(1, masters + 1)
        }
        self._ensemble_ports = [self._reserve_port() for _ in range(3 * SERVERS * own_ensemble)]
        self._children = Children(
            self._command,
            directory=directory.path,
            logs=directory.logs,
            restarted=self._write_state,
        )
        self._started_ms = 0
        self.cluster_id = random_id()
        os.environ[CLUSTER_ID] = self.cluster_id
        shutil.rmtree(directory.metrics, ignore_errors=True)
        directory.metrics.mkdir(parents=True, exist_ok=True)
        os.environ[FOLDER] = str(directory.metrics)

    async def start(self) -> ClusterState:
        """Starts all processes. Returns when all masters serve, while the TaskExecutors warm up.
        Raises StartFailed.
        """
        try:
            if self._ensemble_ports:
                shutil.rmtree(self._directory.path / _ZOOKEEPER, ignore_errors=True)
                await self._children.start(_ZOOKEEPER)
                quorum = self._children[_ZOOKEEPER].ready["quorum"]
                self._conf = self._conf.with_overrides(
                    {options.HA_TYPE.key: "zookeeper", options.ZOOKEEPER_QUORUM.key: quorum}
                )
            await self._children.start(*self._masters)
        except BaseException:
            await self.stop()
            raise
        self._children.keep()
        self._started_ms = time.time_ns() // 1_000_000
        return self._write_state()

    async def stop(self) -> None:
        """Stops the masters before the servers that elect them, so that none waits for a quorum."""
        await self._children.stop(last=_ZOOKEEPER)
        for reserved in self._reserved:
            reserved.close()
        shutil.rmtree(self._directory.metrics, ignore_errors=True)  # files of killed processes

    def _reserve_port(self) -> int:
        reserved, port = reserved_port(self._host)
        self._reserved.append(reserved)
        return port

    def _command(self, name: str) -> tuple[str, Sequence[str]]:
        """Returns the service's module and its arguments."""
        if name == _ZOOKEEPER:
            folder = str(self._directory.path / _ZOOKEEPER)
            ports = ",".join(map(str, self._ensemble_ports))
            arguments = [*self._conf.to_arguments(), "--dir", folder, "--ports", ports]
            return "firesteel.client.cluster.zookeeper", arguments
        master = self._masters[name]
        conf = self._conf.to_arguments()
        common = [*conf, "--host", self._host, "--dir", str(self._directory.path)]
        if master.office is Office.RESOURCE_MANAGER:
            own = ["--task-executors", str(self._task_executors)]
        else:
            own = []
            if not elected(self._conf):
                own = ["--resource-manager", self._resource_manager_address]
            if rest_address := self._rest_address(name):
                own += [f"-D{options.REST_PORT.key}={ports_after(rest_address, self._conf)}"]
        return master.module, [*common, "--port", str(master.port), *own]

    def _write_state(self) -> ClusterState:
        """Writes the state with the current processes."""
        state = ClusterState(
            cluster_id=self.cluster_id,
            supervisor_pid=os.getpid(),
            dispatcher_address=self._dispatcher_address,
            resource_manager_address=self._resource_manager_address,
            masters=tuple(
                MasterProcess(
                    office=master.office.value,
                    address=self._children[name].ready["address"],
                    pid=self._children[name].pid,
                )
                for name, master in self._masters.items()
            ),
            rest_address=self._rest_address("dispatcher"),
            spark_connect_url=self._children["dispatcher"].ready.get("spark_connect_url", ""),
            own_ensemble=bool(self._ensemble_ports),
            task_executors=self._task_executors,
            slots_per_task_executor=self._conf.get(options.TASK_SLOTS),
            started_ms=self._started_ms,
            version=firesteel.__version__,
        )
        self._directory.write(state)
        return state

    def _rest_address(self, name: str) -> str:
        """Where a Dispatcher serves its REST API, or did before it ended; empty: nowhere."""
        child = self._children.get(name)
        return child.ready.get("rest_address", "") if child is not None else ""

    @property
    def _dispatcher_address(self) -> str:
        """The address for clients."""
        if elected(self._conf):
            return elected_address(self._conf)
        return f"{self._host}:{self._masters['dispatcher'].port}"

    @property
    def _resource_manager_address(self) -> str:
        return f"{self._host}:{self._masters['resourcemanager'].port}"


def needs_ensemble(conf: Configuration, masters: int) -> bool:
    """Whether this number of masters must be elected by servers that are not configured.

    Raises ConfigurationError.
    """
    if masters == 1 or elected(conf):
        return False
    if options.HA_TYPE.key in conf.to_dict():
        raise ConfigurationError(
            f"{masters} masters need leader election, but {options.HA_TYPE.key} is"
            f" none: set it to zookeeper and {options.ZOOKEEPER_QUORUM.key} to your servers, or"
            " omit it, which starts ZooKeeper servers on this machine"
        )
    return True


def reserved_port(host: str) -> tuple[socket.socket, int]:
    """Returns a free port, and the socket that reserves it until it is closed.

    The socket is bound and never listens. Servers that reuse addresses, such as gRPC's, can listen
    on the port, one after another, and the system assigns it to no other process in the meantime,
    not even to an outgoing connection.
    """
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((host, 0))
    return reserved, int(reserved.getsockname()[1])


def ports_after(address: str, conf: Configuration) -> str:
    """Returns `rest.port` for a restarted Dispatcher: the port of its earlier address and, if that
    has been taken in the meantime, the higher ones of the configured range.
    """
    port = int(address.rpartition(":")[2])
    last = parse_ports(conf.get(options.REST_PORT), options.REST_PORT.key)[-1]
    return f"{port}-{max(port, last)}"
