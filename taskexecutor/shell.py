"""Executes the core's commands: sends messages to masters, manages the slots' processes and the
jobs' files. Posts the results to the core as events.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import assert_never

import grpc

from firesteel._proto import (
    common_pb2,
    executor_pb2,
    inspections_pb2,
    job_logs_pb2,
    process_info_pb2,
    resource_manager_pb2,
)
from firesteel.common.config import Configuration, options
from firesteel.common.ids import ExecutorId, IdSource, JobId, TaskExecutorId
from firesteel.common.job_log.reader import LogFile
from firesteel.common.leader import Leaders, Office
from firesteel.common.logs import get_logger
from firesteel.common.metrics import Registry, Sample
from firesteel.common.process.log_files import slot_logs
from firesteel.common.rpc import job_logs, process_info, threads
from firesteel.common.rpc.convert import JOB_KEYS, SLOT_STATUS
from firesteel.common.security.job_keys import WINDOW_S
from firesteel.common.service.core_loop import CoreLoop
from firesteel.common.service.platform import Platform
from firesteel.high_availability import leaders_of
from taskexecutor import convert
from taskexecutor.core import commands, events
from taskexecutor.core.core import TaskExecutorCore
from taskexecutor.core.settings import Settings
from taskexecutor.executor_process import ExecutorProcesses
from taskexecutor.job_files import JobFiles
from taskexecutor.machine import INTERVAL_S, machine_usage, slot_usage
from taskexecutor.memory import SlotMemory, slot_memory
from taskexecutor.results import Results
from taskexecutor.servicer import ExecutorLinkServicer
from taskexecutor.slot_threads import SlotThreads
from taskexecutor.streams import JobMasterStream, ResourceManagerStream

log = get_logger(__name__)

FLUSH_S = 1.0  # time to deliver the last messages to the masters


# Without a ResourceManager for this long, nothing moves the tasks of a TaskExecutor that is to end.
UNKNOWN_S = 5.0


class TaskExecutor:
    """The TaskExecutor process. The constructor only connects the parts; `start` starts serving,
    until `ended` holds a cause and `stop` is called.

    `resource_manager_address` is set unless the ResourceManager is elected. `directory` holds logs,
    blobs and files of jobs. `metrics` are served at `metrics_address`. `leaders` finds the masters;
    None uses the configured ones. `results` stores BLOCKING results; if None, no job may have any.
    `log_path` is the log of this process.
    """

    def __init__(
        self,
        conf: Configuration,
        settings: Settings,
        *,
        resource_manager_address: str,
        worker_id: str,
        host: str,
        directory: Path,
        metrics: Registry,
        metrics_address: str,
        platform: Platform,
        ids: IdSource | None = None,
        leaders: Leaders | None = None,
        results: Results | None = None,
        log_path: Path | None = None,
    ) -> None:
        self.address = ""  # known once started
        self.metrics_address = metrics_address
        # holds the cause
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.core = TaskExecutorCore(settings, ids or IdSource())
        self._conf = conf
        self._directory = directory
        self._results = results
        self._log_path = log_path
        self._settings = settings
        self._worker_id = worker_id
        self._host = host
        self._metrics = metrics
        self._platform = platform
        self._core_loop: CoreLoop[events.Event, object, commands.Command] = CoreLoop(
            self.core,
            execute=self._execute,
            clock=platform.clock.monotonic,
            name="taskexecutor",
        )
        self._running: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._server: grpc.aio.Server | None = None
        self._processes = ExecutorProcesses(
            conf,
            directory=directory,
            host=host,
            task_executor_id=settings.task_executor_id,
            post=self._core_loop.post,
            platform=platform,
        )
        self._links = ExecutorLinkServicer(
            directory,
            expected=self._processes.knows,
            received=self._from_executor,
            broken=self._link_broken,
            platform=platform,
        )
        self._slot_threads = SlotThreads(self._links.send)
        self._leaders = leaders or leaders_of(conf)
        self._files = JobFiles(
            directory,
            leaders=self._leaders,
            python=conf.get(options.PYTHON_EXECUTABLE),
            post=self._core_loop.post,
            platform=platform,
        )
        self._resource_manager = ResourceManagerStream(
            self._leaders.of(Office.RESOURCE_MANAGER, resource_manager_address),
            registration=self._registration,
            post=self._core_loop.post,
            on_shutdown=self.request_end,
            heartbeat_interval_s=conf.get(options.HEARTBEAT_INTERVAL),
            heartbeat_timeout_s=settings.heartbeat_timeout_s,
            platform=platform,
        )
        self._job_masters: dict[JobId, JobMasterStream] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._reporting: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._serving: dict[ExecutorId, JobId] = {}
        self._samples: dict[ExecutorId, Sequence[Sample]] = {}
        self._labels = {"host": host, "tm_id": settings.task_executor_id}

    @property
    def task_executor_id(self) -> TaskExecutorId:
        return self._settings.task_executor_id

    async def start(self) -> None:
        """Starts serving, starts the slots' processes and registers. The processes become ready
        later.
        """
        transport = self._platform.transport
        self._server = transport.server(
            [
                job_logs_pb2.DESCRIPTOR.services_by_name["JobLogs"],
                process_info_pb2.DESCRIPTOR.services_by_name["ProcessInfo"],
                inspections_pb2.DESCRIPTOR.services_by_name["Threads"],
            ]
        )
        threads.add_to_server(
            self._server,
            threads.ThreadsServicer(
                f"TaskExecutor {self.task_executor_id}",
                lambda: self._slot_threads.dump(self._links.connected),
            ),
        )
        job_logs.add_to_server(self._server, self._logs)
        info = process_info.ProcessInfo(
            self._conf,
            self._metrics,
            self._logs,
            allocated_slots=lambda: convert.allocated_slots(self.core.table),
        )
        process_info.add_to_server(self._server, info)
        self.address = transport.bind(self._server, self._host, self._conf.get(options.TM_RPC_PORT))
        await self._server.start()
        self._metrics.add_source(self._slot_samples)
        self._files.start()
        if self._results is not None:
            self._results.prepare()
        self._processes.start(
            link_address=await self._links.start(),
            results_memory=None if self._results is None else self._results.memory,
        )
        self._running = asyncio.create_task(self._core_loop.run(), name="taskexecutor")
        self._running.add_done_callback(self._core_ended)
        if self._platform.security is not None:
            self._renewing = asyncio.create_task(self._keep_job_keys_valid(), name="job-keys")
        if self._conf.get(options.MEMORY_WATCH_INTERVAL) > 0:
            self._reporting = asyncio.create_task(self._report_usage(), name="usage")
        self._core_loop.post(events.ReportDue())  # the first event starts every slot's process
        if self._results is not None:
            await self._results.serve(self._host)  # imports Arrow while processes start
        await self._leaders.start()
        self._resource_manager.link.start()

    def request_end(self, cause: str) -> None:
        if not self.ended.done():
            self.ended.set_result(cause)

    def terminate(self, cause: str) -> None:
        """Ends when the ResourceManager has moved the tasks away, because it knows from the driver
        that this process is to end; or when the time for that is over.
        """
        patience_s = self._conf.get(options.TM_DRAIN_TIMEOUT)
        if patience_s > 0 and self._draining is None:
            log.info("waiting until tasks have moved", cause=cause, within_s=patience_s)
            self._draining = asyncio.create_task(self._end_undrained(cause, patience_s))
        else:
            self.request_end(cause)

    async def _end_undrained(self, cause: str, patience_s: float) -> None:
        clock = self._platform.clock.monotonic
        now = clock()
        deadline, known_at = now + patience_s, now
        while now < min(deadline, known_at + UNKNOWN_S):
            await asyncio.sleep(0.5)
            now = clock()
            known_at = now if self._resource_manager.registered else known_at
        why = (
            "its tasks have not moved in time" if now >= deadline else "no ResourceManager answers"
        )
        self.request_end(f"{cause}; {why}")

    async def stop(self, cause: str) -> None:
        """Reports the slots as lost, kills their processes and removes all temporary files."""
        log.info("stopping", cause=cause)
        self._core_loop.post(events.StopRequested(cause=cause))
        await asyncio.sleep(0)  # let the core handle it before its processes end
        for task in filter(None, (self._reporting, self._draining)):
            task.cancel()
        await self._processes.stop()
        await asyncio.gather(
            self._resource_manager.link.close(FLUSH_S),
            *(stream.link.close(FLUSH_S) for stream in self._job_masters.values()),
        )
        await self._leaders.close()
        self._core_loop.stop()
        if self._renewing is not None:
            self._renewing.cancel()
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._running
        await self._links.stop()
        if self._results is not None:
            await self._results.stop()
        if self._server is not None:
            await self._server.stop(0)

    def _core_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the core failed", exc_info=error)
            self.request_end(f"internal error: {error}")

    # -- commands

    def _execute(self, command: commands.Command) -> None:
        match command:
            case (
                commands.AcceptSlotRequest() | commands.RejectSlotRequest() | commands.ReportSlots()
            ):
                self._resource_manager.send_command(command)
            case commands.ConnectJobMaster():
                self._connect_job_master(command)
            case commands.CloseJobMaster():
                if (stream := self._job_masters.pop(command.job_id, None)) is not None:
                    self._close(stream)
                if self._platform.security is not None:
                    self._platform.security.job_epochs.pop(command.job_id, None)
            case (
                commands.SendHello()
                | commands.OfferSlots()
                | commands.ReportSlotLost()
                | commands.ReportTasks()
                | commands.ReportAnalysisFailed()
                | commands.RelayToJobMaster()
            ):
                self._send_to_job_master(command)
            case commands.StartProcess():
                self._processes.run(command)
            case commands.LogStartProblem():
                log.warning(
                    "a slot's process cannot start",
                    slot=command.slot_index,
                    problem=command.problem,
                    retry_in_s=command.retry_in_s,
                )
            case commands.KillProcess():
                self._processes.kill(command.executor_id, command.reason)
            case commands.AssignProcess():
                self._serving[command.executor_id] = command.job_id
                self._links.send(command.executor_id, convert.TO_EXECUTOR.encode(command))
                self._send_job_keys(command.executor_id, command.job_id)
            case commands.CancelInProcess():
                self._links.send(command.executor_id, convert.TO_EXECUTOR.encode(command))
            case commands.CleanProcess():
                self._serving.pop(command.executor_id, None)
                self._links.send(command.executor_id, convert.TO_EXECUTOR.encode(command))
            case commands.RelayToProcess():
                assert isinstance(command.message, executor_pb2.TaskExecutorToExecutor)
                self._links.send(command.executor_id, command.message)
            case commands.PrepareJobFiles():
                self._files.prepare(command)
            case commands.RemoveJobFiles():
                self._files.remove(command.job_id)
            case (
                commands.TakePartitionsOver()
                | commands.DeletePartitions()
                | commands.DeleteResults()
            ):
                self._keep_results(command)
            case _:
                assert_never(command)

    def _keep_results(
        self,
        command: commands.TakePartitionsOver | commands.DeletePartitions | commands.DeleteResults,
    ) -> None:
        assert self._results is not None, (
            "a slot produced BLOCKING results, but this TaskExecutor has no result store"
        )
        match command:
            case commands.TakePartitionsOver():
                self._results.take_over(command.job_id, command.partitions)
            case commands.DeletePartitions():
                self._results.delete(command.job_id, command.partitions)
            case commands.DeleteResults():
                self._results.delete_job(command.job_id)

    def _connect_job_master(self, command: commands.ConnectJobMaster) -> None:
        if (former := self._job_masters.pop(command.job_id, None)) is not None:
            self._close(former)
        stream = JobMasterStream(
            command.job_id,
            command.address,
            command.epoch,
            conf=self._conf,
            post=self._core_loop.post,
            heartbeat_interval_s=self._conf.get(options.HEARTBEAT_INTERVAL),
            heartbeat_timeout_s=self._settings.heartbeat_timeout_s,
            platform=self._platform,
        )
        self._job_masters[command.job_id] = stream
        if self._platform.security is not None:
            self._platform.security.job_epochs[command.job_id] = command.epoch
            self._renew_job_keys(command.job_id)
        stream.link.start()

    def _renew_job_keys(self, job_id: JobId | None = None) -> None:
        """Sends current keys to the slots of the job, or of all jobs."""
        for executor_id, served in self._serving.items():
            if job_id in (None, served):
                self._send_job_keys(executor_id, served)

    def _send_job_keys(self, executor_id: ExecutorId, job_id: JobId) -> None:
        security = self._platform.security
        if security is not None and job_id in security.job_epochs:
            keys = JOB_KEYS.encode(security.job_keys(job_id))
            self._links.send(executor_id, executor_pb2.TaskExecutorToExecutor(job_keys=keys))

    async def _keep_job_keys_valid(self) -> None:
        while True:
            await asyncio.sleep(WINDOW_S / 4)
            self._renew_job_keys()

    def _close(self, stream: JobMasterStream) -> None:
        closing = asyncio.create_task(stream.link.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _send_to_job_master(self, command: commands.ToJobMaster) -> None:
        if (stream := self._job_masters.get(command.job_id)) is not None:
            message = convert.to_job_master(
                command,
                epoch=stream.epoch,
                task_executor_id=self.task_executor_id,
                address=self.address,
                data_address="" if self._results is None else self._results.address,
                host=self._host,
                now_ms=int(self._platform.clock.time() * 1000),
            )
            stream.link.send(message)

    # -- messages from processes

    def _from_executor(
        self, executor_id: ExecutorId, message: executor_pb2.ExecutorToTaskExecutor
    ) -> None:
        kind = message.WhichOneof("message")
        if kind == "metrics":
            self._samples[executor_id] = self._labelled(message.metrics.samples)
        elif kind == "threads":
            self._slot_threads.answered(executor_id, message.threads)
        elif kind == "ready":
            log.info(
                "a slot's process is ready",
                executor_id=executor_id,
                pid=message.ready.pid,
                jvm_pid=message.ready.jvm_pid,
            )
        event = convert.from_executor(executor_id, self._serving.get(executor_id), message)
        if event is not None:
            self._core_loop.post(event)

    def _link_broken(self, executor_id: ExecutorId) -> None:
        self._samples.pop(executor_id, None)
        self._serving.pop(executor_id, None)
        self._core_loop.post(events.ProcessLinkBroken(executor_id=executor_id))

    def memory_of_slots(self) -> dict[int, SlotMemory]:
        """Returns the memory of each slot with a process, by its index. May be called from any
        thread.
        """
        table = self.core.table
        return {
            slot.index: slot_memory(
                limit=table.limit(slot).total_bytes,
                resident=measured.memory if measured else None,
                reported=self._samples.get(process.executor_id, ()),
            )
            for slot in table.slots
            if (process := slot.process) is not None
            for measured in (self._processes.measured(process.executor_id),)
        }

    async def _report_usage(self) -> None:
        """Reports to the ResourceManager what the machine and the slots use."""
        directories = [self._directory, Path(self._conf.get(options.ROCKSDB_LOCALDIR) or "/tmp")]
        while True:
            await asyncio.sleep(INTERVAL_S)
            memory, slots = self.memory_of_slots(), []
            for slot in self.core.table.slots:
                if (process := slot.process) is not None and slot.index in memory:
                    measured = self._processes.measured(process.executor_id)
                    job_id = slot.allocation.job_id if slot.allocation else None
                    slots.append(
                        slot_usage(
                            slot.index, process.executor_id, job_id, memory[slot.index], measured
                        )
                    )
            try:
                usage = await asyncio.to_thread(
                    machine_usage,
                    self.task_executor_id,
                    directories,
                    slots,
                    self._processes.memory_peak_bytes,
                )
                self._resource_manager.send_usage(usage)
            except Exception:
                log.exception("the machine could not be measured")

    # -- messages to masters and Prometheus

    def _registration(self) -> resource_manager_pb2.TaskExecutorRegistration:
        return convert.REGISTRATION.encode(
            self._settings,
            address=self.address,
            host=self._host,
            pid=self._platform.processes.pid,
            worker_id=self._worker_id or None,
            slots=map(SLOT_STATUS.encode, self.core.table.statuses()),
        )

    def _logs(self) -> dict[Path, LogFile]:
        """Returns the logs of the TaskExecutor and of its slots."""
        own = LogFile(task_executor_id=self.task_executor_id, own=True)
        slots = dict.fromkeys(
            slot_logs(self._directory), LogFile(task_executor_id=self.task_executor_id)
        )
        return ({self._log_path: own} if self._log_path else {}) | slots

    def _slot_samples(self) -> Iterator[Sample]:
        """Runs in the scraping thread. The lists are replaced as a whole, never mutated."""
        stored = self.core.table.stored
        yield Sample("flink_taskmanager_storedPartitions", self._labels, stored.partitions)
        yield Sample("flink_taskmanager_storedBytes", self._labels, stored.size_bytes)
        yield from self.core.table.refusals.samples("flink_taskmanager_", self._labels)
        for index, memory in self.memory_of_slots().items():
            yield from memory.samples({**self._labels, "slot": str(index)})
        for samples in list(self._samples.values()):
            yield from samples

    def _labelled(self, reported: Iterable[common_pb2.MetricSample]) -> list[Sample]:
        """Adds the TaskExecutor's labels. Samples with equal labels share them."""
        shared: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        samples = []
        for sample in reported:
            own = tuple(sample.labels.items())
            if (labels := shared.get(own)) is None:
                labels = shared[own] = {**self._labels, **dict(own)}
            samples.append(Sample(sample.name, labels, sample.value))
        return samples
