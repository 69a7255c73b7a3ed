"""The ResourceManager's process: the real SlotManager; its driver starts simulated TaskExecutors."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from firesteel.common.ids import Epoch
from resourcemanager import convert
from resourcemanager.core import commands, events
from resourcemanager.core.core import SlotManager
from resourcemanager.core.events import Connection, WorkerId
from resourcemanager.core.settings import Settings
from tests.simulation.network import End
from tests.simulation.processes import (
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_TIMEOUT_S,
    Process,
    SimulatedDriver,
)

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.task_executor import TaskExecutorProcess


class ResourceManagerProcess(Process):
    def __init__(self, cluster: Cluster, epoch: int) -> None:
        super().__init__(
            cluster.world, cluster.network, f"resourcemanager-{epoch}", "resourcemanager:1"
        )
        shape = cluster.shape
        settings = Settings(
            epoch=Epoch(epoch),
            heartbeat_interval_s=HEARTBEAT_INTERVAL_S,
            heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S,
            spread=shape.spread,
            idle_timeout_s=10.0,
            initial_workers=shape.task_executors,
            max_slots=shape.max_slots,
            worker=shape.worker,
        )
        self.core = SlotManager(settings, self.world.ids())
        self._cluster = cluster
        self._epoch = Epoch(epoch)
        self._driver = SimulatedDriver(
            self, self.core, execute=self._execute, validate=self.core.validate
        )
        self._numbers = itertools.count(1)
        self._peers: dict[Connection, End] = {}
        self._children: dict[WorkerId, TaskExecutorProcess] = {}
        self.post = self._driver.post
        self.probe = self._driver.probe
        living = [x for x in cluster.task_executors if x.alive]
        self._previous = {
            x.worker_id: x for x in living
        }  # of an earlier ResourceManager: no children of this one
        self.post(events.Started(previous_workers=tuple(self._previous)))

    def accept(self, method: str, end: End) -> None:
        connection = Connection(next(self._numbers))
        self._peers[connection] = end
        decode: Any = (
            convert.from_task_executor if "task-executor" in method else convert.from_job_master
        )
        end.on_message = lambda message: self.post(decode(connection, message))
        end.on_end = lambda in_order, cause: self._ended(connection, in_order, cause)

    def _ended(self, connection: Connection, in_order: bool, cause: str) -> None:
        self._peers.pop(connection, None)
        if in_order:
            self.post(events.ConnectionClosed(connection=connection))
        self.post(events.ConnectionBroken(connection=connection, cause=cause))

    def _execute(self, command: commands.Command) -> None:
        match command:
            case commands.RequestWorker():
                self._start_worker(command.worker_id)
            case commands.ReleaseWorker():
                self.after(
                    self.world.between(0.001, 0.01), lambda: self._release(command.worker_id)
                )
            case commands.CloseConnection():
                if (end := self._peers.pop(command.connection, None)) is not None:
                    end.cancel(command.cause)
                    self.post(
                        events.ConnectionBroken(connection=command.connection, cause=command.cause)
                    )
            case commands.Welcome() | commands.SendHeartbeat():
                end = self._peers.get(command.connection)
                if end is not None and "task-executor" in end.method:
                    end.send(convert.to_task_executor(command, self._epoch))
                elif end is not None:
                    end.send(convert.to_job_master(command, self._epoch))
            case commands.NotEnoughResources() | commands.TaskExecutorLost():
                if (end := self._peers.get(command.connection)) is not None:
                    end.send(convert.to_job_master(command, self._epoch))
            case commands.RequestSlot() | commands.FreeSlot() | commands.Shutdown():
                if (end := self._peers.get(command.connection)) is not None:
                    end.send(convert.to_task_executor(command, self._epoch))

    # ---- the driver of workers

    def _start_worker(self, worker_id: WorkerId) -> None:
        def started() -> None:
            if self._cluster.faults_on and self.world.chance(0.05):
                self.post(
                    events.WorkerStartFailed(worker_id=worker_id, cause="no room on the machine")
                )
                return
            child = self._cluster.start_task_executor(worker_id)
            self._children[worker_id] = child
            child.on_exit.append(lambda code: self._worker_exited(worker_id, code))
            self.post(events.WorkerStarted(worker_id=worker_id))

        self.after(self.world.between(0.2, 1.5), started)

    def _release(self, worker_id: WorkerId) -> None:
        if (child := self._children.get(worker_id)) is not None:
            child.stop("released")
        elif (previous := self._previous.pop(worker_id, None)) is not None:
            previous.stop("released")

    def _worker_exited(self, worker_id: WorkerId, code: int) -> None:
        if self.alive:
            del self._children[worker_id]
            self.post(
                events.WorkerExited(
                    worker_id=worker_id, cause=f"its process ended with code {code}"
                )
            )
