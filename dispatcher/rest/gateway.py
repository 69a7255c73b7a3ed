"""Calls the leading Dispatcher over gRPC for the routes of the REST server.

Each call carries its caller's token and address, so that the Dispatcher decides what the caller
may do, and audits it. Answers that all viewers share are kept for a moment: a thousand viewers cost
as much as one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from aiohttp import web

from dispatcher.rest.answers import Answer
from dispatcher.rest.operations import Operations
from dispatcher.rest.requests import IDENTITY, TOKEN, Refusal
from dispatcher.rest.shared import Shared
from firesteel._proto import (
    access_pb2,
    access_pb2_grpc,
    dispatcher_pb2,
    dispatcher_pb2_grpc,
    job_master_pb2,
    process_info_pb2,
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
from firesteel.common.config import Configuration, ConfigurationError
from firesteel.common.leader import LeaderRetriever
from firesteel.common.rpc.bearer import AUTHORIZATION, CALLER_ADDRESS, REST_TOKEN
from firesteel.common.rpc.server import aio_channel
from firesteel.common.rpc.status import Reason, reason_of
from firesteel.common.security.credentials import BEARER
from firesteel.common.security.roles import Identity
from firesteel.common.security.security import Security

Metadata: TypeAlias = tuple[tuple[str, str], ...]

KEPT_S = 0.5  # answers that all viewers share
REVOKED_KEPT_S = 1.0
CALL_TIMEOUT_S = 10.0
_REVOKED_TIMEOUT_S = 2.0


class _Leader:
    """The channel to the leading Dispatcher, and its stubs."""

    def __init__(self, address: str, security: Security | None) -> None:
        credentials = security.channel_credentials() if security else None
        self.address = address
        self.channel = aio_channel(address, credentials)
        self.dispatcher: Any = dispatcher_pb2_grpc.DispatcherStub(self.channel)  # type: ignore[no-untyped-call]
        self.access: Any = access_pb2_grpc.AccessStub(self.channel)  # type: ignore[no-untyped-call]


class Gateway:
    """Calls the leading Dispatcher, until `close`."""

    def __init__(
        self,
        dispatcher: LeaderRetriever,
        security: Security | None,
        *,
        conf: Configuration | None = None,
        cluster_name: str = "",
    ) -> None:
        self.conf = conf or Configuration()
        self.cluster_name = cluster_name
        self._retriever = dispatcher
        self._security = security
        self._leader: _Leader | None = None
        self._closing: set[asyncio.Task[None]] = set()  # channels to earlier leaders
        self.operations = Operations()
        self._shared = Shared()

    @property
    def dispatcher(self) -> Any:
        """The stub of the leader. Raises Refusal while no Dispatcher leads."""
        return self._current().dispatcher

    @property
    def address(self) -> str:
        """The address of the leader. Raises Refusal while no Dispatcher leads."""
        return self._current().address

    @property
    def access(self) -> Any:
        """As `dispatcher`, of the leader's service Access."""
        return self._current().access

    def _current(self) -> _Leader:
        leader, current = self._retriever.leader, self._leader
        if leader is None:
            raise Refusal(503, "no Dispatcher leads the cluster now; try again")
        if current is None or current.address != leader.address:
            self._leave()
            current = self._leader = _Leader(leader.address, self._security)
        return current

    def _leave(self) -> None:
        if self._leader is not None:
            closing = asyncio.ensure_future(self._leader.channel.close(grace=None))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            self._leader = None

    async def close(self) -> None:
        await self.operations.stop()
        self._leave()
        await asyncio.gather(*self._closing)

    def caller(self, request: web.Request) -> Identity | None:
        """Returns who made the request; None without security."""
        return request.get(IDENTITY)

    def metadata(self, request: web.Request) -> Metadata:
        """The token and the address of the caller, and the token of this process, which vouches for
        the address.
        """
        token = request.get(TOKEN)
        if self._security is None or not token:
            return ()
        return (
            (AUTHORIZATION, f"{BEARER}{token}"),
            (REST_TOKEN, self._security.token()),
            (CALLER_ADDRESS, _address_of(request)),
        )

    async def record_program(self, request: web.Request) -> None:
        """Records in the audit log that the caller runs a program, which the leader may refuse."""
        if self._security is not None:
            await self.access.RunProgram(
                access_pb2.RunProgramRequest(),
                timeout=CALL_TIMEOUT_S,
                metadata=self.metadata(request),
            )

    async def learn_revoked(self) -> None:
        """Brings the revoked tokens that this process refuses up to date. It keeps those that it
        knows while the Dispatcher does not answer.
        """
        security = self._security
        if security is None:
            return

        async def load() -> None:
            with contextlib.suppress(grpc.aio.AioRpcError, Refusal):
                answer = await self.access.ListRevoked(
                    access_pb2.ListRevokedRequest(),
                    timeout=_REVOKED_TIMEOUT_S,
                    metadata=((AUTHORIZATION, f"{BEARER}{security.token()}"),),
                )
                security.revoked.update(answer.token_ids)

        await self.shared("revoked", load, kept_s=REVOKED_KEPT_S)

    async def shared(
        self, key: str, load: Callable[[], Awaitable[Any]], *, kept_s: float = KEPT_S
    ) -> Any:
        """Returns what `load` returns, one call for all callers, at most twice `kept_s` old."""
        return await self._shared.get(key, load, kept_s)

    async def answer(
        self,
        request: web.Request,
        load: Callable[[], Awaitable[Any]],
        *,
        kept_s: float = KEPT_S,
        unknown: int | None = None,
    ) -> web.Response:
        """Answers a GET request with JSON that all viewers of its path and query share. `unknown`
        replaces NaN and infinities.
        """

        async def encode() -> Answer:
            return Answer(await load(), unknown=unknown)

        answer: Answer = await self.shared(f"answer {request.path_qs}", encode, kept_s=kept_s)
        return answer.response(request)

    def forget(self) -> None:
        """Drops the answers that are kept."""
        self._shared.forget()

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

    async def details(
        self, request: web.Request, job_id: str = "", *, checkpoints: bool = False
    ) -> JobDetails:
        """Describes a job, by default the one in the path. With `checkpoints`, includes the
        subtasks' parts of the last checkpoints. Raises Refusal for a job that was removed.
        """
        job_id = job_id or request.match_info["job"]

        async def load() -> JobDetails:
            answer = await self.dispatcher.GetJobDetails(
                job_master_pb2.JobDetailsRequest(job_id=job_id, checkpoints=checkpoints),
                timeout=CALL_TIMEOUT_S,
                metadata=self.metadata(request),
            )
            details = JOB_DETAILS.decode(answer)
            if not details.start_ms:  # only its end is known, for clients that wait for it
                raise Refusal(404, f"the cluster no longer keeps job {job_id}")
            return details

        details: JobDetails = await self.shared(f"job {job_id} {checkpoints}", load)
        return details

    async def cancel(self, request: web.Request) -> None:
        """Cancels the job in the path. Raises Refusal if it has ended."""
        try:
            await self.dispatcher.CancelJob(
                job_master_pb2.CancelJobRequest(job_id=request.match_info["job"]),
                timeout=CALL_TIMEOUT_S,
                metadata=self.metadata(request),
            )
        except grpc.aio.AioRpcError as error:
            if reason_of(error) is Reason.JOB_IN_WRONG_STATE:
                raise Refusal(409, error.details() or "the job has ended") from None
            raise

    async def configuration(self, request: web.Request, details: JobDetails) -> Configuration:
        """Returns the job's options and, where it sets none, the cluster's, without secrets."""
        own = dict(details.configuration)
        cluster = dict((await self.description(request)).configuration)
        try:
            return Configuration({**cluster, **own})
        except ConfigurationError:  # which is why the job has failed
            return Configuration(cluster)

    async def description(
        self, request: web.Request, task_executor_id: str = ""
    ) -> process_info_pb2.ProcessDescription:
        """Describes a TaskExecutor's process, or the Dispatcher's."""

        async def load() -> process_info_pb2.ProcessDescription:
            described: process_info_pb2.ProcessDescription = await self.dispatcher.DescribeProcess(
                process_info_pb2.DescribeProcessRequest(task_executor_id=task_executor_id),
                timeout=CALL_TIMEOUT_S,
                metadata=self.metadata(request),
            )
            return described

        description: process_info_pb2.ProcessDescription = await self.shared(
            f"process {task_executor_id}", load
        )
        return description

    async def log_file(
        self, request: web.Request, task_executor_id: str, name: str, *, output: bool
    ) -> AsyncIterator[bytes]:
        """Yields the bytes of a log file; with `output`, only what jobs have printed."""
        message = process_info_pb2.ReadLogFileRequest(
            task_executor_id=task_executor_id, name=name, output=output
        )
        async for chunk in self.dispatcher.ReadLogFile(message, metadata=self.metadata(request)):
            yield chunk.data

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


def _address_of(request: web.Request) -> str:
    """Returns the address of the client's socket, as gRPC writes it."""
    peer = request.transport.get_extra_info("peername") if request.transport else None
    if not peer:
        return ""
    host, port = peer[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
