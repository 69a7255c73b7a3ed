"""The TaskExecutor's shell: turns the slot table's commands into messages and processes, and what
comes back into events.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import assert_never

import structlog

from firesteel._proto import executor_pb2, resource_manager_pb2
from firesteel.common.config import Configuration, options
from firesteel.common.driver import Driver
from firesteel.common.ids import ExecutorId, IdSource, JobId, TaskExecutorId
from firesteel.common.metrics import Registry, Sample, add_process_metrics
from firesteel.common.resources import ResourceProfile
from firesteel.common.rpc.convert import profile_to_proto
from firesteel.common.rpc.server import bind, new_server
from taskexecutor import convert
from taskexecutor.core import commands, events
from taskexecutor.core.core import TaskExecutorCore
from taskexecutor.core.settings import Settings
from taskexecutor.executor_process import ExecutorProcesses
from taskexecutor.job_files import JobFiles
from taskexecutor.link_server import LinkServer
from taskexecutor.streams import JobMasterStream, ResourceManagerStream

log = structlog.get_logger(__name__)

FLUSH_S = 1.0  # what the masters are told at the end gets this long to reach them


class TaskExecutor:
    def __init__(
        self,
        conf: Configuration,
        *,
        task_executor_id: TaskExecutorId,
        resource_manager_address: str,
        worker_id: str,
        host: str,
        directory: Path,
        slots: int,
        total: ResourceProfile,
        default_slot: ResourceProfile,
    ) -> None:
        self.task_executor_id = task_executor_id
        self.address = ""
        self.metrics_address = ""
        self._conf = conf
        self._host = host
        self._worker_id = worker_id
        self._total = total
        self._default_slot = default_slot
        self._heartbeat_interval_s = conf.get(options.HEARTBEAT_INTERVAL)
        self._heartbeat_timeout_s = conf.get(options.HEARTBEAT_TIMEOUT)
        cores = len(os.sched_getaffinity(0))
        settings = Settings(
            task_executor_id=task_executor_id,
            slots=slots,
            total=total,
            default_slot=default_slot,
            cancellation_timeout_s=conf.get(options.CANCELLATION_TIMEOUT),
            heartbeat_timeout_s=self._heartbeat_timeout_s,
            reconnect_grace_s=min(
                max(3.0, 2 * self._heartbeat_interval_s), self._heartbeat_timeout_s
            ),
            max_starting=max(2, cores),
            max_warming=max(1, cores // 2),
        )
        self.core = TaskExecutorCore(settings, IdSource())
        self._driver: Driver[events.Event, object, commands.Command] = Driver(
            self.core, execute=self._execute, name="slot-table"
        )
        self._directory = directory
        self._link = LinkServer(
            directory,
            expected=self._expected,
            received=self._from_executor,
            broken=self._link_broken,
        )
        self._processes: ExecutorProcesses | None = None
        self._files = JobFiles(
            directory, python=conf.get(options.PYTHON_EXECUTABLE), post=self._driver.post
        )
        self._job_masters: dict[JobId, JobMasterStream] = {}
        self._serving: dict[ExecutorId, JobId] = {}
        self._samples: dict[ExecutorId, Sequence[Sample]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.ended: asyncio.Future[str] = (
            asyncio.get_running_loop().create_future()
        )  # why this TaskExecutor shall end
        self._resource_manager = ResourceManagerStream(
            resource_manager_address,
            registration=self._registration,
            post=self._driver.post,
            on_shutdown=self.request_end,
            heartbeat_interval_s=self._heartbeat_interval_s,
            heartbeat_timeout_s=self._heartbeat_timeout_s,
        )
        self._server = new_server([])
        self._labels = {"host": host, "tm_id": task_executor_id}
        self.metrics = Registry.from_configuration(conf)

    async def start(self) -> None:
        """Serves, starts the slots' processes and registers. The processes become ready later."""
        self.address = bind(self._server, self._host, 0)
        await self._server.start()
        port = self.metrics.serve(self._host, self._conf.get(options.METRICS_PORT))
        self.metrics_address = f"{self._host}:{port}"
        add_process_metrics(self.metrics, scope="taskmanager", labels=self._labels)
        self.metrics.add_source(self._slot_samples)
        self._processes = ExecutorProcesses(
            self._conf,
            directory=self._directory,
            host=self._host,
            task_executor_id=self.task_executor_id,
            link_address=await self._link.start(),
            post=self._driver.post,
        )
        self._processes.watch_memory()
        self._running = asyncio.create_task(self._driver.run(), name="slot-table")
        self._running.add_done_callback(self._core_ended)
        self._driver.post(events.ReportDue())  # the first event: every slot gets its process
        self._resource_manager.link.start()

    def request_end(self, cause: str) -> None:
        if not self.ended.done():
            self.ended.set_result(cause)

    async def stop(self, cause: str) -> None:
        """Tells the masters, ends every slot's process, and leaves nothing behind."""
        log.info("stopping", cause=cause)
        self._driver.post(events.StopRequested(cause=cause))
        assert self._processes is not None
        await asyncio.sleep(0)  # the core handles it before its processes are taken away
        await self._processes.stop()
        streams = [self._resource_manager, *self._job_masters.values()]
        await asyncio.gather(*(stream.link.close(FLUSH_S) for stream in streams))
        self._driver.stop()
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._running
        await self._link.stop()
        await self._server.stop(0)
        self.metrics.close()

    def _core_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the slot table failed", exc_info=error)
            self.request_end(f"internal error: {error}")

    # -- commands

    def _execute(self, command: commands.Command) -> None:
        assert self._processes is not None
        match command:
            case commands.AnswerSlotRequest() | commands.ReportSlots():
                self._resource_manager.send_command(command)
            case commands.ConnectJobMaster():
                self._connect_job_master(command)
            case commands.CloseJobMaster():
                if (stream := self._job_masters.pop(command.job_id, None)) is not None:
                    self._close(stream)
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
                self._processes.start(command)
            case commands.KillProcess():
                self._processes.kill(command.executor_id, command.reason)
            case commands.AssignProcess():
                self._serving[command.executor_id] = command.job_id
                self._link.send(command.executor_id, convert.to_executor(command))
            case commands.CancelInProcess():
                self._link.send(command.executor_id, convert.to_executor(command))
            case commands.CleanProcess():
                self._serving.pop(command.executor_id, None)
                self._link.send(command.executor_id, convert.to_executor(command))
            case commands.RelayToProcess():
                assert isinstance(command.message, executor_pb2.TaskExecutorToExecutor)
                self._link.send(command.executor_id, command.message)
            case commands.PrepareJobFiles():
                self._files.prepare(command)
            case commands.RemoveJobFiles():
                self._files.remove(command.job_id)
            case _:
                assert_never(command)

    def _connect_job_master(self, command: commands.ConnectJobMaster) -> None:
        if (former := self._job_masters.pop(command.job_id, None)) is not None:
            self._close(former)
        stream = JobMasterStream(
            command.job_id,
            command.address,
            command.epoch,
            conf=self._conf,
            post=self._driver.post,
            heartbeat_interval_s=self._heartbeat_interval_s,
            heartbeat_timeout_s=self._heartbeat_timeout_s,
        )
        self._job_masters[command.job_id] = stream
        stream.link.start()

    def _close(self, stream: JobMasterStream) -> None:
        closing = asyncio.create_task(stream.link.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _tell_job_master(self, command: commands.ToJobMaster) -> None:
        if (stream := self._job_masters.get(command.job_id)) is not None:
            message = convert.to_job_master(
                command,
                epoch=stream.epoch,
                task_executor_id=self.task_executor_id,
                address=self.address,
                host=self._host,
            )
            stream.link.send(message)

    # -- what processes say

    def _expected(self, executor_id: ExecutorId) -> bool:
        return self._processes is not None and self._processes.knows(executor_id)

    def _from_executor(
        self, executor_id: ExecutorId, message: executor_pb2.ExecutorToTaskExecutor
    ) -> None:
        kind = message.WhichOneof("message")
        if kind == "metrics":
            self._samples[executor_id] = [
                (s.name, dict(s.labels), s.value) for s in message.metrics.samples
            ]
        elif kind == "ready":
            log.info(
                "a slot's process is ready",
                executor_id=executor_id,
                pid=message.ready.pid,
                jvm_pid=message.ready.jvm_pid,
            )
        event = convert.from_executor(executor_id, self._serving.get(executor_id), message)
        if event is not None:
            self._driver.post(event)

    def _link_broken(self, executor_id: ExecutorId) -> None:
        """Without its link a process is of no use; as a rule it has died, and this only makes sure."""
        self._samples.pop(executor_id, None)
        self._serving.pop(executor_id, None)
        if self._processes is not None and self._processes.started(
            executor_id
        ):  # else its log will say why it ended
            self._processes.kill(executor_id, "its link is broken")

    # -- what others are told

    def _registration(self) -> resource_manager_pb2.TaskExecutorRegistration:
        return resource_manager_pb2.TaskExecutorRegistration(
            task_executor_id=self.task_executor_id,
            address=self.address,
            host=self._host,
            pid=os.getpid(),
            worker_id=self._worker_id,
            total=profile_to_proto(self._total),
            default_slot=profile_to_proto(self._default_slot),
            slots=convert.slot_statuses(self.core.table.statuses()),
            metrics_address=self.metrics_address,
        )

    def _slot_samples(self) -> Iterator[Sample]:
        """From the scraping thread; lists are replaced whole, never changed."""
        for samples in list(self._samples.values()):
            for name, labels, value in samples:
                yield name, {**self._labels, **labels}, value
