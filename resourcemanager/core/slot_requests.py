"""Slot requests to TaskExecutors: sends them, resends unanswered ones, and finally abandons them.

Every PENDING slot has one deadline. A slot whose request failed is UNCLEAR for a while, so that it
is not requested again immediately; it is matched again once a report, or the end of the pause,
clears it. Methods return commands in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from firesteel.common.ids import AllocationId, JobId, TaskExecutorId
from resourcemanager.core import commands
from resourcemanager.core.commands import Command
from resourcemanager.core.registered_jobs import RegisteredJob
from resourcemanager.core.settings import (
    REQUEST_TIMEOUT_S,
    REQUESTS_MAX,
    UNCLEAR_PAUSE_S,
    Deadline,
    Timer,
)
from resourcemanager.core.slots import Slot, SlotState, SlotTable, TaskExecutor
from resourcemanager.core.timers import Timers


class SlotRequests:
    def __init__(
        self,
        table: SlotTable,
        jobs: Mapping[JobId, RegisteredJob],
        timers: Timers[Timer],
    ) -> None:
        """The SlotManager owns all three arguments."""
        self._table = table
        self._jobs = jobs
        self._timers = timers

    def send(self, slot: Slot, now: float) -> list[Command]:
        assert slot.allocation_id is not None, slot
        assert slot.job_id is not None, slot
        self._timers.set(Timer(Deadline.REQUEST, slot.allocation_id), now + REQUEST_TIMEOUT_S)
        job = self._jobs.get(slot.job_id)
        if slot.executor.connection is None or job is None:
            return []
        return [
            commands.RequestSlot(
                connection=slot.executor.connection,
                allocation_id=slot.allocation_id,
                job_id=job.job_id,
                slot_index=slot.index,
                profile=slot.profile,
                job_master_address=job.address,
                job_master_epoch=job.epoch,
                environment=job.environment,
            )
        ]

    def accepted(self, slot: Slot) -> None:
        self._timers.cancel(Timer(Deadline.REQUEST, str(slot.allocation_id)))
        self._table.accept(slot)

    def rejected(self, slot: Slot, now: float) -> None:
        if slot.allocation_id is not None:
            self._timers.cancel(Timer(Deadline.REQUEST, slot.allocation_id))
        self._table.give_up(slot)
        self.pause(slot, now)

    def overdue(self, allocation_id: AllocationId, now: float) -> list[Command]:
        """Resends or abandons a request that was not answered in time."""
        slot = self._table.slot_of(allocation_id)
        if slot is None or slot.job_id is None or slot.state is not SlotState.PENDING:
            return []
        job = self._jobs.get(slot.job_id)
        if job is None or len(self._table.held_by(job.job_id)) > job.required:
            return self._give_up(slot, "the job no longer needs it", now)
        if slot.requests_sent >= REQUESTS_MAX:
            cause = f"the slot request was sent {slot.requests_sent} times without an answer"
            return self._give_up(slot, cause, now)
        slot.requests_sent += 1
        return self.send(slot, now)

    def give_up_all(self, slots: Iterable[Slot], cause: str, now: float) -> list[Command]:
        """Abandons the requests for those of these slots that are PENDING."""
        pending = [slot for slot in slots if slot.state is SlotState.PENDING]
        return [command for slot in pending for command in self._give_up(slot, cause, now)]

    def take_back(
        self, job: RegisteredJob, executor: TaskExecutor, cause: str, now: float
    ) -> list[Command]:
        """Abandons the job's requests to a TaskExecutor, and frees its slots there."""
        slots = [s for s in self._table.slots_of(job.job_id) if s.executor is executor]
        held = [slot for slot in slots if slot.state is not SlotState.PENDING]
        freed = [command for slot in held for command in _free(slot, cause)]
        return [*self.give_up_all(slots, cause, now), *freed]

    def pause(self, slot: Slot, now: float) -> None:
        """Keeps the slot from being requested again for a while."""
        self._timers.set(
            Timer(Deadline.UNCLEAR, slot.executor.task_executor_id, slot.index),
            now + UNCLEAR_PAUSE_S,
        )

    def pause_over(self, task_executor_id: TaskExecutorId, index: int) -> bool:
        """Returns whether the slot can be requested again."""
        executor = self._table.executors.get(task_executor_id)
        slot = executor.slots.get(index) if executor is not None else None
        if slot is None or slot.state is not SlotState.UNCLEAR:
            return False
        self._table.end_pause(slot)
        return True

    def _give_up(self, slot: Slot, cause: str, now: float) -> list[Command]:
        freed = _free(slot, cause)
        self.rejected(slot, now)
        return freed


def _free(slot: Slot, cause: str) -> list[Command]:
    connection, allocation_id = slot.executor.connection, slot.allocation_id
    if connection is None or allocation_id is None:
        return []
    return [commands.FreeSlot(connection=connection, allocation_id=allocation_id, cause=cause)]
