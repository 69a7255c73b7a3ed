"""Offers, releases and ends slot allocations. `slot_requests` accepts them."""

from __future__ import annotations

from firesteel.common.ids import AllocationId, JobId
from taskexecutor.core import commands
from taskexecutor.core.hosted_jobs import FilesEvent, FilesState
from taskexecutor.core.slot_table import SlotTable
from taskexecutor.core.slots import (
    Allocation,
    ProcessEvent,
    ProcessState,
    Slot,
    SlotEvent,
    SlotState,
)


def offer_ready_slots(table: SlotTable, now: float) -> None:
    """Offers every slot whose process and JobMaster are ready, in one message per job. Repeats
    offers that were not answered.
    """
    offers: dict[JobId, list[commands.SlotOffer]] = {}
    for slot in table.slots:
        allocation, process = slot.allocation, slot.process
        if allocation is None or process is None or not table.jobs[allocation.job_id].connected:
            continue
        if slot.state is SlotState.ALLOCATED and process.state is ProcessState.READY:
            table.drive_process(slot, ProcessEvent.OFFERED)
            table.drive_slot(slot, SlotEvent.OFFERED)
        elif not (
            slot.state is SlotState.ACTIVE
            and _unanswered(allocation, now)
            and process.state is ProcessState.BUSY
        ):
            continue
        allocation.offer_again_at = now + table.settings.offer_retry_s
        offers.setdefault(allocation.job_id, []).append(offer_of(table, slot))
    for job_id, slots in offers.items():
        table.to_job_master(job_id, commands.OfferSlots(job_id=job_id, slots=tuple(slots)))


def _unanswered(allocation: Allocation, now: float) -> bool:
    return (
        not allocation.accepted
        and allocation.offer_again_at is not None
        and now >= allocation.offer_again_at
    )


def offer_of(table: SlotTable, slot: Slot) -> commands.SlotOffer:
    allocation, process = table.allocation_of(slot), table.process_in(slot)
    return commands.SlotOffer(
        allocation_id=allocation.allocation_id,
        slot_index=slot.index,
        profile=allocation.profile,
        executor_id=process.executor_id,
        data_address=process.data_address,
    )


def release(table: SlotTable, slot: Slot, cause: str, now: float) -> None:
    """Cancels the job's tasks in this slot, then has its process cleaned."""
    allocation = slot.allocation
    if allocation is None or slot.state is SlotState.RELEASING:
        return
    if slot.state is SlotState.ALLOCATED:  # the job has not reached the process
        end(table, slot, SlotEvent.RELEASED, cause)
        return
    table.drive_slot(slot, SlotEvent.RELEASED, cause)
    allocation.release_cause = cause
    allocation.offer_again_at = None
    for attempt_id in [task.attempt_id for task in allocation.running() if allocation.waiting]:
        del allocation.tasks[attempt_id]  # never reached the process
    allocation.waiting.clear()
    _cancel_running(table, slot, now)
    clean_if_idle(table, slot, now)


def _cancel_running(table: SlotTable, slot: Slot, now: float) -> None:
    allocation = table.allocation_of(slot)
    fresh = [task for task in allocation.running() if not task.cancelled]
    for task in fresh:
        task.cancelled = True
        if allocation.cancellation_timeout_s > 0:
            task.cancel_deadline = now + allocation.cancellation_timeout_s
    if fresh and slot.process:
        attempts = tuple(task.attempt_id for task in fresh)
        table.command(
            commands.CancelInProcess(
                executor_id=slot.process.executor_id, job_id=allocation.job_id, attempt_ids=attempts
            )
        )


def clean_if_idle(table: SlotTable, slot: Slot, now: float) -> None:
    """Starts to clean the process of a slot that is being released, once no task runs in it."""
    allocation, process = slot.allocation, slot.process
    if slot.state is not SlotState.RELEASING or allocation is None or process is None:
        return
    if (
        process.state is not ProcessState.BUSY
        or allocation.running()
        or allocation.clean_deadline is not None
    ):
        return
    if not allocation.assigned:
        table.drive_process(slot, ProcessEvent.CLEANED)
        end(table, slot, SlotEvent.CLEANED, allocation.release_cause)
    elif table.jobs[allocation.job_id].single_use:
        kill(table, slot, "its job installed Python packages that the next job must not see")
    else:
        allocation.clean_deadline = now + table.settings.clean_timeout_s
        table.command(
            commands.CleanProcess(
                executor_id=process.executor_id, allocation_id=allocation.allocation_id
            )
        )


def kill(table: SlotTable, slot: Slot, reason: str) -> None:
    process = slot.process
    if process is None or process.state is ProcessState.STOPPING:
        return
    table.drive_process(slot, ProcessEvent.KILLED, reason)
    process.kill_reason, process.killed_at = reason, table.now
    table.command(commands.KillProcess(executor_id=process.executor_id, reason=reason))


def end(table: SlotTable, slot: Slot, event: SlotEvent, reason: str) -> None:
    """Frees the slot. Removes the job's files when its last slot is freed."""
    allocation = table.allocation_of(slot)
    table.drive_slot(slot, event, reason)
    slot.allocation, slot.freed_at = None, table.now
    table.remember_ended(allocation.allocation_id, reason.partition("\n")[0])
    job = table.jobs[allocation.job_id]
    if table.slots_of(job.job_id):
        return
    if job.files is not FilesState.UNKNOWN:
        table.drive_files(job, FilesEvent.REMOVED)
        job.python_paths, job.job_dir, job.single_use = (), "", False
        table.command(commands.RemoveJobFiles(job_id=job.job_id))
    if job.closed or not (job.connected or job.backlog or job.partitions):
        table.forget(job)


def report_lost(table: SlotTable, slot: Slot, reason: str) -> None:
    """Reports the slot as lost: the JobMaster fails its tasks."""
    allocation = table.allocation_of(slot)
    lost = commands.ReportSlotLost(
        job_id=allocation.job_id,
        allocation_id=allocation.allocation_id,
        slot_index=slot.index,
        reason=reason,
    )
    table.to_job_master(allocation.job_id, lost)


def offers_answered(
    table: SlotTable,
    accepted: tuple[AllocationId, ...],
    rejected: tuple[AllocationId, ...],
    now: float,
) -> None:
    for allocation_id in accepted:
        slot = table.slot_of(allocation_id)
        if slot and slot.allocation and slot.state is SlotState.ACTIVE:
            slot.allocation.accepted = True
            slot.allocation.offer_again_at = None
    for allocation_id in rejected:
        if (slot := table.slot_of(allocation_id)) is not None:
            release(table, slot, "rejected by its JobMaster", now)
