"""A client that repeats its requests until it gets an answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import grpc

from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc, job_master_pb2
from firesteel.common.config import Configuration
from firesteel.common.leader import LeaderRetriever, Leaders, Office
from firesteel.common.rpc.leader_stub import LeaderStub
from tests.simulation.services import DISPATCHER_PORT, HOST
from tests.simulation.world import SimulatedProcess

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.jobs import SubmittedJob

RETRY_S = 2.0
TIMEOUT_S = 8.0
# The call was not answered, or cannot be carried out just now.
_AGAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class Client:
    def __init__(self, cluster: Cluster, leaders: Callable[[Configuration], Leaders]) -> None:
        self._cluster = cluster
        self._leaders_of = leaders
        self._dispatcher: LeaderRetriever | None = None
        self._process: SimulatedProcess | None = None

    async def run(self, process: SimulatedProcess, arguments: Sequence[str]) -> None:
        leaders = self._leaders_of(self._cluster.conf())
        self._dispatcher = leaders.of(Office.DISPATCHER, f"{HOST}:{DISPATCHER_PORT}")
        await leaders.start()
        self._process = process
        process.service = self
        if self._cluster.shape.masters:
            await self._ask_anybody(process)
        await asyncio.Event().wait()

    async def _ask_anybody(self, process: SimulatedProcess) -> None:
        """As a client does that has not heard who leads now: standbys refuse, and whoever led."""
        addresses = [
            f"{HOST}:{DISPATCHER_PORT + 10 * number}"
            for number in range(self._cluster.shape.masters)
        ]
        stubs: list[Any] = [
            dispatcher_pb2_grpc.DispatcherStub(process.platform.transport.channel(address))  # type: ignore[no-untyped-call]
            for address in addresses
        ]
        request = dispatcher_pb2.ListJobsRequest()
        while True:
            await asyncio.sleep(self._cluster.world.between(0.1, 1.0))
            for stub in stubs:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await stub.ListJobs(request, timeout=0.5)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._process is not None
        self._process.context.copy().run(self._cluster.world.loop.create_task, work)

    async def submit(self, submitted: SubmittedJob) -> None:
        request = dispatcher_pb2.SubmitJobRequest(job_graph=submitted.message)
        code, details = await self._ask(lambda to: to.SubmitJob(request, timeout=TIMEOUT_S))
        if code is not grpc.StatusCode.OK:
            submitted.refusals.append(details)
        submitted.submitted = True

    async def cancel(self, submitted: SubmittedJob) -> None:
        request = job_master_pb2.CancelJobRequest(job_id=submitted.graph.job_id)
        while True:
            code, _ = await self._ask(lambda to: to.CancelJob(request, timeout=TIMEOUT_S))
            if code is grpc.StatusCode.OK:
                submitted.cancel_wanted = True  # it was promised
                return
            if submitted.submitted:
                return
            await asyncio.sleep(RETRY_S)  # it may have come before the job

    async def scale(self, submitted: SubmittedJob, parallelism: int) -> None:
        """Tries once: a client that has no answer does not know whether the job was rescaled."""
        request = job_master_pb2.RescaleJobRequest(
            job_id=submitted.graph.job_id, parallelism=parallelism, timeout_s=10.0
        )
        assert self._process is not None and self._dispatcher is not None
        channel = self._process.platform.transport.channel
        stub, dispatcher = dispatcher_pb2_grpc.DispatcherStub, self._dispatcher
        async with LeaderStub(dispatcher, stub, channel) as leader:
            try:
                await (await leader.get()).RescaleJob(request, timeout=60.0)
                submitted.rescaled.append(parallelism)
            except grpc.aio.AioRpcError as error:
                submitted.not_rescaled.append(str(error.details()))
        answers = submitted.rescaled or submitted.not_rescaled
        self._cluster.world.note("client", f"parallelism {parallelism}: {answers}")

    async def _ask(self, call: Any) -> tuple[grpc.StatusCode, str]:
        """How it was answered at last."""
        assert self._process is not None and self._dispatcher is not None
        channel = self._process.platform.transport.channel
        async with LeaderStub(
            self._dispatcher, dispatcher_pb2_grpc.DispatcherStub, channel
        ) as leader:
            while True:
                try:
                    await call(await leader.get())
                    return grpc.StatusCode.OK, ""
                except grpc.aio.AioRpcError as error:
                    if error.code() not in _AGAIN:
                        return error.code(), str(error.details())
                    await asyncio.sleep(RETRY_S)
