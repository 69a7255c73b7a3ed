"""The gRPC servicer of proto/resource_manager.proto: posts the messages of peers as events."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message

from firesteel._proto import resource_manager_pb2 as pb
from firesteel._proto import resource_manager_pb2_grpc
from firesteel.common.logs import get_logger
from firesteel.common.rpc.errors import RemoteProtocolError
from firesteel.common.rpc.status import Reason, abort
from firesteel.common.service.core_loop import MailboxFull
from resourcemanager import convert
from resourcemanager.core import commands, events
from resourcemanager.core.commands import ToPeer
from resourcemanager.core.events import Connection, Event
from resourcemanager.peers import Peer
from resourcemanager.shell import Shell

log = get_logger(__name__)

# A broken connection looks like an orderly end until gRPC also cancels the call, which it does
# within this time.
CANCELLATION_PAUSE_S = 0.1

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class ResourceManagerServicer(resource_manager_pb2_grpc.ResourceManagerServicer):
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._numbers = itertools.count(1)

    async def ConnectTaskExecutor(
        self, request_iterator: AsyncIterator[pb.TaskExecutorToResourceManager], context: _Context
    ) -> AsyncIterator[pb.ResourceManagerToTaskExecutor]:
        epoch = self._shell.core.settings.epoch
        async for message in self._stream(
            self._without_usage(request_iterator),
            context,
            convert.from_task_executor,
            lambda command: convert.to_task_executor(command, epoch),
        ):
            yield message

    async def ConnectJobMaster(
        self, request_iterator: AsyncIterator[pb.JobMasterToResourceManager], context: _Context
    ) -> AsyncIterator[pb.ResourceManagerToJobMaster]:
        epoch = self._shell.core.settings.epoch
        async for message in self._stream(
            request_iterator,
            context,
            convert.from_job_master,
            lambda command: convert.to_job_master(command, epoch),
        ):
            yield message

    async def GetOverview(
        self, request: pb.ClusterOverviewRequest, context: _Context
    ) -> pb.ClusterOverview:
        return convert.overview(self._shell.core, self._shell.usages)

    async def _without_usage(
        self, messages: AsyncIterator[pb.TaskExecutorToResourceManager]
    ) -> AsyncIterator[pb.TaskExecutorToResourceManager]:
        """Keeps the reports of usage, about which the core decides nothing."""
        async for message in messages:
            if message.HasField("usage"):
                self._shell.keep_usage(message.usage)
            else:
                yield message

    async def StopTaskExecutor(
        self, request: pb.StopTaskExecutorRequest, context: _Context
    ) -> AsyncIterator[pb.StopTaskExecutorProgress]:
        try:
            event = convert.stop_requested(next(self._numbers), request)
        except RemoteProtocolError as error:
            await abort(context, Reason.INVALID_REQUEST, str(error))
        with self._shell.stop_task_executor(event) as answers:
            while True:
                match await answers.get():
                    case commands.StopProgress() as progress:
                        yield convert.stop_progress(progress)
                    case commands.StopEnded(problem=problem):
                        if problem:
                            await abort(
                                context,
                                Reason.TASK_EXECUTOR_LOST,
                                f"it was lost before it had ended: {problem}",
                                task_executor_id=request.task_executor_id,
                            )
                        return
                    case commands.StopRefused(problem=problem, unknown=unknown):
                        reason = (
                            Reason.TASK_EXECUTOR_NOT_FOUND
                            if unknown
                            else Reason.TASK_EXECUTOR_NOT_STOPPED
                        )
                        await abort(
                            context, reason, problem, task_executor_id=request.task_executor_id
                        )

    async def _stream(
        self,
        requests: AsyncIterator[Any],
        context: _Context,
        decode: Callable[[Connection, Any], Event],
        encode: Callable[[ToPeer], Message],
    ) -> AsyncIterator[Any]:
        peer = Peer(Connection(next(self._numbers)), context.peer(), encode)
        self._shell.peers[peer.connection] = peer
        reading = asyncio.create_task(self._read(peer, requests, decode))
        try:
            async for message in peer.messages():
                yield message
            if peer.closing is not None and peer.closing.reason is not None:
                await abort(context, peer.closing.reason, peer.closing.cause)
        finally:
            reading.cancel()
            del self._shell.peers[peer.connection]
            cause = peer.closing.cause if peer.closing is not None else "the connection was lost"
            # Has no effect after ConnectionClosed.
            self._shell.post(events.ConnectionBroken(connection=peer.connection, cause=cause))
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(
        self, peer: Peer, requests: AsyncIterator[Any], decode: Callable[[Connection, Any], Event]
    ) -> None:
        try:
            async for message in requests:
                self._shell.post(decode(peer.connection, message))
            await asyncio.sleep(CANCELLATION_PAUSE_S)
            self._shell.post(events.ConnectionClosed(connection=peer.connection))
            peer.close(None, "closed by the peer")
        except RemoteProtocolError as error:
            log.warning(
                "a peer breaks the protocol; closing its connection",
                peer=peer.name,
                fault=str(error),
            )
            peer.close(Reason.INVALID_REQUEST, str(error))
        except MailboxFull as error:
            peer.close(Reason.OVERLOADED, str(error))
        except grpc.aio.AbortError:  # by the sending side, as at the end of this process
            peer.close(None, "the call has ended")
        except Exception as error:  # a bug here must not leave a stream unread
            log.error("reading from a peer failed", peer=peer.name, exc_info=True)
            peer.close(Reason.INTERNAL_ERROR, repr(error))
