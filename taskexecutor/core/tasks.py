"""Tasks of slots: deployed once the job's files are on disk, cancelled in time, their states
relayed.
"""

from __future__ import annotations

from firesteel.common.ids import AttemptId, JobId
from firesteel.common.job_graph import Blob
from firesteel.common.states import ExecutionState
from taskexecutor.core import allocations
from taskexecutor.core.commands import (
    AssignProcess,
    CancelInProcess,
    PrepareJobFiles,
    RelayToJobMaster,
    RelayToProcess,
    ReportAnalysisFailed,
    ReportTasks,
)
from taskexecutor.core.events import (
    AnalysisRequested,
    JobFilesFailed,
    JobFilesReady,
    OperatorEventReceived,
    ProcessCleaned,
    ProcessMessageReceived,
    SlotTasks,
    TasksCancelled,
    TasksSubmitted,
    TaskStatesReported,
)
from taskexecutor.core.jobs import FilesEvent, FilesState, Job
from taskexecutor.core.slot_table import SlotTable
from taskexecutor.core.slots import ProcessEvent, ProcessState, Slot, SlotEvent, SlotState, Task


def submit(table: SlotTable, event: TasksSubmitted, now: float) -> None:
    job = table.jobs[event.job_id]
    for part in event.parts:
        slot = _usable(table, part.allocation_id, event.job_id)
        if slot is None or slot.allocation is None:
            why = table.ended.get(part.allocation_id, "it is not known here")
            _report(
                table,
                job.job_id,
                part.attempt_ids,
                ExecutionState.FAILED,
                f"slot allocation {part.allocation_id} is over: {why}",
            )
            continue
        held = slot.allocation
        held.accepted, held.offer_again_at = True, None
        if all(attempt in held.tasks for attempt in part.attempt_ids):
            table.dropped["TasksSubmitted"] += 1  # doubled
            continue
        held.cancellation_timeout_s = event.cancellation_timeout_s
        for attempt_id in part.attempt_ids:
            if attempt_id not in held.tasks:
                held.tasks[attempt_id] = Task(attempt_id=attempt_id)
                table.note(f"task {attempt_id} is deployed", slot, attempt_id)
        _send_with_files(table, job, slot, part, event.blobs, event.dispatcher_address)


def analyze(table: SlotTable, event: AnalysisRequested) -> None:
    slot = _usable(table, event.allocation_id, event.job_id)
    if slot is None or slot.allocation is None:
        why = table.ended.get(event.allocation_id, "it is not known here")
        reason = f"slot allocation {event.allocation_id} is over: {why}"
        table.to_job_master(event.job_id, ReportAnalysisFailed(job_id=event.job_id, reason=reason))
        return
    slot.allocation.accepted, slot.allocation.offer_again_at = True, None
    _send_with_files(
        table, table.jobs[event.job_id], slot, event, event.blobs, event.dispatcher_address
    )


def _usable(table: SlotTable, allocation_id: str, job_id: JobId) -> Slot | None:
    for slot in table.slots_of(job_id):
        usable = (
            slot.state is SlotState.ACTIVE
            and slot.process
            and slot.process.state is ProcessState.BUSY
        )
        if usable and slot.allocation and slot.allocation.allocation_id == allocation_id:
            return slot
    return None


def _send_with_files(
    table: SlotTable,
    job: Job,
    slot: Slot,
    item: SlotTasks | AnalysisRequested,
    blobs: tuple[Blob, ...],
    dispatcher: str,
) -> None:
    assert slot.allocation is not None
    if job.files is FilesState.UNKNOWN and not blobs:
        table.drive_files(job, FilesEvent.NONE_NEEDED)
    if job.files is FilesState.READY:
        _deliver(table, job, slot, item)
        return
    slot.allocation.waiting.append(item)
    if job.files is FilesState.UNKNOWN:
        table.drive_files(job, FilesEvent.NEEDED)
        table.command(
            PrepareJobFiles(job_id=job.job_id, blobs=blobs, dispatcher_address=dispatcher)
        )


def _deliver(table: SlotTable, job: Job, slot: Slot, item: SlotTasks | AnalysisRequested) -> None:
    held = slot.allocation
    assert held is not None
    executor_id = table.process_in(slot).executor_id
    if not held.assigned:
        held.assigned = True
        table.command(
            AssignProcess(
                executor_id=executor_id,
                job_id=job.job_id,
                allocation_id=held.allocation_id,
                job_dir=job.job_dir,
                python_paths=job.python_paths,
            )
        )
    table.command(RelayToProcess(executor_id=executor_id, message=item.message))


def files_ready(table: SlotTable, event: JobFilesReady, now: float) -> None:
    job = table.jobs.get(event.job_id)
    if job is None or job.files is not FilesState.PREPARING:
        table.dropped["JobFilesReady"] += 1
        return
    table.drive_files(job, FilesEvent.PREPARED)
    job.job_dir, job.python_paths = event.job_dir, event.python_paths
    job.single_use = event.single_use
    for slot in table.slots_of(job.job_id):
        if slot.allocation is None or not slot.allocation.waiting:
            continue
        waiting, slot.allocation.waiting = slot.allocation.waiting, []
        for item in waiting:
            _deliver(table, job, slot, item)
        cancelled = [task.attempt_id for task in slot.allocation.running() if task.cancelled]
        if cancelled:  # while the files were on their way
            _cancel(table, slot, cancelled, now)


def files_failed(table: SlotTable, event: JobFilesFailed) -> None:
    job = table.jobs.get(event.job_id)
    if job is None or job.files is not FilesState.PREPARING:
        table.dropped["JobFilesFailed"] += 1
        return
    table.drive_files(job, FilesEvent.FAILED, event.reason)
    for slot in table.slots_of(job.job_id):
        if slot.allocation is None:
            continue
        waiting, slot.allocation.waiting = slot.allocation.waiting, []
        for item in waiting:
            if isinstance(item, AnalysisRequested):
                table.to_job_master(
                    job.job_id, ReportAnalysisFailed(job_id=job.job_id, reason=event.reason)
                )
            elif isinstance(item, SlotTasks):
                for attempt_id in item.attempt_ids:
                    task = slot.allocation.tasks[attempt_id]
                    table.set_task_state(slot, task, ExecutionState.FAILED)
                _report(table, job.job_id, item.attempt_ids, ExecutionState.FAILED, event.reason)


def cancel(table: SlotTable, event: TasksCancelled, now: float) -> None:
    by_slot: dict[int, list[AttemptId]] = {}
    ended: list[tuple[AttemptId, ExecutionState]] = []
    for attempt_id in event.attempt_ids:
        found = table.task(event.job_id, attempt_id)
        if found is None:
            ended.append(
                (attempt_id, ExecutionState.CANCELED)
            )  # it never came here, or went with its slot
            continue
        slot, _, task = found
        if task.state.terminal:
            ended.append((attempt_id, task.state))  # the report of it may have been lost
        elif not task.cancelled:
            task.cancelled = True
            table.note(f"task {attempt_id} is cancelled", slot, attempt_id)
            by_slot.setdefault(slot.index, []).append(attempt_id)
    for index, attempts in by_slot.items():
        slot = table.slots[index]
        if slot.allocation and not slot.allocation.waiting:  # else with the deployment
            _cancel(table, slot, attempts, now)
    if ended:
        table.to_job_master(event.job_id, ReportTasks(job_id=event.job_id, states=tuple(ended)))


def _cancel(table: SlotTable, slot: Slot, attempts: list[AttemptId], now: float) -> None:
    held = slot.allocation
    assert held is not None
    if held.cancellation_timeout_s > 0:
        for attempt_id in attempts:
            held.tasks[attempt_id].cancel_deadline = now + held.cancellation_timeout_s
    executor_id = table.process_in(slot).executor_id
    table.command(
        CancelInProcess(executor_id=executor_id, job_id=held.job_id, attempt_ids=tuple(attempts))
    )


def kill_overdue(table: SlotTable, now: float) -> None:
    """A cancelled task that does not end takes the slot's process with it, never the TaskExecutor."""
    for slot in table.slots:
        held = slot.allocation
        if held is None:
            continue
        overdue = [
            t for t in held.running() if t.cancel_deadline is not None and now >= t.cancel_deadline
        ]
        if overdue:
            allocations.kill(
                table,
                slot,
                f"task attempt {overdue[0].attempt_id} was still there {held.cancellation_timeout_s:g} s after it was "
                f"cancelled (task.cancellation.timeout), so the process of slot {slot.index} of TaskExecutor "
                f"{table.settings.task_executor_id} was killed",
            )
        elif held.clean_deadline is not None and now >= held.clean_deadline:
            held.clean_deadline = None
            allocations.kill(
                table,
                slot,
                f"it was not clean {table.settings.clean_timeout_s:g} s after its job had left",
            )


def states_reported(table: SlotTable, event: TaskStatesReported, now: float) -> None:
    slot = table.slot_running(event.executor_id)
    held = slot.allocation if slot else None
    if slot is None or held is None or held.job_id != event.job_id:
        table.dropped["TaskStatesReported"] += 1
        return
    for attempt_id, state in event.states:
        task = held.tasks.get(attempt_id)
        if task is not None and not task.state.terminal:
            table.set_task_state(slot, task, state)
    table.to_job_master(event.job_id, RelayToJobMaster(job_id=event.job_id, message=event.message))
    allocations.clean_if_idle(table, slot, now)


def process_spoke(table: SlotTable, event: ProcessMessageReceived) -> None:
    slot = table.slot_running(event.executor_id)
    if slot is None or slot.allocation is None or slot.allocation.job_id != event.job_id:
        table.dropped["ProcessMessageReceived"] += 1
        return
    table.to_job_master(
        event.job_id, RelayToJobMaster(job_id=event.job_id, message=event.message), keep=event.keep
    )


def coordinator_spoke(table: SlotTable, event: OperatorEventReceived) -> None:
    found = table.task(event.job_id, event.attempt_id)
    if found is None or found.task.state.terminal or found.slot.process is None:
        table.dropped["OperatorEventReceived"] += 1
        return
    table.command(
        RelayToProcess(executor_id=table.process_in(found.slot).executor_id, message=event.message)
    )


def cleaned(table: SlotTable, event: ProcessCleaned) -> None:
    slot = table.slot_running(event.executor_id)
    if (
        slot is None
        or slot.process is None
        or not slot.holds(event.allocation_id)
        or slot.state is not SlotState.RELEASING
    ):
        table.dropped["ProcessCleaned"] += 1
        return
    if slot.process.state is ProcessState.BUSY:
        assert slot.allocation is not None
        table.drive_process(slot, ProcessEvent.CLEANED)
        allocations.end(table, slot, SlotEvent.CLEANED, slot.allocation.release_cause)


def _report(
    table: SlotTable,
    job_id: JobId,
    attempts: tuple[AttemptId, ...],
    state: ExecutionState,
    reason: str,
) -> None:
    states = tuple((attempt_id, state) for attempt_id in attempts)
    table.to_job_master(job_id, ReportTasks(job_id=job_id, states=states, reason=reason))
