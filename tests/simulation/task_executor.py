"""A TaskExecutor's process: the real TaskExecutorCore and conversions around simulated PySpark executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firesteel._proto import common_pb2, executor_pb2, job_master_pb2, resource_manager_pb2
from firesteel.common.config import Configuration
from firesteel.common.ids import ExecutorId, JobId, TaskExecutorId
from firesteel.common.rpc.convert import profile_to_proto
from resourcemanager.core.events import WorkerId
from taskexecutor import convert
from taskexecutor.core import commands, events
from taskexecutor.core.core import TaskExecutorCore
from taskexecutor.core.settings import Settings
from tests.simulation.executor import ExecutorProcess
from tests.simulation.network import End
from tests.simulation.processes import (
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_TIMEOUT_S,
    Link,
    Process,
    SimulatedDriver,
)

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

_NO_CONFIGURATION = Configuration({})


class TaskExecutorProcess(Process):
    def __init__(self, cluster: Cluster, number: int, worker_id: WorkerId) -> None:
        super().__init__(
            cluster.world, cluster.network, f"taskexecutor-{number}", f"taskexecutor-{number}:1"
        )
        self.cluster = cluster
        self.worker_id = worker_id
        self.task_executor_id = TaskExecutorId(self.world.ids().next())
        shape = cluster.shape
        settings = Settings(
            task_executor_id=self.task_executor_id,
            slots=shape.worker.slots,
            total=shape.worker.total,
            default_slot=shape.worker.default_slot,
            cancellation_timeout_s=5.0,
            heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S,
            reconnect_grace_s=4.0,
        )
        self.core = TaskExecutorCore(settings, self.world.ids())
        self.executors: dict[ExecutorId, ExecutorProcess] = {}
        self.stopping = False
        self._serving: dict[ExecutorId, JobId] = {}
        self._job_masters: dict[JobId, JobMasterLink] = {}
        self._driver = SimulatedDriver(
            self, self.core, execute=self._execute, validate=self.core.table.validate
        )
        self.post = self._driver.post
        self.probe = self._driver.probe
        self._epoch = 0
        self._registered = False
        self._resource_manager = Link(
            self,
            "resourcemanager:1",
            "task-executor to resource-manager",
            on_up=self._register,
            on_message=self._from_resource_manager,
            on_down=lambda for_s: self._unregistered(),
            beat=lambda: self.post(events.ReportDue()) if self._registered else None,
        )
        self.post(events.ReportDue())
        self.after(self.world.between(0.01, 0.2), self._resource_manager.start)

    def accept(self, method: str, end: End) -> None:
        raise AssertionError("nobody connects to a TaskExecutor")

    # ---- the ResourceManager

    def _register(self) -> None:
        registration = resource_manager_pb2.TaskExecutorRegistration(
            task_executor_id=self.task_executor_id,
            address=self.address,
            host=self.name,
            pid=1,
            worker_id=self.worker_id,
            total=profile_to_proto(self.core.table.settings.total),
            default_slot=profile_to_proto(self.core.table.settings.default_slot),
            slots=convert.slot_statuses(self.core.table.statuses()),
        )
        self._resource_manager.send(
            resource_manager_pb2.TaskExecutorToResourceManager(register=registration)
        )

    def _from_resource_manager(
        self, message: resource_manager_pb2.ResourceManagerToTaskExecutor
    ) -> None:
        match message.WhichOneof("message"):
            case "registered":
                self._registered, self._epoch = True, message.registered.resource_manager_epoch
            case "shutdown":
                self.stop(message.shutdown.cause)
        if (event := convert.from_resource_manager(message)) is not None:
            self.post(event)

    def _unregistered(self) -> None:
        self._registered = False

    # ---- commands

    def _execute(self, command: commands.Command) -> None:
        match command:
            case commands.AnswerSlotRequest() | commands.ReportSlots():
                if self._registered:
                    message = convert.to_resource_manager(command)
                    message.resource_manager_epoch = self._epoch
                    self._resource_manager.send(message)
            case commands.ConnectJobMaster():
                self._connect_job_master(command)
            case commands.CloseJobMaster():
                if (link := self._job_masters.pop(command.job_id, None)) is not None:
                    link.close()
            case (
                commands.SendHello()
                | commands.OfferSlots()
                | commands.ReportSlotLost()
                | commands.ReportTasks()
                | commands.ReportAnalysisFailed()
                | commands.RelayToJobMaster()
            ):
                self._tell_job_master(command)
            case commands.StartProcess():
                self._start_executor(command)
            case commands.LogStartProblem():
                pass
            case commands.KillProcess():
                if (executor := self.executors.get(command.executor_id)) is not None:
                    self.after(self.world.between(0.001, 0.02), executor.die)
            case commands.AssignProcess():
                self._serving[command.executor_id] = command.job_id
                self._to_executor(command.executor_id, convert.to_executor(command))
            case commands.CancelInProcess():
                self._to_executor(command.executor_id, convert.to_executor(command))
            case commands.CleanProcess():
                self._serving.pop(command.executor_id, None)
                self._to_executor(command.executor_id, convert.to_executor(command))
            case commands.RelayToProcess():
                assert isinstance(command.message, executor_pb2.TaskExecutorToExecutor)
                self._to_executor(command.executor_id, command.message)
            case commands.PrepareJobFiles():
                ready = events.JobFilesReady(
                    job_id=command.job_id, job_dir="dir", python_paths=(), single_use=False
                )
                failed = events.JobFilesFailed(
                    job_id=command.job_id, reason="the Dispatcher does not answer"
                )
                fails = self.cluster.faults_on and self.world.chance(0.1)
                self.after(
                    self.world.between(0.01, 0.5), lambda: self.post(failed if fails else ready)
                )
            case commands.RemoveJobFiles():
                pass

    def _connect_job_master(self, command: commands.ConnectJobMaster) -> None:
        if (former := self._job_masters.pop(command.job_id, None)) is not None:
            former.close()
        link = self._job_masters[command.job_id] = JobMasterLink(self, command)
        link.start()

    def _tell_job_master(self, command: commands.ToJobMaster) -> None:
        if (link := self._job_masters.get(command.job_id)) is not None:
            message = convert.to_job_master(
                command,
                epoch=link.epoch,
                task_executor_id=self.task_executor_id,
                address=self.address,
                host=self.name,
                now_ms=int(self.world.now * 1000),
            )
            link.send(message)

    # ---- processes in slots

    def _start_executor(self, command: commands.StartProcess) -> None:
        executor = ExecutorProcess(self, command.executor_id, command.slot_index)
        self.executors[command.executor_id] = executor
        executor.on_exit.append(lambda code: self._executor_died(command.executor_id, code))
        self._hear_heartbeats(executor)

    def _hear_heartbeats(self, executor: ExecutorProcess) -> None:
        if executor.alive:
            self.post(events.ProcessHeartbeat(executor_id=executor.executor_id))
            self.after(HEARTBEAT_INTERVAL_S, lambda: self._hear_heartbeats(executor))

    def _executor_died(self, executor_id: ExecutorId, code: int) -> None:
        if self.alive:
            del self.executors[executor_id]
            self._serving.pop(executor_id, None)
            self.post(events.ProcessDied(executor_id=executor_id, cause=f"exit code {code}"))

    def _to_executor(
        self, executor_id: ExecutorId, message: executor_pb2.TaskExecutorToExecutor
    ) -> None:
        if (executor := self.executors.get(executor_id)) is not None and executor.alive:
            executor.hear(message)

    def from_executor(
        self, executor_id: ExecutorId, message: executor_pb2.ExecutorToTaskExecutor
    ) -> None:
        event = convert.from_executor(executor_id, self._serving.get(executor_id), message)
        if event is not None:
            self.post(event)

    # ---- its end

    def stop(self, cause: str) -> None:
        """In order: masters are told, then all processes are killed, then the streams are closed."""
        if self.stopping or not self.alive:
            return
        self.stopping = True
        self.post(events.StopRequested(cause=cause))

        def leave() -> None:
            for link in (self._resource_manager, *self._job_masters.values()):
                link.close(in_order=True)
            self.after(0.3, lambda: self.die(0))

        self.after(self.world.between(0.05, 0.5), leave)

    def on_death(self, silently: bool) -> None:
        for executor in list(self.executors.values()):
            executor.die(silently=silently)


class JobMasterLink(Link):
    """taskexecutor.streams.JobMasterStream"""

    def __init__(
        self, task_executor: TaskExecutorProcess, command: commands.ConnectJobMaster
    ) -> None:
        self.job_id = command.job_id
        self.epoch = command.epoch
        self._post = task_executor.post
        self._over = False
        self._is_connected = False
        super().__init__(
            task_executor,
            command.address,
            "task-executor to job-master",
            on_up=self._connected,
            on_message=self._hear,
            on_down=lambda for_s: self._broken(),
            beat=self._heartbeat,
        )

    def _connected(self) -> None:
        self._is_connected = True
        self._post(events.JobMasterConnected(job_id=self.job_id))

    def _hear(self, message: job_master_pb2.JobMasterToTaskExecutor) -> None:
        self._over = self._over or message.WhichOneof("message") == "goodbye"
        if (event := convert.from_job_master(message, _NO_CONFIGURATION)) is not None:
            self._post(event)

    def _broken(self) -> None:
        if self._over:
            self.wanted = False
        elif self._is_connected:
            self._is_connected = False
            self._post(events.JobMasterDisconnected(job_id=self.job_id, cause="broken"))

    def _heartbeat(self) -> None:
        beat = job_master_pb2.TaskExecutorToJobMaster(
            job_id=self.job_id, job_master_epoch=self.epoch, heartbeat=common_pb2.Heartbeat()
        )
        self.send(beat)
