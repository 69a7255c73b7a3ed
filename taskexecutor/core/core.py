"""Decides about the slots of one machine, their processes and the tasks in them (spec 003, 004).

Takes events and returns commands; does no I/O and reads no clock. Its state is the `SlotTable`.
Rules:

* The ResourceManager requests a slot for a job. The TaskExecutor prepares the slot and offers it to
  the JobMaster, which uses it and frees it.
* Every slot has a warm process as long as memory allows. A job gets that process if its shape fits,
  otherwise a new one. A free slot keeps a process with other than the default options for a while.
* When a process dies, its slot's allocation ends immediately: the slot becomes free and its next
  process starts. A process that hangs is killed. If a killed process does not end, the allocation
  ends after a few seconds, and the slot cannot be allocated until the process has ended.
* Losing and regaining the ResourceManager changes nothing: the next slot report is complete.
* Only `_stale` and `job_masters.admit` drop messages of a stale epoch. `dropped` counts these
  messages and those that arrive too late.
"""

from __future__ import annotations

from typing import assert_never

from firesteel.common.ids import IdSource
from firesteel.common.service.core import Effects, Tick
from taskexecutor.core import (
    allocations,
    commands,
    events,
    job_masters,
    processes,
    results,
    slot_requests,
    tasks,
)
from taskexecutor.core.settings import Settings
from taskexecutor.core.slot_table import SlotTable
from taskexecutor.core.slots import ProcessState, SlotState


class TaskExecutorCore:
    def __init__(self, settings: Settings, ids: IdSource) -> None:
        self.table = SlotTable(settings, ids)

    def handle(self, event: events.Event, now: float) -> Effects[object, commands.Command]:
        table = self.table
        table.now = now
        if isinstance(event, events.FromProcess):
            processes.heard(table, event.executor_id, now)
        if not self._stale(event, now):
            self._apply(event, now)
        if isinstance(event, Tick):
            tasks.kill_overdue(table, now)
            job_masters.give_up_silent(table, now)
            processes.kill_silent(table, now)
            processes.end_overdue(table, now)
        # After every event: start missing processes and offer the slots that are ready.
        processes.match_to_slots(table, now)
        allocations.offer_ready_slots(table, now)
        return Effects(commands=table.take_commands())

    def _stale(self, event: events.Event, now: float) -> bool:
        if isinstance(event, events.FromResourceManager):
            # The ResourceManager that registers this TaskExecutor is the leader; the stream
            # receives from no other.
            registered = isinstance(event, events.ResourceManagerRegistered)
            known = self.table.resource_manager_epoch
            if event.resource_manager_epoch < known and not registered:
                self.table.dropped[type(event).__name__] += 1
                self.table.refusals.refuse(
                    type(event).__name__,
                    sender="ResourceManager",
                    epoch=event.resource_manager_epoch,
                    in_force=known,
                )
                return True
            self.table.resource_manager_epoch = event.resource_manager_epoch
        elif isinstance(event, events.FromJobMaster):
            return not job_masters.admit(self.table, event, now)
        return False

    def _apply(self, event: events.Event, now: float) -> None:
        table = self.table
        match event:
            case Tick() | events.JobMasterHeartbeat() | events.ProcessHeartbeat():
                pass
            case events.ResourceManagerRegistered() | events.ReportDue():
                table.report_due = True
            case events.SlotRequested():
                slot_requests.request(table, event, now)
            case events.SlotRevoked():
                slot = table.slot_of(event.allocation_id)
                if slot is not None and slot.state is not SlotState.RELEASING:
                    reason = f"the ResourceManager revoked the slot: {event.cause}"
                    allocations.report_lost(table, slot, reason)
                    allocations.release(table, slot, event.cause, now)
            case events.JobMasterChanged():
                job_masters.changed(table, event, now)
            case events.JobMasterConnected():
                job_masters.connected(table, event.job_id, now)
            case events.JobMasterDisconnected():
                job_masters.disconnected(table, event.job_id, now)
            case events.OffersAnswered():
                allocations.offers_answered(table, event.accepted, event.rejected, now)
            case events.SlotsFreed():
                for slot in table.slots_of(event.job_id):
                    if slot.allocation and slot.allocation.allocation_id in event.allocation_ids:
                        allocations.release(
                            table, slot, event.cause or "freed by its JobMaster", now
                        )
            case events.PartitionsReleased():
                results.release(table, table.jobs[event.job_id], event.partitions)
            case events.JobMasterLeft():
                job_masters.left(table, event.job_id, event.cause, now)
            case events.JobMasterDied():
                job_masters.died(table, event, now)
            case events.TasksSubmitted():
                tasks.submit(table, event, now)
            case events.TasksCancelled():
                tasks.cancel(table, event, now)
            case events.AnalysisRequested():
                tasks.analyze(table, event)
            case events.TaskMessageReceived():
                tasks.relay_to_tasks(table, event)
            case events.ProcessReady():
                processes.ready(table, event, now)
            case events.ProcessEnding():
                processes.ending(table, event)
            case events.ProcessLinkBroken():
                processes.link_broken(table, event, now)
            case events.ProcessDied():
                processes.died(table, event, now)
            case events.MemorySampled():
                processes.memory_sampled(table, event)
            case events.TaskStatesReported():
                tasks.states_reported(table, event, now)
            case events.ProcessMessageReceived():
                tasks.relay_to_job_master(table, event)
            case events.ProcessCleaned():
                tasks.cleaned(table, event)
            case events.JobFilesReady():
                tasks.files_ready(table, event, now)
            case events.JobFilesFailed():
                tasks.files_failed(table, event)
            case events.StopRequested():
                processes.stop_all(table, event.cause)
            case _:
                assert_never(event)

    def validate(self) -> None:
        """Raises AssertionError, with the story of the slot or job, if an invariant is broken."""
        self.table.validate()

    def story(self, of: int | str) -> list[str]:
        """Returns the transitions of a slot (by its index), job, allocation, process or task."""
        return self.table.story(of)

    def next_deadline(self) -> float | None:
        table = self.table
        deadlines: list[float] = []
        for job in table.jobs.values():
            if (at := job_masters.give_up_at(table, job)) is not None:
                deadlines.append(at)
        to_warm = [s for s in table.slots if s.process is None and s.allocation is None]
        if to_warm and not table.stopping:
            waits = (table.warm_not_before, *(slot.warm_not_before for slot in to_warm))
            deadlines += [at for at in waits if at]
        for slot in table.slots:
            held = slot.allocation
            if slot.process and slot.process.state is ProcessState.STOPPING:
                if (at := processes.ends_at(slot.process)) is not None:
                    deadlines.append(at)
                continue
            if slot.process and (at := processes.silent_at(table, slot.process)) is not None:
                deadlines.append(at)
            if slot.process is None and slot.start_not_before and not table.stopping:
                deadlines.append(slot.start_not_before)
            if (at := processes.kept_until(table, slot)) is not None:
                deadlines.append(at)
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
