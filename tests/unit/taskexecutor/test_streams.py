"""The TaskExecutor's streams to its masters, against a server that records what it hears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from firesteel._proto import (
    common_pb2,
    job_master_pb2,
    job_master_pb2_grpc,
    resource_manager_pb2,
)
from firesteel.common.config import Configuration
from firesteel.common.ids import Epoch, JobId
from firesteel.common.rpc.link import FIRST_PAUSE_S
from firesteel.common.rpc.server import bind, new_server, refuses
from firesteel.common.service.platform import SYSTEM
from taskexecutor.core import events
from taskexecutor.streams import JobMasterStream, ResourceManagerStream
from tests.integration.task_executor_masters import Masters
from tests.waiting import PATIENCE_S

JOB, EPOCH = JobId("a" * 32), Epoch(3)


async def test_a_stream_that_is_closed_says_what_is_left_and_does_not_come_back() -> None:
    masters = Masters()
    await masters.start()
    events: list[Any] = []
    stream = ResourceManagerStream(
        masters.address,
        registration=lambda: resource_manager_pb2.TaskExecutorRegistration(
            task_executor_id="t" * 32
        ),
        post=events.append,
        on_shutdown=lambda cause: None,
        heartbeat_interval_s=60.0,
        heartbeat_timeout_s=60.0,
        platform=SYSTEM,
    )
    stream.link.start()
    await masters.resource_manager.next("register")
    report = resource_manager_pb2.SlotReport(sequence=1)
    stream.link.send(resource_manager_pb2.TaskExecutorToResourceManager(slot_report=report))
    # The server ends its side when we end ours: a stream that is wanted would connect again, and
    # register.
    await stream.link.close(flush_s=60.0)
    await asyncio.sleep(2 * FIRST_PAUSE_S)
    heard = [message.WhichOneof("message") for message in masters.resource_manager.heard]
    await masters.stop()
    assert heard == ["register", "slot_report"]


class JobMaster(job_master_pb2_grpc.JobMasterServicer):
    async def ConnectTaskExecutor(
        self, request_iterator: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[job_master_pb2.JobMasterToTaskExecutor]:
        yield job_master_pb2.JobMasterToTaskExecutor(
            job_master_epoch=EPOCH, heartbeat=common_pb2.Heartbeat()
        )
        await asyncio.Event().wait()


async def test_a_job_master_whose_port_is_closed_has_left() -> None:
    server = new_server([])
    job_master_pb2_grpc.add_JobMasterServicer_to_server(JobMaster(), server)  # type: ignore[no-untyped-call]
    address = bind(server, "127.0.0.1", 0)
    await server.start()
    posted: asyncio.Queue[events.Event] = asyncio.Queue()
    stream = JobMasterStream(
        JOB,
        address,
        EPOCH,
        conf=Configuration.load(),
        post=posted.put_nowait,
        heartbeat_interval_s=60.0,
        heartbeat_timeout_s=600.0,
        platform=SYSTEM,
    )
    stream.link.start()

    async def until(kind: type[Any]) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while not isinstance(event := await posted.get(), kind):
                pass
        return event

    await until(events.JobMasterHeartbeat)
    assert not await refuses(address)
    await server.stop(None)
    left = await until(events.JobMasterDied)
    assert (left.job_id, left.job_master_epoch) == (JOB, EPOCH)
    assert left.cause == f"no process listens at {address}"
    await stream.link.close()
