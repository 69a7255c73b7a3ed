"""RunningJob: the shell around one JobMasterCore. It carries out the core's commands and posts
their results as events.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import NamedTuple, Never, assert_never

from firesteel._proto import (
    common_pb2,
    dispatcher_pb2,
    job_graph_pb2,
    job_master_pb2,
    resource_manager_pb2,
    tasks_pb2,
)
from firesteel.common.checkpoints.storage import CheckpointStorage
from firesteel.common.config import options
from firesteel.common.error_report import summary_of
from firesteel.common.ids import AttemptId, IdSource
from firesteel.common.inspections import TaskInspection
from firesteel.common.job_graph import JobGraph
from firesteel.common.leader import FixedLeaders, Leader, Leaders, Office
from firesteel.common.logs import get_logger
from firesteel.common.metrics import Sample
from firesteel.common.rpc.convert import ASSESSMENT, state_number
from firesteel.common.rpc.errors import MessageTooLarge
from firesteel.common.rpc.server import PORT_CLOSES_S
from firesteel.common.service.core_loop import CoreLoop
from firesteel.common.service.platform import Platform
from firesteel.common.states import ExecutionState
from firesteel.common.units import MIB
from firesteel.errors import ErrorInfo, FiresteelError
from jobmaster import convert, job_metrics
from jobmaster.autoscaling import Autoscaling
from jobmaster.checkpoint_details import checkpoint_details
from jobmaster.checkpoint_store import CheckpointStore
from jobmaster.collected_rows import CollectedRows
from jobmaster.core import commands, events
from jobmaster.core.checkpoints.recovery import Recovery
from jobmaster.core.core import JobMasterCore
from jobmaster.core.settings import JobSettings
from jobmaster.details import job_details
from jobmaster.paths import Listing, PathLister, PathProblem
from jobmaster.resource_manager import ResourceManagerLink
from jobmaster.series import STEP_MS, Attempt, JobSeries
from jobmaster.servicer import InvalidRescale, Sessions, metrics_in

log = get_logger(__name__)

_MAX_FOUND_BYTES = 16 * MIB  # compressed: several hundred thousand files
# Changed task states are reported together, less often in a large job.
_PROGRESS_INTERVAL_S = 0.05
_PROGRESS_TASK_S = 5e-5
# Details of a large job are expensive: they are reused for this multiple of the time it took to
# build them. Details of a job with fewer tasks are always current.
_DETAILS_REUSE_FACTOR = 5
_LARGE_TASKS = 500


class _BuiltDetails(NamedTuple):
    details: job_master_pb2.JobDetails
    version: int  # of the graph
    good_until: float


class RunningJob:
    def __init__(
        self,
        start: dispatcher_pb2.StartJob,
        graph: JobGraph,
        settings: JobSettings,
        recovery: Recovery,
        *,
        sessions: Sessions,
        address: str,
        report: Callable[[dispatcher_pb2.JobStatusChanged], None],
        exit_process: Callable[[], None],
        platform: Platform,
        ids: IdSource,
        list_paths: PathLister,
        leaders: Leaders | None = None,
    ) -> None:
        """`graph` is the JobGraph in `start`. `report` sends a status to the Dispatcher;
        `exit_process` is called when all work is done. Without `leaders`, they are at the addresses
        in `start`.
        """
        leaders = leaders or FixedLeaders()
        self._dispatcher = leaders.of(Office.DISPATCHER, start.dispatcher_address)
        self.job_graph: job_graph_pb2.JobGraph = start.job_graph
        self.job_id: str = start.job_graph.job_id
        self.epoch: int = start.epoch
        self._settings = settings
        self._clock = platform.clock
        self._transport = platform.transport
        self._clock = platform.clock
        self._probes: set[asyncio.Task[None]] = set()
        self._list_paths = list_paths
        self._sessions = sessions
        self._report = report
        self._exit_process = exit_process
        self.log = log.bind(job_id=self.job_id)
        self.core = JobMasterCore(
            graph,
            settings,
            ids=ids,
            now=platform.clock.monotonic(),
            now_ms=int(platform.clock.time() * 1000),
            recovery=recovery,
        )
        self.core_loop: CoreLoop[events.Event, Never, commands.Command] = CoreLoop(
            self.core,
            execute=self.execute,
            clock=platform.clock.monotonic,
            name=f"job {self.job_id}",
        )
        checkpoints = settings.checkpoints
        directory = checkpoints.directory if checkpoints is not None else ""
        self._messages = convert.TaskExecutorMessages(
            self.job_graph,
            graph.edges,
            self.epoch,
            dispatcher_address=start.dispatcher_address,
            checkpoint_directory=directory,
            unaligned_checkpoints=checkpoints is not None and checkpoints.unaligned,
            state_backend=settings.state_backend,
            inline_bytes=checkpoints.inline_bytes if checkpoints is not None else 0,
            recovers=checkpoints is not None or self.core.adoptable,
        )
        self._checkpoints = CheckpointStore(
            directory,
            graph.job_id,
            self.epoch,
            paths=recovery.paths,
            dispatcher=self._dispatcher,
            platform=platform,
            post=self.post,
        )
        self._ids = ids
        # Callers that wait for a checkpoint or a savepoint.
        self._requests: dict[str, asyncio.Future[commands.AnswerRequest]] = {}
        self._rescales: dict[str, asyncio.Future[commands.AnswerRescale]] = {}
        self._inspections: dict[str, asyncio.Future[commands.AnswerInspection]] = {}
        self._metrics: dict[AttemptId, common_pb2.TaskMetrics] = {}
        self.series = JobSeries()
        self._autoscaling: Autoscaling | None = None
        if settings.autoscaler is not None:
            self._autoscaling = Autoscaling(settings.autoscaler, self.core, ids, self.post)
        self._next_sample_at = 0.0
        self._cancels: bool = start.cancels
        # For the next JobMaster, and the version of the sources' listings that was last reported.
        self._handover = dispatcher_pb2.Handover.FromString(start.handover)
        same = self._handover.parallelism_version == start.parallelism.version
        self._adopts = start.handover if start.reconciles and same else b""
        self._reported_version: object = None
        self._deployed = False
        self._reported_history = (0, 0, 0, 0)  # versions of its parts
        self._details: _BuiltDetails | None = None
        self._progress: asyncio.TimerHandle | None = None
        self._collected = CollectedRows(
            platform.transport,
            self._dispatcher,
            job_id=self.job_id,
            epoch=self.epoch,
            sinks=[
                operator.operator_id
                for vertex in graph.vertices
                for operator in vertex.operators
                if operator.coordinator_kind == "collect"
            ],
            follows=start.collected,
        )
        self._resource_manager = ResourceManagerLink(
            platform.transport,
            leaders.of(Office.RESOURCE_MANAGER, start.resource_manager_address),
            settings,
            job_id=self.job_id,
            epoch=self.epoch,
            registration=resource_manager_pb2.JobMasterRegistration(
                address=address,
                job_name=self.job_graph.name,
            ),
            post=self.post,
        )

    async def run(self) -> None:
        """Runs until it is cancelled. Raises errors of the core, which are bugs and end the
        process.
        """
        self.log.info(
            "job starts",
            job_name=self.job_graph.name,
            epoch=self.epoch,
            vertices=len(self.job_graph.vertices),
        )
        adopts, handover = None, dispatcher_pb2.Handover.FromString(self._adopts)
        if self._adopts:
            adopts = convert.analysis(handover.operators)
        self.post(
            events.JobStarted(
                adopts=adopts,
                found=convert.found_from_proto(handover.discovered),
                listed=tuple(map(convert.LISTED_TASK.decode, handover.tasks)),
                cancels=self._cancels,
            )
        )
        await asyncio.gather(
            self.core_loop.run(),
            self._resource_manager.run(),
            self._collected.run(),
            self._checkpoints.run(),
            self._heartbeats(),
            self._follow_dispatcher(),
        )

    async def _follow_dispatcher(self) -> None:
        leader: Leader | None = None  # the one in StartJob may have been replaced
        while True:
            leader = await self._dispatcher.changed(leader)
            if leader is not None:
                self._messages.dispatcher_at(leader.address)

    # ---- what the service needs

    def post(self, event: events.Event) -> None:
        self.core_loop.post(event)

    async def take_checkpoint(
        self, *, savepoint: bool, directory: str, stop: bool, drain: bool, full: bool
    ) -> job_master_pb2.TakeCheckpointResponse:
        """Returns once the checkpoint is complete. A savepoint is created in `directory`; empty
        means the configured one. With `stop`, the job ends with it; with `drain`, its sources
        end first. With `full`, a checkpoint refers to no file of an earlier one. Raises
        FiresteelError.
        """
        what = "savepoint" if savepoint else "checkpoint"
        path = await self._savepoint_path(directory) if savepoint else ""
        request = self._ids.next()
        answer = self._requests[request] = asyncio.get_running_loop().create_future()
        self.post(
            events.CheckpointRequested(
                request=request, savepoint_path=path, stops=stop, drains=drain, full=full
            )
        )
        try:
            answered: commands.AnswerRequest = await answer
        finally:
            self._requests.pop(request, None)
        if answered.problem:
            raise FiresteelError(f"no {what} of job {self.job_id} was taken: {answered.problem}")
        return job_master_pb2.TakeCheckpointResponse(
            checkpoint_id=answered.checkpoint_id,
            path=self._checkpoints.path(answered.checkpoint_id),
        )

    async def rescale(
        self, asked: job_master_pb2.RescaleJobRequest
    ) -> job_master_pb2.RescaleJobResponse:
        """Returns once all tasks run with the new parallelism. Raises InvalidRescale, or
        FiresteelError if the parallelism is unchanged.
        """
        if asked.dry_run and not asked.parallelism and not asked.by_vertex:
            return self._explained()
        request = self._ids.next()
        answer = self._rescales[request] = asyncio.get_running_loop().create_future()
        self.post(
            events.RescaleRequested(
                request=request,
                parallelism=asked.parallelism,
                by_vertex=dict(asked.by_vertex),
                lower_bounds=dict(asked.lower_bounds),
                timeout_s=asked.timeout_s,
                dry_run=asked.dry_run,
            )
        )
        try:
            answered: commands.AnswerRescale = await answer
        finally:
            self._rescales.pop(request, None)
        if answered.problem:
            kind = InvalidRescale if answered.invalid else FiresteelError
            raise kind(f"job {self.job_id} was not rescaled: {answered.problem}")
        version = self.core.job.parallelism.stored.version
        return job_master_pb2.RescaleJobResponse(
            before=convert.parallelism(answered.before),
            after=convert.parallelism(answered.after, version),
            tasks=answered.tasks,
            missing_slots=answered.missing_slots,
        )

    def _explained(self) -> job_master_pb2.RescaleJobResponse:
        """Returns the autoscaler's conclusions, and the parallelism that it would request."""
        settings = self._settings.autoscaler
        if self._autoscaling is None or settings is None or self._settings.checkpoints is None:
            raise FiresteelError(
                f"the autoscaler cannot change job {self.job_id}: it must be a stream with"
                f" checkpoints ({options.CHECKPOINT_INTERVAL.key})"
            )
        found = self._autoscaling.explain(self._clock.monotonic())
        before = dict(self.core.job.parallelism.applied.by_vertex)
        groups = {each.vertex_id: each.decided for each in found if each.decided}
        return job_master_pb2.RescaleJobResponse(
            before=convert.parallelism(before),
            after=convert.parallelism({**before, **groups}),
            assessments=map(ASSESSMENT.encode, found),
            window_s=settings.window_s,
            autoscaled=settings.acts,
        )

    async def inspect(self, asked: TaskInspection) -> commands.AnswerInspection:
        """Returns by the deadline that the core gives the inspection."""
        inspection_id = self._ids.next()
        answer = self._inspections[inspection_id] = asyncio.get_running_loop().create_future()
        self.post(
            events.InspectionRequested(
                inspection_id=inspection_id,
                vertex_id=asked.vertex_id,
                subtask=asked.subtask,
                inspection=asked.inspection,
            )
        )
        try:
            answered: commands.AnswerInspection = await answer
        finally:
            self._inspections.pop(inspection_id, None)
        return answered

    async def _savepoint_path(self, directory: str) -> str:
        settings = self._settings.checkpoints
        if settings is None:
            return "."  # the core refuses it
        directory = directory or settings.savepoint_directory
        if not directory:
            raise FiresteelError(
                "no directory for the savepoint: specify one, or set"
                f" {options.SAVEPOINT_DIR.key} for the job"
            )
        name = f"savepoint-{self.job_id[:6]}-{self._ids.next()[:12]}"
        storage = CheckpointStorage(directory, option="the savepoint's directory")
        await asyncio.to_thread(storage.check_writable)  # before anything is stopped
        return storage.at(name).uri

    def keep_metrics(self, message: job_master_pb2.TaskExecutorToJobMaster) -> None:
        first_caught_up = False
        for metrics in metrics_in(message):
            attempt_id = AttemptId(metrics.attempt_id)
            before = self._metrics.get(attempt_id)
            first_caught_up |= metrics.caught_up > 0 and (before is None or not before.caught_up)
            self._metrics[attempt_id] = metrics
        if first_caught_up:  # a client that stops the job then learns it without a pause
            self._report_progress()
        now = self._clock.monotonic()
        if now >= self._next_sample_at:
            self._next_sample_at = now + STEP_MS / 1000
            attempts = self._current_attempts()
            self.series.add(attempts, self._clock.time() * 1000)
            if self._autoscaling is not None:
                self._autoscaling.sampled(self.series.last, attempts, now)

    def _current_attempts(self) -> dict[str, list[Attempt]]:
        return {
            job_vertex.vertex.vertex_id: [
                Attempt(each.subtask, self._metrics[each.current.attempt_id])
                for each in job_vertex.vertices
                if each.current.attempt_id in self._metrics and not each.current.terminal
            ]
            for job_vertex in self.core.graph.vertices
        }

    def keep_analysis(self, result: tasks_pb2.AnalyzeResult) -> None:
        del self._handover.operators[:]
        self._handover.operators.extend(result.schemas)
        self._reported_version = None

    def details_with_checkpoints(self) -> job_master_pb2.JobDetails:
        """Returns details that include the subtasks' parts of checkpoints."""
        details = job_master_pb2.JobDetails()
        details.CopyFrom(self.details())
        del details.checkpoints[:]
        now = self._clock.monotonic()
        details.checkpoints.extend(checkpoint_details(self.core, now, subtasks=True))
        return details

    def details(self) -> job_master_pb2.JobDetails:
        now = self._clock.monotonic()
        graph, last = self.core.graph, self._details
        if last is not None and last.good_until > now and not graph.status.terminal:
            large = len(graph.attempts) > _LARGE_TASKS
            if large or last.version == graph.version:
                return last.details
        details = job_details(self.core, self._metrics, now, self.series.last)
        if self._autoscaling is not None:
            details.scaling = self._autoscaling.decided
        took_s = self._clock.monotonic() - now
        good_until = now + took_s * (1 + _DETAILS_REUSE_FACTOR)
        self._details = _BuiltDetails(details, graph.version, good_until)
        return details

    def samples(self) -> list[Sample]:
        now_ms = self._clock.time() * 1000
        host, link = socket.gethostname(), self._resource_manager
        return [
            *job_metrics.samples(self.core, host, now_ms, dropped=link.dropped),
            *link.refusals.samples("flink_jobmanager_", {"host": host}),
        ]

    # ---- commands

    def execute(self, command: commands.Command) -> None:
        match command:
            case commands.DismissTaskExecutor():
                self._sessions.dismiss(command.task_executor_id, self._messages.convert(command))
            case (
                commands.SendOperatorMessage()
                | commands.CancelTasks()
                | commands.TriggerCheckpoint()
                | commands.DrainTasks()
                | commands.AdoptTasks()
                | commands.InspectTask()
                | commands.NotifyCheckpoint()
                | commands.AnswerSlots()
                | commands.FreeSlots()
                | commands.ReleasePartitions()
                | commands.AnalyzeJob()
            ):
                self._sessions.send(command.task_executor_id, self._messages.convert(command))
            case commands.DeployTasks():
                if not self._deployed:  # the Dispatcher knows it before a TaskExecutor
                    self._deployed = True
                    self._report_status()
                self._deploy(command)
            case commands.UseParallelism():
                self._messages.use_parallelism(command.by_vertex)
            case commands.DeclareRequirements():
                environment = convert.environment(self.job_graph.config)
                self._resource_manager.declare(convert.declaration(command, environment))
            case commands.ReportTaskExecutorLost():
                self._resource_manager.report_lost(convert.TASK_EXECUTOR_LOST.encode(command))
            case commands.ProbeTaskExecutor():
                probe = asyncio.create_task(self._probe(command))
                self._probes.add(probe)
                probe.add_done_callback(self._probes.discard)
            case commands.SpoolChunk():
                self._collected.append(
                    command.operator_id,
                    command.attempt_id,
                    command.ipc_stream,
                    command.group,
                    lambda problem: self._spooled(command, problem),
                )
            case commands.BeginResults():
                self._collected.begin(command.restart, command.operator_ids)
            case commands.ListPaths():
                asyncio.get_running_loop().run_in_executor(
                    None, self._list_paths, command.paths, command.watched
                ).add_done_callback(lambda listed: self._paths_listed(command, listed))
            case (
                commands.StoreCheckpoint()
                | commands.StoreParallelism()
                | commands.DropCheckpoint()
                | commands.DropCheckpointFiles()
                | commands.SweepSharedFiles()
                | commands.DropAllCheckpoints()
            ):
                self._checkpoints.execute(command)
            case commands.AnswerRequest():
                answer = self._requests.get(command.request)
                if answer is not None and not answer.done():
                    answer.set_result(command)
            case commands.AnswerRescale():
                rescaled = self._rescales.get(command.request)
                if rescaled is not None and not rescaled.done():
                    rescaled.set_result(command)
            case commands.AnswerInspection():
                inspected = self._inspections.get(command.inspection_id)
                if inspected is not None and not inspected.done():
                    inspected.set_result(command)
            case commands.ReportStatus():
                self._report_status()
            case commands.ReportProgress():
                self._report_progress()
            case commands.Log():
                getattr(self.log, command.level)(command.text, **command.fields)
            case commands.Exit():
                for request, answer in self._requests.items():
                    if not answer.done():
                        problem = "the job's JobMaster has ended"
                        answer.set_result(commands.AnswerRequest(request=request, problem=problem))
                for request, rescaled in self._rescales.items():
                    if not rescaled.done():
                        problem = "the job's JobMaster has ended"
                        rescaled.set_result(
                            commands.AnswerRescale(request=request, problem=problem)
                        )
                self._exit_process()
            case _:
                assert_never(command)

    def _deploy(self, command: commands.DeployTasks) -> None:
        try:
            messages = list(self._messages.deployments(command))
        except MessageTooLarge as problem:
            error = ErrorInfo(summary=str(problem), timestamp_ms=int(self._clock.time() * 1000))
            self.post(
                events.TaskStatesReported(
                    task_executor_id=command.task_executor_id,
                    updates=tuple(
                        events.TaskUpdate(task.attempt_id, ExecutionState.FAILED, error)
                        for task in command.tasks
                    ),
                )
            )
            return
        for message in messages:
            self._sessions.send(command.task_executor_id, message)

    async def _probe(self, command: commands.ProbeTaskExecutor) -> None:
        await asyncio.sleep(PORT_CLOSES_S)
        if await self._transport.refuses(command.address):
            self.post(
                events.TaskExecutorGone(
                    task_executor_id=command.task_executor_id, connection=command.connection
                )
            )

    def _paths_listed(self, command: commands.ListPaths, listed: asyncio.Future[Listing]) -> None:
        try:
            files, skipped = listed.result()
            self.post(
                events.PathsListed(
                    operator_id=command.operator_id, files=tuple(files), skipped=tuple(skipped)
                )
            )
        except Exception as error:
            problem = str(error) if isinstance(error, PathProblem | OSError) else summary_of(error)
            self.post(events.PathsMissing(operator_id=command.operator_id, problem=problem))

    def _spooled(self, command: commands.SpoolChunk, problem: str) -> None:
        operator_id, attempt_id, sequence = (
            command.operator_id,
            command.attempt_id,
            command.sequence,
        )
        if problem:
            self.post(
                events.ChunkNotSpooled(
                    operator_id=operator_id,
                    attempt_id=attempt_id,
                    sequence=sequence,
                    problem=problem,
                )
            )
        else:
            self.post(
                events.ChunkSpooled(
                    operator_id=operator_id, attempt_id=attempt_id, sequence=sequence
                )
            )

    # ---- the Dispatcher

    def status_message(self, *, again: bool = False) -> dispatcher_pb2.JobStatusChanged:
        """Builds the status message. With `again`, repeats everything, because reports may be
        lost.
        """
        graph = self.core.graph
        job = self.core.job
        applied = job.parallelism.applied.version
        version = (self.core.found_version, self.core.listed_version, applied)
        news = (again or version != self._reported_version) and version[0] is not None
        self._reported_version = version
        handover = self._handed_over() if news else b""
        status, timestamp_ms = graph.timestamps[-1]
        return dispatcher_pb2.JobStatusChanged(
            job_id=self.job_id,
            epoch=self.epoch,
            status=state_number(status),
            timestamp_ms=timestamp_ms,
            tasks_by_state=graph.tasks_by_state(),
            final_details=self.details() if status.terminal else None,
            restart_history=convert.restart_history_to_json(
                job.restart_strategy.history, self.core.verdict
            ),
            keeps_checkpoints=job.checkpoints.kept_after(status),
            handover=handover,
            unadoptable=not handover and (news or (self._deployed and version[0] is None)),
            history=self._history(again=again),
        )

    def _history(self, *, again: bool) -> bytes:
        """Returns the history; empty if it is unchanged since the last report, which arrived."""
        statuses, exceptions = self.core.graph.timestamps, self.core.exceptions
        warnings = self.core.job.warnings
        rescales = self.core.job.rescales
        version = (len(statuses), exceptions.version, len(warnings), rescales.version)
        if version == self._reported_history and not again:
            return b""
        self._reported_history = version
        history = convert.brief_history(statuses, exceptions.failures, warnings, rescales.records)
        return convert.HISTORY.encode(history).SerializeToString(deterministic=True)

    def _handed_over(self) -> bytes:
        """Returns the serialised Handover; empty if it is too large to store."""
        found = convert.found_to_proto(self.core.found)
        size = sum(map(len, found.values()))
        if size > _MAX_FOUND_BYTES:
            self.log.warning("too many files for another JobMaster to adopt tasks", size=size)
            return b""
        self._handover.parallelism_version = self.core.job.parallelism.applied.version
        self._handover.discovered.clear()
        self._handover.discovered.update(found)
        del self._handover.tasks[:]
        self._handover.tasks.extend(map(convert.LISTED_TASK.encode, self.core.listed))
        return self._handover.SerializeToString(deterministic=True)

    def _report_progress(self) -> None:
        if self._progress is None:
            tasks = len(self.core.graph.attempts)
            self._progress = asyncio.get_running_loop().call_later(
                _PROGRESS_INTERVAL_S + tasks * _PROGRESS_TASK_S, self._report_status
            )

    def _report_status(self) -> None:
        if self._progress is not None:
            self._progress.cancel()
            self._progress = None
        self._report(self.status_message())

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_interval_s)
            for task_executor_id in list(self._sessions.by_id):
                self._sessions.send(task_executor_id, self._messages.heartbeat())
