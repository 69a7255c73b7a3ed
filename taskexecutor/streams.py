"""The TaskExecutor's own streams: one to the ResourceManager, one to each JobMaster with slots here.

Both connect again for as long as they are wanted, with a pause that grows to a second; what they hear becomes events of
the slot table. Whatever is sent while there is no connection is dropped: the slot table tells all it holds anew on every
(re-)connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import structlog

from firesteel._proto import common_pb2, job_master_pb2, job_master_pb2_grpc, resource_manager_pb2, resource_manager_pb2_grpc
from firesteel.config import Configuration
from firesteel.ids import Epoch, JobId
from firesteel.rpc.server import aio_channel
from taskexecutor import convert
from taskexecutor import messages as m

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
CONNECT_TIMEOUT_S = 3.0


class _Outgoing(AsyncIterator[Any]):
    """What is to be sent on one call, in order."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, message: Any) -> None:
        self._queue.put_nowait(message)

    def close(self) -> None:
        self._queue.put_nowait(None)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        message = await self._queue.get()
        if message is None:
            raise StopAsyncIteration
        return message


class _Stream:
    """Connects, talks, connects again. Subclasses say what to do with it."""

    def __init__(self, name: str, address: str, *, heartbeat_interval_s: float, heartbeat_timeout_s: float) -> None:
        self.address = address
        self._name = name
        self._heartbeat_interval_s = heartbeat_interval_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._outgoing: _Outgoing | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False  # the peer wants no more of us, or we of it

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def close(self, flush_s: float = 0.0) -> None:
        """Ends the stream; what was sent before gets `flush_s` to reach the peer. It does not connect again."""
        self._over = True
        if self._outgoing is not None and flush_s > 0 and self._task is not None:
            self._outgoing.close()
            await asyncio.wait([self._task], timeout=flush_s)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def send(self, message: Any) -> None:
        if self._outgoing is not None:
            self._outgoing.put(message)

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        problem = ""
        while True:
            heard = False
            async with aio_channel(self.address) as channel:
                try:
                    await asyncio.wait_for(channel.channel_ready(), CONNECT_TIMEOUT_S)
                    outgoing = _Outgoing()
                    call = self._open(channel, aiter(outgoing))
                    self._outgoing = outgoing
                    self._connected()
                    beating = asyncio.create_task(self._beat())
                    try:
                        while True:
                            message = await asyncio.wait_for(call.read(), self._heartbeat_timeout_s)
                            if message is grpc.aio.EOF:  # type: ignore[attr-defined]
                                now = "the peer ended the stream"
                                break
                            heard = True
                            self._received(message)
                    finally:
                        beating.cancel()
                        self._outgoing = None
                        call.cancel()
                except TimeoutError:
                    now = "no answer" if not heard else f"nothing heard for {self._heartbeat_timeout_s:g} s"
                except grpc.aio.AioRpcError as error:
                    now = f"{error.code().name}: {error.details()}"
                except convert.BadMessage as error:
                    now = str(error)
            if self._over:
                return
            self._broken(now)
            if heard or now != problem:  # not the same line again and again
                log.warning("stream broken, connecting again", stream=self._name, address=self.address, cause=now)
            problem = now
            pause_s = FIRST_PAUSE_S if heard else min(pause_s * 2, LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_interval_s)
            self._heartbeat()

    def _open(self, channel: grpc.aio.Channel, outgoing: AsyncIterator[Any]) -> Any:
        raise NotImplementedError

    def _connected(self) -> None:
        raise NotImplementedError

    def _received(self, message: Any) -> None:
        raise NotImplementedError

    def _broken(self, cause: str) -> None:
        raise NotImplementedError

    def _heartbeat(self) -> None:
        raise NotImplementedError


class ResourceManagerStream(_Stream):
    """Registers on every connection; a new ResourceManager (epoch) so learns all slots, while tasks keep running."""

    def __init__(
        self,
        address: str,
        *,
        registration: Callable[[], resource_manager_pb2.TaskExecutorRegistration],
        post: Callable[[m.Event], None],
        on_shutdown: Callable[[str], None],
        heartbeat_interval_s: float,
        heartbeat_timeout_s: float,
    ) -> None:
        super().__init__(
            "resource-manager", address, heartbeat_interval_s=heartbeat_interval_s, heartbeat_timeout_s=heartbeat_timeout_s
        )
        self._registration = registration
        self._post = post
        self._on_shutdown = on_shutdown
        self._epoch = 0
        self._registered = False

    def send_command(self, command: m.AnswerSlotRequest | m.ReportSlots) -> None:
        if self._registered:
            message = convert.to_resource_manager(command)
            message.resource_manager_epoch = self._epoch
            self.send(message)

    def _open(self, channel: grpc.aio.Channel, outgoing: AsyncIterator[Any]) -> Any:
        return resource_manager_pb2_grpc.ResourceManagerStub(channel).ConnectTaskExecutor(outgoing)  # type: ignore[no-untyped-call]

    def _connected(self) -> None:
        self.send(resource_manager_pb2.TaskExecutorToResourceManager(register=self._registration()))

    def _received(self, message: Any) -> None:
        match message.WhichOneof("message"):
            case "registered":
                if not self._registered or self._epoch != message.registered.resource_manager_epoch:
                    log.info("registered", address=self.address, epoch=message.registered.resource_manager_epoch)
                self._registered, self._epoch = True, message.registered.resource_manager_epoch
            case "shutdown":
                self._on_shutdown(message.shutdown.cause or "the ResourceManager said so")
        if (event := convert.from_resource_manager(message)) is not None:
            self._post(event)

    def _broken(self, cause: str) -> None:
        self._registered = False

    def _heartbeat(self) -> None:
        if self._registered:
            self._post(m.ReportDue())  # the slot report is the heartbeat


class JobMasterStream(_Stream):
    def __init__(
        self,
        job_id: JobId,
        address: str,
        epoch: Epoch,
        *,
        conf: Configuration,
        post: Callable[[m.Event], None],
        heartbeat_interval_s: float,
        heartbeat_timeout_s: float,
    ) -> None:
        super().__init__(
            f"job-master {job_id}", address, heartbeat_interval_s=heartbeat_interval_s, heartbeat_timeout_s=heartbeat_timeout_s
        )
        self.job_id = job_id
        self.epoch = epoch
        self._conf = conf
        self._post = post
        self._is_connected = False

    def _open(self, channel: grpc.aio.Channel, outgoing: AsyncIterator[Any]) -> Any:
        return job_master_pb2_grpc.JobMasterStub(channel).ConnectTaskExecutor(outgoing)  # type: ignore[no-untyped-call]

    def _connected(self) -> None:
        self._is_connected = True
        self._post(m.JobMasterConnected(job_id=self.job_id))

    def _received(self, message: Any) -> None:
        self._over = self._over or message.WhichOneof("message") == "goodbye"
        if (event := convert.from_job_master(message, self._conf)) is not None:
            self._post(event)

    def _broken(self, cause: str) -> None:
        if self._is_connected:
            self._is_connected = False
            self._post(m.JobMasterDisconnected(job_id=self.job_id, cause=cause))

    def _heartbeat(self) -> None:
        beat = job_master_pb2.TaskExecutorToJobMaster(
            job_id=self.job_id, job_master_epoch=self.epoch, heartbeat=common_pb2.Heartbeat()
        )
        self.send(beat)
