"""What the REST server knows of the cluster: the leading Dispatcher's answers over gRPC.

Each call carries its caller's token, so that the Dispatcher decides what the caller may do, and
audits it. Answers that all viewers share are kept for a moment: a thousand viewers cost as much as
one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from dispatcher.rest.operations import Operations
from dispatcher.rest.requests import TOKEN
from firesteel._proto import (
    dispatcher_pb2,
    dispatcher_pb2_grpc,
    job_master_pb2,
    resource_manager_pb2,
)
from firesteel.client.job_details import (
    CLUSTER_OVERVIEW,
    JOB_DETAILS,
    JOB_OVERVIEW,
    ClusterOverview,
    JobDetails,
    JobOverview,
)
from firesteel.common.rpc.bearer import AUTHORIZATION
from firesteel.common.rpc.server import aio_channel
from firesteel.common.security.credentials import BEARER
from firesteel.common.security.security import Security

KEPT_S = 0.25  # answers that all viewers share
CALL_TIMEOUT_S = 10.0


class Gateway:
    """Calls the Dispatcher at an address, until `close`."""

    def __init__(self, dispatcher_address: str, security: Security | None) -> None:
        credentials = security.channel_credentials() if security else None
        self._channel = aio_channel(dispatcher_address, credentials)
        self.dispatcher: Any = dispatcher_pb2_grpc.DispatcherStub(self._channel)  # type: ignore[no-untyped-call]
        self.operations = Operations()
        self._kept: dict[str, tuple[float, asyncio.Future[Any]]] = {}

    async def close(self) -> None:
        await self.operations.stop()
        await self._channel.close(grace=None)

    def metadata(self, request: web.Request) -> tuple[tuple[str, str], ...]:
        token = request.get(TOKEN)
        return ((AUTHORIZATION, f"{BEARER}{token}"),) if token else ()

    async def shared(self, key: str, load: Callable[[], Awaitable[Any]]) -> Any:
        """Returns what `load` returns, at most `KEPT_S` old: one call for all who wait."""
        now_s = time.monotonic()
        since_s, kept = self._kept.get(key, (0.0, None))
        if kept is None or now_s - since_s > KEPT_S or kept.cancelled():
            kept = asyncio.ensure_future(load())
            self._kept[key] = (now_s, kept)
            self._kept = {k: v for k, v in self._kept.items() if k == key or now_s - v[0] <= KEPT_S}
        return await asyncio.shield(kept)

    async def jobs(self, request: web.Request) -> list[JobOverview]:
        async def load() -> list[JobOverview]:
            answer = await self.dispatcher.ListJobs(
                dispatcher_pb2.ListJobsRequest(),
                timeout=CALL_TIMEOUT_S,
                metadata=self.metadata(request),
            )
            return list(map(JOB_OVERVIEW.decode, answer.jobs))

        jobs: list[JobOverview] = await self.shared("jobs", load)
        return jobs

    async def details(self, request: web.Request) -> JobDetails:
        job_id = request.match_info["job"]

        async def load() -> JobDetails:
            answer = await self.dispatcher.GetJobDetails(
                job_master_pb2.JobDetailsRequest(job_id=job_id),
                timeout=CALL_TIMEOUT_S,
                metadata=self.metadata(request),
            )
            return JOB_DETAILS.decode(answer)

        details: JobDetails = await self.shared(f"job {job_id}", load)
        return details

    async def cluster(self, request: web.Request) -> ClusterOverview:
        async def load() -> ClusterOverview:
            answer = await self.dispatcher.GetClusterOverview(
                resource_manager_pb2.ClusterOverviewRequest(),
                timeout=CALL_TIMEOUT_S,
                metadata=self.metadata(request),
            )
            return CLUSTER_OVERVIEW.decode(answer)

        cluster: ClusterOverview = await self.shared("cluster", load)
        return cluster
