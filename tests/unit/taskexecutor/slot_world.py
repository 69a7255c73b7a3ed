"""A TaskExecutor's core with a test clock, and short names for events. Invariants are checked
after every event.
"""

from __future__ import annotations

from typing import Any, TypeVar

from firesteel.common.ids import (
    AllocationId,
    AttemptId,
    Epoch,
    ExecutorId,
    IdSource,
    JobId,
    TaskExecutorId,
    VertexId,
)
from firesteel.common.resources import UNKNOWN, ResourceProfile
from firesteel.common.service.core import Tick
from firesteel.common.states import ExecutionState
from taskexecutor.core import commands, events
from taskexecutor.core.core import TaskExecutorCore
from taskexecutor.core.process_shape import Environment
from taskexecutor.core.settings import Settings
from taskexecutor.core.slots import SlotState

MIB = 2**20
DEFAULT = ResourceProfile(
    cpu_cores=1, heap_bytes=512 * MIB, off_heap_bytes=768 * MIB, network_bytes=128 * MIB
)
JOB = JobId("job")
JM = {"job_id": JOB, "job_master_epoch": Epoch(1)}
PLACE = events.TaskPlace(VertexId("v"), 0, 0, AllocationId("a"))

C = TypeVar("C")

HEARTBEAT_INTERVAL_S = 5.0


class World:
    def __init__(self, slots: int = 2, **settings: Any) -> None:
        self.now = 100.0
        self.hung: set[int] = set()  # slots whose processes send no heartbeats
        self.core = TaskExecutorCore(
            Settings(
                task_executor_id=TaskExecutorId("te"),
                slots=slots,
                total=DEFAULT * slots,
                default_slot=DEFAULT,
                cancellation_timeout_s=30.0,
                heartbeat_timeout_s=20.0,
                **settings,
            ),
            IdSource(b"seed"),
        )
        self.commands: list[commands.Command] = []  # of the last event
        self.handle(events.ReportDue())

    # -- events

    def handle(self, event: events.Event) -> list[commands.Command]:
        self.commands = list(self.core.handle(event, self.now).commands)
        self.core.validate()
        deadline = self.core.next_deadline()
        assert deadline is None or deadline > self.now, (
            f"a deadline that has passed would spin: {deadline} at {self.now}"
        )
        return self.commands

    def pass_time(self, seconds: float) -> list[commands.Command]:
        """Ticks at every deadline in between, as the driver does; returns all commands. Processes
        send heartbeats, unless they are hung.
        """
        until, given = self.now + seconds, []
        while self.now < until:
            next_heartbeat = min(until, self.now + HEARTBEAT_INTERVAL_S)
            while (at := self.core.next_deadline()) is not None and at <= next_heartbeat:
                self.now = max(self.now, at)
                given += self.handle(Tick())
            self.now = next_heartbeat
            for slot in self.core.table.slots:
                if slot.process and slot.index not in self.hung:
                    heartbeat = events.ProcessHeartbeat(executor_id=slot.process.executor_id)
                    given += self.handle(heartbeat)
        self.commands = given
        return given

    def request(
        self, allocation: str = "a", index: int = 0, profile: ResourceProfile = UNKNOWN, **more: Any
    ) -> commands.AcceptSlotRequest | commands.RejectSlotRequest:
        values: dict[str, Any] = {
            "resource_manager_epoch": Epoch(1),
            "allocation_id": AllocationId(allocation),
            "job_id": JOB,
            "slot_index": index,
            "profile": profile,
            "job_master_address": "jm:1",
            "job_master_epoch": Epoch(1),
            **more,
        }
        self.handle(events.SlotRequested(**values))
        (answer,) = (
            command
            for command in self.commands
            if isinstance(command, commands.AcceptSlotRequest | commands.RejectSlotRequest)
        )
        return answer

    def accepts(self, *slot: Any, **more: Any) -> bool:
        return isinstance(self.request(*slot, **more), commands.AcceptSlotRequest)

    def start_all(self) -> None:
        """Every process that is starting becomes ready."""
        for slot in self.core.table.slots:
            if slot.process:
                self.ready(slot.index)

    def ready(self, index: int = 0) -> list[commands.Command]:
        return self.handle(
            events.ProcessReady(
                executor_id=self.executor(index), pid=1000 + index, data_address=f"flight:{index}"
            )
        )

    def die(self, index: int = 0, cause: str = "killed by SIGKILL") -> list[commands.Command]:
        return self.handle(events.ProcessDied(executor_id=self.executor(index), cause=cause))

    def connect(self) -> list[commands.Command]:
        return self.handle(events.JobMasterConnected(job_id=JOB))

    def lose_job_master(self) -> list[commands.Command]:
        return self.handle(events.JobMasterDied(**JM, cause="killed"))

    def replace_job_master(self) -> list[commands.Command]:
        """The ResourceManager names the next one."""
        return self.handle(
            events.JobMasterChanged(
                resource_manager_epoch=Epoch(1),
                job_id=JOB,
                job_master_address="jm:2",
                job_master_epoch=Epoch(2),
            )
        )

    def give(self, allocation: str = "a", index: int = 0, **more: Any) -> None:
        """A slot, all the way to an accepted offer."""
        assert self.accepts(allocation, index, **more)
        if not self.core.table.jobs[JOB].connected:
            self.connect()
        self.handle(events.OffersAnswered(accepted=(AllocationId(allocation),), rejected=(), **JM))

    def submit(
        self,
        *attempts: str,
        allocation: str = "a",
        blobs: tuple[Any, ...] = (),
        recovers: bool = False,
    ) -> list[commands.Command]:
        part = events.SlotTasks(
            allocation_id=AllocationId(allocation),
            tasks=dict.fromkeys(map(AttemptId, attempts), PLACE),
            message=f"deploy {attempts}",
        )
        return self.handle(
            events.TasksSubmitted(
                parts=(part,),
                blobs=blobs,
                dispatcher_address="d:1",
                cancellation_timeout_s=30.0,
                recovers=recovers,
                **JM,
            )
        )

    def cancel(self, *attempts: str) -> list[commands.Command]:
        return self.handle(events.TasksCancelled(attempt_ids=tuple(map(AttemptId, attempts)), **JM))

    def states(self, index: int = 0, **states: ExecutionState) -> list[commands.Command]:
        return self.handle(
            events.TaskStatesReported(
                executor_id=self.executor(index),
                job_id=JOB,
                states=tuple(
                    events.TaskState(AttemptId(attempt), state) for attempt, state in states.items()
                ),
                message=f"states {sorted(states)}",
            )
        )

    def free(self, *allocations: str) -> list[commands.Command]:
        return self.handle(
            events.SlotsFreed(
                allocation_ids=tuple(map(AllocationId, allocations)), cause="done", **JM
            )
        )

    def clean(self, allocation: str = "a", index: int = 0) -> list[commands.Command]:
        return self.handle(
            events.ProcessCleaned(
                executor_id=self.executor(index), allocation_id=AllocationId(allocation)
            )
        )

    # -- what came of them

    def all(self, kind: type[C]) -> list[C]:
        return [command for command in self.commands if isinstance(command, kind)]

    def only(self, kind: type[C]) -> C:
        found = self.all(kind)
        assert len(found) == 1, f"{len(found)} {kind.__name__} in {self.commands}"
        return found[0]

    def none(self, kind: type[Any]) -> bool:
        return not self.all(kind)

    def executor(self, index: int = 0) -> ExecutorId:
        process = self.core.table.slots[index].process
        assert process is not None
        return process.executor_id

    def state(self, index: int = 0) -> SlotState:
        return self.core.table.slots[index].state

    def reported(self) -> list[str]:
        """The last slot report: the allocation of each slot, '' if free."""
        return [status.allocation_id or "" for status in self.all(commands.ReportSlots)[-1].slots]


SPARK = Environment(spark=(("spark.jars", "x.jar"),))
