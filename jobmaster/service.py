"""JobMasterProcess: a server for TaskExecutors and a link to the Dispatcher, then one job.

It binds its server and registers with the Dispatcher immediately, so that a job waits only for
StartJob. It ends when the Dispatcher has stored the job's terminal status, or with the cluster's
lifeline: while the Dispatcher is away it waits without limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import grpc
import tenacity

from firesteel._proto import (
    common_pb2,
    dispatcher_pb2,
    dispatcher_pb2_grpc,
    inspections_pb2,
    job_master_pb2,
    job_master_pb2_grpc,
)
from firesteel.common import metrics
from firesteel.common.checkpoints.metadata import COMPLETE_CHECKPOINT
from firesteel.common.checkpoints.storage import StorageAway
from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.ids import IdSource
from firesteel.common.job_graph import JobGraph
from firesteel.common.leader import Leaders, Office
from firesteel.common.logs import get_logger
from firesteel.common.rpc import threads
from firesteel.common.rpc.convert import JOB_GRAPH, state_number
from firesteel.common.rpc.job_details import without_tasks
from firesteel.common.rpc.link import Link
from firesteel.common.service.platform import Platform
from firesteel.common.states import JobStatus
from firesteel.errors import FiresteelError
from firesteel.high_availability import leaders_of
from jobmaster.convert import (
    HISTORY,
    PARALLELISM,
    JobHistory,
    collected_by_attempt,
    restart_history_from_json,
    verdict_from_json,
)
from jobmaster.core import events
from jobmaster.core.checkpoints.recovery import Recovery
from jobmaster.core.execution_graph.vertex import StatusChange
from jobmaster.core.settings import JobSettings, settings_from
from jobmaster.paths import PathLister, list_files
from jobmaster.recovery import recovery_of
from jobmaster.servicer import JobMasterServicer
from jobmaster.shell import RunningJob

log = get_logger(__name__)

_RESTORE_ATTEMPTS = 10  # each takes up to ten seconds
_GOODBYE_S = 1.0  # at the end: the time TaskExecutors have to read their Goodbye


class JobMasterProcess:
    def __init__(
        self,
        conf: Configuration,
        *,
        dispatcher_address: str,
        host: str,
        platform: Platform,
        registry: metrics.Registry,
        metrics_address: str = "",
        ids: IdSource | None = None,
        leaders: Leaders | None = None,
        list_paths: PathLister = list_files,
        job_built: Callable[[RunningJob], object] = lambda job: None,
    ) -> None:
        """`metrics_address` is where `registry` is served, if it is; without `leaders` they are
        found as configured; `list_paths` finds a source's files; `job_built` is called once, before
        the job runs.
        """
        self._conf = conf
        self._dispatcher_address = dispatcher_address
        self._host = host
        self._platform = platform
        self._registry = registry
        self.metrics_address = metrics_address
        self._ids = ids or IdSource()
        self._list_paths = list_paths
        self._job_built = job_built
        self.job_master_id = self._ids.next()
        self.address = ""  # set by `start`
        self._server: grpc.aio.Server | None = None
        self._servicer = JobMasterServicer()
        self.job: RunningJob | None = None
        self._job_id = ""  # set when the Dispatcher assigns a job
        self._restoring: asyncio.Task[None] | None = None
        # The terminal status of a job that never started.
        self._rejected: dispatcher_pb2.JobStatusChanged | None = None
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._leaders = leaders or leaders_of(conf)
        self._dispatcher: Link[
            dispatcher_pb2.JobMasterToDispatcher, dispatcher_pb2.DispatcherToJobMaster
        ] = Link(
            name="Dispatcher",
            to=self._leaders.of(Office.DISPATCHER, dispatcher_address),
            open_stream=lambda channel, sent: dispatcher_pb2_grpc.DispatcherStub(  # type: ignore[no-untyped-call]
                channel
            ).ConnectJobMaster(sent),
            heartbeat=lambda: dispatcher_pb2.JobMasterToDispatcher(
                heartbeat=common_pb2.Heartbeat()
            ),
            on_up=self._register,
            on_message=self._from_dispatcher,
            on_down=lambda cause, for_s: None,
            heartbeat_interval_s=conf.get(options.HEARTBEAT_INTERVAL),
            heartbeat_timeout_s=conf.get(options.HEARTBEAT_TIMEOUT),
            channel=platform.transport.channel,
        )

    async def start(self) -> None:
        """Serves TaskExecutors from now on. Raises AddressTaken."""
        transport = self._platform.transport
        self._server = transport.server(
            [
                job_master_pb2.DESCRIPTOR.services_by_name["JobMaster"],
                inspections_pb2.DESCRIPTOR.services_by_name["Threads"],
            ]
        )
        process = f"JobMaster {self.job_master_id[:8]}"
        threads.add_to_server(self._server, threads.ThreadsServicer(process))
        job_master_pb2_grpc.add_JobMasterServicer_to_server(self._servicer, self._server)  # type: ignore[no-untyped-call]
        self.address = transport.bind(self._server, self._host, 0)
        await self._server.start()
        await self._leaders.start()
        log.info("serving", address=self.address, dispatcher=self._dispatcher_address)

    def stop(self) -> None:
        """Ends `run`."""
        self._over.set()

    async def run(self) -> None:
        """Runs until the job is over and stored, or `stop` is called. Raises internal errors."""
        assert self._server is not None, "start it first"
        self._start_task(self._dispatcher.run())
        await self._over.wait()
        await self._wait_for_goodbyes()
        if self._restoring is not None:
            self._tasks.append(self._restoring)
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._leaders.close()
        await self._server.stop(0.2)
        for result in results:
            if isinstance(result, Exception):
                raise result

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Starts a task that runs as long as the process: if it ends earlier, that is a bug."""
        task = asyncio.create_task(coroutine)
        task.add_done_callback(lambda _: self._over.set())
        self._tasks.append(task)

    async def _wait_for_goodbyes(self) -> None:
        deadline = asyncio.get_running_loop().time() + _GOODBYE_S
        while self._servicer.open_streams and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)

    # ---- the Dispatcher

    def _register(self) -> None:
        register = dispatcher_pb2.JobMasterRegister(
            job_master_id=self.job_master_id,
            address=self.address,
            pid=self._platform.processes.pid,
            job_id=self._job_id or None,
        )
        self._dispatcher.send(dispatcher_pb2.JobMasterToDispatcher(register=register))
        if self.job is not None:
            self._report(self.job.status_message(again=True))
        elif self._rejected is not None:
            self._report(self._rejected)

    def _report(self, status: dispatcher_pb2.JobStatusChanged) -> None:
        self._dispatcher.send(dispatcher_pb2.JobMasterToDispatcher(status=status))

    def _from_dispatcher(self, message: dispatcher_pb2.DispatcherToJobMaster) -> None:
        match message.WhichOneof("message"):
            case "start":
                self._start_job(message.start)
            case "ack" if JobStatus(message.ack.status).globally_terminal:
                if self.job is None:
                    self._over.set()
                else:
                    self.job.post(events.TerminalStatusStored())
            case _:
                pass  # a heartbeat

    def _start_job(self, start: dispatcher_pb2.StartJob) -> None:
        if self._job_id:
            return  # a repeated message
        self._job_id = start.job_graph.job_id
        for vertex in start.job_graph.vertices:
            parallelism = start.parallelism.by_vertex.get(vertex.vertex_id, vertex.parallelism)
            vertex.parallelism = parallelism
        try:
            conf = self._conf.with_overrides(dict(start.job_graph.config))
            settings = settings_from(conf, batch=start.job_graph.batch)
        except ConfigurationError as error:
            self._reject(start, str(error))
            return
        graph = JOB_GRAPH.decode(start.job_graph)
        if start.checkpoints or options.RECOVERY_PATH.key in start.job_graph.config:
            self._restoring = asyncio.create_task(self._restore(start, graph, settings))
        else:
            self._run_job(start, graph, settings, Recovery(epoch=start.epoch))

    async def _restore(
        self, start: dispatcher_pb2.StartJob, graph: JobGraph, settings: JobSettings
    ) -> None:
        """Resumes from exactly the latest checkpoint, or fails (invariant 6). Retries for a minute
        or more while the checkpoint cannot be read.
        """
        conf = self._conf.with_overrides(dict(start.job_graph.config))
        checkpoints = [COMPLETE_CHECKPOINT.decode(c) for c in start.checkpoints]
        try:
            async for attempt in tenacity.AsyncRetrying(
                retry=tenacity.retry_if_exception_type(StorageAway),
                wait=tenacity.wait_exponential(multiplier=0.5, max=10.0),
                stop=tenacity.stop_after_attempt(_RESTORE_ATTEMPTS),
                before_sleep=_not_restored,
                sleep=asyncio.sleep,
                reraise=True,
            ):
                with attempt:
                    recovery = await asyncio.to_thread(
                        recovery_of, start.epoch, graph, conf, checkpoints
                    )
        except FiresteelError as error:
            self._reject(start, f"{error}. Nothing was deleted")
            return
        self._run_job(start, graph, settings, recovery)

    def _run_job(
        self,
        start: dispatcher_pb2.StartJob,
        graph: JobGraph,
        settings: JobSettings,
        recovery: Recovery,
    ) -> None:
        earlier = replace(
            recovery,
            restarts=restart_history_from_json(start.restart_history),
            verdict=verdict_from_json(start.restart_history),
            collected=collected_by_attempt(start.collected),
            statuses=_statuses(start),
            failures=_history(start).failures,
            warnings=_history(start).warnings,
            rescales=_history(start).rescales,
            parallelism=PARALLELISM.decode(start.parallelism),
        )
        job = RunningJob(
            start,
            graph,
            settings,
            earlier,
            sessions=self._servicer.sessions,
            address=self.address,
            report=self._report,
            exit_process=self._over.set,
            platform=self._platform,
            ids=self._ids,
            list_paths=self._list_paths,
            leaders=self._leaders,
        )
        self._job_built(job)
        self.job = self._servicer.job = job
        self._registry.add_source(job.samples)
        self._start_task(job.run())

    def _reject(self, start: dispatcher_pb2.StartJob, why: str) -> None:
        """Reports the job as FAILED before its start, with the cause like that of any failure."""
        now_ms = int(self._platform.clock.time() * 1000)
        graph = start.job_graph
        details = without_tasks(
            job_id=graph.job_id,
            name=graph.name,
            status=JobStatus.FAILED,
            start_ms=start.start_ms,
            end_ms=now_ms,
            history=start.history,
            failure=why,
        )
        self._rejected = dispatcher_pb2.JobStatusChanged(
            job_id=graph.job_id,
            epoch=start.epoch,
            status=state_number(JobStatus.FAILED),
            timestamp_ms=now_ms,
            final_details=details,
            keeps_checkpoints=True,
        )
        log.error("job rejected", job_id=graph.job_id, cause=why)
        self._report(self._rejected)


def _history(start: dispatcher_pb2.StartJob) -> JobHistory:
    return HISTORY.decode(job_master_pb2.JobHistory.FromString(start.history))


def _statuses(start: dispatcher_pb2.StartJob) -> tuple[StatusChange, ...]:
    """Returns statuses under earlier JobMasters; the job was INITIALIZING since its submission."""
    submitted = (StatusChange(JobStatus.INITIALIZING, start.start_ms),) if start.start_ms else ()
    return _history(start).statuses or submitted


def _not_restored(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    log.warning("the latest checkpoint cannot be read; retrying", reason=str(error))
