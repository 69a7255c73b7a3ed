"""A client with patience: it asks until it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import grpc

from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc, job_master_pb2
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
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stub: Any = None
        self._process: SimulatedProcess | None = None

    async def run(self, process: SimulatedProcess, arguments: Sequence[str]) -> None:
        channel = process.platform.transport.channel(f"{HOST}:{DISPATCHER_PORT}")
        self._stub = dispatcher_pb2_grpc.DispatcherStub(channel)  # type: ignore[no-untyped-call]
        self._process = process
        process.service = self
        await asyncio.Event().wait()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._process is not None
        self._process.context.copy().run(self._cluster.world.loop.create_task, work)

    async def submit(self, submitted: SubmittedJob) -> None:
        request = dispatcher_pb2.SubmitJobRequest(job_graph=submitted.message)
        code, details = await self._ask(lambda: self._stub.SubmitJob(request, timeout=TIMEOUT_S))
        if code is not grpc.StatusCode.OK:
            submitted.refusals.append(details)
        submitted.submitted = True

    async def cancel(self, submitted: SubmittedJob) -> None:
        request = job_master_pb2.CancelJobRequest(job_id=submitted.graph.job_id)
        while True:
            code, _ = await self._ask(lambda: self._stub.CancelJob(request, timeout=TIMEOUT_S))
            if code is grpc.StatusCode.OK:
                submitted.cancel_wanted = True  # it was promised
                return
            if submitted.submitted:
                return
            await asyncio.sleep(RETRY_S)  # it may have come before the job

    async def _ask(self, call: Any) -> tuple[grpc.StatusCode, str]:
        """How it was answered at last."""
        while True:
            try:
                await call()
                return grpc.StatusCode.OK, ""
            except grpc.aio.AioRpcError as error:
                if error.code() not in _AGAIN:
                    return error.code(), str(error.details())
                await asyncio.sleep(RETRY_S)
