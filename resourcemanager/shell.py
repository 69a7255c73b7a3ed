"""The ResourceManager's shell: gRPC streams in, events to the SlotManager, its commands out again.

Each stream is one connection with a bounded queue of its own: a peer that does not read loses its
connection, and nobody else notices. Servicers only post events; everything is decided in the
SlotManager, run by the one driver.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any, assert_never

import grpc
import structlog

from firesteel._proto import resource_manager_pb2 as pb
from firesteel._proto import resource_manager_pb2_grpc
from firesteel.common.driver import Driver, MailboxFull
from firesteel.common.metrics import Sample
from resourcemanager import convert
from resourcemanager.core import commands, events
from resourcemanager.core.commands import Command
from resourcemanager.core.core import SlotManager
from resourcemanager.core.events import Connection, Event
from resourcemanager.core.slots import SlotState
from resourcemanager.driver import WorkerDriver

log = structlog.get_logger(__name__)

OUTGOING_MAX = (
    20_000  # messages that wait for one peer; twice the slots of the largest TaskExecutor
)
# A broken connection looks like an orderly end until gRPC has also cancelled the call: so long we
# wait for that.
CANCELLATION_PAUSE_S = 0.1


class Peer:
    """One stream, seen from the side that writes to it."""

    def __init__(self, connection: Connection, name: str, encode: Callable[[Any], Any]) -> None:
        self.connection = connection
        self.name = name
        self.closing: tuple[grpc.StatusCode, str] | None = None
        self._encode = encode
        self._outgoing: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, command: Any) -> None:
        if self._outgoing.qsize() >= OUTGOING_MAX:
            self.close(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{OUTGOING_MAX} messages wait: the peer does not read them",
            )
        if self.closing is None:
            self._outgoing.put_nowait(self._encode(command))

    def close(self, code: grpc.StatusCode, cause: str) -> None:
        """Ends the stream after what already waits."""
        if self.closing is None:
            self.closing = (code, cause)
            self._outgoing.put_nowait(None)

    async def messages(self) -> AsyncIterator[Any]:
        while (message := await self._outgoing.get()) is not None:
            yield message


class ResourceManagerService(resource_manager_pb2_grpc.ResourceManagerServicer):
    """Owns the connections; the SlotManager is only touched by its driver, except for reading an
    overview.
    """

    def __init__(self, core: SlotManager, workers: WorkerDriver) -> None:
        self.core = core
        self._workers = workers
        self._driver: Driver[Event, None, Command] = Driver(
            core, execute=self.execute, name="slot manager"
        )
        self._peers: dict[Connection, Peer] = {}
        self._numbers = itertools.count(1)

    async def run(self, address: str) -> None:
        """Until `stop`; raises what the core or a command raises."""
        previous = self._workers.start(address, self.post)
        if previous:
            log.info(
                "waiting for the TaskExecutors of an earlier ResourceManager",
                worker_ids=list(previous),
            )
        self.post(events.Started(previous_workers=tuple(previous)))
        await self._driver.run()

    def stop(self) -> None:
        self._driver.stop()

    def close_streams(self) -> None:
        for peer in self._peers.values():
            peer.close(grpc.StatusCode.UNAVAILABLE, "the ResourceManager stops")

    def post(self, event: Event) -> None:
        _log_event(event)
        self._driver.post(event)

    # ------------------------------------------------------------ gRPC

    async def ConnectTaskExecutor(
        self, request_iterator: AsyncIterator[pb.TaskExecutorToResourceManager], context: Any
    ) -> AsyncIterator[pb.ResourceManagerToTaskExecutor]:
        epoch = self.core.settings.epoch
        async for message in self._stream(
            request_iterator,
            context,
            convert.from_task_executor,
            lambda command: convert.to_task_executor(command, epoch),
        ):
            yield message

    async def ConnectJobMaster(
        self, request_iterator: AsyncIterator[pb.JobMasterToResourceManager], context: Any
    ) -> AsyncIterator[pb.ResourceManagerToJobMaster]:
        epoch = self.core.settings.epoch
        async for message in self._stream(
            request_iterator,
            context,
            convert.from_job_master,
            lambda command: convert.to_job_master(command, epoch),
        ):
            yield message

    async def GetOverview(
        self, request: pb.ResourceOverviewRequest, context: Any
    ) -> pb.ResourceOverview:
        return convert.overview(self.core)

    async def _stream(
        self,
        requests: AsyncIterator[Any],
        context: Any,
        decode: Callable[[Connection, Any], Event],
        encode: Callable[[Any], Any],
    ) -> AsyncIterator[Any]:
        peer = Peer(Connection(next(self._numbers)), context.peer(), encode)
        self._peers[peer.connection] = peer
        reading = asyncio.create_task(self._read(peer, requests, decode))
        try:
            async for message in peer.messages():
                yield message
            if peer.closing is not None and peer.closing[0] is not grpc.StatusCode.OK:
                await context.abort(*peer.closing)
        finally:
            reading.cancel()
            del self._peers[peer.connection]
            cause = peer.closing[1] if peer.closing is not None else "the connection was lost"
            self.post(
                events.ConnectionBroken(connection=peer.connection, cause=cause)
            )  # no news if it was closed in order

    async def _read(
        self, peer: Peer, requests: AsyncIterator[Any], decode: Callable[[Connection, Any], Event]
    ) -> None:
        try:
            async for message in requests:
                self.post(decode(peer.connection, message))
            await asyncio.sleep(CANCELLATION_PAUSE_S)
            self.post(events.ConnectionClosed(connection=peer.connection))
            peer.close(grpc.StatusCode.OK, "closed by the peer")
        except convert.PeerError as error:
            log.warning(
                "a peer breaks the protocol; its connection is closed",
                peer=peer.name,
                fault=str(error),
            )
            peer.close(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except MailboxFull as error:
            peer.close(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except (
            Exception
        ) as error:  # a fault of ours or of gRPC's must not leave a stream that nobody reads
            log.error("reading from a peer failed", peer=peer.name, exc_info=True)
            peer.close(grpc.StatusCode.INTERNAL, repr(error))

    # ------------------------------------------------------------ commands

    def execute(self, command: Command) -> None:
        match command:
            case commands.RequestWorker(worker_id=worker_id):
                log.info("starting TaskExecutor", worker_id=worker_id)
                self._workers.request_worker(worker_id)
            case commands.ReleaseWorker(worker_id=worker_id, cause=cause):
                self._workers.release_worker(worker_id, cause)
            case commands.CloseConnection(connection=connection, cause=cause):
                if (peer := self._peers.get(connection)) is not None:
                    log.info("closing connection", peer=peer.name, cause=cause)
                    peer.close(grpc.StatusCode.ABORTED, cause)
            case (
                commands.Welcome()
                | commands.SendHeartbeat()
                | commands.RequestSlot()
                | commands.FreeSlot()
                | commands.Shutdown()
                | commands.NotEnoughResources()
                | commands.TaskExecutorLost()
            ):
                _log_sent(command)
                if (peer := self._peers.get(command.connection)) is not None:
                    peer.send(command)
            case _:
                assert_never(command)

    # ------------------------------------------------------------ metrics

    def metrics(self, labels: dict[str, str]) -> list[Sample]:
        table = self.core.table
        return [
            ("flink_jobmanager_numRegisteredTaskManagers", labels, len(table.executors)),
            ("flink_jobmanager_taskSlotsTotal", labels, table.total),
            ("flink_jobmanager_taskSlotsAvailable", labels, table.count(SlotState.FREE)),
        ]


def _log_event(event: Event) -> None:
    match event:
        case events.TaskExecutorRegistered():
            log.info(
                "TaskExecutor registered",
                task_executor_id=event.task_executor_id,
                address=event.address,
                slots=len(event.slots),
                worker_id=event.worker_id,
            )
        case events.JobMasterRegistered():
            log.info(
                "JobMaster registered",
                job_id=event.job_id,
                job_name=event.job_name,
                address=event.address,
            )
        case events.RequirementsDeclared():
            log.info(
                "requirements declared",
                job_id=event.job_id,
                slots=sum(r.count for r in event.requirements),
            )
        case events.SlotRequestRejected():
            log.warning(
                "slot request rejected", allocation_id=event.allocation_id, reason=event.reason
            )
        case _:
            pass


def _log_sent(command: Command) -> None:
    match command:
        case commands.RequestSlot():
            log.debug(
                "slot requested",
                job_id=command.job_id,
                allocation_id=command.allocation_id,
                slot_index=command.slot_index,
            )
        case commands.NotEnoughResources():
            log.info(
                "not enough resources",
                missing=command.missing,
                growing=command.growing,
                why=command.explanation,
            )
        case commands.TaskExecutorLost():
            log.warning(
                "TaskExecutor lost", task_executor_id=command.task_executor_id, cause=command.cause
            )
        case commands.FreeSlot() | commands.Shutdown():
            log.info("told TaskExecutor", command=str(command))
        case _:
            pass
