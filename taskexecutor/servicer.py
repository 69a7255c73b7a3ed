"""The gRPC service that the slots' processes connect to, on a Unix socket that only this user can
access.

Each process opens one stream and keeps it open for its lifetime.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc

from firesteel._proto import executor_pb2, executor_pb2_grpc
from firesteel.common.ids import ExecutorId
from firesteel.common.logs import get_logger
from firesteel.common.process import temporary
from firesteel.common.rpc.bearer import caller
from firesteel.common.rpc.status import Reason, abort
from firesteel.common.service.platform import Platform
from taskexecutor.executor.executor_link import EXECUTOR_ID_KEY

log = get_logger(__name__)

MAX_SOCKET_PATH_BYTES = 107

_Outgoing = asyncio.Queue[executor_pb2.TaskExecutorToExecutor | None]  # None ends the stream


class ExecutorLinkServicer(executor_pb2_grpc.ExecutorLinkServicer):
    """Calls `received(executor_id, message)` for every message and `broken(executor_id)` when a
    link ends. Refuses processes that are not `expected`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        expected: Callable[[ExecutorId], bool],
        received: Callable[[ExecutorId, executor_pb2.ExecutorToTaskExecutor], None],
        broken: Callable[[ExecutorId], None],
        platform: Platform,
    ) -> None:
        self._expected = expected
        self._received = received
        self._broken = broken
        self._transport = platform.transport
        self._authenticated = platform.security is not None
        self._links: dict[ExecutorId, _Outgoing] = {}
        self._directory = directory
        self._folder: Path | None = None  # the socket's folder
        self._server: grpc.aio.Server | None = None

    async def start(self) -> str:
        """Starts the server and returns its address."""
        service = executor_pb2.DESCRIPTOR.services_by_name["ExecutorLink"]
        self._server = self._transport.server([service])
        executor_pb2_grpc.add_ExecutorLinkServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._folder = self._directory / "link"
        if len(bytes(self._folder / "socket")) > MAX_SOCKET_PATH_BYTES:
            self._folder = temporary.make("link")
        address = self._transport.bind_unix(self._server, self._folder / "socket")
        await self._server.start()
        return address

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
        if self._folder is not None:
            temporary.remove(self._folder)

    @property
    def connected(self) -> list[ExecutorId]:
        return list(self._links)

    def send(self, executor_id: ExecutorId, message: executor_pb2.TaskExecutorToExecutor) -> None:
        if (link := self._links.get(executor_id)) is not None:
            link.put_nowait(message)
        else:
            log.warning(
                "dropped a message to a process without a link",
                executor_id=executor_id,
                kind=message.WhichOneof("message"),
            )

    async def Connect(
        self, request_iterator: AsyncIterator[executor_pb2.ExecutorToTaskExecutor], context: Any
    ) -> AsyncIterator[executor_pb2.TaskExecutorToExecutor]:
        given = dict(context.invocation_metadata() or ()).get(EXECUTOR_ID_KEY, "")
        executor_id = ExecutorId(str(given))
        forged = self._authenticated and caller().subject != executor_id
        if forged or not self._expected(executor_id) or executor_id in self._links:
            await abort(
                context,
                Reason.UNKNOWN_PROCESS,
                f"{executor_id!r} is not a process in a slot of this TaskExecutor",
            )
        outgoing: _Outgoing = asyncio.Queue()
        self._links[executor_id] = outgoing
        reading = asyncio.create_task(self._read(executor_id, request_iterator, outgoing))
        try:
            while (message := await outgoing.get()) is not None:
                yield message
        finally:
            reading.cancel()
            del self._links[executor_id]
            self._broken(executor_id)

    async def _read(
        self,
        executor_id: ExecutorId,
        incoming: AsyncIterator[executor_pb2.ExecutorToTaskExecutor],
        outgoing: _Outgoing,
    ) -> None:
        try:
            async for message in incoming:
                self._received(executor_id, message)
        except grpc.aio.AioRpcError:
            pass  # the process has died
        except Exception:  # end the link: an unread link must not look alive
            log.exception("a slot's process sent an invalid message", executor_id=executor_id)
        outgoing.put_nowait(None)
