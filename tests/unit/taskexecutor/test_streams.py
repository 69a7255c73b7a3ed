"""The TaskExecutor's streams to its masters, against a server that records what it hears."""

from __future__ import annotations

import asyncio
from typing import Any

from firesteel._proto import resource_manager_pb2
from firesteel.common.rpc.link import FIRST_PAUSE_S
from firesteel.common.service.platform import SYSTEM
from taskexecutor.streams import ResourceManagerStream
from tests.integration.task_executor_masters import Masters


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
