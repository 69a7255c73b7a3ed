"""RunningJob: the shell around one JobMasterCore. It carries out the core's commands and posts
their results as events.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, assert_never

import structlog

from firesteel._proto import (
    common_pb2,
    dispatcher_pb2,
    job_graph_pb2,
    job_master_pb2,
    resource_manager_pb2,
    resource_manager_pb2_grpc,
    tasks_pb2,
)
from firesteel.common.driver import Driver
from firesteel.common.ids import AttemptId, IdSource, TaskExecutorId
from firesteel.common.metrics import Sample
from firesteel.common.platform import Platform
from firesteel.common.rpc.convert import job_graph_from_proto
from firesteel.common.rpc.link import Link
from jobmaster import convert, job_metrics
from jobmaster.collected_rows import CollectedRows
from jobmaster.core import commands, events
from jobmaster.core.core import JobMasterCore
from jobmaster.core.settings import JobSettings
from jobmaster.details import job_details, number
from jobmaster.paths import PathLister, PathProblem
from jobmaster.servicer import Sessions, metrics_in

log = structlog.get_logger(__name__)

_PROGRESS_INTERVAL_S = 0.05  # task states that change together are reported together
# Details of a large job are costly: they are reused for this many times the time it took to build
# them. Those of a job with fewer tasks are never older than the last change.
_DETAILS_REUSE_FACTOR = 5
_LARGE_TASKS = 500

_ResourceManagerLink = Link[
    resource_manager_pb2.JobMasterToResourceManager, resource_manager_pb2.ResourceManagerToJobMaster
]


class RunningJob:
    def __init__(
        self,
        start: dispatcher_pb2.StartJob,
        settings: JobSettings,
        *,
        sessions: Sessions,
        address: str,
        report: Callable[[dispatcher_pb2.JobStatusChanged], None],
        exit_process: Callable[[], None],
        platform: Platform,
        ids: IdSource,
        list_paths: PathLister,
    ) -> None:
        """`report` sends a status to the Dispatcher; `exit_process` is called when there is nothing
        left to do.
        """
        self.job_graph: job_graph_pb2.JobGraph = start.job_graph
        self.job_id: str = start.job_graph.job_id
        self.epoch: int = start.epoch
        self._settings = settings
        self._clock = platform.clock
        self._list_paths = list_paths
        self._sessions = sessions
        self._address = address
        self._report = report
        self._exit_process = exit_process
        self.log = log.bind(job_id=self.job_id)
        graph = job_graph_from_proto(self.job_graph)
        self.core = JobMasterCore(
            graph,
            settings,
            ids=ids,
            now=platform.clock.monotonic(),
            now_ms=int(platform.clock.time() * 1000),
        )
        self.driver: Driver[events.Event, Any, commands.Command] = Driver(
            self.core,
            execute=self.execute,
            clock=platform.clock.monotonic,
            name=f"job {self.job_id}",
        )
        self._deployments = convert.Deployments(
            self.job_graph,
            graph.edges,
            self.epoch,
            dispatcher_address=start.dispatcher_address,
        )
        self._metrics: dict[AttemptId, common_pb2.TaskMetrics] = {}
        # As built, of which version of the graph, and until when they will do.
        self._details: tuple[job_master_pb2.JobDetails, int, float] | None = None
        self._progress: asyncio.TimerHandle | None = None
        self._dispatcher_address = start.dispatcher_address
        self._collected = CollectedRows(
            platform.transport,
            start.dispatcher_address,
            job_id=self.job_id,
            epoch=self.epoch,
            sinks=[
                operator.operator_id
                for vertex in graph.vertices
                for operator in vertex.operators
                if operator.coordinator_kind == "collect"
            ],
        )
        self._resource_manager_epoch = 0
        self.resource_manager: _ResourceManagerLink = Link(
            name="ResourceManager",
            address=start.resource_manager_address,
            open_stream=lambda channel, sent: resource_manager_pb2_grpc.ResourceManagerStub(
                channel
            ).ConnectJobMaster(sent),  # type: ignore[no-untyped-call]
            heartbeat=lambda: self._to_resource_manager(heartbeat=common_pb2.Heartbeat()),
            on_up=self._register,
            on_message=self._from_resource_manager,
            on_down=lambda cause, for_s: None,  # tasks run on without it
            heartbeat_interval_s=settings.heartbeat_interval_s,
            heartbeat_timeout_s=settings.heartbeat_timeout_s,
            channel=platform.transport.channel,
        )

    async def run(self) -> None:
        """Until cancelled. Raises what the core raises: a bug, which ends the process."""
        self.log.info(
            "job starts",
            job_name=self.job_graph.name,
            epoch=self.epoch,
            vertices=len(self.job_graph.vertices),
        )
        self.post(events.JobStarted())
        await asyncio.gather(
            self.driver.run(),
            self.resource_manager.run(),
            self._collected.run(),
            self._heartbeats(),
        )

    # ---- what the service needs

    def post(self, event: events.Event) -> None:
        self.driver.post(event)

    def keep_metrics(self, message: job_master_pb2.TaskExecutorToJobMaster) -> None:
        for metrics in metrics_in(message):
            self._metrics[AttemptId(metrics.attempt_id)] = metrics

    def details(self) -> job_master_pb2.JobDetails:
        now = self._clock.monotonic()
        graph = self.core.graph
        if self._details is not None and not graph.status.terminal:
            details, version, good_until = self._details
            if good_until > now and (
                version == graph.version or len(graph.attempts) > _LARGE_TASKS
            ):
                return details
        built = job_details(self.core, self._metrics, now)
        took_s = self._clock.monotonic() - now
        self._details = (built, graph.version, now + took_s * (1 + _DETAILS_REUSE_FACTOR))
        return built

    def samples(self) -> list[Sample]:
        return job_metrics.samples(self.core, socket.gethostname(), self._clock.time() * 1000)

    # ---- commands

    def execute(self, command: commands.Command) -> None:
        match command:
            case commands.SendOperatorMessage():
                self._send(
                    command.task_executor_id,
                    operator_event=convert.operator_event(self.job_id, command),
                )
            case commands.SpoolChunk():
                self._collected.append(
                    command.operator_id,
                    command.ipc_stream,
                    lambda problem: self._spooled(command, problem),
                )
            case commands.BeginResults():
                self._collected.begin(command.restart)
            case commands.DeployTasks():
                self._send(command.task_executor_id, submit=self._deployments.submit(command))
            case commands.CancelTasks():
                cancel = tasks_pb2.CancelTasks(
                    job_id=self.job_id, job_master_epoch=self.epoch, attempt_ids=command.attempt_ids
                )
                self._send(command.task_executor_id, cancel=cancel)
            case commands.AnswerSlots():
                answer = job_master_pb2.SlotsAnswer(
                    accepted=command.accepted, rejected=command.rejected
                )
                self._send(command.task_executor_id, slots_answer=answer)
            case commands.FreeSlots():
                free = job_master_pb2.FreeSlots(
                    allocation_ids=command.allocation_ids, cause=command.cause
                )
                self._send(command.task_executor_id, free_slots=free)
            case commands.AnalyzeJob():
                analyze = tasks_pb2.Analyze(
                    job_id=self.job_id,
                    job_master_epoch=self.epoch,
                    allocation_id=command.allocation_id,
                    job_graph=self.job_graph,
                    dispatcher_address=self._dispatcher_address,
                )
                self._send(command.task_executor_id, analyze=analyze)
            case commands.DismissTaskExecutor():
                goodbye = self._to_task_executor(
                    goodbye=job_master_pb2.Goodbye(cause=command.cause)
                )
                self._sessions.dismiss(command.task_executor_id, goodbye)
            case commands.DeclareRequirements():
                declare = convert.declaration(command, convert.environment(self.job_graph.config))
                self.resource_manager.send(self._to_resource_manager(declare=declare))
            case commands.ListPaths():
                asyncio.get_running_loop().run_in_executor(
                    None, self._list_paths, command.paths, command.watched
                ).add_done_callback(lambda listed: self._paths_listed(command, listed))
            case commands.ReportStatus():
                self._report_status()
            case commands.ReportProgress():
                if self._progress is None:
                    self._progress = asyncio.get_running_loop().call_later(
                        _PROGRESS_INTERVAL_S, self._report_status
                    )
            case commands.Log():
                getattr(self.log, command.level)(command.text, **command.fields)
            case commands.Exit():
                self._exit_process()
            case _:
                assert_never(command)

    def _send(self, task_executor_id: TaskExecutorId, **message: Any) -> None:
        self._sessions.send(task_executor_id, self._to_task_executor(**message))

    def _to_task_executor(self, **message: Any) -> job_master_pb2.JobMasterToTaskExecutor:
        return job_master_pb2.JobMasterToTaskExecutor(
            job_id=self.job_id, job_master_epoch=self.epoch, **message
        )

    def _paths_listed(self, command: commands.ListPaths, listed: asyncio.Future[list[str]]) -> None:
        try:
            self.post(
                events.PathsListed(operator_id=command.operator_id, files=tuple(listed.result()))
            )
        except (PathProblem, OSError) as error:
            self.post(events.PathsMissing(operator_id=command.operator_id, problem=str(error)))

    def _spooled(self, command: commands.SpoolChunk, problem: str) -> None:
        chunk: dict[str, Any] = {
            "operator_id": command.operator_id,
            "attempt_id": command.attempt_id,
            "sequence": command.sequence,
        }
        if problem:
            self.post(events.ChunkNotSpooled(**chunk, problem=problem))
        else:
            self.post(events.ChunkSpooled(**chunk))

    # ---- the Dispatcher

    def status_message(self) -> dispatcher_pb2.JobStatusChanged:
        graph = self.core.graph
        status, timestamp_ms = graph.timestamps[-1]
        return dispatcher_pb2.JobStatusChanged(
            job_id=self.job_id,
            epoch=self.epoch,
            status=number(status),
            timestamp_ms=timestamp_ms,
            tasks_by_state=graph.tasks_by_state(),
            final_details=self.details() if status.terminal else None,
        )

    def _report_status(self) -> None:
        if self._progress is not None:
            self._progress.cancel()
            self._progress = None
        self._report(self.status_message())

    # ---- the ResourceManager

    def _to_resource_manager(
        self, **message: Any
    ) -> resource_manager_pb2.JobMasterToResourceManager:
        return resource_manager_pb2.JobMasterToResourceManager(
            job_id=self.job_id, job_master_epoch=self.epoch, **message
        )

    def _register(self) -> None:
        """Registers and, without waiting for the answer, declares: both are on the way in one go."""
        registration = resource_manager_pb2.JobMasterRegistration(
            job_id=self.job_id,
            job_master_epoch=self.epoch,
            address=self._address,
            job_name=self.job_graph.name,
        )
        self.resource_manager.send(self._to_resource_manager(register=registration))
        self.post(events.ResourceManagerConnected())

    def _from_resource_manager(
        self, message: resource_manager_pb2.ResourceManagerToJobMaster
    ) -> None:
        if message.resource_manager_epoch < self._resource_manager_epoch:
            self.core.job.stale_messages += 1
            return
        self._resource_manager_epoch = message.resource_manager_epoch
        match message.WhichOneof("message"):
            case "not_enough":
                short = message.not_enough
                self.post(
                    events.ResourcesShort(
                        sequence=short.sequence,
                        missing=short.missing,
                        growing=short.growing,
                        explanation=short.explanation,
                    )
                )
            case "task_executor_lost":
                lost = message.task_executor_lost
                self.post(
                    events.TaskExecutorLost(
                        task_executor_id=TaskExecutorId(lost.task_executor_id), cause=lost.cause
                    )
                )
            case _:
                pass  # registered, heartbeat: that it came is all that matters

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_interval_s)
            for task_executor_id in list(self._sessions.by_id):
                self._send(task_executor_id, heartbeat=common_pb2.Heartbeat())
