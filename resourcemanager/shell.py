"""Runs the SlotManager and carries out its commands, towards peers and the driver of workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from firesteel._proto.resource_manager_pb2 import MachineUsage
from firesteel.common.ids import TaskExecutorId
from firesteel.common.logs import get_logger
from firesteel.common.metrics import Sample
from firesteel.common.rpc.server import PORT_CLOSES_S
from firesteel.common.rpc.status import Reason
from firesteel.common.service.core_loop import CoreLoop, Permit
from firesteel.common.service.platform import SYSTEM, Platform
from firesteel.common.units import size
from resourcemanager.core import commands, events
from resourcemanager.core.commands import Command, ToStopper
from resourcemanager.core.core import SlotManager
from resourcemanager.core.events import Connection, Event
from resourcemanager.core.slots import SlotState
from resourcemanager.driver import WorkerDriver
from resourcemanager.peers import Peer

log = get_logger(__name__)


class Shell:
    """Owns the connections. Only its core loop changes the SlotManager; other code may read it."""

    def __init__(
        self,
        core: SlotManager,
        workers: WorkerDriver,
        *,
        permit: Permit | None = None,
        platform: Platform = SYSTEM,
    ) -> None:
        self.core = core
        self.peers: dict[Connection, Peer] = {}
        self.usages: dict[TaskExecutorId, MachineUsage] = {}
        self._workers = workers
        self._platform = platform
        self._probes: set[asyncio.Task[None]] = set()
        self._stops: dict[int, asyncio.Queue[ToStopper]] = {}
        self._core_loop: CoreLoop[Event, None, Command] = CoreLoop(
            core,
            execute=self._execute,
            clock=platform.clock.monotonic,
            name="slot manager",
            permit=permit,
        )

    async def run(self, address: str) -> None:
        """Runs until `stop` is called; raises errors of the core and of commands. Workers use
        `address`.
        """
        previous = self._workers.start(address, self.post, self.core.settings.epoch)
        if previous:
            log.info(
                "waiting for the TaskExecutors of an earlier ResourceManager",
                worker_ids=list(previous),
            )
        known = None if previous is None else tuple(previous)
        self.post(events.Started(previous_workers=known))
        await self._core_loop.run()

    def stop(self) -> None:
        self._core_loop.stop()

    async def close(self, *, end_workers: bool = True) -> None:
        """Ends the streams after `run`, and the workers unless another ResourceManager follows."""
        await self._workers.stop(end_workers=end_workers)
        for peer in self.peers.values():
            peer.close(Reason.SHUTTING_DOWN, "the ResourceManager is stopping")

    def keep_usage(self, usage: MachineUsage) -> None:
        """Keeps the report of a registered TaskExecutor, and forgets those of others."""
        executors = self.core.table.executors
        self.usages[TaskExecutorId(usage.task_executor_id)] = usage
        kept = {*executors, *self.core.lost_workers.values()}
        self.usages = {of: known for of, known in self.usages.items() if of in kept}

    def _with_peak(self, exited: events.WorkerExited) -> str:
        """Returns the cause, with the highest memory that the TaskExecutor reported."""
        executors = self.core.table.executors.values()
        lost = self.core.lost_workers.get(exited.worker_id)
        ids = [x.task_executor_id for x in executors if x.worker_id == exited.worker_id]
        for task_executor_id in [*ids, *([lost] if lost is not None else [])]:
            usage = self.usages.get(task_executor_id)
            if usage is not None and usage.HasField("memory_peak_bytes"):
                reason, line_break, log_lines = exited.cause.partition("\n")
                peak = size(usage.memory_peak_bytes)
                reason += f"; the highest memory of its slots that it has reported was {peak}"
                return reason + line_break + log_lines
        return exited.cause

    def post(self, event: Event) -> None:
        if isinstance(event, events.WorkerExited) and event.out_of_memory:
            event = replace(event, cause=self._with_peak(event))
        _log_event(event)
        self._core_loop.post(event)

    # ------------------------------------------------------------ commands

    def _execute(self, command: Command) -> None:
        match command:
            case commands.RequestWorker(worker_id=worker_id):
                log.info("starting TaskExecutor", worker_id=worker_id)
                self._workers.request_worker(worker_id)
            case commands.ReleaseWorker(worker_id=worker_id, cause=cause, failed=failed):
                self._workers.release_worker(worker_id, cause, failed=failed)
            case commands.ProbeTaskExecutor():
                probe = asyncio.create_task(self._probe(command))
                self._probes.add(probe)
                probe.add_done_callback(self._probes.discard)
            case commands.CloseConnection(connection=connection, cause=cause):
                if (peer := self.peers.get(connection)) is not None:
                    log.info("closing connection", peer=peer.name, cause=cause)
                    peer.close(Reason.CONNECTION_CLOSED, cause)
            case (
                commands.Welcome()
                | commands.SendHeartbeat()
                | commands.RequestSlot()
                | commands.FreeSlot()
                | commands.Shutdown()
                | commands.NotEnoughResources()
                | commands.TaskExecutorLost()
                | commands.LossExplained()
                | commands.JobMasterChanged()
                | commands.SlotHolders()
                | commands.Vacate()
                | commands.VacateWithdrawn()
            ):
                _log_sent(command)
                if (peer := self.peers.get(command.connection)) is not None:
                    peer.send(command)
            case commands.StopProgress() | commands.StopEnded() | commands.StopRefused():
                if (answers := self._stops.get(command.request)) is not None:
                    answers.put_nowait(command)
            case _:
                assert_never(command)

    @contextlib.contextmanager
    def stop_task_executor(
        self, request: events.StopRequested
    ) -> Iterator[asyncio.Queue[ToStopper]]:
        """Yields the answers to a stop, up to StopEnded or StopRefused; leaving early abandons
        it.
        """
        answers = self._stops[request.request] = asyncio.Queue()
        self.post(request)
        try:
            yield answers
        finally:
            del self._stops[request.request]
            self.post(events.StopAbandoned(request=request.request))

    async def _probe(self, command: commands.ProbeTaskExecutor) -> None:
        await asyncio.sleep(PORT_CLOSES_S)
        if await self._platform.transport.refuses(command.address):
            self.post(events.TaskExecutorGone(task_executor_id=command.task_executor_id))

    # ------------------------------------------------------------ metrics

    def metrics(self, labels: dict[str, str]) -> list[Sample]:
        """Returns the ResourceManager's own metrics, for its registry."""
        table = self.core.table
        return [
            Sample("flink_jobmanager_numRegisteredTaskManagers", labels, len(table.executors)),
            Sample("flink_jobmanager_taskSlotsTotal", labels, table.total),
            Sample("flink_jobmanager_taskSlotsMissing", labels, self.core.missing),
            Sample("flink_jobmanager_taskSlotsAvailable", labels, table.count(SlotState.FREE)),
            Sample(
                "flink_jobmanager_numOutdatedTaskManagers",
                labels,
                len(self.core.workers.outdated),
            ),
            *(
                Sample(f"flink_jobmanager_{name}", labels, value)
                for name, value in self._workers.gauges().items()
            ),
            *self.core.fence.refusals.samples("flink_jobmanager_", labels),
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
        case events.PreviousWorkersFound(worker_ids=worker_ids):
            if worker_ids:
                log.info(
                    "waiting for the TaskExecutors of an earlier ResourceManager",
                    worker_ids=list(worker_ids),
                )
        case events.DriverImpeded(problem=problem):
            if problem:
                log.warning("TaskExecutors cannot be started now", reason=problem)
            else:
                log.info("TaskExecutors can be started again")
        case events.WorkerDelayed(worker_id=worker_id, problem=problem):
            if problem:
                log.warning("TaskExecutor does not start", worker_id=worker_id, reason=problem)
        case events.WorkerLeaving(worker_id=worker_id, cause=cause):
            log.info("a TaskExecutor is drained: it is to end", worker_id=worker_id, cause=cause)
        case events.WorkersOutdated(worker_ids=worker_ids):
            log.info(
                "TaskExecutors with an earlier configuration are replaced one by one",
                worker_ids=list(worker_ids),
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
        case commands.LossExplained():
            log.warning(
                "reason of a lost TaskExecutor",
                task_executor_id=command.task_executor_id,
                cause=command.cause or command.log,
            )
        case commands.Vacate() | commands.VacateWithdrawn():
            log.info("sent to JobMasters", command=str(command))
        case commands.FreeSlot() | commands.Shutdown():
            log.info("sent to TaskExecutor", command=str(command))
        case _:
            pass
