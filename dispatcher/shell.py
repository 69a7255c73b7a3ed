"""Runs the Dispatcher's core: carries its commands out, and posts what comes of them back to it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, assert_never

import grpc
import sqlalchemy as sa
import structlog

from dispatcher import convert
from dispatcher.blob_store import BlobStore
from dispatcher.core.commands import (
    Acknowledge,
    Answer,
    AskToCancel,
    Command,
    DropResults,
    KillProcess,
    NotifyWatchers,
    Refusal,
    StartJob,
    StartProcess,
)
from dispatcher.core.core import DispatcherCore, Job
from dispatcher.core.events import (
    CancelJob,
    CancelNotDelivered,
    Event,
    ProcessExited,
    ProcessStarted,
    ProcessStartFailed,
    SubmitJob,
)
from dispatcher.core.records import Record
from dispatcher.job_store import JobStore
from firesteel._proto import dispatcher_pb2, job_graph_pb2, job_master_pb2, job_master_pb2_grpc
from firesteel.common.config import Configuration, options
from firesteel.common.driver import Driver
from firesteel.common.ids import JobId
from firesteel.common.metrics import Registry
from firesteel.common.process import Child, StartFailed, log_tail, spawn
from firesteel.common.rpc.server import aio_channel
from firesteel.common.states import JobStatus

log = structlog.get_logger(__name__)

Outgoing: TypeAlias = (
    "asyncio.Queue[dispatcher_pb2.DispatcherToJobMaster | None]"  # None: the stream ends
)

JOB_MASTER_TIMEOUT_S = 3.0  # for one question to a JobMaster
STORE_RETRY_S = (0.2, 5.0)  # first and longest pause while the job store cannot be written


class Shell:
    """`address` is this Dispatcher's own, as JobMasters are to reach it; set before `run`."""

    def __init__(
        self,
        *,
        conf: Configuration,
        directory: Path,
        resource_manager: str,
        store: JobStore,
        registry: Registry,
        host: str,
    ) -> None:
        now = time.monotonic()
        self.conf = conf
        self.directory = directory
        self.resource_manager = resource_manager
        self.address = ""
        self.blobs = BlobStore(directory / "blobs", conf.get(options.BLOB_LIMIT))
        self.core = DispatcherCore(
            spares=conf.get(options.JOBMASTER_SPARES),
            history=conf.get(options.JOB_HISTORY),
            wall_offset_s=time.time() - now,
            jobs=store.jobs(),
            forgotten=store.forgotten(),
            now=now,
        )
        self.stopping = False  # whoever waits for a change is told, and is to go
        self.store_problem = ""  # set while the job store cannot be written
        self._store = store
        self._store_thread = ThreadPoolExecutor(1, "job-store")
        self._driver: Driver[Event, Record, Command] = Driver(
            self.core, execute=self._execute, persist=self._persist, name="dispatcher"
        )
        self._requests: dict[int, asyncio.Future[Refusal | None]] = {}
        self._request_numbers = itertools.count(1)
        self._process_numbers = itertools.count(1)
        self._streams: dict[int, Outgoing] = {}
        self._watchers: dict[JobId, set[asyncio.Event]] = {}
        self._graphs: dict[str, job_graph_pb2.JobGraph] = {}  # of jobs not started yet
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._children: dict[int, Child] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running_jobs = registry.gauge("flink_jobmanager_numRunningJobs", {"host": host})
        self._stale_reports = registry.gauge(
            "flink_jobmanager_numStaleMessagesDropped", {"host": host}
        )
        (directory / "logs").mkdir(parents=True, exist_ok=True)
        (directory / "spool").mkdir(parents=True, exist_ok=True)

    async def run(self) -> None:
        """Until `stop`, or until the job store was taken over by another Dispatcher (raises
        Fenced).
        """
        await self._in_store(self._store.drop_unused_graphs)
        self._start_task(self._drop_blobs())
        for command in self.core.start(time.monotonic()).commands:
            self._execute(command)
        await self._driver.run()

    def stop(self) -> None:
        """JobMasters and their jobs go on: they hang on the cluster's lifeline, not on this
        process.
        """
        self._driver.stop()
        self.stopping = True
        for stream in self._streams.values():
            stream.put_nowait(None)
        for change in itertools.chain(*self._watchers.values()):
            change.set()
        for task in self._tasks:
            task.cancel()

    def post(self, event: Event) -> None:
        self._driver.post(event)

    # ---- what the servicer asks for

    async def submit(self, graph: job_graph_pb2.JobGraph) -> Refusal | None:
        blob_hashes = [blob.hash for blob in graph.blobs]
        graph_id = await self._in_store(
            self._store.put_graph, graph.SerializeToString(deterministic=True), blob_hashes
        )
        self._graphs[graph_id] = graph
        refusal = await self._ask(
            lambda request: SubmitJob(
                request=request, job_id=JobId(graph.job_id), name=graph.name, graph_id=graph_id
            )
        )
        if refusal is not None:
            self._graphs.pop(graph_id, None)
        return refusal

    async def cancel(self, job_id: JobId) -> Refusal | None:
        return await self._ask(lambda request: CancelJob(request=request, job_id=job_id))

    async def _ask(self, event: Any) -> Refusal | None:
        request = next(self._request_numbers)
        answer = self._requests[request] = asyncio.get_running_loop().create_future()
        try:
            self.post(event(request))
            return await answer
        finally:
            self._requests.pop(request, None)

    async def details(self, job: Job) -> job_master_pb2.JobDetails:
        """From the JobMaster while it lives; as stored when it is over."""
        for _ in range(20):
            if job.status.globally_terminal:
                return await self._stored_details(job)
            details = await self._details_from_master(job)
            if details is None:
                break
            if not _ended(details):
                return details
            # It is over for its JobMaster, but not stored yet: nobody is told of an end that could
            # still be forgotten.
            await self.changed(job.job_id, timeout_s=0.1)
        graph = await self._graph(job.graph_id)
        if job.status.globally_terminal:  # by now
            return await self._stored_details(job)
        return convert.details_without_master(
            job, graph, waiting_for="" if job.confirmed else "its JobMaster to start"
        )

    @property
    def forgotten_why(self) -> str:
        return f"the cluster keeps no more than the last {self.conf.get(options.JOB_HISTORY)} jobs ({options.JOB_HISTORY.key})"

    async def _stored_details(self, job: Job) -> job_master_pb2.JobDetails:
        if self.core.is_forgotten(job.job_id):
            failed = job.status is JobStatus.FAILED
            return convert.details_without_master(
                job, None, failure=f"why is forgotten: {self.forgotten_why}" if failed else ""
            )
        while (ending := await self._in_store(self._store.ending, job.job_id)) is None:
            await asyncio.sleep(STORE_RETRY_S[0])  # decided, but the store cannot be written
        final_details, failure = ending
        if final_details is not None:
            return job_master_pb2.JobDetails.FromString(final_details)
        return convert.details_without_master(job, await self._graph(job.graph_id), failure=failure)

    async def _details_from_master(self, job: Job) -> job_master_pb2.JobDetails | None:
        process = self.core.process_of(job)
        if process is None or not job.confirmed:
            return None
        stub: Any = job_master_pb2_grpc.JobMasterStub(self._channel(process.address))
        try:
            request = job_master_pb2.JobDetailsRequest(job_id=job.job_id)
            details: job_master_pb2.JobDetails = await stub.GetJobDetails(
                request, timeout=JOB_MASTER_TIMEOUT_S
            )
            return details
        except grpc.aio.AioRpcError as error:
            log.info(
                "the JobMaster did not answer",
                job_id=job.job_id,
                code=error.code().name,
                details=error.details(),
            )
            return None

    async def changed(self, job_id: JobId, *, timeout_s: float) -> None:
        """Returns at the job's next change, at the latest after `timeout_s`."""
        with self.watch(job_id) as change:
            await wait_for_change(change, timeout_s)

    @contextlib.contextmanager
    def watch(self, job_id: JobId) -> Iterator[asyncio.Event]:
        """An event that is set at every change of the job. Clear it before looking at the job, not
        after.
        """
        event = asyncio.Event()
        self._watchers.setdefault(job_id, set()).add(event)
        try:
            yield event
        finally:
            watchers = self._watchers.get(job_id, set())
            watchers.discard(event)
            if not watchers:
                self._watchers.pop(job_id, None)

    def spool(self, job_id: JobId) -> Path:
        return self.directory / "spool" / job_id

    # ---- streams of JobMasters

    def open_stream(self, connection: int) -> Outgoing:
        return self._streams.setdefault(connection, asyncio.Queue())

    def close_stream(self, connection: int) -> None:
        self._streams.pop(connection, None)

    def _send(self, connection: int, message: dispatcher_pb2.DispatcherToJobMaster) -> None:
        if (stream := self._streams.get(connection)) is not None:
            stream.put_nowait(message)
        # else: it has just broken; the core hears of that, and sends again to the stream that
        # follows

    # ---- commands

    def _execute(self, command: Command) -> None:
        match command:
            case Answer():
                answer = self._requests.get(command.request)
                if answer is not None and not answer.done():
                    answer.set_result(command.refusal)
            case StartProcess():
                self._start_task(self._run_process())
            case KillProcess():
                self._kill(command.pid)
            case StartJob():
                self._start_task(self._start_job(command))
            case AskToCancel():
                self._start_task(self._ask_to_cancel(command))
            case Acknowledge():
                ack = dispatcher_pb2.StatusAck(status=command.status.value)
                self._send(command.connection, dispatcher_pb2.DispatcherToJobMaster(ack=ack))
            case NotifyWatchers():
                self._running_jobs.set(self.core.running())
                self._stale_reports.set(self.core.stale_reports)
                for watcher in self._watchers.get(command.job_id, ()):
                    watcher.set()
            case DropResults():
                self._start_task(asyncio.to_thread(shutil.rmtree, self.spool(command.job_id), True))
                self._start_task(self._drop_blobs())
            case _:
                assert_never(command)

    async def _run_process(self) -> None:
        """One JobMaster process from its start to its end."""
        log_path = (
            self.directory
            / "logs"
            / f"jobmaster-{self._store.epoch}-{next(self._process_numbers)}.log"
        )
        argv = [
            sys.executable,
            "-m",
            "jobmaster",
            "--dispatcher",
            self.address,
            *self.conf.to_arguments(),
        ]
        try:
            child = await spawn(argv, log_path=log_path, lifeline="inherit")
        except (StartFailed, OSError) as error:
            log.error("a JobMaster process did not start", reason=str(error))
            self.post(ProcessStartFailed(reason=str(error)))
            return
        self._children[child.pid] = child
        self.post(ProcessStarted(pid=child.pid, log_path=str(log_path)))
        code = await child.wait()
        self._children.pop(child.pid, None)
        log.info("a JobMaster process has ended", pid=child.pid, exit_code=code)
        self.post(ProcessExited(pid=child.pid, exit_code=code, log_tail=log_tail(log_path)))
        self._prune_logs()

    async def _drop_blobs(self) -> None:
        needed = await self._in_store(self._store.needed_blobs)
        dropped = await asyncio.to_thread(self.blobs.drop_unneeded, needed, time.time())
        if dropped:
            log.info("files that no job needs any more were deleted", files=len(dropped))

    def _prune_logs(self) -> None:
        """Logs of JobMasters are kept as long as jobs are, roughly."""
        logs = sorted(
            (self.directory / "logs").glob("jobmaster-*.log"), key=lambda path: path.stat().st_mtime
        )
        for path in logs[: -2 * self.conf.get(options.JOB_HISTORY)]:
            path.unlink(missing_ok=True)

    def _kill(self, pid: int) -> None:
        log.warning("ending a JobMaster process that cannot be reached or is not wanted", pid=pid)
        if (child := self._children.get(pid)) is not None:
            child.kill()
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(
                pid, signal.SIGKILL
            )  # one that an earlier Dispatcher of this machine had started

    async def _start_job(self, command: StartJob) -> None:
        graph = await self._graph(command.graph_id)
        if graph is None:
            log.error(
                "the job's graph is not in the store",
                job_id=command.job_id,
                graph_id=command.graph_id,
            )
            return
        spool = self.spool(command.job_id)
        spool.mkdir(parents=True, exist_ok=True)
        start = dispatcher_pb2.StartJob(
            job_graph=graph,
            epoch=command.epoch,
            resource_manager_address=self.resource_manager,
            spool_dir=str(spool),
        )
        self._send(command.connection, dispatcher_pb2.DispatcherToJobMaster(start=start))
        self._graphs.pop(command.graph_id, None)

    async def _ask_to_cancel(self, command: AskToCancel) -> None:
        stub: Any = job_master_pb2_grpc.JobMasterStub(self._channel(command.address))
        try:
            await stub.CancelJob(
                job_master_pb2.CancelJobRequest(job_id=command.job_id), timeout=JOB_MASTER_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            log.info(
                "the JobMaster could not be asked to cancel",
                job_id=command.job_id,
                code=error.code().name,
            )
            self.post(CancelNotDelivered(job_id=command.job_id))

    # ---- the store

    async def _persist(self, records: Sequence[Record]) -> None:
        """Tries until it is done: the core has decided, so nothing may be carried out before it is
        stored.
        """
        pause_s, longest_s = STORE_RETRY_S
        while True:
            try:
                await self._in_store(self._store.persist, records)
                self.store_problem = ""
                return
            except sa.exc.OperationalError as error:  # a full disk, a database that restarts
                self.store_problem = str(error.orig).splitlines()[0]
                log.error(
                    "the job store cannot be written; trying again", reason=self.store_problem
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)

    async def _graph(self, graph_id: str) -> job_graph_pb2.JobGraph | None:
        if (graph := self._graphs.get(graph_id)) is not None:
            return graph
        stored = await self._in_store(self._store.graph, graph_id)
        return None if stored is None else job_graph_pb2.JobGraph.FromString(stored)

    async def _in_store(self, function: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._store_thread, function, *args)

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            if len(self._channels) >= 64:  # of JobMasters long gone
                oldest = next(iter(self._channels))
                self._start_task(self._channels.pop(oldest).close(grace=JOB_MASTER_TIMEOUT_S))
            self._channels[address] = aio_channel(address)
        return self._channels[address]

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("carrying out a command failed", exc_info=error)


async def wait_for_change(change: asyncio.Event, timeout_s: float) -> None:
    """Until it is set, at the latest for `timeout_s`."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(change.wait(), timeout_s)


def _ended(details: job_master_pb2.JobDetails) -> bool:
    return JobStatus(details.status).globally_terminal
