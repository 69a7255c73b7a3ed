"""Decides about the slots of one machine, the processes in them and their tasks (spec 003, 004).

Events in, commands out; no I/O, no clock. Its state is the `SlotTable`. Rules:

* The ResourceManager requests a slot for a job; it is prepared here and offered to the JobMaster,
  which uses it and frees it.
* Every slot has a warm process as far as there is room. A job gets it if it fits, else a new one.
* A process that dies ends its slot's allocation at once: the slot is free and its next process
  starts. So does one that hangs: it is killed.
* A ResourceManager that vanishes and returns changes nothing: the next slot report is complete.
* Messages of a stale epoch are dropped in `_stale` and `job_masters.admit`, nowhere else. They are
  counted in `dropped`, as are those that come too late.
"""

from __future__ import annotations

from typing import assert_never

from firesteel.common.core import Effects, Tick
from firesteel.common.ids import IdSource
from taskexecutor.core import allocations, job_masters, processes, slot_requests, tasks
from taskexecutor.core.commands import Command
from taskexecutor.core.events import (
    AnalysisRequested,
    Event,
    FromJobMaster,
    FromProcess,
    FromResourceManager,
    JobFilesFailed,
    JobFilesReady,
    JobMasterConnected,
    JobMasterDisconnected,
    JobMasterHeartbeat,
    JobMasterLeft,
    MemorySampled,
    OffersAnswered,
    OperatorEventReceived,
    ProcessCleaned,
    ProcessDied,
    ProcessEnding,
    ProcessHeartbeat,
    ProcessLinkBroken,
    ProcessMessageReceived,
    ProcessReady,
    ReportDue,
    ResourceManagerRegistered,
    SlotRequested,
    SlotRevoked,
    SlotsFreed,
    StopRequested,
    TasksCancelled,
    TasksSubmitted,
    TaskStatesReported,
)
from taskexecutor.core.settings import Settings
from taskexecutor.core.slot_table import SlotTable
from taskexecutor.core.slots import ProcessState, SlotState


class TaskExecutorCore:
    def __init__(self, settings: Settings, ids: IdSource) -> None:
        self.table = SlotTable(settings, ids)

    def handle(self, event: Event, now: float) -> Effects[object, Command]:
        table = self.table
        table.now = now
        if isinstance(event, FromProcess):
            processes.heard(table, event.executor_id, now)
        if not self._stale(event, now):
            self._apply(event, now)
        if isinstance(event, Tick):
            tasks.kill_overdue(table, now)
            job_masters.give_up_silent(table, now)
            processes.kill_silent(table, now)
        # Whatever has happened: start missing processes, offer the slots that are ready.
        processes.match_to_slots(table, now)
        allocations.offer_ready_slots(table, now)
        return Effects(commands=table.take_commands())

    def _stale(self, event: Event, now: float) -> bool:
        if isinstance(event, FromResourceManager):
            if event.resource_manager_epoch < self.table.resource_manager_epoch:
                self.table.dropped[type(event).__name__] += 1
                return True
            self.table.resource_manager_epoch = event.resource_manager_epoch
        elif isinstance(event, FromJobMaster):
            return not job_masters.admit(self.table, event, now)
        return False

    def _apply(self, event: Event, now: float) -> None:
        table = self.table
        match event:
            case Tick() | JobMasterHeartbeat() | ProcessHeartbeat():
                pass
            case ResourceManagerRegistered() | ReportDue():
                table.report_due = True
            case SlotRequested():
                slot_requests.request(table, event, now)
            case SlotRevoked():
                slot = table.slot_of(event.allocation_id)
                if slot is not None and slot.state is not SlotState.RELEASING:
                    reason = f"the ResourceManager revoked the slot: {event.cause}"
                    allocations.report_lost(table, slot, reason)
                    allocations.release(table, slot, event.cause, now)
            case JobMasterConnected():
                job_masters.connected(table, event.job_id, now)
            case JobMasterDisconnected():
                job_masters.disconnected(table, event.job_id, now)
            case OffersAnswered():
                allocations.offers_answered(table, event.accepted, event.rejected, now)
            case SlotsFreed():
                for slot in table.slots_of(event.job_id):
                    if slot.allocation and slot.allocation.allocation_id in event.allocation_ids:
                        allocations.release(
                            table, slot, event.cause or "freed by its JobMaster", now
                        )
            case JobMasterLeft():
                job_masters.left(table, event.job_id, event.cause, now)
            case TasksSubmitted():
                tasks.submit(table, event, now)
            case TasksCancelled():
                tasks.cancel(table, event, now)
            case AnalysisRequested():
                tasks.analyze(table, event)
            case OperatorEventReceived():
                tasks.relay_to_task(table, event)
            case ProcessReady():
                processes.ready(table, event, now)
            case ProcessEnding():
                processes.ending(table, event)
            case ProcessLinkBroken():
                processes.link_broken(table, event, now)
            case ProcessDied():
                processes.died(table, event, now)
            case MemorySampled():
                processes.memory_sampled(table, event)
            case TaskStatesReported():
                tasks.states_reported(table, event, now)
            case ProcessMessageReceived():
                tasks.relay_to_job_master(table, event)
            case ProcessCleaned():
                tasks.cleaned(table, event)
            case JobFilesReady():
                tasks.files_ready(table, event, now)
            case JobFilesFailed():
                tasks.files_failed(table, event)
            case StopRequested():
                processes.stop_all(table, event.cause)
            case _:
                assert_never(event)

    def validate(self) -> None:
        """Raises AssertionError, with the story of what is wrong, if an invariant is broken."""
        self.table.validate()

    def story(self, of: int | str) -> list[str]:
        """How a slot (by its index), job, allocation, process or task came to its state."""
        return self.table.story(of)

    def next_deadline(self) -> float | None:
        table = self.table
        deadlines: list[float] = []
        for job in table.jobs.values():
            if (at := job_masters.give_up_at(table, job)) is not None:
                deadlines.append(at)
        if (
            table.warm_not_before
            and not table.stopping
            and any(s.process is None and s.allocation is None for s in table.slots)
        ):
            deadlines.append(table.warm_not_before)
        for slot in table.slots:
            held = slot.allocation
            if slot.process and slot.process.state is ProcessState.STOPPING:
                continue  # until the operating system reports its death
            if slot.process and (at := processes.silent_at(table, slot.process)) is not None:
                deadlines.append(at)
            if slot.process is None and slot.start_not_before and not table.stopping:
                deadlines.append(slot.start_not_before)
            if held is None:
                continue
            if held.offer_again_at is not None and table.jobs[held.job_id].connected:
                deadlines.append(held.offer_again_at)
            if held.clean_deadline is not None:
                deadlines.append(held.clean_deadline)
            deadlines += [
                task.cancel_deadline for task in held.running() if task.cancel_deadline is not None
            ]
        return min(deadlines, default=None)
