"""The TaskExecutor's end of the links to its slots' processes: a gRPC server on a Unix socket only
this user can reach.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import structlog

from firesteel._proto import executor_pb2, executor_pb2_grpc
from firesteel.common.ids import ExecutorId
from firesteel.common.process import temporary
from firesteel.common.rpc.server import new_server
from taskexecutor.executor.link import EXECUTOR_ID_KEY

log = structlog.get_logger(__name__)


MAX_SOCKET_PATH_BYTES = 107


class LinkServer(executor_pb2_grpc.ExecutorLinkServicer):
    """`received(executor_id, message)` for all that processes say; `broken(executor_id)` when a
    link ends.
    """

    def __init__(
        self,
        directory: Path,
        *,
        expected: Callable[[ExecutorId], bool],
        received: Callable[[ExecutorId, executor_pb2.ExecutorToTaskExecutor], None],
        broken: Callable[[ExecutorId], None],
    ) -> None:
        self._expected = expected
        self._received = received
        self._broken = broken
        self._links: dict[
            ExecutorId, asyncio.Queue[executor_pb2.TaskExecutorToExecutor | None]
        ] = {}
        self._folder = directory / "link"
        if len(bytes(self._folder / "socket")) > MAX_SOCKET_PATH_BYTES:
            self._folder = temporary.make("link")
        self._server = new_server([executor_pb2.DESCRIPTOR.services_by_name["ExecutorLink"]])

    async def start(self) -> str:
        executor_pb2_grpc.add_ExecutorLinkServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._folder / "socket").unlink(missing_ok=True)  # of a former life
        address = f"unix:{self._folder / 'socket'}"
        self._server.add_insecure_port(address)
        await self._server.start()
        os.chmod(self._folder / "socket", 0o600)
        return address

    async def stop(self) -> None:
        await self._server.stop(0)
        temporary.remove(self._folder)

    def send(self, executor_id: ExecutorId, message: executor_pb2.TaskExecutorToExecutor) -> None:
        if (link := self._links.get(executor_id)) is not None:
            link.put_nowait(message)
        else:
            log.warning(
                "message for a process that has no link",
                executor_id=executor_id,
                kind=message.WhichOneof("message"),
            )

    async def Connect(
        self, request_iterator: AsyncIterator[executor_pb2.ExecutorToTaskExecutor], context: Any
    ) -> AsyncIterator[executor_pb2.TaskExecutorToExecutor]:
        given = dict(context.invocation_metadata() or ()).get(EXECUTOR_ID_KEY, "")
        executor_id = ExecutorId(str(given))
        if not self._expected(executor_id) or executor_id in self._links:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{executor_id!r} is no process of this TaskExecutor's slots",
            )
        outgoing: asyncio.Queue[executor_pb2.TaskExecutorToExecutor | None] = asyncio.Queue()
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
        self, executor_id: ExecutorId, incoming: Any, outgoing: asyncio.Queue[Any]
    ) -> None:
        try:
            async for message in incoming:
                self._received(executor_id, message)
        except grpc.aio.AioRpcError:
            pass  # the process has died
        except (
            Exception
        ):  # what it says makes no sense: a link that nobody listens to must not look alive
            log.exception(
                "a slot's process sent what cannot be understood", executor_id=executor_id
            )
        outgoing.put_nowait(None)
