"""The JobMaster's gRPC service: TaskExecutors hold one stream each, the Dispatcher queries the job.

The servicer decides nothing: it checks that a message belongs to this job and this epoch (in one
place, `_accepts`), converts it, and posts it as an event.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any, Protocol, TypeAlias

import grpc

from firesteel._proto import (
    common_pb2,
    inspections_pb2,
    job_master_pb2,
    job_master_pb2_grpc,
    tasks_pb2,
)
from firesteel.common.ids import TaskExecutorId
from firesteel.common.inspections import TaskInspection
from firesteel.common.logs import get_logger
from firesteel.common.rpc.convert import TASK_INSPECTION
from firesteel.common.rpc.errors import RemoteProtocolError
from firesteel.common.rpc.link import EOF
from firesteel.common.rpc.status import Reason, abort
from firesteel.errors import FiresteelError
from jobmaster import convert
from jobmaster.core import events
from jobmaster.core.commands import AnswerInspection, InspectionRefusal
from jobmaster.series import DEFAULT_POINTS, KEPT, JobSeries
from jobmaster.triggers import Triggers

log = get_logger(__name__)

_REASONS = {
    InspectionRefusal.NOT_FOUND: Reason.TASK_NOT_FOUND,
    InspectionRefusal.NOT_RUNNING: Reason.TASK_NOT_RUNNING,
    InspectionRefusal.BUSY: Reason.SLOT_INSPECTED,
    InspectionRefusal.FAILED: Reason.TASK_NOT_INSPECTED,
    InspectionRefusal.LOST: Reason.INSPECTION_LOST,
}
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class InvalidRescale(FiresteelError):
    """The requested parallelism has no meaning for the job."""


class ServedJob(Protocol):
    """The interface of the process's job to the servicer."""

    job_id: str
    epoch: int

    def post(self, event: events.Event) -> None: ...

    async def take_checkpoint(
        self, *, savepoint: bool, directory: str, stop: bool, drain: bool, full: bool
    ) -> job_master_pb2.TakeCheckpointResponse: ...

    async def rescale(
        self, asked: job_master_pb2.RescaleJobRequest
    ) -> job_master_pb2.RescaleJobResponse: ...

    async def inspect(self, asked: TaskInspection) -> AnswerInspection: ...

    def details(self) -> job_master_pb2.JobDetails: ...

    def details_with_checkpoints(self) -> job_master_pb2.JobDetails: ...

    def keep_metrics(self, message: job_master_pb2.TaskExecutorToJobMaster) -> None: ...

    series: JobSeries

    def keep_analysis(self, result: tasks_pb2.AnalyzeResult) -> None: ...


class Session:
    """One open stream to a TaskExecutor. `None` in the outbox ends it after the messages before
    it.
    """

    def __init__(self, connection: int) -> None:
        self.connection = connection
        self.outbox: asyncio.Queue[job_master_pb2.JobMasterToTaskExecutor | None] = asyncio.Queue()


class Sessions:
    """The open streams, by TaskExecutor. A message to one without a stream is dropped: when it
    reconnects, the core resends what is still relevant.
    """

    def __init__(self) -> None:
        self.by_id: dict[TaskExecutorId, Session] = {}
        self._connections = itertools.count(1)

    def open(self, task_executor_id: TaskExecutorId) -> Session:
        old = self.by_id.get(task_executor_id)
        if old is not None:
            self.close(task_executor_id, old)
            old.outbox.put_nowait(None)
        session = Session(next(self._connections))
        self.by_id[task_executor_id] = session
        return session

    def close(self, task_executor_id: TaskExecutorId, session: Session) -> None:
        if self.by_id.get(task_executor_id) is session:
            del self.by_id[task_executor_id]

    def send(
        self, task_executor_id: TaskExecutorId, message: job_master_pb2.JobMasterToTaskExecutor
    ) -> None:
        session = self.by_id.get(task_executor_id)
        if session is not None:
            session.outbox.put_nowait(message)

    def dismiss(
        self, task_executor_id: TaskExecutorId, goodbye: job_master_pb2.JobMasterToTaskExecutor
    ) -> None:
        """Ends the stream after a Goodbye."""
        session = self.by_id.pop(task_executor_id, None)
        if session is not None:
            session.outbox.put_nowait(goodbye)
            session.outbox.put_nowait(None)


class JobMasterServicer(job_master_pb2_grpc.JobMasterServicer):
    def __init__(self) -> None:
        self.job: ServedJob | None = None  # set when the Dispatcher assigns a job
        self.sessions = Sessions()
        self.dropped = 0  # messages of other jobs or epochs
        self.open_streams = 0
        self._triggers = Triggers()

    async def ConnectTaskExecutor(
        self,
        request_iterator: AsyncIterator[job_master_pb2.TaskExecutorToJobMaster],
        context: _Context,
    ) -> None:
        first = await context.read()
        if first is EOF:
            return
        job = self.job
        if job is None or not self._accepts(job, first):
            runs = f"it runs job {job.job_id}, epoch {job.epoch}" if job else "it has no job yet"
            await abort(
                context,
                Reason.NOT_RESPONSIBLE,
                f"this JobMaster does not run job {first.job_id}, epoch {first.job_master_epoch}: "
                f"{runs}",
            )
        if not first.HasField("hello"):
            await abort(
                context, Reason.INVALID_REQUEST, "the first message must be a TaskExecutorHello"
            )
        task_executor_id = TaskExecutorId(first.hello.task_executor_id)
        session = self.sessions.open(task_executor_id)
        self.open_streams += 1
        try:
            job.post(convert.connected(first.hello, session.connection))
            await self._serve(job, task_executor_id, session, context)
        except RemoteProtocolError as error:
            log.warning("TaskExecutor broke the protocol", tm_id=task_executor_id, cause=str(error))
            await abort(context, Reason.INVALID_REQUEST, str(error))
        finally:
            self.open_streams -= 1
            self.sessions.close(task_executor_id, session)
            job.post(
                events.TaskExecutorDisconnected(
                    task_executor_id=task_executor_id, connection=session.connection
                )
            )

    async def _serve(
        self, job: ServedJob, task_executor_id: TaskExecutorId, session: Session, context: _Context
    ) -> None:
        """Reads and writes until the peer closes the stream or this side ends the session."""
        reader = asyncio.create_task(self._read(job, task_executor_id, context))
        writer = asyncio.create_task(_write(session, context))
        try:
            done, _ = await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _read(
        self, job: ServedJob, task_executor_id: TaskExecutorId, context: _Context
    ) -> None:
        while True:
            message = await context.read()
            if message is EOF:
                return
            if not self._accepts(job, message):
                continue
            kind = message.WhichOneof("message")
            if kind in ("report", "task_states"):
                job.keep_metrics(message)
            elif kind == "analyze_result" and not message.analyze_result.HasField("error"):
                job.keep_analysis(message.analyze_result)
            job.post(convert.from_task_executor(task_executor_id, message))

    def _accepts(self, job: ServedJob, message: job_master_pb2.TaskExecutorToJobMaster) -> bool:
        """Whether the message is for this job and epoch. Counts those that are not."""
        if message.job_id == job.job_id and message.job_master_epoch == job.epoch:
            return True
        self.dropped += 1
        return False

    async def CancelJob(
        self, request: job_master_pb2.CancelJobRequest, context: _Context
    ) -> job_master_pb2.CancelJobResponse:
        job = await self._job(request.job_id, context)
        job.post(events.CancelRequested())
        return job_master_pb2.CancelJobResponse()

    async def TakeCheckpoint(
        self, request: job_master_pb2.TakeCheckpointRequest, context: _Context
    ) -> job_master_pb2.TakeCheckpointResponse:
        job = await self._job(request.job_id, context)

        def take() -> Coroutine[Any, Any, job_master_pb2.TakeCheckpointResponse]:
            return job.take_checkpoint(
                savepoint=request.savepoint,
                directory=request.directory,
                stop=request.stop,
                drain=request.drain,
                full=request.full,
            )

        if request.trigger_id:
            task = self._triggers.start(request.trigger_id, take)
            return await _outcome(asyncio.shield(task), context)
        return await _outcome(take(), context)

    async def RescaleJob(
        self, request: job_master_pb2.RescaleJobRequest, context: _Context
    ) -> job_master_pb2.RescaleJobResponse:
        job = await self._job(request.job_id, context)
        try:
            return await job.rescale(request)
        except InvalidRescale as error:
            await abort(context, Reason.INVALID_REQUEST, str(error))
        except FiresteelError as error:
            await abort(context, Reason.JOB_NOT_RESCALED, str(error))

    async def AwaitCheckpoint(
        self, request: job_master_pb2.AwaitCheckpointRequest, context: _Context
    ) -> job_master_pb2.TakeCheckpointResponse:
        await self._job(request.job_id, context)
        task = self._triggers.find(request.trigger_id)
        if task is None:
            await abort(
                context,
                Reason.TRIGGER_NOT_FOUND,
                f"job {request.job_id} has no triggered checkpoint {request.trigger_id[:80]!r}",
                trigger_id=request.trigger_id[:80],
            )
        return await _outcome(asyncio.shield(task), context)

    async def GetJobDetails(
        self, request: job_master_pb2.JobDetailsRequest, context: _Context
    ) -> job_master_pb2.JobDetails:
        job = await self._job(request.job_id, context)
        return job.details_with_checkpoints() if request.checkpoints else job.details()

    async def GetJobSeries(
        self, request: job_master_pb2.JobSeriesRequest, context: _Context
    ) -> job_master_pb2.JobSeries:
        job = await self._job(request.job_id, context)
        return job.series.view(
            vertex_id=request.vertex_id,
            since_ms=request.since_ms,
            points=min(request.points or DEFAULT_POINTS, KEPT),
        )

    async def InspectTask(
        self, request: inspections_pb2.InspectTaskRequest, context: _Context
    ) -> inspections_pb2.InspectTaskResponse:
        job = await self._job(request.job_id, context)
        try:
            asked = TASK_INSPECTION.decode(request)
        except RemoteProtocolError as error:
            await abort(context, Reason.INVALID_REQUEST, str(error))
        answer = await job.inspect(asked)
        if answer.refusal is not None:
            await abort(context, _REASONS[answer.refusal], answer.problem)
        return inspections_pb2.InspectTaskResponse.FromString(answer.result)

    async def _job(self, job_id: str, context: _Context) -> ServedJob:
        if self.job is None or self.job.job_id != job_id:
            await abort(
                context, Reason.NOT_RESPONSIBLE, f"this JobMaster does not run job {job_id}"
            )
        return self.job


async def _outcome(
    taking: Awaitable[job_master_pb2.TakeCheckpointResponse], context: _Context
) -> job_master_pb2.TakeCheckpointResponse:
    try:
        return await taking
    except FiresteelError as error:
        await abort(context, Reason.CHECKPOINT_NOT_TAKEN, str(error))


async def _write(session: Session, context: _Context) -> None:
    while True:
        message = await session.outbox.get()
        if message is None:
            return
        await context.write(message)


def metrics_in(message: job_master_pb2.TaskExecutorToJobMaster) -> list[common_pb2.TaskMetrics]:
    """Returns the TaskMetrics in a message."""
    if message.HasField("report"):
        return list(message.report.metrics)
    changes: tasks_pb2.TaskStateChanges = message.task_states
    return [change.metrics for change in changes.updates if change.HasField("metrics")]
