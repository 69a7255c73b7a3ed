"""Slot requests to TaskExecutors: sends them, resends unanswered ones, and finally abandons them.

Every PENDING slot has one deadline. A slot whose request failed is UNCLEAR for a while, so that it
is not requested again immediately; it is matched again once a report, or the end of the pause,
clears it. Methods that change what can be matched return True.
"""

from __future__ import annotations

from collections.abc import Mapping

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
        out: list[Command],
    ) -> None:
        """The SlotManager owns all four arguments; `out` collects its commands."""
        self._table = table
        self._jobs = jobs
        self._timers = timers
        self._out = out

    def send(self, slot: Slot, now: float) -> None:
        assert slot.allocation_id is not None, slot
        assert slot.job_id is not None, slot
        job = self._jobs.get(slot.job_id)
        if slot.executor.connection is not None and job is not None:
            self._out.append(
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
            )
        self._timers.set(Timer(Deadline.REQUEST, slot.allocation_id), now + REQUEST_TIMEOUT_S)

    def accepted(self, slot: Slot) -> None:
        self._timers.cancel(Timer(Deadline.REQUEST, str(slot.allocation_id)))
        self._table.accept(slot)

    def rejected(self, slot: Slot, now: float) -> bool:
        if slot.allocation_id is not None:
            self._timers.cancel(Timer(Deadline.REQUEST, slot.allocation_id))
        self._table.give_up(slot)
        self.pause(slot, now)
        return True

    def overdue(self, allocation_id: AllocationId, now: float) -> bool:
        """Resends or abandons a request that was not answered in time."""
        slot = self._table.slot_of(allocation_id)
        if slot is None or slot.job_id is None or slot.state is not SlotState.PENDING:
            return False
        job = self._jobs.get(slot.job_id)
        if job is None or len(self._table.held_by(job.job_id)) > job.required:
            return self._give_up(slot, "the job no longer needs it", now)
        if slot.requests_sent >= REQUESTS_MAX:
            return self._give_up(
                slot,
                f"the slot request was sent {slot.requests_sent} times without an answer",
                now,
            )
        slot.requests_sent += 1
        self.send(slot, now)
        return False

    def give_up_all(self, job: RegisteredJob, cause: str, now: float) -> None:
        for slot in self._table.slots_of(job.job_id):
            if slot.state is SlotState.PENDING:
                self._give_up(slot, cause, now)

    def give_up_on(self, executor: TaskExecutor, cause: str, now: float) -> None:
        for slot in executor.slots.values():
            if slot.state is SlotState.PENDING:
                self._give_up(slot, cause, now)

    def take_back(self, job: RegisteredJob, executor: TaskExecutor, cause: str, now: float) -> None:
        """Abandons the job's requests to a TaskExecutor, and frees its slots there."""
        for slot in self._table.slots_of(job.job_id):
            if slot.executor is not executor:
                continue
            if slot.state is SlotState.PENDING:
                self._give_up(slot, cause, now)
            else:
                self._free(slot, cause)

    def pause(self, slot: Slot, now: float) -> None:
        """Keeps the slot from being requested again for a while."""
        self._timers.set(
            Timer(Deadline.UNCLEAR, slot.executor.task_executor_id, slot.index),
            now + UNCLEAR_PAUSE_S,
        )

    def pause_over(self, task_executor_id: TaskExecutorId, index: int) -> bool:
        executor = self._table.executors.get(task_executor_id)
        slot = executor.slots.get(index) if executor is not None else None
        if slot is None or slot.state is not SlotState.UNCLEAR:
            return False
        self._table.end_pause(slot)
        return True

    def _give_up(self, slot: Slot, cause: str, now: float) -> bool:
        self._free(slot, cause)
        return self.rejected(slot, now)

    def _free(self, slot: Slot, cause: str) -> None:
        if slot.executor.connection is not None and slot.allocation_id is not None:
            self._out.append(
                commands.FreeSlot(
                    connection=slot.executor.connection,
                    allocation_id=slot.allocation_id,
                    cause=cause,
                )
            )
