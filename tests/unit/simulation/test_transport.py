"""The in-memory transport, with the real stubs and a servicer of each kind of call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
import pytest

from firesteel._proto import common_pb2, dispatcher_pb2, dispatcher_pb2_grpc, job_master_pb2
from firesteel.common.rpc.server import AddressTaken
from firesteel.common.rpc.status import Reason, StatusDetail, abort, detail_of
from tests.simulation.loop import START_S, ProcessState, VirtualLoop
from tests.simulation.transport import EOF, Network

ADDRESS = "127.0.0.1:6123"


class Service(dispatcher_pb2_grpc.DispatcherServicer):
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.answers = True

    async def CancelJob(self, request: Any, context: Any) -> Any:
        self.heard.append(request.job_id)
        if request.job_id == "unknown":
            await abort(context, Reason.JOB_NOT_FOUND, "no such job", job_id=request.job_id)
        if not self.answers:
            await asyncio.sleep(1000)
        return job_master_pb2.CancelJobResponse()

    async def DownloadBlob(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for data in (b"a", b"b"):
            yield dispatcher_pb2.BlobChunk(data=data)

    async def UploadBlob(self, chunks: AsyncIterator[Any], context: Any) -> Any:
        return common_pb2.BlobRef(size_bytes=len([chunk async for chunk in chunks]))

    async def ConnectJobMaster(self, messages: AsyncIterator[Any], context: Any) -> Any:
        try:
            async for message in messages:
                self.heard.append(message.register.address)
                yield dispatcher_pb2.DispatcherToJobMaster(heartbeat=common_pb2.Heartbeat())
            self.heard.append("end")
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            self.heard.append("cancelled")
            raise


class World:
    def __init__(self) -> None:
        self.problems: list[object] = []
        chance = random.Random(1)
        self.loop = VirtualLoop(chance, lambda process, where, error: self.problems.append(error))
        self.network = Network(self.loop, chance)
        self.service = Service()
        self.server = ProcessState("server")
        self.client = ProcessState("client")

    def run(self, main: Callable[[Any], Coroutine[Any, Any, None]], for_s: float = 100) -> None:
        """`main`: the client's program, given a stub."""

        async def client() -> None:
            async with self.network.transport().channel(ADDRESS) as channel:
                await main(dispatcher_pb2_grpc.DispatcherStub(channel))  # type: ignore[no-untyped-call]

        task = self.client.context.run(self.loop.create_task, client())
        self.loop.run_until(self.loop.time() + for_s)
        if task.done():
            task.result()
        assert self.problems == []

    async def serve(self) -> None:
        transport = self.network.transport()
        server = transport.server([])
        transport.bind(server, *ADDRESS.split(":"))  # type: ignore[arg-type]
        dispatcher_pb2_grpc.add_DispatcherServicer_to_server(self.service, server)  # type: ignore[no-untyped-call]
        await server.start()
        self.rpc_server = server


@pytest.fixture
def world() -> World:
    world = World()
    world.server.context.run(world.loop.create_task, world.serve())
    world.loop.run_until(START_S + 1)
    return world


def request(job_id: str) -> Any:
    return job_master_pb2.CancelJobRequest(job_id=job_id)


def register(address: str) -> Any:
    return dispatcher_pb2.JobMasterToDispatcher(
        register=dispatcher_pb2.JobMasterRegister(address=address)
    )


def test_every_kind_of_call(world: World) -> None:
    seen: list[object] = []

    async def upload() -> AsyncIterator[Any]:
        for _ in range(3):
            yield dispatcher_pb2.BlobChunk(data=b"a")

    async def main(stub: Any) -> None:
        await stub.CancelJob(request("a"), timeout=3)
        download = stub.DownloadBlob(dispatcher_pb2.DownloadBlobRequest())
        seen.append([chunk.data async for chunk in download])
        seen.append((await stub.UploadBlob(upload())).size_bytes)

    world.run(main)
    assert world.service.heard == ["a"]
    assert seen == [[b"a", b"b"], 3]


def test_a_stream_of_both_sides_in_order(world: World) -> None:
    seen: list[object] = []

    async def sent() -> AsyncIterator[Any]:
        for number in range(3):
            yield register(str(number))

    async def main(stub: Any) -> None:
        call = stub.ConnectJobMaster(sent())
        while (message := await call.read()) is not EOF:
            seen.append(message.WhichOneof("message"))

    world.run(main)
    assert world.service.heard == ["0", "1", "2", "end"]
    assert seen == ["heartbeat"] * 3


def test_aborts_and_deadlines_reach_the_caller(world: World) -> None:
    codes: list[object] = []
    details: list[object] = []

    async def main(stub: Any) -> None:
        for job_id in ("unknown", "silent"):
            world.service.answers = job_id != "silent"
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.CancelJob(request(job_id), timeout=3)
            codes.append(raised.value.code())
            details.append(detail_of(raised.value))

    world.run(main)
    assert codes == [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.DEADLINE_EXCEEDED]
    assert details == [StatusDetail(Reason.JOB_NOT_FOUND, {"job_id": "unknown"}), None]


def test_no_process_listens() -> None:
    world = World()

    async def main(stub: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.CancelJob(request("a"))
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE

    world.run(main)


def test_a_taken_address_is_refused(world: World) -> None:
    with pytest.raises(AddressTaken, match="Address already in use"):
        world.client.context.run(world.network.transport().bind, None, "127.0.0.1", 6123)


def hold_stream_open(
    world: World, ends: list[object]
) -> Callable[[Any], Coroutine[Any, Any, None]]:
    async def sent() -> AsyncIterator[Any]:
        yield register("first")
        await asyncio.sleep(1000)

    async def main(stub: Any) -> None:
        call = stub.ConnectJobMaster(sent())
        try:
            while (message := await call.read()) is not EOF:
                ends.append(message.WhichOneof("message"))
        except grpc.aio.AioRpcError as error:
            ends.append((error.code().name, round(world.loop.time() - START_S)))

    return main


def test_the_death_of_a_server_ends_its_calls(world: World) -> None:
    ends: list[object] = []

    def kill() -> None:
        world.loop.kill(world.server)
        world.network.died(world.server, silently=False)

    world.loop.call_later(10, kill)
    world.run(hold_stream_open(world, ends))
    assert ends == ["heartbeat", ("UNAVAILABLE", 11)]


def test_the_death_of_a_client_ends_its_calls(world: World) -> None:
    def kill() -> None:
        world.loop.kill(world.client)
        world.network.died(world.client, silently=False)

    world.loop.call_later(10, kill)
    world.run(hold_stream_open(world, []))
    assert world.service.heard in (["first", "cancelled"], ["first", "end", "cancelled"])


def test_a_broken_connection_is_noticed_at_both_ends(world: World) -> None:
    ends: list[object] = []
    world.loop.call_later(10, lambda: world.network.open_connections()[0].break_())
    world.run(hold_stream_open(world, ends))
    assert ends[0] == "heartbeat"
    assert ends[1][0] == "UNAVAILABLE"  # type: ignore[index]
    assert world.service.heard[-1] == "cancelled"


def test_a_short_cut_delays_and_a_long_one_breaks(world: World) -> None:
    ends: list[object] = []
    world.loop.call_later(10, world.network.cut, world.client, world.server, 5.0)
    world.loop.call_later(40, world.network.cut, world.client, world.server, 60.0)
    world.run(hold_stream_open(world, ends), for_s=35)
    assert ends == ["heartbeat"]
    world.loop.run_until(START_S + 100)
    code, when = ends[1]  # type: ignore[misc]
    assert code == "UNAVAILABLE"
    assert 51 <= when <= 62


def test_a_peer_that_is_paused_for_long_is_given_up(world: World) -> None:
    ends: list[object] = []

    def pause() -> None:
        world.loop.pause(world.server)
        world.network.paused(world.server)

    world.loop.call_later(10, pause)
    world.loop.call_later(60, world.loop.resume, world.server)
    world.run(hold_stream_open(world, ends))
    code, when = ends[1]  # type: ignore[misc]
    assert code == "UNAVAILABLE"
    assert 20 <= when <= 32
    assert world.service.heard[-1] == "cancelled"


def test_a_lost_answer_leaves_the_call_done_and_the_caller_in_doubt(world: World) -> None:
    world.network.traps.append("CancelJob answer")

    async def main(stub: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.CancelJob(request("a"), timeout=3)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE

    world.run(main)
    assert world.service.heard == ["a"]


def test_a_server_that_stops_ends_its_calls(world: World) -> None:
    ends: list[object] = []

    def stop() -> None:
        world.server.context.run(world.loop.create_task, world.rpc_server.stop(0.5))

    world.loop.call_later(10, stop)
    world.run(hold_stream_open(world, ends))
    assert ends == ["heartbeat", ("UNAVAILABLE", 12)]
