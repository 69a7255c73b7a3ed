"""Deploys tasks once the job's files are on disk, cancels them, and relays their messages."""

from __future__ import annotations

from firesteel.common.ids import AllocationId, AttemptId, ExecutorId, JobId
from firesteel.common.job_graph import Blob
from firesteel.common.states import ExecutionState
from taskexecutor.core import allocations, commands, events, results
from taskexecutor.core.hosted_jobs import FilesEvent, FilesState, HostedJob
from taskexecutor.core.slot_table import SlotTable
from taskexecutor.core.slots import ProcessEvent, ProcessState, Slot, SlotEvent, SlotState, Task


def submit(table: SlotTable, event: events.TasksSubmitted, now: float) -> None:
    job = table.jobs[event.job_id]
    for part in event.parts:
        slot = _usable(table, part.allocation_id, event.job_id)
        if slot is None:
            _report_failed(table, job.job_id, part.attempt_ids, _over(table, part.allocation_id))
            continue
        held = table.allocation_of(slot)
        held.accepted, held.offer_again_at = True, None
        if all(attempt in held.tasks for attempt in part.attempt_ids):
            table.dropped["TasksSubmitted"] += 1  # a repeated message
            continue
        held.cancellation_timeout_s = event.cancellation_timeout_s
        job.recovers = event.recovers
        for attempt_id, place in part.tasks.items():
            if attempt_id not in held.tasks:
                held.tasks[attempt_id] = Task(attempt_id=attempt_id, place=place)
                table.note(f"task {attempt_id} is deployed", slot, attempt_id)
        _send_with_files(table, job, slot, part, event.blobs, event.dispatcher_address)


def analyze(table: SlotTable, event: events.AnalysisRequested) -> None:
    slot = _usable(table, event.allocation_id, event.job_id)
    if slot is None:
        reason = _over(table, event.allocation_id)
        table.to_job_master(
            event.job_id, commands.ReportAnalysisFailed(job_id=event.job_id, reason=reason)
        )
        return
    held = table.allocation_of(slot)
    held.accepted, held.offer_again_at = True, None
    _send_with_files(
        table, table.jobs[event.job_id], slot, event, event.blobs, event.dispatcher_address
    )


def _usable(table: SlotTable, allocation_id: AllocationId, job_id: JobId) -> Slot | None:
    """Returns the job's slot, if it has been offered and its process is alive."""
    slot = table.slot_of(allocation_id)
    if slot is None or slot.state is not SlotState.ACTIVE:
        return None
    served = table.process_in(slot).state is ProcessState.BUSY
    return slot if served and table.allocation_of(slot).job_id == job_id else None


def _over(table: SlotTable, allocation_id: AllocationId) -> str:
    slot = table.slot_of(allocation_id)
    if slot is not None and slot.process is not None and slot.process.kill_reason:
        why = slot.process.kill_reason
    else:
        why = table.ended.get(allocation_id, "this TaskExecutor does not know it")
    return f"slot allocation {allocation_id} has ended: {why}"


def _send_with_files(
    table: SlotTable,
    job: HostedJob,
    slot: Slot,
    item: events.SlotTasks | events.AnalysisRequested,
    blobs: tuple[Blob, ...],
    dispatcher: str,
) -> None:
    if job.files is FilesState.UNKNOWN and not blobs:
        table.drive_files(job, FilesEvent.NONE_NEEDED)
    if job.files is FilesState.READY:
        _deliver(table, job, slot, item)
        return
    table.allocation_of(slot).waiting.append(item)
    if job.files is FilesState.UNKNOWN:
        table.drive_files(job, FilesEvent.NEEDED)
        table.command(
            commands.PrepareJobFiles(job_id=job.job_id, blobs=blobs, dispatcher_address=dispatcher)
        )


def _deliver(
    table: SlotTable, job: HostedJob, slot: Slot, item: events.SlotTasks | events.AnalysisRequested
) -> None:
    held = table.allocation_of(slot)
    executor_id = table.process_in(slot).executor_id
    if not held.assigned:
        held.assigned = True
        table.command(
            commands.AssignProcess(
                executor_id=executor_id,
                job_id=job.job_id,
                allocation_id=held.allocation_id,
                job_dir=job.job_dir,
                python_paths=job.python_paths,
                managed_bytes=held.profile.managed_bytes,
            )
        )
    table.command(commands.RelayToProcess(executor_id=executor_id, message=item.message))


def files_ready(table: SlotTable, event: events.JobFilesReady, now: float) -> None:
    job = table.jobs.get(event.job_id)
    if job is None or job.files is not FilesState.PREPARING:
        table.dropped["JobFilesReady"] += 1
        return
    table.drive_files(job, FilesEvent.PREPARED)
    job.job_dir, job.python_paths = event.job_dir, event.python_paths
    job.single_use = event.single_use
    for slot in table.slots_of(job.job_id):
        held = table.allocation_of(slot)
        if not held.waiting:
            continue
        waiting, held.waiting = held.waiting, []
        for item in waiting:
            _deliver(table, job, slot, item)
        cancelled = [task.attempt_id for task in held.running() if task.cancelled]
        if cancelled:  # cancelled while the files were downloaded
            _cancel(table, slot, cancelled, now)


def files_failed(table: SlotTable, event: events.JobFilesFailed) -> None:
    job = table.jobs.get(event.job_id)
    if job is None or job.files is not FilesState.PREPARING:
        table.dropped["JobFilesFailed"] += 1
        return
    table.drive_files(job, FilesEvent.FAILED, event.reason)
    for slot in table.slots_of(job.job_id):
        held = table.allocation_of(slot)
        waiting, held.waiting = held.waiting, []
        for item in waiting:
            match item:
                case events.AnalysisRequested():
                    failed = commands.ReportAnalysisFailed(job_id=job.job_id, reason=event.reason)
                    table.to_job_master(job.job_id, failed)
                case events.SlotTasks():
                    for attempt_id in item.attempt_ids:
                        task = held.tasks[attempt_id]
                        table.set_task_state(slot, task, ExecutionState.FAILED)
                    _report_failed(table, job.job_id, item.attempt_ids, event.reason)


def cancel(table: SlotTable, event: events.TasksCancelled, now: float) -> None:
    by_slot: dict[int, list[AttemptId]] = {}
    ended: list[events.TaskState] = []
    for attempt_id in event.attempt_ids:
        found = table.task(event.job_id, attempt_id)
        if found is None:
            # It never arrived here, or its slot has ended.
            ended.append(events.TaskState(attempt_id, ExecutionState.CANCELED))
            continue
        slot, _, task = found
        if task.state.terminal:
            ended.append(events.TaskState(attempt_id, task.state))  # the report may have been lost
        elif not task.cancelled:
            task.cancelled = True
            table.note(f"task {attempt_id} is cancelled", slot, attempt_id)
            by_slot.setdefault(slot.index, []).append(attempt_id)
    for index, attempts in by_slot.items():
        slot = table.slots[index]
        # otherwise `files_ready` cancels them after the deployment
        if not table.allocation_of(slot).waiting:
            _cancel(table, slot, attempts, now)
    if ended:
        table.to_job_master(
            event.job_id, commands.ReportTasks(job_id=event.job_id, states=tuple(ended))
        )


def _cancel(table: SlotTable, slot: Slot, attempts: list[AttemptId], now: float) -> None:
    held = table.allocation_of(slot)
    if held.cancellation_timeout_s > 0:
        for attempt_id in attempts:
            held.tasks[attempt_id].cancel_deadline = now + held.cancellation_timeout_s
    executor_id = table.process_in(slot).executor_id
    table.command(
        commands.CancelInProcess(
            executor_id=executor_id, job_id=held.job_id, attempt_ids=tuple(attempts)
        )
    )


def kill_overdue(table: SlotTable, now: float) -> None:
    """Kills a process whose task does not end after cancellation, or that does not become clean."""
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
                f"task attempt {overdue[0].attempt_id} had not ended "
                f"{held.cancellation_timeout_s:g} s after it was cancelled "
                f"(task.cancellation.timeout), so the process of {table.name_of(slot)} was killed",
            )
        elif held.clean_deadline is not None and now >= held.clean_deadline:
            held.clean_deadline = None
            allocations.kill(
                table,
                slot,
                f"it was not clean {table.settings.clean_timeout_s:g} s after its job ended",
            )


def states_reported(table: SlotTable, event: events.TaskStatesReported, now: float) -> None:
    slot = table.slot_running(event.executor_id)
    held = slot.allocation if slot else None
    if slot is None or held is None or held.job_id != event.job_id:
        table.dropped["TaskStatesReported"] += 1
        return
    for attempt_id, state, splits in event.states:
        task = held.tasks.get(attempt_id)
        if task is not None and not task.state.terminal:
            table.set_task_state(slot, task, state)
            task.place = task.place._replace(splits=splits)
    job = table.jobs[event.job_id]
    if not job.closed:
        results.keep(table, job, event.partitions)
    table.to_job_master(
        event.job_id, commands.RelayToJobMaster(job_id=event.job_id, message=event.message)
    )
    allocations.clean_if_idle(table, slot, now)


def relay_to_job_master(table: SlotTable, event: events.ProcessMessageReceived) -> None:
    slot = table.slot_running(event.executor_id)
    if slot is None or slot.allocation is None or slot.allocation.job_id != event.job_id:
        table.dropped["ProcessMessageReceived"] += 1
        return
    table.to_job_master(
        event.job_id,
        commands.RelayToJobMaster(job_id=event.job_id, message=event.message),
        keep=event.keep,
    )


def relay_to_tasks(table: SlotTable, event: events.TaskMessageReceived) -> None:
    """Sends one message to each process that runs some of the tasks."""
    processes: dict[ExecutorId, None] = {}
    for attempt_id in event.attempt_ids:
        found = table.task(event.job_id, attempt_id)
        if found is None or found.task.state.terminal or found.slot.process is None:
            table.dropped["TaskMessageReceived"] += 1
        else:
            processes[table.process_in(found.slot).executor_id] = None
    for executor_id in processes:
        table.command(commands.RelayToProcess(executor_id=executor_id, message=event.message))


def cleaned(table: SlotTable, event: events.ProcessCleaned) -> None:
    slot = table.slot_running(event.executor_id)
    if slot is None or not slot.holds(event.allocation_id) or slot.state is not SlotState.RELEASING:
        table.dropped["ProcessCleaned"] += 1
        return
    if table.process_in(slot).state is ProcessState.BUSY:
        table.drive_process(slot, ProcessEvent.CLEANED)
        allocations.end(table, slot, SlotEvent.CLEANED, table.allocation_of(slot).release_cause)


def _report_failed(
    table: SlotTable, job_id: JobId, attempts: tuple[AttemptId, ...], reason: str
) -> None:
    states = tuple(events.TaskState(attempt_id, ExecutionState.FAILED) for attempt_id in attempts)
    table.to_job_master(job_id, commands.ReportTasks(job_id=job_id, states=states, reason=reason))
