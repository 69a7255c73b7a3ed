"""Connections to the JobMasters of the jobs that have slots here, and their timeouts.

If a JobMaster's stream stays broken, or the JobMaster sends nothing, the TaskExecutor gives it up
after a timeout and frees its slots. Until then its tasks keep running, for longer if a successor
can adopt them. When the JobMaster returns, or a successor with a higher epoch is announced, it gets
a hello that lists everything this TaskExecutor holds for the job.
"""

from __future__ import annotations

from firesteel.common.ids import Epoch, JobId
from taskexecutor.core import allocations, commands, events, results
from taskexecutor.core.hosted_jobs import HostedJob
from taskexecutor.core.slot_table import SlotTable
from taskexecutor.core.slots import SlotState


def connect(table: SlotTable, job_id: JobId, address: str, epoch: Epoch, now: float) -> str:
    """Connects to the JobMaster that a slot request names. Returns an objection if a newer
    JobMaster is known.
    """
    job = table.jobs.get(job_id)
    if job is not None and epoch < job.epoch:
        _refuse(table, job, "ConnectJobMaster", epoch)
        return f"job {job_id} has a newer JobMaster (epoch {job.epoch}, not {epoch})"
    if job is None:
        table.jobs[job_id] = HostedJob(job_id=job_id, address=address, epoch=epoch, heard_at=now)
    elif epoch > job.epoch or address != job.address or job.closed:
        job.address, job.epoch, job.connected, job.closed = address, epoch, False, False
        job.heard_at, job.disconnected_at = now, now
    else:
        return ""
    table.command(commands.ConnectJobMaster(job_id=job_id, address=address, epoch=epoch))
    return ""


def changed(table: SlotTable, event: events.JobMasterChanged, now: float) -> None:
    """Connects to a job's new JobMaster, which takes over the tasks that run in the job's slots."""
    job = table.jobs.get(event.job_id)
    if job is None or job.closed:
        return
    objection = connect(table, event.job_id, event.job_master_address, event.job_master_epoch, now)
    if objection:
        table.dropped["JobMasterChanged"] += 1


def admit(table: SlotTable, event: events.FromJobMaster, now: float) -> bool:
    """Returns whether the message is from the job's current JobMaster. This is the only place that
    checks the JobMaster's epoch. An admitted message also shows that the JobMaster is alive.
    """
    job = table.jobs.get(event.job_id)
    if job is None or job.closed or event.job_master_epoch < job.epoch:
        table.dropped[type(event).__name__] += 1
        if job is not None and event.job_master_epoch < job.epoch:
            _refuse(table, job, type(event).__name__, event.job_master_epoch)
        return False
    job.epoch = event.job_master_epoch
    job.heard_at = now
    job.disconnected_at = None
    return True


def _refuse(table: SlotTable, job: HostedJob, what: str, epoch: Epoch) -> None:
    table.refusals.refuse(
        what, sender="JobMaster", epoch=epoch, in_force=job.epoch, job_id=job.job_id
    )


def connected(table: SlotTable, job_id: JobId, now: float) -> None:
    job = table.jobs.get(job_id)
    if job is None or job.closed:
        return
    job.connected = True
    job.heard_at = now
    held = [
        slot
        for slot in table.slots_of(job_id)
        if slot.state in (SlotState.ACTIVE, SlotState.RELEASING)
    ]
    tasks = [task for slot in held if (a := slot.allocation) for task in a.tasks.values()]
    table.command(
        commands.SendHello(
            job_id=job_id,
            slots=tuple(
                allocations.offer_of(table, slot) for slot in held if slot.state is SlotState.ACTIVE
            ),
            tasks=tuple(events.TaskState(task.attempt_id, task.state) for task in tasks),
            places={task.attempt_id: task.place for task in tasks},
            partitions=tuple(job.partitions),
        )
    )
    for slot in held:
        if slot.allocation and not slot.allocation.accepted and slot.state is SlotState.ACTIVE:
            slot.allocation.offer_again_at = now  # the JobMaster may have missed the offer
    backlog, job.backlog = job.backlog, []
    for command in backlog:
        table.command(command)


def disconnected(table: SlotTable, job_id: JobId, now: float) -> None:
    job = table.jobs.get(job_id)
    if job is None:
        return
    job.connected = False
    if job.disconnected_at is None:
        job.disconnected_at = now
    if not job.closed and not table.slots_of(job_id) and not job.partitions:
        table.forget(job)


def left(table: SlotTable, job_id: JobId, cause: str, now: float) -> None:
    give_up(
        table,
        table.jobs[job_id],
        f"its JobMaster has left: {cause}" if cause else "its JobMaster has left",
        now,
    )


def died(table: SlotTable, event: events.JobMasterDied, now: float) -> None:
    """Waits for a successor if the job recovers and has tasks or results here; otherwise releases
    its slots.

    Ended tasks also count, because their end may not have been received.
    """
    job = table.jobs.get(event.job_id)
    if job is None or job.closed or event.job_master_epoch < job.epoch:
        table.dropped["JobMasterDied"] += 1
        return
    tasks = any(slot.allocation and slot.allocation.tasks for slot in table.slots_of(job.job_id))
    if job.recovers and (tasks or job.partitions):
        disconnected(table, job.job_id, now)
    else:
        left(table, job.job_id, event.cause, now)


def give_up(table: SlotTable, job: HostedJob, cause: str, now: float) -> None:
    job.backlog.clear()
    job.connected, job.closed = False, True
    results.release_all(table, job)
    table.command(commands.CloseJobMaster(job_id=job.job_id))
    for slot in table.slots_of(job.job_id):
        allocations.release(table, slot, cause, now)
    if table.jobs.get(job.job_id) is job and not table.slots_of(job.job_id):
        del table.jobs[job.job_id]


def give_up_at(table: SlotTable, job: HostedJob) -> float | None:
    """Returns when the JobMaster is given up if it stays silent."""
    if job.closed:
        return None
    settings = table.settings
    silent = job.heard_at + settings.heartbeat_timeout_s
    grace_s = settings.reconnect_grace_s
    if job.recovers:
        silent += settings.adoption_grace_s
        grace_s = max(grace_s, settings.adoption_grace_s)
    if job.disconnected_at is not None:
        return min(silent, job.disconnected_at + grace_s)
    return silent if job.connected else min(silent, job.heard_at + grace_s)


def give_up_silent(table: SlotTable, now: float) -> None:
    for job in list(table.jobs.values()):
        at = give_up_at(table, job)
        if at is not None and now >= at:
            give_up(
                table,
                job,
                f"its JobMaster at {job.address} has sent nothing for {now - job.heard_at:.1f} s",
                now,
            )
