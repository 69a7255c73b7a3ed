"""The real gRPC service, with peers that are nothing but streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from firesteel._proto import common_pb2, resource_manager_pb2_grpc
from firesteel._proto import resource_manager_pb2 as pb
from firesteel.common.ids import Epoch, IdSource
from firesteel.common.rpc.convert import PROFILE
from firesteel.common.rpc.server import aio_channel, bind, new_server
from firesteel.common.rpc.status import Reason, reason_of
from resourcemanager.core.core import SlotManager
from resourcemanager.core.settings import PROCESS_ENDED, Settings
from resourcemanager.driver import NoDriver
from resourcemanager.servicer import ResourceManagerServicer
from resourcemanager.shell import Shell
from tests.slot_manager import SLOT

EXECUTOR, JOB = "e" * 32, "1" * 32
UNKNOWN = common_pb2.ResourceProfile(unknown=True)
NOBODY = "127.0.0.1:1"  # listens there
SOON_S = 60.0


@pytest.fixture
async def rm() -> AsyncIterator[tuple[str, Shell]]:
    core = SlotManager(Settings(epoch=Epoch(5), heartbeat_interval_s=0.1), IdSource(b"x"))
    shell = Shell(core, NoDriver())
    server = new_server([pb.DESCRIPTOR.services_by_name["ResourceManager"]])
    address = bind(server, "127.0.0.1", 0)
    resource_manager_pb2_grpc.add_ResourceManagerServicer_to_server(
        ResourceManagerServicer(shell), server
    )
    await server.start()
    running = asyncio.create_task(shell.run(address))
    yield address, shell
    shell.stop()
    await running
    await shell.close()
    await server.stop(0.1)


async def expect(call: Any, field: str) -> Any:
    """The next message of this kind; others are passed over."""
    async with asyncio.timeout(SOON_S):
        while True:
            message = await call.read()
            assert message is not grpc.aio.EOF, f"the stream ended before {field}"
            if message.WhichOneof("message") == field:
                return getattr(message, field)


def registration(address: str = NOBODY) -> pb.TaskExecutorToResourceManager:
    return pb.TaskExecutorToResourceManager(
        register=pb.TaskExecutorRegistration(
            task_executor_id=EXECUTOR,
            address=address,
            host="h",
            total=PROFILE.encode(SLOT * 2),
            default_slot=PROFILE.encode(SLOT),
            slots=[pb.SlotStatus(slot_index=i, profile=UNKNOWN) for i in range(2)],
        )
    )


def from_job(**message: Any) -> pb.JobMasterToResourceManager:
    return pb.JobMasterToResourceManager(job_id=JOB, epoch=1, **message)


async def connected(stub: Any) -> tuple[Any, Any]:
    executor, job_master = stub.ConnectTaskExecutor(), stub.ConnectJobMaster()
    await executor.write(registration())
    await expect(executor, "registered")
    await job_master.write(from_job(register=pb.JobMasterRegistration(address="127.0.0.1:2")))
    await expect(job_master, "registered")
    return executor, job_master


async def test_the_last_usage_of_registered_task_executors_is_in_the_overview(
    rm: tuple[str, Shell],
) -> None:
    address, service = rm
    async with aio_channel(address) as channel:
        stub = resource_manager_pb2_grpc.ResourceManagerStub(channel)
        executor, _ = await connected(stub)
        overview = await stub.GetOverview(pb.ClusterOverviewRequest())
        assert not overview.task_executors[0].HasField("usage")
        for name, cores in ((EXECUTOR, 2), ("f" * 32, 3), (EXECUTOR, 4)):
            usage = pb.MachineUsage(task_executor_id=name, cpu_cores=cores)
            await executor.write(pb.TaskExecutorToResourceManager(epoch=5, usage=usage))
        async with asyncio.timeout(SOON_S):
            while service.usages.get(EXECUTOR, pb.MachineUsage()).cpu_cores != 4:
                await asyncio.sleep(0.01)
        overview = await stub.GetOverview(pb.ClusterOverviewRequest())
        assert overview.task_executors[0].usage.cpu_cores == 4
        assert service.usages.keys() == {EXECUTOR}


def declare(count: int) -> pb.JobMasterToResourceManager:
    return from_job(
        declare=pb.DeclareRequirements(
            sequence=count, requirements=[pb.ResourceRequirement(profile=UNKNOWN, count=count)]
        )
    )


async def test_the_slot_protocol_over_grpc(rm: tuple[str, Shell]) -> None:
    address, service = rm
    async with aio_channel(address) as channel:
        stub = resource_manager_pb2_grpc.ResourceManagerStub(channel)
        executor, job_master = await connected(stub)
        await job_master.write(declare(3))
        for _ in range(2):
            request = await expect(executor, "request_slot")
            assert request.job_master_address == "127.0.0.1:2"
            await executor.write(
                pb.TaskExecutorToResourceManager(
                    epoch=5,
                    slot_request_accepted=pb.SlotRequestAccepted(
                        allocation_id=request.allocation_id
                    ),
                )
            )
        shortage = await expect(job_master, "not_enough")
        assert (shortage.missing, shortage.explanation) == (
            1,
            "2 slots exist, 2 are taken; no driver can add TaskExecutors",
        )
        await expect(executor, "heartbeat")
        overview = await stub.GetOverview(pb.ClusterOverviewRequest())
        assert (overview.slots_total, overview.slots_free, overview.slots_missing) == (2, 0, 1)
        assert [each.slots for each in overview.task_executors] == [2]
        samples = {name: value for name, _, value in service.metrics({})}
        assert samples == {
            "flink_jobmanager_numRegisteredTaskManagers": 1,
            "flink_jobmanager_numOutdatedTaskManagers": 0,
            "flink_jobmanager_taskSlotsTotal": 2,
            "flink_jobmanager_taskSlotsAvailable": 0,
            "flink_jobmanager_taskSlotsMissing": 1,
        }
        service.core.validate()


async def test_an_orderly_end_is_noticed_immediately(rm: tuple[str, Shell]) -> None:
    address, _ = rm
    async with aio_channel(address) as channel:
        executor, job_master = await connected(
            resource_manager_pb2_grpc.ResourceManagerStub(channel)
        )
        await executor.done_writing()
        lost = await expect(job_master, "task_executor_lost")
        assert lost.cause == "it closed its connection to the ResourceManager"


async def test_a_broken_stream_is_given_time_to_return(
    rm: tuple[str, Shell],
) -> None:
    address, service = rm
    async with aio_channel(address) as channel:
        stub = resource_manager_pb2_grpc.ResourceManagerStub(channel)
        _, job_master = await connected(stub)
        executor = stub.ConnectTaskExecutor()
        await executor.write(registration(address))  # where it lives
        await expect(executor, "registered")
        executor.cancel()
        again = stub.ConnectTaskExecutor()
        await again.write(registration(address))
        await expect(again, "registered")
        again.cancel()
        while service.core.table.total:  # a busy machine may have taken a second to return, too
            lost = await expect(job_master, "task_executor_lost")
            assert "did not reconnect in time" in lost.cause


async def test_a_broken_stream_of_a_process_that_has_ended_is_its_death(
    rm: tuple[str, Shell],
) -> None:
    async with aio_channel(rm[0]) as channel:
        stub = resource_manager_pb2_grpc.ResourceManagerStub(channel)
        executor, job_master = await connected(stub)
        executor.cancel()
        lost = await expect(job_master, "task_executor_lost")
        assert lost.cause == PROCESS_ENDED


async def test_what_one_job_master_finds_all_others_get(rm: tuple[str, Shell]) -> None:
    async with aio_channel(rm[0]) as channel:
        stub = resource_manager_pb2_grpc.ResourceManagerStub(channel)
        _, job_master = await connected(stub)
        await asyncio.sleep(0.3)  # three heartbeats, of which the TaskExecutor sends none
        await job_master.write(
            from_job(
                task_executor_lost=pb.TaskExecutorLost(task_executor_id=EXECUTOR, cause="silent")
            )
        )
        lost = await expect(job_master, "task_executor_lost")
        assert (lost.task_executor_id, lost.cause) == (EXECUTOR, "silent")


async def test_a_superseded_stream_is_closed(rm: tuple[str, Shell]) -> None:
    address, service = rm
    async with aio_channel(address) as channel:
        stub = resource_manager_pb2_grpc.ResourceManagerStub(channel)
        first, _ = await connected(stub)
        second = stub.ConnectTaskExecutor()
        await second.write(registration())
        await expect(second, "registered")
        with pytest.raises(
            grpc.aio.AioRpcError, match="registered on another connection"
        ) as raised:
            await expect(first, "shutdown")
        assert reason_of(raised.value) is Reason.CONNECTION_CLOSED
        assert service.core.table.total == 2


async def test_a_fault_of_the_peer_costs_it_its_connection_only(
    rm: tuple[str, Shell],
) -> None:
    address, service = rm
    async with aio_channel(address) as channel:
        stub = resource_manager_pb2_grpc.ResourceManagerStub(channel)
        executor, _ = await connected(stub)
        bad, message = stub.ConnectTaskExecutor(), registration()
        message.register.task_executor_id = "me"
        await bad.write(message)
        with pytest.raises(grpc.aio.AioRpcError, match="'me' is not an id") as raised:
            await expect(bad, "registered")
        assert reason_of(raised.value) is Reason.INVALID_REQUEST
        await expect(executor, "heartbeat")
        assert service.core.table.total == 2


async def test_a_task_executor_that_does_not_exist_is_not_stopped(rm: tuple[str, Shell]) -> None:
    address, _ = rm
    async with aio_channel(address) as channel:
        stub = resource_manager_pb2_grpc.ResourceManagerStub(channel)
        for asked, reason in (
            ("9" * 32, Reason.TASK_EXECUTOR_NOT_FOUND),
            ("me", Reason.INVALID_REQUEST),
        ):
            request = pb.StopTaskExecutorRequest(task_executor_id=asked)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await anext(aiter(stub.StopTaskExecutor(request)))
            assert reason_of(raised.value) is reason


async def test_garbage_on_the_port_does_not_hurt(rm: tuple[str, Shell]) -> None:
    address, _ = rm
    host, port = address.split(":")
    async with aio_channel(address) as channel:
        executor, _ = await connected(resource_manager_pb2_grpc.ResourceManagerStub(channel))
        for garbage in (b"\x00" * 5000, b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 50):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(garbage)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        garbled = channel.stream_stream("/firesteel.v1.ResourceManager/ConnectTaskExecutor")()
        await garbled.write(b"\xff\xff\xff\xff not a protobuf")
        with pytest.raises(grpc.aio.AioRpcError):
            await expect(garbled, "registered")
        await expect(executor, "heartbeat")
