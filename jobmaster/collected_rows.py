"""Sends the rows that CollectSinks collect to the Dispatcher, which stores them for clients.

Chunks are sent one after another, numbered from 0 per sink, with the number of the restart. So a
chunk that is resent, because its answer was lost, is stored once, and the rows of a sink that
starts over replace its earlier rows. A sink that resumes from a checkpoint keeps the number of the
restart, also under a new JobMaster: its chunks belong to groups, which are published when their
checkpoints are complete. The same applies to tasks that a new JobMaster adopts: the Dispatcher has
sent it the number of stored chunks of each attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import grpc
import tenacity

from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc
from firesteel.common.failpoints import Failpoint, reached
from firesteel.common.leader import LeaderRetriever
from firesteel.common.logs import get_logger
from firesteel.common.rpc.leader_stub import LeaderStub, is_transient
from firesteel.common.service.platform import Transport

log = get_logger(__name__)

ATTEMPT_TIMEOUT_S = 10.0
_FOLLOWS = -1  # stands for the restart's number until a restart


@dataclass(frozen=True, slots=True)
class _Chunk:
    operator_id: str
    attempt_id: str
    ipc_stream: bytes = field(repr=False)  # both empty: marks the start of the restart
    group: str
    restart: int
    kept: Callable[[str], None]  # called with the problem, or an empty string


class CollectedRows:
    """Sends queued chunks to the Dispatcher while `run` is running."""

    def __init__(
        self,
        transport: Transport,
        dispatcher: str | LeaderRetriever,
        *,
        job_id: str,
        epoch: int,
        sinks: Sequence[str],
        follows: Iterable[dispatcher_pb2.CollectedChunks] = (),
    ) -> None:
        """`dispatcher` is an address or a leader; `sinks` are the operator ids of the job's
        CollectSinks; `follows` has the chunks that were sent under earlier JobMasters, which
        `begin` discards.
        """
        self._transport = transport
        self._dispatcher = dispatcher
        self._job_id = job_id
        self._epoch = epoch
        self._sinks = sinks
        self._restarts: dict[str, int] = {}  # the latest restart of each sink
        self._follows = {found.operator_id: found for found in follows}
        self._queue: asyncio.Queue[_Chunk] = asyncio.Queue()

    def begin(self, restart: int, operator_ids: Collection[str]) -> None:
        """Assigns later rows of these sinks to this restart, and discards their earlier rows."""
        for operator_id in self._sinks:
            if operator_id not in operator_ids:
                continue
            self._restarts[operator_id] = restart
            self._queue.put_nowait(_Chunk(operator_id, "", b"", "", restart, lambda problem: None))

    def append(
        self,
        operator_id: str,
        attempt_id: str,
        ipc_stream: bytes,
        group: str,
        kept: Callable[[str], None],
    ) -> None:
        """Queues a chunk. Calls `kept` once it is stored, or with the reason if it cannot be."""
        restart = self._restarts.get(operator_id, _FOLLOWS)
        self._queue.put_nowait(_Chunk(operator_id, attempt_id, ipc_stream, group, restart, kept))

    async def run(self) -> None:
        """Sends chunks until it is cancelled."""
        if not self._sinks:
            return
        channel = self._transport.channel
        async with LeaderStub(
            self._dispatcher, dispatcher_pb2_grpc.DispatcherStub, channel
        ) as dispatcher:
            # The index of the next chunk, by sink and restart.
            indexes = {(o, _FOLLOWS): found.chunks for o, found in self._follows.items()}
            while True:
                chunk = await self._queue.get()
                key = (chunk.operator_id, chunk.restart)
                problem = await self._send(dispatcher, chunk, indexes.get(key, 0))
                if problem:
                    log.error("collected rows cannot be kept", cause=problem)
                elif chunk.ipc_stream or chunk.group:
                    indexes[key] = indexes.get(key, 0) + 1
                reached(Failpoint.SPOOLED)
                chunk.kept(problem)

    async def _send(
        self,
        dispatcher: LeaderStub[dispatcher_pb2_grpc.DispatcherStub],
        chunk: _Chunk,
        index: int,
    ) -> str:
        earlier = self._follows.get(chunk.operator_id)
        generation = self._epoch << 32 | max(0, chunk.restart)
        if chunk.restart == _FOLLOWS and earlier is not None:
            generation = earlier.generation
        request = dispatcher_pb2.AppendResultsRequest(
            job_id=self._job_id,
            epoch=self._epoch,
            operator_id=chunk.operator_id,
            generation=generation,
            index=index,
            ipc_stream=chunk.ipc_stream,
            group=chunk.group,
            attempt_id=chunk.attempt_id,
        )
        try:
            async for attempt in tenacity.AsyncRetrying(
                wait=tenacity.wait_exponential(multiplier=0.05, max=1.0),
                retry=tenacity.retry_if_exception(is_transient),
                reraise=True,
            ):
                with attempt:
                    stub = await dispatcher.get()
                    await stub.AppendResults(request, timeout=ATTEMPT_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return error.details() or error.code().name
        return ""
