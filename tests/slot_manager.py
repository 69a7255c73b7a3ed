"""Drives a SlotManager without a network: verbs in, commands out. Checks all invariants after every
event.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TypeVar

from firesteel.common.ids import AllocationId, Epoch, IdSource, JobId, TaskExecutorId, stable_id
from firesteel.common.resources import UNKNOWN, ResourceProfile, SlotStatus
from firesteel.common.service.core import Tick
from resourcemanager.core import commands, events
from resourcemanager.core.commands import Command
from resourcemanager.core.core import SlotManager
from resourcemanager.core.events import Connection, Event, WorkerId
from resourcemanager.core.settings import Settings
from resourcemanager.core.slots import Slot, SlotState
from resourcemanager.core.workers import WorkerSpec

EPOCH = Epoch(7)
GIB = 2**30
SLOT = ResourceProfile(cpu_cores=1.0, heap_bytes=GIB, off_heap_bytes=GIB)
WORKER = WorkerSpec(slots=2, total=SLOT * 2, default_slot=SLOT)

C = TypeVar("C", bound=Command)


def executor_id(name: str) -> TaskExecutorId:
    return TaskExecutorId(stable_id("task executor", name))


def job_id(name: str) -> JobId:
    return JobId(stable_id("job", name))


def free(*indexes: int, warm: bool = False) -> tuple[SlotStatus, ...]:
    return tuple(SlotStatus(slot_index=index, profile=UNKNOWN, warm=warm) for index in indexes)


def held(index: int, request: commands.RequestSlot) -> SlotStatus:
    return SlotStatus(
        slot_index=index,
        profile=request.profile,
        allocation_id=request.allocation_id,
        job_id=request.job_id,
    )


class Harness:
    """`now` moves only in `advance`; `commands` holds the commands of the last verb."""

    def __init__(self, *, seed: bytes = b"test", **settings: object) -> None:
        self.core = SlotManager(Settings(epoch=EPOCH, **settings), IdSource(seed))  # type: ignore[arg-type]
        self.now = 0.0
        self.commands: list[Command] = []
        self._connections = itertools.count(1)
        self._connection_of: dict[str, Connection] = {}
        self._sequences = itertools.count(1)

    def handle(self, event: Event) -> list[Command]:
        self.commands = list(self.core.handle(event, self.now).commands)
        self.core.validate()
        return self.commands

    def advance(self, seconds: float) -> list[Command]:
        """Passes time as the core loop does: with a Tick at each deadline."""
        until, seen = self.now + seconds, []
        while (deadline := self.core.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            seen += self.handle(Tick())
        self.now = until
        self.commands = seen
        return seen

    def sent(self, kind: type[C]) -> list[C]:
        """Returns the commands of this kind that the last verb produced."""
        return [command for command in self.commands if isinstance(command, kind)]

    # ------------------------------------------------------------ peers' verbs

    def start(self, *previous_workers: WorkerId) -> list[Command]:
        return self.handle(events.Started(previous_workers=previous_workers))

    def register(
        self,
        name: str,
        slots: int | tuple[SlotStatus, ...] = 2,
        *,
        worker_id: WorkerId | None = None,
        slot: ResourceProfile = SLOT,
    ) -> Connection:
        """A TaskExecutor (re-)connects."""
        connection = self._connect(name)
        statuses = free(*range(slots)) if isinstance(slots, int) else slots
        self.handle(
            events.TaskExecutorRegistered(
                connection=connection,
                task_executor_id=executor_id(name),
                address=f"{name}:1",
                host=name,
                pid=1,
                worker_id=worker_id,
                total=slot * len(statuses),
                default_slot=slot,
                slots=statuses,
            )
        )
        return connection

    def register_job(self, name: str, *, epoch: int = 1, address: str = "jm:1") -> Connection:
        connection = self._connect(name)
        self.handle(
            events.JobMasterRegistered(
                connection=connection,
                job_id=job_id(name),
                epoch=Epoch(epoch),
                address=address,
                job_name=name,
            )
        )
        return connection

    def declare(
        self,
        name: str,
        *counts: int | tuple[ResourceProfile, int],
        epoch: int = 1,
        sequence: int | None = None,
    ) -> list[Command]:
        """The job declares its requirements; a bare number stands for UNKNOWN slots."""
        pairs = [(UNKNOWN, count) if isinstance(count, int) else count for count in counts]
        return self.handle(
            events.RequirementsDeclared(
                connection=self.connection(name),
                job_id=job_id(name),
                epoch=Epoch(epoch),
                sequence=next(self._sequences) if sequence is None else sequence,
                requirements=tuple(
                    events.Requirement(profile=profile, count=count)
                    for profile, count in pairs
                    if count
                ),
            )
        )

    def submit(
        self, name: str, *counts: int | tuple[ResourceProfile, int]
    ) -> list[commands.RequestSlot]:
        """A job registers and declares; returns the slot requests that follow."""
        self.register_job(name)
        self.declare(name, *counts)
        return self.sent(commands.RequestSlot)

    def report(
        self,
        name: str,
        *statuses: SlotStatus,
        sequence: int | None = None,
        epoch: Epoch = EPOCH,
        stored_partitions: int = 0,
        stored_jobs: Iterable[JobId] = (),
    ) -> list[Command]:
        return self.handle(
            events.SlotsReported(
                connection=self.connection(name),
                epoch=epoch,
                sequence=next(self._sequences) if sequence is None else sequence,
                slots=statuses,
                stored_partitions=stored_partitions,
                stored_jobs=frozenset(stored_jobs),
            )
        )

    def accept(self, *requests: commands.RequestSlot) -> list[Command]:
        seen: list[Command] = []
        for request in requests:
            seen += self.handle(
                events.SlotRequestAccepted(
                    connection=request.connection, epoch=EPOCH, allocation_id=request.allocation_id
                )
            )
        self.commands = seen
        return seen

    def reject(self, request: commands.RequestSlot, reason: str = "taken") -> list[Command]:
        return self.handle(
            events.SlotRequestRejected(
                connection=request.connection,
                epoch=EPOCH,
                allocation_id=request.allocation_id,
                reason=reason,
            )
        )

    def beat(self, *names: str, epoch: int = 1) -> None:
        """Each of these peers sends a heartbeat."""
        for name in names:
            connection = self.connection(name)
            if connection in self.core.fence.job_on:
                self.handle(
                    events.JobMasterHeartbeat(
                        connection=connection, job_id=job_id(name), epoch=Epoch(epoch)
                    )
                )
            else:
                self.handle(events.TaskExecutorHeartbeat(connection=connection, epoch=EPOCH))

    def report_lost(self, job: str, name: str, cause: str = "silent") -> list[Command]:
        """The job's JobMaster has found this TaskExecutor dead."""
        return self.handle(
            events.TaskExecutorReportedLost(
                connection=self.connection(job),
                job_id=job_id(job),
                epoch=Epoch(1),
                task_executor_id=executor_id(name),
                cause=cause,
            )
        )

    def break_stream(self, name: str) -> list[Command]:
        return self.handle(
            events.ConnectionBroken(connection=self.connection(name), cause="broken")
        )

    def close(self, name: str) -> list[Command]:
        return self.handle(events.ConnectionClosed(connection=self.connection(name)))

    # ------------------------------------------------------------ what it believes

    def connection(self, name: str) -> Connection:
        return self._connection_of[name]

    def slot(self, allocation_id: AllocationId) -> Slot | None:
        return self.core.table.slot_of(allocation_id)

    def count(self, state: SlotState) -> int:
        return self.core.table.count(state)

    def _connect(self, name: str) -> Connection:
        self._connection_of[name] = Connection(next(self._connections))
        return self._connection_of[name]
