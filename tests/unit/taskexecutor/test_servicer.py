"""The links of slots' processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from firesteel._proto import executor_pb2, executor_pb2_grpc
from firesteel.common.ids import ExecutorId
from firesteel.common.rpc.server import aio_channel
from firesteel.common.rpc.status import Reason, reason_of
from firesteel.common.service.platform import SYSTEM
from taskexecutor.executor.executor_link import EXECUTOR_ID_KEY
from taskexecutor.servicer import ExecutorLinkServicer

READY = executor_pb2.ExecutorToTaskExecutor(ready=executor_pb2.ExecutorReady())


class Links:
    def __init__(self, directory: Path) -> None:
        self.broken: list[str] = []
        self.received: list[str] = []
        self.server = ExecutorLinkServicer(
            directory,
            expected=lambda executor_id: executor_id == "known",
            received=self._receive,
            broken=self.broken.append,
            platform=SYSTEM,
        )

    def _receive(
        self, executor_id: ExecutorId, message: executor_pb2.ExecutorToTaskExecutor
    ) -> None:
        kind = message.WhichOneof("message")
        if kind is None:
            raise ValueError("a message without content")
        self.received.append(kind)

    async def connect(self, channel: grpc.aio.Channel, executor_id: str) -> Any:
        stub = executor_pb2_grpc.ExecutorLinkStub(channel)  # type: ignore[no-untyped-call]
        return stub.Connect(metadata=((EXECUTOR_ID_KEY, executor_id),), wait_for_ready=True)


async def test_a_process_that_talks_nonsense_loses_its_link(tmp_path: Path) -> None:
    links = Links(tmp_path)
    async with aio_channel(await links.server.start()) as channel:
        call = await links.connect(channel, "known")
        await call.write(READY)
        await call.write(executor_pb2.ExecutorToTaskExecutor())
        assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]
    assert (links.received, links.broken) == (["ready"], ["known"])
    await links.server.stop()


async def test_strangers_and_second_links_are_refused(tmp_path: Path) -> None:
    links = Links(tmp_path)
    async with aio_channel(await links.server.start()) as channel:
        first = await links.connect(channel, "known")
        while not links.received:  # connected, that is
            await first.write(READY)
            await asyncio.sleep(0.01)
        for executor_id in ("stranger", "known"):
            call = await links.connect(channel, executor_id)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
            assert reason_of(refused.value) is Reason.UNKNOWN_PROCESS
        assert links.broken == []
        first.cancel()
    await links.server.stop()
