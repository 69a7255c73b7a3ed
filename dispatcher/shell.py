"""Runs the Dispatcher's core: carries out its commands and posts their results back to it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, assert_never

import grpc
import sqlalchemy as sa
import tenacity

from dispatcher import convert
from dispatcher.blob_store import BlobStore
from dispatcher.convert import AppendResults
from dispatcher.core.commands import (
    Acknowledge,
    Answer,
    AskToCancel,
    Command,
    DropLog,
    DropResults,
    KillProcess,
    NotifyWatchers,
    ProbeJobMaster,
    Refusal,
    RefusalKind,
    StartJob,
    StartProcess,
    StoreGraph,
)
from dispatcher.core.core import DispatcherCore
from dispatcher.core.events import (
    CancelJob,
    CancelNotDelivered,
    CheckpointStored,
    Event,
    GraphStored,
    JobMasterDisconnected,
    JobMasterProbe,
    JobMasterProbed,
    ProcessExited,
    ProcessStarted,
    ProcessStartFailed,
    RemoveJob,
    SubmitJob,
)
from dispatcher.core.records import Record
from dispatcher.core.submitted_jobs import SubmittedJob
from dispatcher.job_store import JobStore, Superseded
from dispatcher.results import Limits, ResultsNotWritten, ResultStore
from dispatcher.savepoints import dispose_savepoint
from firesteel._proto import (
    dispatcher_pb2,
    job_graph_pb2,
    job_master_pb2,
    job_master_pb2_grpc,
)
from firesteel.client.cluster.directory import ClusterDirectory
from firesteel.common.checkpoints.metadata import COMPLETE_CHECKPOINT
from firesteel.common.checkpoints.savepoint import read_restored
from firesteel.common.checkpoints.state import CompleteCheckpoint
from firesteel.common.checkpoints.storage import CheckpointStorage, StorageAway, StorageError
from firesteel.common.config import Configuration, ConfigurationError, check_combinations, options
from firesteel.common.ids import JobId
from firesteel.common.job_log.reader import LogFile, first_job
from firesteel.common.leader import FixedLeader, LeaderRetriever
from firesteel.common.logs import get_logger
from firesteel.common.metrics import Registry, Sample
from firesteel.common.process import StartFailed, exit_reason, log_tail, module_command
from firesteel.common.process.log_files import old, prune
from firesteel.common.rpc.convert import JOB_GRAPH, state_number
from firesteel.common.rpc.process_info import ProcessInfo
from firesteel.common.rpc.server import PORT_CLOSES_S
from firesteel.common.rpc.status import Reason, reason_of
from firesteel.common.service.core import Tick
from firesteel.common.service.core_loop import CoreLoop, Permit
from firesteel.common.service.platform import SYSTEM, Platform, Process
from firesteel.common.states import JobStatus
from firesteel.common.units import shortest_size
from firesteel.errors import FiresteelError
from firesteel.high_availability import elected

log = get_logger(__name__)

Outgoing: TypeAlias = (
    "asyncio.Queue[dispatcher_pb2.DispatcherToJobMaster | None]"  # None ends the stream
)

T = TypeVar("T")

JOB_MASTER_TIMEOUT_S = 3.0  # for one call to a JobMaster
STORE_RETRY_FIRST_S = 0.2  # while the job store cannot be written
STORE_RETRY_MAX_S = 5.0
# After that, the JobMaster is requested to cancel before the request is stored.
CANCEL_STORED_WITHIN_S = 1.0
CHANNELS_MAX = 64
FAILED_SHOWN_S = 3600.0  # how long the metrics show a failed job
EVICT_INTERVAL_S = 60.0
JOB_MASTER_LOGS = "jobmaster-*.log"


class NotLeading(FiresteelError):
    """Another Dispatcher may lead: retry with the leader."""


class Shell:
    """Owns the core, the streams to JobMasters and their processes; it is given the stores.

    `address` is the Dispatcher's own address, as JobMasters reach it.
    """

    def __init__(
        self,
        *,
        conf: Configuration,
        address: str,
        resource_manager: str | LeaderRetriever,
        store: JobStore,
        blobs: BlobStore,
        results: ResultStore,
        log_directory: Path,
        log_path: Path | None = None,
        registry: Registry,
        host: str,
        permit: Permit | None = None,
        replaced: Callable[[], bool] = lambda: False,
        platform: Platform = SYSTEM,
    ) -> None:
        self.conf = conf
        self.address = address
        self._resource_manager = (
            FixedLeader(resource_manager) if isinstance(resource_manager, str) else resource_manager
        )
        self.blobs = blobs
        self.results = results
        self.platform = platform
        now = platform.clock.monotonic()
        self.core = DispatcherCore(
            spares=conf.get(options.JOBMASTER_SPARES),
            history=conf.get(options.JOB_HISTORY),
            wall_offset_s=platform.clock.time() - now,
            jobs=store.jobs(),
            forgotten=store.forgotten(),
            now=now,
        )
        self.stopping = False
        self.store_problem = ""  # set while the job store cannot be written
        self.store = store
        # One thread each, so that writes keep their order.
        self._store_thread = ThreadPoolExecutor(1, "job-store")
        self._results_thread = ThreadPoolExecutor(1, "results")
        self._result_limits = Limits(
            max_bytes=conf.get(options.RESULTS_MAX_SIZE),
            max_age_s=conf.get(options.RESULTS_MAX_AGE),
        )
        self._core_loop: CoreLoop[Event, Record, Command] = CoreLoop(
            self.core,
            execute=self._execute,
            persist=self._persist,
            clock=platform.clock.monotonic,
            name="dispatcher",
            permit=permit,
        )
        self._requests: dict[int, asyncio.Future[Refusal | None]] = {}
        self._request_numbers = itertools.count(1)
        self._process_numbers = itertools.count(1)
        self._streams: dict[int, Outgoing] = {}
        self._watchers: dict[JobId, set[asyncio.Event]] = {}
        self._graphs: dict[str, job_graph_pb2.JobGraph] = {}  # of jobs that have not started yet
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._children: dict[int, Process] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._log_directory = log_directory
        self._log_path = log_path
        self.process_info = ProcessInfo(conf, registry, self.logs)
        self._permit = permit
        self._replaced = replaced
        self._running_jobs = registry.gauge("flink_jobmanager_numRunningJobs", {"host": host})
        self._stale_reports = registry.gauge(
            "flink_jobmanager_numStaleMessagesDropped", {"host": host}
        )
        registry.add_source(lambda: self._samples({"host": host}))

    def _samples(self, labels: dict[str, str]) -> Iterator[Sample]:
        """Runs in the scraping thread."""
        yield from self.core.refusals.samples("flink_jobmanager_", labels)
        jobs = list(self.core.jobs.values())
        counts = Counter(job.status for job in jobs)
        for status in JobStatus:
            of_status = {**labels, "status": status.name}
            yield Sample("flink_jobmanager_numJobs", of_status, counts[status])
        since_ms = (self.platform.clock.time() - FAILED_SHOWN_S) * 1000
        for job in jobs:
            if job.status is JobStatus.FAILED and job.end_ms >= since_ms:
                of_job = {**labels, "job_id": job.job_id, "job_name": job.name}
                yield Sample("flink_jobmanager_job_failedTimestamp", of_job, job.end_ms)

    @property
    def resource_manager(self) -> str:
        """The leader's address; empty if there is none."""
        leader = self._resource_manager.leader
        return "" if leader is None else leader.address

    async def prepare(self) -> None:
        """Drops graphs without a job, which earlier submissions left. Call it before serving
        requests.
        """
        try:
            await self._in_store(self.store.drop_unused_graphs)
        except sa.exc.OperationalError as error:  # a full disk; the next Dispatcher drops them
            log.warning("unused graphs remain in the job store", reason=str(error.orig))

    async def run(self) -> None:
        """Runs until `stop` is called. Raises Fenced once another Dispatcher takes over the job
        store.
        """
        self._log_directory.mkdir(parents=True, exist_ok=True)
        self._start_task(self._drop_blobs())
        self._start_task(self._keep_results_short())
        self.post(Tick())  # starts the spares
        await self._core_loop.run()

    def stop(self) -> None:
        """Stops this process only: JobMasters and jobs keep running, their lifeline is the
        cluster's.
        """
        self._core_loop.stop()
        self.stopping = True
        for stream in self._streams.values():
            stream.put_nowait(None)
        for change in itertools.chain(*self._watchers.values()):
            change.set()

    async def close(self) -> None:
        """Ends what is still running after `run`, and waits for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close(grace=None)
        self._channels.clear()
        self._store_thread.shutdown()
        self._results_thread.shutdown()

    def post(self, event: Event) -> None:
        self._core_loop.post(event)

    # ---- for the servicer

    async def submit(self, graph: job_graph_pb2.JobGraph, owner: str = "") -> Refusal | None:
        """Submits the job; returns once it is stored. Raises the job store's errors."""

        def encode() -> tuple[bytes, str]:
            content = graph.SerializeToString(deterministic=True)
            return content, self.store.graph_id(content)

        content, graph_id = await asyncio.to_thread(encode)
        if self.core.find(JobId(graph.job_id)) is None:
            self._graphs[graph_id] = graph
        accepted = False
        try:
            refusal = await self._ask(
                lambda request: SubmitJob(
                    request=request,
                    job_id=JobId(graph.job_id),
                    name=graph.name,
                    graph_id=graph_id,
                    graph=content,
                    blob_hashes=frozenset(blob.hash for blob in graph.blobs),
                    recovers=graph.batch or self._takes_checkpoints(graph),
                    owner=owner,
                )
            )
            accepted = refusal is None
        finally:
            if not accepted:
                self._graphs.pop(graph_id, None)
        return refusal

    def _takes_checkpoints(self, graph: job_graph_pb2.JobGraph) -> bool:
        try:
            conf = self.conf.with_overrides(dict(graph.config))
        except ConfigurationError:
            return False  # a job is known by the id, and this one is refused
        return bool(conf.get(options.CHECKPOINT_INTERVAL))

    async def check_checkpoints(self, graph: job_graph_pb2.JobGraph) -> None:
        """Raises FiresteelError if the job's checkpoint directory is not writable, or if the
        checkpoint that it starts from cannot be restored; ConfigurationError for its options.
        """
        conf = self.conf.with_overrides(dict(graph.config))
        check_combinations(conf)
        if conf.get(options.CHECKPOINT_INTERVAL):
            directory = conf.get(options.CHECKPOINT_DIR)
            await asyncio.to_thread(lambda: CheckpointStorage(directory).check_writable())
        if options.RECOVERY_PATH.key in graph.config:
            await asyncio.to_thread(lambda: read_restored(JOB_GRAPH.decode(graph), conf))

    async def take_checkpoint(
        self, job: SubmittedJob, request: job_master_pb2.TakeCheckpointRequest
    ) -> job_master_pb2.TakeCheckpointResponse:
        """Returns once the checkpoint is complete. Raises FiresteelError."""
        stub = self.job_master_of(job)
        if stub is None:
            waits = "" if job.ended else " and has no JobMaster yet"
            raise FiresteelError(f"job {job.job_id} is {job.status.name}{waits}")
        try:
            taken: job_master_pb2.TakeCheckpointResponse = await stub.TakeCheckpoint(request)
        except grpc.aio.AioRpcError as error:
            if reason_of(error) is Reason.CHECKPOINT_NOT_TAKEN:
                raise FiresteelError(error.details()) from None
            goes_on = ""
            if request.stop and job.handover:
                goes_on = "; the next JobMaster continues to stop the job if its tasks still run"
            elif request.stop:
                goes_on = "; the job restarts and must be stopped again"
            raise FiresteelError(
                f"the JobMaster of job {job.job_id} ended before it answered{goes_on}:"
                f" `firesteel show --checkpoints {job.job_id}` lists complete checkpoints"
            ) from error
        return taken

    def job_master_of(self, job: SubmittedJob) -> Any:
        """Returns the stub of the JobMaster that runs the job; None: there is none."""
        process = self.core.process_of(job) if job.confirmed and not job.ended else None
        return None if process is None else self._job_master(process.address)

    async def dispose_savepoint(self, path: str) -> None:
        """Deletes the savepoint at `path`. Raises FiresteelError."""
        begun_from: dict[JobId, str] = {}
        for job in list(self.core.jobs.values()):
            graph = None if job.ended else await self._graph(job.graph_id)
            if graph is not None and (begun := graph.config.get(options.RECOVERY_PATH.key)):
                begun_from[job.job_id] = begun
        await self._in_store(lambda: dispose_savepoint(self.store, path, begun_from))

    async def commit_checkpoint(
        self, job_id: JobId, epoch: int, checkpoint: CompleteCheckpoint, subsumed: Sequence[int]
    ) -> None:
        """Stores the checkpoint. Raises Superseded or the job store's errors.

        The core decides, and the commit bypasses its loop: checkpoints also complete while this
        Dispatcher may not act, and the store refuses those of a Dispatcher that was replaced.
        """
        if why := self.core.superseded(job_id, epoch, "CommitCheckpoint"):
            raise Superseded(why)
        await self._in_store(
            lambda: self.store.commit_checkpoint(job_id, epoch, checkpoint, subsumed)
        )
        self.post(CheckpointStored(job_id=job_id, epoch=epoch))

    async def commit_parallelism(
        self, job_id: JobId, epoch: int, parallelism: job_master_pb2.JobParallelism
    ) -> None:
        """Stores the parallelism, as `commit_checkpoint` stores checkpoints."""
        if why := self.core.superseded(job_id, epoch, "CommitParallelism"):
            raise Superseded(why)
        content = parallelism.SerializeToString(deterministic=True)
        await self._in_store(lambda: self.store.commit_parallelism(job_id, epoch, content))

    async def rescale(
        self, job: SubmittedJob, request: job_master_pb2.RescaleJobRequest
    ) -> job_master_pb2.RescaleJobResponse:
        """Returns once all tasks run with the new parallelism. Raises FiresteelError, or the
        JobMaster's refusal.
        """
        stub = self.job_master_of(job)
        if stub is None:
            waits = "" if job.ended else " and has no JobMaster yet"
            raise FiresteelError(
                f"job {job.job_id} is {job.status.name}{waits}, and only a running job can be"
                " rescaled"
            )
        try:
            rescaled: job_master_pb2.RescaleJobResponse = await stub.RescaleJob(request)
        except grpc.aio.AioRpcError as error:
            if reason_of(error) in (Reason.JOB_NOT_RESCALED, Reason.INVALID_REQUEST):
                raise
            raise FiresteelError(
                f"the JobMaster of job {job.job_id} ended before it answered, and the job continues"
                f" with the old or the new parallelism: `firesteel show {job.job_id}` shows it"
            ) from error
        return rescaled

    async def remove(self, job_id: JobId) -> Refusal | None:
        """Removes the job; returns once that is stored."""
        return await self._ask(lambda request: RemoveJob(request=request, job_id=job_id))

    async def cancel(self, job_id: JobId) -> Refusal | None:
        """Cancels the job; returns once the request is stored. While the job store cannot be
        written, sends the request to the JobMaster immediately and refuses, because the request may
        be lost.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_STORED_WITHIN_S):
                    return await self._ask(
                        lambda request: CancelJob(request=request, job_id=job_id)
                    )
            asked = await self._cancel_unstored(job_id)
            if self.store_problem:
                then = "is being cancelled; it will show as ended" if asked else "will be cancelled"
                return Refusal(
                    kind=RefusalKind.NOT_STORED,
                    message=f"the cluster's job store cannot be written ({self.store_problem}):"
                    f" job {job_id} {then} once it is repaired",
                )

    async def _cancel_unstored(self, job_id: JobId) -> bool:
        """Whether the job's JobMaster received the request."""
        job = self.core.find(job_id)
        process = self.core.process_of(job) if job is not None and job.confirmed else None
        if process is None:  # it has no JobMaster, and gets none before the request is stored
            return False
        log.warning("cancelling a job before the request is stored", job_id=job_id)
        return await self._send_cancel(job_id, process.address)

    async def _ask(self, event: Callable[[int], Event]) -> Refusal | None:
        request = next(self._request_numbers)
        answer = self._requests[request] = asyncio.get_running_loop().create_future()
        try:
            self.post(event(request))
            refusal: Refusal | None = await answer
            return refusal
        finally:
            self._requests.pop(request, None)

    async def details(
        self, job: SubmittedJob, *, checkpoints: bool = False
    ) -> job_master_pb2.JobDetails:
        """Returns details from the job's JobMaster while it lives, from the store once the job
        ended. With `checkpoints`, includes the subtasks' parts of them while the JobMaster lives.
        """
        details = await self._details(job, checkpoints)
        details.owner = job.owner
        return details

    async def _details(self, job: SubmittedJob, checkpoints: bool) -> job_master_pb2.JobDetails:
        for _ in range(20):
            if job.status.globally_terminal:
                return await self._stored_details(job)
            details = await self._details_from_master(job, checkpoints)
            if details is None:
                break
            if not _ended(details):
                return details
            # The JobMaster has ended the job, but the end is not stored yet and could still be
            # lost: it becomes visible once it is stored.
            await self.changed(job.job_id, timeout_s=0.1)
            if self.store_problem:
                return convert.before_stored(details, self.store_problem)
        graph = await self._graph_of(job)
        if job.status.globally_terminal:  # it has ended in the meantime
            return await self._stored_details(job)
        details = convert.details_without_master(
            job, graph, waiting_for="" if job.confirmed else "its JobMaster to start"
        )
        if self.store_problem:
            return convert.before_stored(details, self.store_problem)
        return details

    def forgotten_why(self, job_id: JobId) -> str | None:
        """Returns why the job was dropped; None if it is kept or never existed."""
        forgotten = self.core.forgotten(job_id)
        if forgotten is None or forgotten.why:
            return None if forgotten is None else forgotten.why
        kept = self.conf.get(options.JOB_HISTORY)
        return f"the cluster keeps only the last {kept} jobs ({options.JOB_HISTORY.key})"

    async def _stored_details(self, job: SubmittedJob) -> job_master_pb2.JobDetails:
        if (why := self.forgotten_why(job.job_id)) is not None:
            failed = job.status is JobStatus.FAILED
            return convert.details_without_master(
                job,
                None,
                failure=f"the reason is no longer kept: {why}" if failed else "",
            )
        while (ending := await self._in_store(lambda: self.store.ending(job.job_id))) is None:
            await asyncio.sleep(STORE_RETRY_FIRST_S)  # decided, but not yet stored
            if self.store_problem:
                graph = await self._graph_of(job)
                details = convert.details_without_master(job, graph)
                return convert.before_stored(details, self.store_problem)
        final_details, failure = ending
        if final_details is not None:
            return job_master_pb2.JobDetails.FromString(final_details)
        return convert.details_without_master(job, await self._graph_of(job), failure=failure)

    async def _details_from_master(
        self, job: SubmittedJob, checkpoints: bool
    ) -> job_master_pb2.JobDetails | None:
        process = self.core.process_of(job)
        if process is None or not job.confirmed:
            return None
        stub: Any = self._job_master(process.address)
        try:
            request = job_master_pb2.JobDetailsRequest(job_id=job.job_id, checkpoints=checkpoints)
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

    async def series(
        self, job: SubmittedJob, request: job_master_pb2.JobSeriesRequest
    ) -> job_master_pb2.JobSeries:
        """Returns the series of the job's JobMaster; empty ones if it does not answer."""
        process = self.core.process_of(job)
        if process is None or not job.confirmed:
            return job_master_pb2.JobSeries()
        try:
            series: job_master_pb2.JobSeries = await self._job_master(process.address).GetJobSeries(
                request, timeout=JOB_MASTER_TIMEOUT_S
            )
            return series
        except grpc.aio.AioRpcError:
            return job_master_pb2.JobSeries()

    async def changed(self, job_id: JobId, *, timeout_s: float) -> None:
        """Returns at the job's next change, or after `timeout_s`."""
        with self.watch(job_id) as change:
            await wait_for_change(change, timeout_s)

    @contextlib.contextmanager
    def watch(self, job_id: JobId) -> Iterator[asyncio.Event]:
        """Yields an event that every change of the job sets. Clear it before reading the job."""
        event = asyncio.Event()
        self._watchers.setdefault(job_id, set()).add(event)
        try:
            yield event
        finally:
            watchers = self._watchers.get(job_id, set())
            watchers.discard(event)
            if not watchers:
                self._watchers.pop(job_id, None)

    # ---- collected results

    async def append_results(self, chunk: AppendResults) -> None:
        """Returns once the leader has written the chunk. Raises Superseded, ChunkOutOfOrder,
        ResultsNotWritten, StorageError or NotLeading.
        """
        await self._make_room(len(chunk.ipc_stream))
        job = self.core.jobs.get(chunk.job_id)
        if job is None or job.epoch != chunk.epoch:  # the job may have ended
            raise Superseded(f"job {chunk.job_id} has a different JobMaster")
        key = chunk.job_id, chunk.operator_id, chunk.generation

        def write() -> None:
            self._check_leads()  # a new leader has already read the stored rows
            if chunk.ipc_stream or chunk.group:
                self.results.append(
                    *key, chunk.index, chunk.ipc_stream, chunk.group, chunk.attempt_id
                )
            else:
                self.results.begin(*key)
            self._check_leads()  # a new leader may have been elected while this one wrote

        await self._in_thread(self._results_thread, write)

    def _check_leads(self) -> None:
        """Allows rows without contact to ZooKeeper as long as no other Dispatcher leads."""
        if self._permit is not None and not self._permit.acts() and self._replaced():
            raise NotLeading("another Dispatcher leads")

    async def _make_room(self, more_bytes: int) -> None:
        """Deletes rows of ended jobs if the limit requires it. Raises ResultsNotWritten."""
        max_bytes = self._result_limits.max_bytes
        if not max_bytes or self.results.total_bytes + more_bytes <= max_bytes:
            return
        await self._evict_results(more_bytes)
        if self.results.total_bytes + more_bytes > max_bytes:
            raise ResultsNotWritten(
                f"collected rows are limited to {shortest_size(max_bytes)} in all"
                f" ({options.RESULTS_MAX_SIZE.key}), and running jobs use all of it;"
                " write large results to a sink, or raise the limit"
            )

    async def _evict_results(self, more_bytes: int = 0) -> None:
        ended_ms = {str(job.job_id): job.end_ms for job in self.core.jobs.values() if job.ended}
        now_ms = round(self.platform.clock.time() * 1000)
        try:
            evicted = await self._in_thread(
                self._results_thread,
                lambda: self.results.keep_to(
                    self._result_limits, ended_ms, now_ms=now_ms, more=more_bytes
                ),
            )
        except (OSError, StorageError) as error:
            log.warning("collected rows cannot be deleted", reason=str(error))
            return
        for job_id, why in evicted.items():
            log.info("deleted the collected rows of a job", job_id=job_id, reason=why)

    async def _keep_results_short(self) -> None:
        """Deletes rows of unknown jobs, and periodically rows that are too old."""
        known = set(self.core.jobs)
        for job_id in await self._in_thread(self._results_thread, self.results.jobs):
            if job_id not in known:
                await self._in_thread(self._results_thread, partial(self.results.drop, job_id))
        while True:
            await self._evict_results()
            await asyncio.sleep(EVICT_INTERVAL_S)

    # ---- logs

    def logs(self) -> dict[Path, LogFile]:
        """Returns this process's own log and those of JobMasters."""
        own = {self._log_path: LogFile(own=True)} if self._log_path is not None else {}
        masters = sorted(self._log_directory.glob(JOB_MASTER_LOGS))
        return own | {path: LogFile(one_job=True) for path in masters}

    def shut_down_cluster(self) -> None:
        """Ends the supervisor of this process, and with it the cluster. Raises FiresteelError if
        this process has none.
        """
        try:
            supervisor = ClusterDirectory(self._log_directory.parent).read().supervisor_pid
        except FiresteelError:
            supervisor = 0
        if supervisor != os.getppid():
            raise FiresteelError(
                "the processes of this cluster are not run by `firesteel cluster start`; end them"
                " where they were started"
            )
        log.info("the cluster is shut down", supervisor=supervisor)
        os.kill(supervisor, signal.SIGTERM)

    # ---- streams of JobMasters

    def open_stream(self, connection: int) -> Outgoing:
        return self._streams.setdefault(connection, asyncio.Queue())

    def disconnected(self, connection: int) -> None:
        """Handles the end of a JobMaster's stream. The exit of a JobMaster that an earlier
        Dispatcher started is not reported, so it is probed.
        """
        self._streams.pop(connection, None)
        process = self.core.processes.on(connection)
        self.post(JobMasterDisconnected(connection=connection))
        if process is not None and process.pid not in self._children and not self.stopping:
            self._start_task(self._find_whether_it_ended(process.pid, process.address))

    async def _find_whether_it_ended(self, pid: int, address: str) -> None:
        """Posts the process's exit if its port, which it keeps for life, is closed."""
        await asyncio.sleep(PORT_CLOSES_S)
        if await self.platform.transport.refuses(address):
            log.info("a JobMaster process has ended", pid=pid, reason="its port is closed")
            self.post(ProcessExited(pid=pid, reason="its port closed"))

    def _send(self, connection: int, message: dispatcher_pb2.DispatcherToJobMaster) -> None:
        if (stream := self._streams.get(connection)) is not None:
            stream.put_nowait(message)
        # else: the stream has just broken; the core resends once it is open again

    # ---- commands

    def _execute(self, command: Command) -> None:
        match command:
            case Answer():
                answer = self._requests.get(command.request)
                if answer is not None and not answer.done():
                    answer.set_result(command.refusal)
            case StoreGraph():
                self._start_task(self._store_graph(command.submission))
            case StartProcess():
                self._start_task(self._run_process())
            case KillProcess():
                self._kill(command.pid)
            case StartJob():
                self._start_task(self._start_job(command))
            case AskToCancel():
                self._start_task(self._ask_to_cancel(command))
            case Acknowledge():
                ack = dispatcher_pb2.StatusAck(status=state_number(command.status))
                self._send(command.connection, dispatcher_pb2.DispatcherToJobMaster(ack=ack))
            case ProbeJobMaster():
                self._start_task(self._probe(command))
            case NotifyWatchers():
                self._running_jobs.set(self.core.running())
                self._stale_reports.set(self.core.stale_reports)
                for watcher in self._watchers.get(command.job_id, ()):
                    watcher.set()
            case DropResults():
                self._start_task(self._drop_results(command.job_id))
            case DropLog():
                self._start_task(asyncio.to_thread(self._drop_log, command.job_id))
            case _:
                assert_never(command)

    def _drop_log(self, job_id: JobId) -> None:
        for path in self._log_directory.glob(JOB_MASTER_LOGS):
            if first_job(path) == job_id:
                path.unlink(missing_ok=True)
                old(path).unlink(missing_ok=True)

    async def _run_process(self) -> None:
        """Runs one JobMaster process from its start to its end."""
        number = next(self._process_numbers)
        log_path = self._log_directory / f"jobmaster-{self.store.epoch}-{number}.log"
        argv = module_command(
            "jobmaster",
            *(() if elected(self.conf) else ("--dispatcher", self.address)),
            *self.conf.to_arguments(),
        )
        try:
            child = await self.platform.processes.spawn(argv, log_path=log_path, lifeline="inherit")
        except (StartFailed, OSError) as error:
            log.error("a JobMaster process did not start", reason=str(error))
            self.post(ProcessStartFailed(reason=str(error)))
            return
        self._children[child.pid] = child
        self.post(ProcessStarted(pid=child.pid, log_path=str(log_path)))
        code = await child.wait()
        self._children.pop(child.pid, None)
        reason = exit_reason(code)
        log.info("a JobMaster process has ended", pid=child.pid, reason=reason)
        self.post(ProcessExited(pid=child.pid, reason=reason, log_tail=log_tail(log_path)))
        prune(self._log_directory, JOB_MASTER_LOGS, self.conf.get(options.LOG_MAX))

    async def _drop_results(self, job_id: JobId) -> None:
        await self._in_thread(self._results_thread, lambda: self.results.drop(job_id))
        await self._drop_blobs()

    async def _drop_blobs(self) -> None:
        needed = await self._in_store(self.store.needed_blobs)
        try:
            dropped = await asyncio.to_thread(
                self.blobs.drop_unneeded, needed, self.platform.clock.time()
            )
        except StorageError as error:
            log.warning("files of jobs cannot be deleted", reason=str(error))
            return
        if dropped:
            log.info("deleted files that no job needs", files=len(dropped))

    def _kill(self, pid: int) -> None:
        if pid < 0:
            log.warning("a JobMaster on another machine does not answer or is not needed", pid=pid)
            return  # its messages are no longer accepted
        log.warning("killing a JobMaster process that does not answer or is not needed", pid=pid)
        if (child := self._children.get(pid)) is not None:
            child.kill()
            return
        self.platform.processes.kill(pid)  # an earlier Dispatcher started it on this machine

    async def _start_job(self, command: StartJob) -> None:
        graph = await self._until(lambda: self._graph(command.graph_id))
        if graph is None:
            log.error(
                "the job's graph is not in the store",
                job_id=command.job_id,
                graph_id=command.graph_id,
            )
            return
        # Its assignment is stored: from now on, no earlier JobMaster can add to these.
        checkpoints = await self._until_stored(lambda: self.store.checkpoints(command.job_id))
        parallelism = await self._until_stored(lambda: self.store.parallelism(command.job_id))
        collected = await self._until(
            lambda: self._in_thread(
                self._results_thread, lambda: self.results.collected(command.job_id)
            )
        )
        job = self.core.table.find(command.job_id)
        start = dispatcher_pb2.StartJob(
            job_graph=graph,
            epoch=command.epoch,
            resource_manager_address=self.resource_manager,
            dispatcher_address=self.address,
            checkpoints=[COMPLETE_CHECKPOINT.encode(found) for found in checkpoints],
            restart_history=command.restart_history,
            history=command.history,
            start_ms=job.start_ms if job is not None else 0,
            handover=command.handover,
            reconciles=command.reconciles,
            cancels=command.cancels,
            collected=[dispatcher_pb2.CollectedChunks(**found._asdict()) for found in collected],
            parallelism=(
                job_master_pb2.JobParallelism.FromString(parallelism) if parallelism else None
            ),
        )
        self._send(command.connection, dispatcher_pb2.DispatcherToJobMaster(start=start))
        self._graphs.pop(command.graph_id, None)

    async def _probe(self, command: ProbeJobMaster) -> None:
        if await self.platform.transport.refuses(command.address):
            outcome = JobMasterProbe.ENDED
            log.info("a JobMaster has ended", job_id=command.job_id, reason="its port is closed")
        else:
            stub: Any = self._job_master(command.address)
            try:
                await stub.GetJobDetails(
                    job_master_pb2.JobDetailsRequest(job_id=command.job_id),
                    timeout=JOB_MASTER_TIMEOUT_S,
                )
                outcome = JobMasterProbe.RUNS
            except grpc.aio.AioRpcError:  # another process may have its port now
                outcome = JobMasterProbe.SILENT
        self.post(JobMasterProbed(job_id=command.job_id, epoch=command.epoch, outcome=outcome))

    async def _ask_to_cancel(self, command: AskToCancel) -> None:
        if not await self._send_cancel(command.job_id, command.address):
            self.post(CancelNotDelivered(job_id=command.job_id))

    async def _send_cancel(self, job_id: JobId, address: str) -> bool:
        stub: Any = self._job_master(address)
        try:
            await stub.CancelJob(
                job_master_pb2.CancelJobRequest(job_id=job_id), timeout=JOB_MASTER_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            log.info(
                "the JobMaster could not be asked to cancel",
                job_id=job_id,
                code=error.code().name,
            )
            return False
        return True

    # ---- the store

    async def _store_graph(self, submission: SubmitJob) -> None:
        """Raises errors in the waiting client. If it has left, it submits the job again."""
        answer = self._requests.get(submission.request)
        if answer is None:
            return
        try:
            await self._in_store(
                lambda: self.store.put_graph(submission.graph, submission.blob_hashes)
            )
        except Exception as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            self.post(GraphStored(submission=submission))

    async def _persist(self, records: Sequence[Record]) -> None:
        """Retries until it succeeds: the core has decided, and nothing is carried out before it is
        stored. A commit whose answer was lost is retried like any other; the store recognises its
        own rows.
        """
        await self._until_stored(lambda: self.store.persist(records))

    async def _until_stored(self, work: Callable[[], T]) -> T:
        return await self._until(lambda: self._in_store(work))

    async def _until(self, work: Callable[[], Awaitable[T]]) -> T:
        """Retries while the job store or the storage directory is unavailable."""
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(
                (sa.exc.OperationalError, sa.exc.InterfaceError, StorageAway)
            ),  # a full disk, or a database that restarts
            wait=tenacity.wait_exponential(multiplier=STORE_RETRY_FIRST_S, max=STORE_RETRY_MAX_S),
            before_sleep=self._store_failed,
            sleep=asyncio.sleep,
        ):
            with attempt:
                done = await work()
                self.store_problem = ""
                return done
        raise AssertionError("it retries forever")

    def _store_failed(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        self.store_problem = str(getattr(error, "orig", error)).splitlines()[0]
        log.error("the job store cannot be written; retrying", reason=self.store_problem)

    async def _graph(self, graph_id: str) -> job_graph_pb2.JobGraph | None:
        if (graph := self._graphs.get(graph_id)) is not None:
            return graph
        stored = await self._in_store(lambda: self.store.graph(graph_id))
        return None if stored is None else job_graph_pb2.JobGraph.FromString(stored)

    async def _graph_of(self, job: SubmittedJob) -> job_graph_pb2.JobGraph | None:
        """Returns the job's graph with its current parallelism."""
        stored = await self._in_store(lambda: self.store.parallelism(job.job_id))
        graph = await self._graph(job.graph_id)
        if graph is None or not stored:
            return graph
        rescaled = job_graph_pb2.JobGraph()
        rescaled.CopyFrom(graph)
        by_vertex = job_master_pb2.JobParallelism.FromString(stored).by_vertex
        for vertex in rescaled.vertices:
            vertex.parallelism = by_vertex.get(vertex.vertex_id, vertex.parallelism)
        return rescaled

    async def _in_store(self, work: Callable[[], T]) -> T:
        return await self._in_thread(self._store_thread, work)

    async def _in_thread(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    def _job_master(self, address: str) -> job_master_pb2_grpc.JobMasterStub:
        return job_master_pb2_grpc.JobMasterStub(self.channel(address))  # type: ignore[no-untyped-call]

    def channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            # The oldest lead to JobMasters that ended long ago.
            if len(self._channels) >= CHANNELS_MAX:
                oldest = next(iter(self._channels))
                self._start_task(self._channels.pop(oldest).close(grace=JOB_MASTER_TIMEOUT_S))
            self._channels[address] = self.platform.transport.channel(address)
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
    """Returns when the event is set, or after `timeout_s`."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(change.wait(), timeout_s)


def _ended(details: job_master_pb2.JobDetails) -> bool:
    return JobStatus(details.status).globally_terminal
