"""The gRPC servicer of proto/dispatcher.proto: checks requests, calls the shell, returns errors."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc
import sqlalchemy as sa

import firesteel
from dispatcher import convert
from dispatcher.blob_store import CHUNK_BYTES, BadBlob, DiskFull
from dispatcher.core.commands import Refusal
from dispatcher.core.core import unknown_job
from dispatcher.core.submitted_jobs import SubmittedJob
from dispatcher.job_logs import cluster_logs
from dispatcher.job_store import Fenced, NotWritten, Superseded
from dispatcher.results import ChunkOutOfOrder, ResultsGone, ResultsNotWritten, follow
from dispatcher.shell import NotLeading, Shell, wait_for_change
from dispatcher.thread_dump import dump_masters
from firesteel._proto import (
    common_pb2,
    dispatcher_pb2,
    dispatcher_pb2_grpc,
    inspections_pb2,
    job_graph_pb2,
    job_logs_pb2,
    job_master_pb2,
    process_info_pb2,
    resource_manager_pb2,
)
from firesteel._proto.inspections_pb2_grpc import ThreadsStub
from firesteel._proto.process_info_pb2_grpc import ProcessInfoStub
from firesteel._proto.resource_manager_pb2 import MasterOverview
from firesteel._proto.resource_manager_pb2_grpc import ResourceManagerStub
from firesteel.common.checkpoints.metadata import COMPLETE_CHECKPOINT
from firesteel.common.checkpoints.storage import StorageError
from firesteel.common.config import ConfigurationError, options
from firesteel.common.failpoints import Failpoint, reached
from firesteel.common.ids import JobId, is_id
from firesteel.common.inspections import RowSampling, problem_with
from firesteel.common.leader import Office
from firesteel.common.logs import get_logger
from firesteel.common.rpc.bearer import answering
from firesteel.common.rpc.convert import TASK_INSPECTION
from firesteel.common.rpc.errors import RemoteProtocolError
from firesteel.common.rpc.status import Reason, abort, pass_on, reason_of
from firesteel.common.states import JobStatus
from firesteel.errors import FiresteelError, PayloadTooLarge

log = get_logger(__name__)

WATCH_COALESCE_S = 0.05  # sends changes within this time together
WATCH_REFRESH_S = 0.5  # the longest interval: record counts change without a change of state
RESULTS_LOOK_S = 0.05
RESOURCE_MANAGER_TIMEOUT_S = 2.0
JOB_MASTERS_SHOWN = 100  # in the overview
TASK_EXECUTOR_TIMEOUT_S = 5.0
THREADS_TIMEOUT_S = 10.0  # a TaskExecutor waits for its slots
INSPECTION_GRACE_S = 10.0  # the JobMaster answers earlier
_OUTCOMES = (Reason.CHECKPOINT_NOT_TAKEN, Reason.TRIGGER_NOT_FOUND)

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class DispatcherServicer(dispatcher_pb2_grpc.DispatcherServicer):
    def __init__(
        self,
        shell: Shell,
        rest_url: Callable[[], str],
        spark_connect_url: Callable[[], str],
        standbys: Callable[[Office], Awaitable[tuple[str, ...]]],
    ) -> None:
        self._shell = shell
        self._rest_url = rest_url
        self._spark_connect_url = spark_connect_url
        self._standbys = standbys
        self._connections = itertools.count(1)

    # ---- jobs

    async def SubmitJob(
        self, request: dispatcher_pb2.SubmitJobRequest, context: _Context
    ) -> dispatcher_pb2.SubmitJobResponse:
        graph = request.job_graph
        size_bytes, limit_bytes = request.ByteSize(), self._shell.conf.get(options.PAYLOAD_LIMIT)
        if size_bytes > limit_bytes:
            await abort(
                context,
                Reason.PAYLOAD_TOO_LARGE,
                f'job "{graph.name}" has {size_bytes:,} bytes, over the limit of {limit_bytes:,}'
                f" ({options.PAYLOAD_LIMIT.key}); put large data into files instead of functions",
                size_bytes=size_bytes,
                limit_bytes=limit_bytes,
            )
        try:
            convert.check_job_graph(graph)
        except RemoteProtocolError as error:
            await abort(context, Reason.INVALID_REQUEST, str(error))
        if self._shell.core.find(JobId(graph.job_id)) is None:  # otherwise a retry
            await self._check_can_start(graph, context)
        if self._shell.store_problem:
            problem = _store_problem(self._shell.store_problem)
            await abort(context, Reason.STORE_UNAVAILABLE, problem)
        try:
            refusal = await self._shell.submit(graph, _caller_name())
        except sa.exc.SQLAlchemyError as error:
            problem = _store_problem(str(getattr(error, "orig", error)).splitlines()[0])
            await abort(context, Reason.STORE_UNAVAILABLE, problem)
        except Fenced as error:  # the client retries with the next leader
            await abort(context, Reason.NOT_LEADER, str(error))
        await _refuse(context, refusal, graph.job_id)
        reached(Failpoint.SUBMITTED)
        log.info("job submitted", job_id=graph.job_id, name=graph.name, size_bytes=size_bytes)
        return dispatcher_pb2.SubmitJobResponse(job_id=graph.job_id)

    async def _check_can_start(self, graph: job_graph_pb2.JobGraph, context: _Context) -> None:
        hashes = [blob.hash for blob in graph.blobs]
        try:
            missing = await asyncio.to_thread(self._shell.blobs.missing, hashes)
        except StorageError as error:
            await abort(context, Reason.STORAGE_UNAVAILABLE, str(error))
        if missing:
            names = ", ".join(blob.name for blob in graph.blobs if blob.hash in missing)
            await abort(
                context, Reason.BLOBS_MISSING, f"upload the job's files first; missing: {names}"
            )
        try:
            await self._shell.check_checkpoints(graph)
        except ConfigurationError as error:
            await abort(context, Reason.INVALID_REQUEST, str(error))
        except FiresteelError as error:
            await abort(context, Reason.CHECKPOINTS_UNUSABLE, str(error))

    async def ListJobs(
        self, request: dispatcher_pb2.ListJobsRequest, context: _Context
    ) -> dispatcher_pb2.ListJobsResponse:
        return dispatcher_pb2.ListJobsResponse(
            jobs=map(convert.JOB_OVERVIEW.encode, self._shell.core.jobs.values())
        )

    async def GetJobDetails(
        self, request: job_master_pb2.JobDetailsRequest, context: _Context
    ) -> job_master_pb2.JobDetails:
        job = await self._job(request.job_id, context)
        async with _store_read(context):
            return await self._shell.details(job, checkpoints=request.checkpoints)
        raise AssertionError("abort raises")

    async def GetJobSeries(
        self, request: job_master_pb2.JobSeriesRequest, context: _Context
    ) -> job_master_pb2.JobSeries:
        return await self._shell.series(await self._job(request.job_id, context), request)

    async def WatchJob(
        self, request: job_master_pb2.JobDetailsRequest, context: _Context
    ) -> AsyncIterator[job_master_pb2.JobDetails]:
        job = await self._job(request.job_id, context)
        with self._shell.watch(job.job_id) as change:
            while True:
                change.clear()
                try:
                    details = await self._shell.details(job)
                except sa.exc.SQLAlchemyError:  # the database is away: watchers can wait
                    await self._unless_stopping(context)
                    await asyncio.sleep(WATCH_REFRESH_S)
                    continue
                yield details
                if JobStatus(details.status).globally_terminal:
                    return
                if not job.status.globally_terminal:
                    await asyncio.sleep(WATCH_COALESCE_S)
                    await wait_for_change(change, WATCH_REFRESH_S - WATCH_COALESCE_S)
                    await self._unless_stopping(context)

    async def CancelJob(
        self, request: job_master_pb2.CancelJobRequest, context: _Context
    ) -> job_master_pb2.CancelJobResponse:
        job = await self._job(request.job_id, context)
        await _refuse(context, await self._shell.cancel(job.job_id), job.job_id)
        return job_master_pb2.CancelJobResponse()

    async def TakeCheckpoint(
        self, request: job_master_pb2.TakeCheckpointRequest, context: _Context
    ) -> job_master_pb2.TakeCheckpointResponse:
        job = await self._job(request.job_id, context)
        try:
            return await self._shell.take_checkpoint(job, request)
        except FiresteelError as error:
            await abort(context, Reason.CHECKPOINT_NOT_TAKEN, str(error))

    async def RescaleJob(
        self, request: job_master_pb2.RescaleJobRequest, context: _Context
    ) -> job_master_pb2.RescaleJobResponse:
        job = await self._job(request.job_id, context)
        try:
            return await self._shell.rescale(job, request)
        except grpc.aio.AioRpcError as error:
            await pass_on(context, error)
        except FiresteelError as error:
            await abort(context, Reason.JOB_NOT_RESCALED, str(error))

    async def InspectTask(
        self, request: inspections_pb2.InspectTaskRequest, context: _Context
    ) -> inspections_pb2.InspectTaskResponse:
        job = await self._job(request.job_id, context)
        try:
            inspection = TASK_INSPECTION.decode(request).inspection
        except RemoteProtocolError as error:
            await abort(context, Reason.INVALID_REQUEST, str(error))
        if problem := problem_with(inspection):
            await abort(context, Reason.INVALID_REQUEST, problem)
        option = options.SAMPLE_ROWS
        if isinstance(inspection, RowSampling) and not self._shell.conf.get(option):
            await abort(
                context,
                Reason.DISABLED,
                f"this cluster shows no rows of jobs ({option.key}: false)",
            )
        job_master = self._shell.job_master_of(job)
        if job_master is None:
            waits = "" if job.ended else " and has no JobMaster yet"
            await abort(
                context, Reason.TASK_NOT_RUNNING, f"job {job.job_id} is {job.status.name}{waits}"
            )
        try:
            response: inspections_pb2.InspectTaskResponse = await job_master.InspectTask(
                request, timeout=inspection.seconds + INSPECTION_GRACE_S
            )
        except grpc.aio.AioRpcError as error:
            if reason_of(error) is not None:
                await pass_on(context, error)
            lost = f"the JobMaster of job {job.job_id} does not answer ({error.code().name})"
            await abort(context, Reason.INSPECTION_LOST, lost)
        return response

    async def AwaitCheckpoint(
        self, request: job_master_pb2.AwaitCheckpointRequest, context: _Context
    ) -> job_master_pb2.TakeCheckpointResponse:
        job = await self._job(request.job_id, context)
        job_master = self._shell.job_master_of(job)
        if job_master is None and job.ended:
            await abort(
                context,
                Reason.TRIGGER_NOT_FOUND,
                f"job {job.job_id} is {job.status.name}, and the outcome of its checkpoint"
                f" {request.trigger_id[:80]!r} is no longer known: `firesteel show --checkpoints"
                f" {job.job_id}` lists complete ones",
                trigger_id=request.trigger_id[:80],
            )
        away = f"the JobMaster of job {job.job_id} does not answer this Dispatcher yet"
        if job_master is None:
            await abort(context, Reason.STARTING, away)
        try:
            taken: job_master_pb2.TakeCheckpointResponse
            taken = await job_master.AwaitCheckpoint(request)
        except grpc.aio.AioRpcError as error:
            if reason_of(error) in _OUTCOMES:
                await pass_on(context, error)
            await abort(context, Reason.STARTING, away)
        return taken

    async def DisposeSavepoint(
        self, request: dispatcher_pb2.DisposeSavepointRequest, context: _Context
    ) -> dispatcher_pb2.DisposeSavepointResponse:
        try:
            async with _store_read(context):
                await self._shell.dispose_savepoint(request.path)
        except FiresteelError as error:
            await abort(context, Reason.SAVEPOINT_NOT_DISPOSED, str(error))
        return dispatcher_pb2.DisposeSavepointResponse()

    async def RemoveJob(
        self, request: dispatcher_pb2.RemoveJobRequest, context: _Context
    ) -> dispatcher_pb2.RemoveJobResponse:
        if self._shell.store_problem:
            await abort(
                context,
                Reason.STORE_UNAVAILABLE,
                f"the cluster's job store cannot be written ({self._shell.store_problem});"
                " nothing was removed; try again once it is repaired",
            )
        await _refuse(context, await self._shell.remove(JobId(request.job_id)), request.job_id)
        return dispatcher_pb2.RemoveJobResponse()

    async def FetchResults(
        self, request: dispatcher_pb2.FetchResultsRequest, context: _Context
    ) -> AsyncIterator[dispatcher_pb2.ResultChunk]:
        job = await self._job(request.job_id, context)
        if not is_id(request.operator_id):
            await abort(
                context,
                Reason.INVALID_REQUEST,
                f"{request.operator_id[:80]!r} is not the id of an operator:"
                " expected 32 lower-case hex characters",
            )
        await self._unless_forgotten(job.job_id, "rows", context)
        await _accept(context)

        async def wait() -> None:
            await self._shell.changed(job.job_id, timeout_s=RESULTS_LOOK_S)
            await self._unless_stopping(context)

        try:
            async for chunk in follow(
                self._shell.results,
                job.job_id,
                request.operator_id,
                offset=request.offset,
                of_generation=request.generation,
                ended=lambda: job.status.globally_terminal,
                wait=wait,
            ):
                yield dispatcher_pb2.ResultChunk(
                    generation=chunk.generation, index=chunk.index, ipc_stream=chunk.ipc_stream
                )
        except ResultsGone as error:
            await abort(context, Reason.JOB_DATA_GONE, str(error), job_id=job.job_id)
        except StorageError as error:
            await abort(context, Reason.STORAGE_UNAVAILABLE, str(error))
        await self._unless_forgotten(job.job_id, "rows", context)  # forgotten while they were read

    async def FetchLogs(
        self, request: job_logs_pb2.ReadJobLogsRequest, context: _Context
    ) -> AsyncIterator[job_logs_pb2.JobLogLines]:
        job = await self._job(request.job_id, context)
        await self._unless_forgotten(job.job_id, "logs", context)
        await _accept(context)
        async for message in cluster_logs(self._shell, job, request):
            yield message
        await self._unless_stopping(context)

    async def _unless_forgotten(self, job_id: JobId, what: str, context: _Context) -> None:
        if (why := self._shell.forgotten_why(job_id)) is not None:
            gone = f"the {what} of job {job_id} are gone: {why}"
            await abort(context, Reason.JOB_DATA_GONE, gone, job_id=job_id)

    async def _unless_stopping(self, context: _Context) -> None:
        if self._shell.stopping:
            await abort(context, Reason.SHUTTING_DOWN, "the Dispatcher is stopping")

    async def _job(self, job_id: str, context: _Context) -> SubmittedJob:
        job = self._shell.core.find(JobId(job_id))
        if job is None:
            await abort(context, Reason.JOB_NOT_FOUND, unknown_job(job_id[:80]), job_id=job_id[:80])
        return job

    # ---- files

    async def MissingBlobs(
        self, request: dispatcher_pb2.MissingBlobsRequest, context: _Context
    ) -> dispatcher_pb2.MissingBlobsResponse:
        try:
            missing = await asyncio.to_thread(self._shell.blobs.missing, list(request.hashes))
            return dispatcher_pb2.MissingBlobsResponse(hashes=missing)
        except BadBlob as error:
            await abort(context, Reason.INVALID_REQUEST, str(error))
        except StorageError as error:
            await abort(context, Reason.STORAGE_UNAVAILABLE, str(error))

    async def UploadBlob(
        self, chunks: AsyncIterator[dispatcher_pb2.BlobChunk], context: _Context
    ) -> common_pb2.BlobRef:
        try:
            return await self._receive(chunks)
        except PayloadTooLarge as error:
            limit_bytes = self._shell.conf.get(options.BLOB_LIMIT)
            await abort(context, Reason.PAYLOAD_TOO_LARGE, str(error), limit_bytes=limit_bytes)
        except DiskFull as error:
            await abort(context, Reason.DISK_FULL, str(error))
        except BadBlob as error:
            await abort(context, Reason.INVALID_REQUEST, str(error))
        except StorageError as error:
            await abort(context, Reason.STORAGE_UNAVAILABLE, str(error))
        except OSError as error:
            await abort(context, Reason.INTERNAL_ERROR, f"the file could not be stored: {error}")

    async def _receive(self, chunks: AsyncIterator[dispatcher_pb2.BlobChunk]) -> common_pb2.BlobRef:
        stream = aiter(chunks)
        first = await anext(stream, None)
        if first is None:
            raise BadBlob("the upload is empty: expected the file's hash in its first chunk")
        with self._shell.blobs.begin(first.hash) as upload:
            await asyncio.to_thread(upload.write, first.data)
            async for chunk in stream:
                await asyncio.to_thread(upload.write, chunk.data)
            await asyncio.to_thread(upload.finish)
            return common_pb2.BlobRef(hash=first.hash, size_bytes=upload.size_bytes)

    async def DownloadBlob(
        self, request: dispatcher_pb2.DownloadBlobRequest, context: _Context
    ) -> AsyncIterator[dispatcher_pb2.BlobChunk]:
        try:
            file = await asyncio.to_thread(self._shell.blobs.open, request.hash)
        except StorageError as error:
            await abort(context, Reason.STORAGE_UNAVAILABLE, str(error))
        except BadBlob as error:
            await abort(context, Reason.INVALID_REQUEST, str(error))
        except FileNotFoundError:
            missing = f"there is no file {request.hash} on this cluster; upload it first"
            await abort(context, Reason.BLOB_NOT_FOUND, missing, hash=request.hash)
        with file:
            head = request.hash
            while (data := await asyncio.to_thread(file.read, CHUNK_BYTES)) or head:
                yield dispatcher_pb2.BlobChunk(hash=head, data=data)
                head = ""

    # ---- the cluster

    async def GetClusterOverview(
        self, request: resource_manager_pb2.ClusterOverviewRequest, context: _Context
    ) -> resource_manager_pb2.ClusterOverview:
        core = self._shell.core
        overview = resource_manager_pb2.ClusterOverview(
            version=firesteel.__version__,
            resource_manager_address=self._shell.resource_manager,
            jobs_running=core.running(),
            jobs_finished=core.count(JobStatus.FINISHED),
            jobs_canceled=core.count(JobStatus.CANCELED),
            jobs_failed=core.count(JobStatus.FAILED),
            rest_url=self._rest_url(),
            spark_connect_url=self._spark_connect_url(),
        )
        overview.MergeFrom(await self._resources())
        overview.masters.extend(await self._masters(overview.resource_manager_epoch))
        return overview

    async def _masters(self, resource_manager_epoch: int) -> list[MasterOverview]:
        """Lists the leaders, the standbys, and the JobMasters of the newest jobs."""
        shell = self._shell
        leaders = {
            Office.DISPATCHER: (shell.address, shell.store.epoch),
            Office.RESOURCE_MANAGER: (shell.resource_manager, resource_manager_epoch),
        }
        masters = []
        for office, (address, epoch) in leaders.items():
            if address:
                masters.append(
                    MasterOverview(office=office.value, address=address, epoch=epoch, leads=True)
                )
            standbys = await self._standbys(office)
            masters += [MasterOverview(office=office.value, address=each) for each in standbys]
        jobs = (job for job in shell.core.jobs.values() if job.job_master_address and not job.ended)
        masters += [
            MasterOverview(
                office="job_master",
                address=job.job_master_address,
                epoch=job.epoch,
                leads=True,
                job_id=job.job_id,
                job_name=job.name,
            )
            for job in heapq.nlargest(JOB_MASTERS_SHOWN, jobs, key=lambda job: job.start_ms)
        ]
        return masters

    async def _resources(self) -> resource_manager_pb2.ClusterOverview:
        """Returns what the ResourceManager knows, or why it does not answer."""
        overview = resource_manager_pb2.ClusterOverview()
        if not self._shell.resource_manager:
            overview.resource_manager_problem = "no ResourceManager is leading"
            return overview
        channel = self._shell.channel(self._shell.resource_manager)
        try:
            asked = ResourceManagerStub(channel).GetOverview(  # type: ignore[no-untyped-call]
                resource_manager_pb2.ClusterOverviewRequest(), timeout=RESOURCE_MANAGER_TIMEOUT_S
            )
            overview.MergeFrom(await asked)
        except grpc.aio.AioRpcError as error:
            overview.resource_manager_problem = (
                f"the ResourceManager at {self._shell.resource_manager} does not answer"
                f" ({error.code().name})"
            )
        return overview

    async def DescribeProcess(
        self, request: process_info_pb2.DescribeProcessRequest, context: _Context
    ) -> process_info_pb2.ProcessDescription:
        if not request.task_executor_id:
            return await self._shell.process_info.describe()
        stub = await self._task_executor(request.task_executor_id, context)
        try:
            description: process_info_pb2.ProcessDescription = await stub.DescribeProcess(
                request, timeout=TASK_EXECUTOR_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            await _silent(request.task_executor_id, error, context)
        return description

    async def ReadLogFile(
        self, request: process_info_pb2.ReadLogFileRequest, context: _Context
    ) -> AsyncIterator[process_info_pb2.LogFileChunk]:
        if not request.task_executor_id:
            async for chunk in self._shell.process_info.read_log_file(request, context):
                yield chunk
            return
        stub = await self._task_executor(request.task_executor_id, context)
        try:
            async for chunk in stub.ReadLogFile(request):
                yield chunk
        except grpc.aio.AioRpcError as error:
            if reason_of(error) is Reason.LOG_FILE_NOT_FOUND:
                await pass_on(context, error)
            await _silent(request.task_executor_id, error, context)

    async def DumpThreads(
        self, request: inspections_pb2.DumpThreadsRequest, context: _Context
    ) -> inspections_pb2.ThreadDump:
        if not request.task_executor_id:
            return await dump_masters(self._shell)
        stub: Any = ThreadsStub(await self._channel_of(request.task_executor_id, context))  # type: ignore[no-untyped-call]
        try:
            dump: inspections_pb2.ThreadDump = await stub.DumpThreads(
                request, timeout=THREADS_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            await _silent(request.task_executor_id, error, context)
        return dump

    async def _task_executor(self, task_executor_id: str, context: _Context) -> Any:
        """Returns the stub of a TaskExecutor."""
        channel = await self._channel_of(task_executor_id, context)
        return ProcessInfoStub(channel)  # type: ignore[no-untyped-call]

    async def _channel_of(self, task_executor_id: str, context: _Context) -> grpc.aio.Channel:
        """Returns a channel to a TaskExecutor."""
        overview = await self._resources()
        for executor in overview.task_executors:
            if executor.task_executor_id == task_executor_id:
                return self._shell.channel(executor.address)
        problem = overview.resource_manager_problem
        await abort(
            context,
            Reason.RESOURCE_MANAGER_UNAVAILABLE if problem else Reason.TASK_EXECUTOR_NOT_FOUND,
            problem or f"there is no TaskExecutor {task_executor_id[:80]!r}",
            task_executor_id=task_executor_id[:80],
        )
        raise AssertionError("abort raises")

    async def ShutDownCluster(
        self, request: dispatcher_pb2.ShutDownClusterRequest, context: _Context
    ) -> dispatcher_pb2.ShutDownClusterResponse:
        try:
            self._shell.shut_down_cluster()
        except FiresteelError as error:
            await abort(context, Reason.INVALID_REQUEST, str(error))
        return dispatcher_pb2.ShutDownClusterResponse()

    async def StopTaskExecutor(
        self, request: resource_manager_pb2.StopTaskExecutorRequest, context: _Context
    ) -> AsyncIterator[resource_manager_pb2.StopTaskExecutorProgress]:
        address = self._shell.resource_manager
        if not address:
            await abort(
                context,
                Reason.RESOURCE_MANAGER_UNAVAILABLE,
                "no ResourceManager is leading; nothing was changed",
            )
        stub = ResourceManagerStub(self._shell.channel(address))  # type: ignore[no-untyped-call]
        call = stub.StopTaskExecutor(request)
        try:
            async for progress in call:
                yield progress
        except grpc.aio.AioRpcError as error:
            # A ResourceManager that stops cancels its pending calls.
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                await pass_on(context, error)
            await abort(
                context,
                Reason.RESOURCE_MANAGER_UNAVAILABLE,
                f"the ResourceManager at {address} does not answer: the TaskExecutor offers slots"
                " again unless it was already shutting down",
            )
        finally:
            call.cancel()

    # ---- JobMasters

    async def ConnectJobMaster(
        self, messages: AsyncIterator[dispatcher_pb2.JobMasterToDispatcher], context: _Context
    ) -> AsyncIterator[dispatcher_pb2.DispatcherToJobMaster]:
        connection = next(self._connections)
        outgoing = self._shell.open_stream(connection)
        heartbeat = dispatcher_pb2.DispatcherToJobMaster(heartbeat=common_pb2.Heartbeat())
        interval_s = self._shell.conf.get(options.HEARTBEAT_INTERVAL)
        reading = asyncio.create_task(self._read(aiter(messages), connection))
        reading.add_done_callback(lambda _: outgoing.put_nowait(None))
        try:
            while True:
                try:
                    message = await asyncio.wait_for(outgoing.get(), interval_s)
                except TimeoutError:
                    message = heartbeat
                if message is None:  # the JobMaster ended the stream, or this Dispatcher stops
                    break
                yield message
            if reading.done() and (error := reading.exception()) is not None:
                peers_fault = isinstance(error, RemoteProtocolError)
                reason = Reason.INVALID_REQUEST if peers_fault else Reason.INTERNAL_ERROR
                await abort(context, reason, str(error))
        finally:
            self._shell.disconnected(connection)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(
        self, messages: AsyncIterator[dispatcher_pb2.JobMasterToDispatcher], connection: int
    ) -> None:
        """Posts the JobMaster's messages; returns when it ends the stream or stays silent too
        long.
        """
        timeout_s = self._shell.conf.get(options.HEARTBEAT_TIMEOUT)
        registered = False
        while True:
            try:
                message = await asyncio.wait_for(anext(messages), timeout_s)
            except (StopAsyncIteration, TimeoutError, grpc.aio.AioRpcError):
                return
            match message.WhichOneof("message"):
                case "register":
                    event = convert.registered(
                        message.register, connection, dispatcher=self._shell.address
                    )
                    registered = True
                    log.info(
                        "a JobMaster registered",
                        job_master_id=event.job_master_id,
                        pid=event.pid,
                        address=event.address,
                    )
                    self._shell.post(event)
                case "status" if registered:
                    self._shell.post(convert.status_reported(message.status, connection))
                case "heartbeat" if registered:
                    pass
                case other:
                    raise RemoteProtocolError(
                        f"expected a registration as the JobMaster's first message, got {other}"
                    )

    async def AppendResults(
        self, request: dispatcher_pb2.AppendResultsRequest, context: _Context
    ) -> dispatcher_pb2.AppendResultsResponse:
        try:
            chunk = convert.append_results(request)
        except RemoteProtocolError as error:
            await abort(context, Reason.INVALID_REQUEST, str(error))
        if why := self._shell.core.superseded(chunk.job_id, chunk.epoch, "AppendResults"):
            await _stale(context, why, chunk.job_id, chunk.epoch)
        try:
            await self._shell.append_results(chunk)
        except Superseded as error:
            await _stale(context, str(error), chunk.job_id, chunk.epoch)
        except ChunkOutOfOrder as error:
            await abort(context, Reason.CHUNK_OUT_OF_ORDER, str(error))
        except NotLeading as error:
            await abort(context, Reason.NOT_LEADER, str(error))
        except StorageError as error:  # the JobMaster retries
            log.warning("collected rows wait for the object store", reason=str(error))
            await abort(context, Reason.STORAGE_UNAVAILABLE, str(error))
        except ResultsNotWritten as error:
            log.error("collected rows cannot be kept", job_id=chunk.job_id, reason=str(error))
            await abort(context, Reason.RESULTS_NOT_STORED, str(error))
        return dispatcher_pb2.AppendResultsResponse()

    async def CommitCheckpoint(
        self, request: dispatcher_pb2.CommitCheckpointRequest, context: _Context
    ) -> dispatcher_pb2.CommitCheckpointResponse:
        try:
            checkpoint = COMPLETE_CHECKPOINT.decode(request.checkpoint)
        except RemoteProtocolError as error:
            await abort(context, Reason.INVALID_REQUEST, str(error))
        job_id = JobId(request.job_id)
        async with _job_master_write(context, job_id, request.epoch):
            await self._shell.commit_checkpoint(
                job_id, request.epoch, checkpoint, list(request.subsumed)
            )
            reached(Failpoint.ROW_COMMITTED)
        return dispatcher_pb2.CommitCheckpointResponse()

    async def CommitParallelism(
        self, request: dispatcher_pb2.CommitParallelismRequest, context: _Context
    ) -> dispatcher_pb2.CommitParallelismResponse:
        job_id = JobId(request.job_id)
        async with _job_master_write(context, job_id, request.epoch):
            await self._shell.commit_parallelism(job_id, request.epoch, request.parallelism)
            reached(Failpoint.PARALLELISM_COMMITTED)
        return dispatcher_pb2.CommitParallelismResponse()


def _caller_name() -> str:
    """Returns who calls; empty without authentication."""
    who = answering.get(None)
    return who.subject if who else ""


async def _refuse(context: _Context, refusal: Refusal | None, job_id: str) -> None:
    if refusal is not None:
        reason = convert.REASONS[refusal.kind]
        await abort(context, reason, refusal.message, job_id=job_id[:80])


async def _silent(
    task_executor_id: str, error: grpc.aio.AioRpcError, context: _Context
) -> NoReturn:
    await abort(
        context,
        Reason.TASK_EXECUTOR_NOT_FOUND,
        f"TaskExecutor {task_executor_id} does not answer ({error.code().name})",
        task_executor_id=task_executor_id,
    )


async def _accept(context: _Context) -> None:
    """Tells the client that its stream is open, which may be long before the first message."""
    await context.send_initial_metadata(())


async def _stale(context: _Context, message: str, job_id: JobId, epoch: int) -> NoReturn:
    """Ends the call of a JobMaster that was replaced."""
    await abort(context, Reason.STALE_EPOCH, message, job_id=job_id, epoch=epoch)


@contextlib.asynccontextmanager
async def _job_master_write(context: _Context, job_id: JobId, epoch: int) -> AsyncIterator[None]:
    """Aborts the call of a JobMaster with the reason if its row is not, or may not be, stored."""
    try:
        yield
    except Superseded as error:
        await _stale(context, str(error), job_id, epoch)
    except NotWritten as error:
        problem = f"the cluster's job store cannot be written ({error})"
        await abort(context, Reason.STORE_UNAVAILABLE, problem)
    except Fenced as error:
        await abort(context, Reason.NOT_LEADER, str(error))
    except sa.exc.SQLAlchemyError as error:
        log.warning("the outcome of a commit is unknown", reason=str(error))
        await abort(context, Reason.OUTCOME_UNKNOWN, str(error))


@contextlib.asynccontextmanager
async def _store_read(context: _Context) -> AsyncIterator[None]:
    """Aborts the call with the reason if the job store cannot be read."""
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).splitlines()[0]
        await abort(
            context,
            Reason.STORE_UNAVAILABLE,
            f"the cluster's job store cannot be read ({reason}); try again once it is repaired",
        )


def _store_problem(reason: str) -> str:
    return (
        f"the cluster's job store cannot be written ({reason});"
        " nothing was submitted; try again once it is repaired"
    )
