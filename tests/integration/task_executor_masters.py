"""A minimal ResourceManager and JobMaster in one server. They record what they receive and send
the messages that a test requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from firesteel._proto import (
    common_pb2,
    job_master_pb2,
    job_master_pb2_grpc,
    resource_manager_pb2,
    resource_manager_pb2_grpc,
)
from firesteel.common.rpc.server import bind, new_server

EPOCH = 7


class Peer:
    """The master's end of one stream."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.arrived: list[float] = []
        self.outgoing: asyncio.Queue[Any] = asyncio.Queue()  # of the latest stream
        self._changed = asyncio.Event()
        self._taken = 0

    def beat(self, message: Any) -> Any:
        """Returns the answer to a message: every heartbeat is answered."""
        if message.WhichOneof("message") == "heartbeat":
            return job_master_pb2.JobMasterToTaskExecutor(
                job_id=message.job_id,
                job_master_epoch=message.job_master_epoch,
                heartbeat=common_pb2.Heartbeat(),
            )
        if message.WhichOneof("message") == "slot_report":
            return resource_manager_pb2.ResourceManagerToTaskExecutor(
                resource_manager_epoch=message.epoch,
                heartbeat=common_pb2.Heartbeat(),
            )
        return None

    def hear(self, message: Any) -> None:
        self.heard.append(message)
        self.arrived.append(time.monotonic())
        self._changed.set()

    async def next(
        self, kind: str, where: Callable[[Any], bool] = lambda _: True, timeout_s: float = 60.0
    ) -> Any:
        """The next message of a kind that starts so, from where the last call stopped; others are skipped."""

        async def wait() -> Any:
            while True:
                while self._taken < len(self.heard):
                    message = self.heard[self._taken]
                    self._taken += 1
                    found = message.WhichOneof("message") or ""
                    if found.startswith(kind) and where(getattr(message, found)):
                        return getattr(message, found)
                self._changed.clear()
                await self._changed.wait()

        try:
            return await asyncio.wait_for(wait(), timeout_s)
        except TimeoutError:
            kinds = [message.WhichOneof("message") for message in self.heard]
            raise AssertionError(
                f"no {kind} within {timeout_s} s; heard {kinds}, last: {self.heard[-1:]}"
            ) from None


class Masters(
    resource_manager_pb2_grpc.ResourceManagerServicer, job_master_pb2_grpc.JobMasterServicer
):
    def __init__(self) -> None:
        self.address = ""
        self.resource_manager = Peer()
        self.job_master = Peer()
        self.epoch = EPOCH
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> None:
        self._server = new_server([])
        resource_manager_pb2_grpc.add_ResourceManagerServicer_to_server(
            self._ResourceManager(self), self._server
        )
        job_master_pb2_grpc.add_JobMasterServicer_to_server(self._JobMaster(self), self._server)
        self.address = bind(self._server, "127.0.0.1", port)
        await self._server.start()

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(0)

    class _ResourceManager(resource_manager_pb2_grpc.ResourceManagerServicer):
        def __init__(self, masters: Masters) -> None:
            self.masters = masters

        async def ConnectTaskExecutor(
            self, request_iterator: Any, context: Any
        ) -> AsyncIterator[Any]:
            masters = self.masters
            registered = resource_manager_pb2.Registered()
            yield resource_manager_pb2.ResourceManagerToTaskExecutor(
                resource_manager_epoch=masters.epoch, registered=registered
            )
            async for message in _converse(masters.resource_manager, request_iterator):
                yield message

    class _JobMaster(job_master_pb2_grpc.JobMasterServicer):
        def __init__(self, masters: Masters) -> None:
            self.masters = masters

        async def ConnectTaskExecutor(
            self, request_iterator: Any, context: Any
        ) -> AsyncIterator[Any]:
            async for message in _converse(self.masters.job_master, request_iterator):
                yield message

    # -- what a test says

    def request_slot(
        self, allocation_id: str, job_id: str, index: int, profile: Any = None, **more: Any
    ) -> None:
        request = resource_manager_pb2.RequestSlot(
            allocation_id=allocation_id,
            job_id=job_id,
            slot_index=index,
            profile=profile or common_pb2.ResourceProfile(unknown=True),
            job_master_address=self.address,
            job_master_epoch=1,
            **more,
        )
        self.resource_manager.outgoing.put_nowait(
            resource_manager_pb2.ResourceManagerToTaskExecutor(
                resource_manager_epoch=self.epoch, request_slot=request
            )
        )

    def tell_task_executor(self, job_id: str, **message: Any) -> None:
        """As the JobMaster of the job."""
        self.job_master.outgoing.put_nowait(
            job_master_pb2.JobMasterToTaskExecutor(job_id=job_id, job_master_epoch=1, **message)
        )


async def _converse(peer: Peer, incoming: Any) -> AsyncIterator[Any]:
    outgoing = peer.outgoing = asyncio.Queue()  # an earlier stream, which ends, takes nothing of it

    async def read() -> None:
        async for message in incoming:
            peer.hear(message)
            beat = peer.beat(message)
            if beat is not None:
                outgoing.put_nowait(beat)
        outgoing.put_nowait(None)

    reading = asyncio.create_task(read())
    try:
        while (message := await outgoing.get()) is not None:
            yield message
    finally:
        reading.cancel()
