"""Streams and calls follow whoever leads; who does not lead says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from firesteel._proto import resource_manager_pb2, resource_manager_pb2_grpc
from firesteel.common.fencing import Refusals
from firesteel.common.ids import Epoch
from firesteel.common.leader import FixedElection, Leader, NotActing, Office
from firesteel.common.rpc.gate import Gate
from firesteel.common.rpc.leader_stub import LeaderStub
from firesteel.common.rpc.server import aio_channel, bind, new_server
from firesteel.common.rpc.status import Reason, StatusDetail, detail_of
from firesteel.common.service.platform import SYSTEM
from firesteel.high_availability.retriever import Retriever
from resourcemanager.servicer import ResourceManagerServicer
from taskexecutor.core import events
from taskexecutor.streams import ResourceManagerStream
from tests.integration.task_executor_masters import Masters
from tests.waiting import PATIENCE_S


async def masters_of_epoch(epoch: int) -> Masters:
    masters = Masters()
    masters.epoch = epoch
    await masters.start()
    return masters


async def test_a_stream_follows_the_leader() -> None:
    one, two, stale = [await masters_of_epoch(epoch) for epoch in (4, 5, 3)]
    found = Retriever(Office.RESOURCE_MANAGER)
    posted: asyncio.Queue[events.Event] = asyncio.Queue()
    stream = ResourceManagerStream(
        found,
        registration=lambda: resource_manager_pb2.TaskExecutorRegistration(
            task_executor_id="t" * 32
        ),
        post=posted.put_nowait,
        on_shutdown=lambda cause: None,
        heartbeat_interval_s=60.0,
        heartbeat_timeout_s=60.0,
        platform=SYSTEM,
    )
    stream.link.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            assert stream.link.address == ""
            found.announced(Leader(one.address, Epoch(4)))
            await one.resource_manager.next("register")
            registered = [await posted.get()]  # its answer is here before it leads no more
            found.announced(None)
            found.announced(Leader(two.address, Epoch(5)))
            await two.resource_manager.next("register")
            registered.append(await posted.get())
            assert stream.link.address == two.address
            # Its statement about itself is older than the announced leader.
            found.announced(Leader(stale.address, Epoch(6)))
            await stale.resource_manager.next("register")
    finally:
        await stream.link.close()
        for masters in (one, two, stale):
            await masters.stop()
    assert [event.resource_manager_epoch for event in registered] == [4, 5]  # type: ignore[union-attr]
    assert posted.empty()


async def test_a_leader_of_before_is_passed_over() -> None:
    found = Retriever(Office.DISPATCHER)
    new = Leader("new:1", Epoch(5))
    found.announced(new)
    found.announced(Leader("old:1", Epoch(4)))
    assert found.leader == new
    found.announced(None)
    found.announced(Leader("old:1", Epoch(4)))
    assert found.leader is None


class NotLeading(FixedElection):
    """Leads on request."""

    def __init__(self) -> None:
        self.leads = False
        self.why: NotActing | None = NotActing(
            message="the leader is elsewhere:1", leader=Leader("elsewhere:1", Epoch(2))
        )

    def acts(self) -> bool:
        return self.leads

    def not_acting(self) -> NotActing | None:
        return self.why


class Overviews(ResourceManagerServicer):
    def __init__(self) -> None:
        pass

    async def GetOverview(self, request: Any, context: Any) -> Any:
        return resource_manager_pb2.ClusterOverview(slots_total=7)

    async def ConnectTaskExecutor(
        self, request_iterator: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        yield resource_manager_pb2.ResourceManagerToTaskExecutor(resource_manager_epoch=1)


async def test_a_gate_refuses_clients_without_a_lease_and_peers_until_it_leads() -> None:
    election = NotLeading()
    refusals = Refusals()
    gate = Gate(ResourceManagerServicer, election, peers=["ConnectTaskExecutor"], refusals=refusals)
    server = new_server([])
    resource_manager_pb2_grpc.add_ResourceManagerServicer_to_server(gate, server)  # type: ignore[no-untyped-call]
    address = bind(server, "127.0.0.1", 0)
    await server.start()
    request = resource_manager_pb2.ClusterOverviewRequest()
    stub_of = resource_manager_pb2_grpc.ResourceManagerStub
    async with LeaderStub(address, stub_of, aio_channel) as leader:
        stub: Any = await leader.get()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetOverview(request)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.value.details() == "the leader is elsewhere:1"
        assert detail_of(refused.value) == StatusDetail(
            Reason.NOT_LEADER, {"leader": "elsewhere:1", "epoch": "2"}
        )
        for why, reason in (
            (NotActing(message="it is a standby"), Reason.NOT_LEADER),
            (NotActing(message="no quorum", coordinated=False), Reason.COORDINATION_UNAVAILABLE),
            (None, Reason.STARTING),
        ):
            election.why = why
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetOverview(request)
            assert detail_of(refused.value) == StatusDetail(reason, {})
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.ConnectTaskExecutor().read()
        assert not refusals.by_sender, "a standby does not count as a replaced leader"
        gate.open(Overviews(), epoch=3)
        assert (await stub.ConnectTaskExecutor().read()).resource_manager_epoch == 1
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.GetOverview(request)
        assert refusals.by_sender == {"ResourceManager": 1}
        election.leads = True
        assert (await stub.GetOverview(request)).slots_total == 7
    await server.stop(None)
