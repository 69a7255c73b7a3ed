"""Keeps slots' processes warm; replaces those that do not fit, hang, die or exceed their memory."""

from __future__ import annotations

import re

from firesteel.common.ids import ExecutorId
from taskexecutor.core import allocations, commands, events
from taskexecutor.core.process_shape import (
    Environment,
    ProcessShape,
    fits,
    over_limit_text,
    shape_for,
)
from taskexecutor.core.slot_table import SlotTable
from taskexecutor.core.slots import (
    ProcessEvent,
    ProcessState,
    Slot,
    SlotEvent,
    SlotProcess,
    SlotState,
)

DEATH_NOTICE_S = 5.0  # a broken link usually means a dead process, reported dead within this time
SETTLED_S = 10.0  # an idle process that dies earlier counts as failed to start


def match_to_slots(table: SlotTable, now: float) -> None:
    """Kills processes that do not fit their slots and starts missing ones.

    A free slot gets a process of the default size if the unallocated memory allows it. It keeps
    one with the environment of its last job for a while.
    """
    if now >= table.warm_not_before or all(slot.allocation is None for slot in table.slots):
        table.warm_not_before = 0.0
    room = table.remaining()
    wanted: dict[int, ProcessShape | None] = {}
    default = table.settings.default_slot
    for slot in table.slots:
        if slot.allocation is not None:
            wanted[slot.index] = shape_for(slot.allocation.profile, slot.allocation.environment)
        elif not table.stopping and default.fits_in(room):
            room = room - default
            kept = kept_until(table, slot)
            environment = slot.process.shape.environment if kept and slot.process else Environment()
            wanted[slot.index] = shape_for(default, environment)
        else:
            wanted[slot.index] = None
    for slot in table.slots:
        if now >= slot.start_not_before:
            slot.start_not_before = 0.0
        if now >= slot.warm_not_before:
            slot.warm_not_before = 0.0
        _replace_misfit(table, slot, wanted[slot.index])
    # Slots that a job waits for come first.
    for slot in sorted(table.slots, key=lambda s: (s.allocation is None, s.index)):
        shape = wanted[slot.index]
        if shape is not None and slot.process is None:
            _start(table, slot, shape, now)


def kept_until(table: SlotTable, slot: Slot) -> float | None:
    """Returns when the process of a free slot has to have the default environment; None: it has it
    already, or has to have it now.
    """
    process, until = slot.process, slot.freed_at + table.settings.keep_s
    if slot.allocation is not None or process is None or table.now >= until:
        return None
    return until if process.shape.environment != Environment() else None


def _replace_misfit(table: SlotTable, slot: Slot, shape: ProcessShape | None) -> None:
    process = slot.process
    if process is None or process.state not in (ProcessState.STARTING, ProcessState.READY):
        return
    if shape is None:
        allocations.kill(table, slot, "its memory is allocated to other slots")
    elif not fits(process.shape, shape):
        allocations.kill(table, slot, "its slot needs a different size or environment")


def _start(table: SlotTable, slot: Slot, shape: ProcessShape, now: float) -> None:
    starting = sum(1 for s in table.slots if s.process and s.process.state is ProcessState.STARTING)
    if table.stopping or now < slot.start_not_before or starting >= table.settings.max_starting:
        return
    if slot.allocation is None and (
        now < max(table.warm_not_before, slot.warm_not_before)
        or starting >= table.settings.max_warming
    ):
        return
    executor_id = ExecutorId(table.ids.next(ExecutorId))
    slot.process = SlotProcess(executor_id=executor_id, shape=shape)
    table.command(
        commands.StartProcess(executor_id=executor_id, slot_index=slot.index, shape=shape)
    )


def ready(table: SlotTable, event: events.ProcessReady, now: float) -> None:
    slot = table.slot_running(event.executor_id)
    if slot is None or slot.process is None or slot.process.state is not ProcessState.STARTING:
        table.dropped["ProcessReady"] += 1
        return
    table.drive_process(slot, ProcessEvent.WARMED_UP)
    slot.process.ready_at = slot.process.heard_at = now
    slot.process.pid = event.pid
    if slot.allocation is not None:
        table.warm_not_before = now + table.settings.quiet_s
    slot.process.data_address = event.data_address
    slot.start_problem = ""
    slot.start_not_before = 0.0


def ending(table: SlotTable, event: events.ProcessEnding) -> None:
    slot = table.slot_running(event.executor_id)
    if slot is None or slot.process is None:
        return
    slot.process.unusable = slot.process.state is ProcessState.STARTING
    how = "could not start" if slot.process.unusable else "ended"
    allocations.kill(
        table, slot, f"the PySpark executor of {table.name_of(slot)} {how}: {event.reason}"
    )


def heard(table: SlotTable, executor_id: ExecutorId, now: float) -> None:
    slot = table.slot_running(executor_id)
    if slot is not None and slot.process is not None:
        slot.process.heard_at = now


def link_broken(table: SlotTable, event: events.ProcessLinkBroken, now: float) -> None:
    slot = table.slot_running(event.executor_id)
    if slot is not None and slot.process is not None:
        slot.process.link_broken_at = now


def silent_at(table: SlotTable, process: SlotProcess) -> float | None:
    """Returns when the process is killed if it stays silent. The shell limits the start-up time."""
    if process.state is ProcessState.STOPPING:
        return None
    if process.link_broken_at is not None:
        return process.link_broken_at + DEATH_NOTICE_S
    if process.state is ProcessState.STARTING:
        return None
    return process.heard_at + table.settings.heartbeat_timeout_s


def kill_silent(table: SlotTable, now: float) -> None:
    """Kills processes that hang: nothing else frees their slots."""
    for slot in table.slots:
        process = slot.process
        if process is None or (at := silent_at(table, process)) is None or now < at:
            continue
        who = f"the process (pid {process.pid or 'unknown'}) of {table.name_of(slot)}"
        if process.link_broken_at is not None:
            allocations.kill(table, slot, f"{who} closed its link but did not end, and was killed")
        else:
            allocations.kill(
                table,
                slot,
                f"{who} has not answered for {now - process.heard_at:.0f} s (heartbeat.timeout) "
                "and was killed",
            )


def ends_at(process: SlotProcess) -> float | None:
    """Returns when a killed process counts as ended, even if the operating system has not reported
    it.
    """
    if process.killed_at is None or process.overdue:
        return None
    return process.killed_at + DEATH_NOTICE_S


def end_overdue(table: SlotTable, now: float) -> None:
    """Ends the allocations of killed processes that have not ended.

    For example, a process blocked on a file server ends when the server answers. It runs no more
    code, and its slot stays unusable until then.
    """
    for slot in table.slots:
        process = slot.process
        if process is None or (at := ends_at(process)) is None or now < at:
            continue
        process.overdue = True
        slot.start_problem = (
            f"its process (pid {process.pid or 'unknown'}) was killed and has not ended yet"
        )
        if slot.allocation is not None:
            _end_allocation(table, slot, f"{process.kill_reason}; it has not ended yet")


def died(table: SlotTable, event: events.ProcessDied, now: float) -> None:
    slot = table.slot_running(event.executor_id)
    if slot is None or slot.process is None:
        table.dropped["ProcessDied"] += 1
        return
    process = slot.process
    before = process.state
    if process.kill_reason:
        reason = process.kill_reason
    elif before is ProcessState.STARTING:
        reason = f"the PySpark executor of {table.name_of(slot)} could not start: {event.cause}"
    else:
        reason = f"the PySpark executor of {table.name_of(slot)} died: {event.cause}"
    table.drive_process(slot, ProcessEvent.DIED, reason)
    slot.process = None
    useless = process.unusable or before is ProcessState.STARTING
    if useless or (before is ProcessState.READY and now - process.ready_at < SETTLED_S):
        _back_off(table, slot, reason, now)
    else:
        slot.start_backoff.reset()
    match slot.state:
        case SlotState.FREE:
            pass
        case SlotState.ALLOCATED:
            if useless:  # the next one would likely fail too: report the cause to the JobMaster
                allocations.report_lost(table, slot, reason)
                allocations.end(table, slot, SlotEvent.PROCESS_DIED, reason)
        case SlotState.ACTIVE:
            if _has_spare(table):  # the job restarts there and needs the CPU more
                slot.warm_not_before = now + table.settings.quiet_s
            _end_allocation(table, slot, reason)
        case SlotState.RELEASING:
            _end_allocation(table, slot, reason)


def _end_allocation(table: SlotTable, slot: Slot, reason: str) -> None:
    allocation = table.allocation_of(slot)
    releasing = slot.state is SlotState.RELEASING
    if not releasing or allocation.running():
        allocations.report_lost(table, slot, reason)
    cause = allocation.release_cause if releasing else reason
    allocations.end(table, slot, SlotEvent.PROCESS_DIED, cause)


def _has_spare(table: SlotTable) -> bool:
    return any(
        slot.state is SlotState.FREE
        and slot.process is not None
        and slot.process.state is ProcessState.READY
        for slot in table.slots
    )


def _back_off(table: SlotTable, slot: Slot, problem: str, now: float) -> None:
    pause_s = slot.start_backoff.next()
    slot.start_not_before = now + pause_s
    if _cause(problem) != _cause(slot.start_problem):
        slot.start_problem = problem
        table.command(
            commands.LogStartProblem(slot_index=slot.index, problem=problem, retry_in_s=pause_s)
        )


def _cause(problem: str) -> str:
    """Returns the problem's first line without the parts that vary: ids, pids and times."""
    return re.sub(r"\b[0-9a-f]{32}\b|[0-9]+", "", problem.partition("\n")[0])


def memory_sampled(table: SlotTable, event: events.MemorySampled) -> None:
    """Kills a process that exceeds its slot's memory limit: more memory would come from other
    slots.
    """
    slot = table.slot_running(event.executor_id)
    if slot is None:
        return
    limit = table.limit(slot)
    if event.used_bytes > limit.total_bytes:
        if slot.process is not None and slot.process.state is ProcessState.READY:
            slot.process.unusable = True
        reason = over_limit_text(table.name_of(slot), event.used_bytes, limit)
        allocations.kill(table, slot, reason)


def stop_all(table: SlotTable, cause: str) -> None:
    """Reports every slot lost and kills its process, because the TaskExecutor ends."""
    table.stopping = True
    reason = f"TaskExecutor {table.settings.task_executor_id} ends: {cause}"
    for slot in table.slots:
        if slot.allocation is not None and slot.state is not SlotState.RELEASING:
            allocations.report_lost(table, slot, reason)
        allocations.kill(table, slot, reason)
