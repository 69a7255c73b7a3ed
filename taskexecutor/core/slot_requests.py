"""Accepts the ResourceManager's slot requests, or refuses them with a reason."""

from __future__ import annotations

from firesteel.common.units import mib
from taskexecutor.core import commands, events, job_masters
from taskexecutor.core.slot_table import SlotTable
from taskexecutor.core.slots import Allocation, SlotEvent, SlotState


def request(table: SlotTable, event: events.SlotRequested, now: float) -> None:
    """Allocates a slot to a job. A repeated request gets the same answer."""
    held = table.slot_of(event.allocation_id)
    repeated = (
        held is not None
        and held.index == event.slot_index
        and held.state is not SlotState.RELEASING
    )
    problem = "" if repeated else _objection(table, event, now)
    if not problem:
        problem = job_masters.connect(
            table, event.job_id, event.job_master_address, event.job_master_epoch, now
        )
    if not problem and not repeated:
        slot = table.slots[event.slot_index]
        slot.allocation = Allocation(
            allocation_id=event.allocation_id,
            job_id=event.job_id,
            profile=table.settings.default_slot if event.profile.unknown else event.profile,
            environment=event.environment,
        )
        table.drive_slot(
            slot,
            SlotEvent.REQUESTED,
            f"allocation {event.allocation_id} for job {event.job_id}",
        )
    allocation_id = event.allocation_id
    table.command(
        commands.RejectSlotRequest(allocation_id=allocation_id, reason=problem)
        if problem
        else commands.AcceptSlotRequest(allocation_id=allocation_id)
    )
    table.report_due = True


def _objection(table: SlotTable, event: events.SlotRequested, now: float) -> str:
    settings = table.settings
    where = f"slot {event.slot_index} of TaskExecutor {settings.task_executor_id}"
    if table.stopping:
        return f"TaskExecutor {settings.task_executor_id} is shutting down"
    if not 0 <= event.slot_index < len(table.slots):
        return f"{where} does not exist: it has {len(table.slots)} slots"
    if event.allocation_id in table.ended:
        return f"allocation {event.allocation_id} has ended: {table.ended[event.allocation_id]}"
    if (held := table.slot_of(event.allocation_id)) is not None:
        return (
            f"allocation {event.allocation_id} holds slot {held.index} ({held.state.value}) already"
        )
    slot = table.slots[event.slot_index]
    if slot.allocation is not None:
        return (
            f"{where} is taken by job {slot.allocation.job_id} "
            f"(allocation {slot.allocation.allocation_id}, {slot.state.value})"
        )
    overdue = slot.process is not None and slot.process.overdue
    if slot.start_problem and (overdue or now < slot.start_not_before):
        return f"{where} has no process: {slot.start_problem}"
    profile = settings.default_slot if event.profile.unknown else event.profile
    if not profile.fits_in(remaining := table.remaining()):
        return f"{where} cannot have {profile}: only {remaining} is available"
    if profile.heap_bytes < settings.minimum_heap_bytes:
        return (
            f"{where} cannot have a heap of {mib(profile.heap_bytes)}: "
            f"Spark needs at least {mib(settings.minimum_heap_bytes)}"
        )
    return ""
