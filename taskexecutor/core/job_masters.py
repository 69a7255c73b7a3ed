"""JobMasters of the jobs that have slots here: connected, heard of, given up.

A JobMaster whose stream stays broken, or that sends nothing, is given up after a while, and its
slots are freed. Until then its tasks keep running: longer if another JobMaster follows, which
adopts them. When the JobMaster comes back, or its successor
with a higher epoch is named, it gets a hello with all that this TaskExecutor holds for the job.
"""

from __future__ import annotations

from firesteel.common.ids import Epoch, JobId
from taskexecutor.core import allocations, commands, events, results
from taskexecutor.core.jobs import Job
from taskexecutor.core.slot_table import SlotTable
from taskexecutor.core.slots import SlotState


def connect(table: SlotTable, job_id: JobId, address: str, epoch: Epoch, now: float) -> str:
    """Connects to the JobMaster that a slot request names. Returns an objection if a newer one is
    known.
    """
    job = table.jobs.get(job_id)
    if job is not None and epoch < job.epoch:
        _refuse(table, job, "ConnectJobMaster", epoch)
        return f"job {job_id} has a newer JobMaster (epoch {job.epoch}, not {epoch})"
    if job is None:
        table.jobs[job_id] = Job(job_id=job_id, address=address, epoch=epoch, heard_at=now)
    elif epoch > job.epoch or address != job.address or job.closed:
        job.address, job.epoch, job.connected, job.closed = address, epoch, False, False
        job.heard_at, job.disconnected_at = now, now
    else:
        return ""
    table.command(commands.ConnectJobMaster(job_id=job_id, address=address, epoch=epoch))
    return ""


def changed(table: SlotTable, event: events.JobMasterChanged, now: float) -> None:
    """The ResourceManager knows another JobMaster of a job that has slots here: it takes over what
    runs in them.
    """
    job = table.jobs.get(event.job_id)
    if job is None or job.closed:
        return
    objection = connect(table, event.job_id, event.job_master_address, event.job_master_epoch, now)
    if objection:
        table.dropped["JobMasterChanged"] += 1


def admit(table: SlotTable, event: events.FromJobMaster, now: float) -> bool:
    """Whether the message is of the job's current JobMaster: the one place that checks its epoch.
    What is admitted also shows that the JobMaster is alive.
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


def _refuse(table: SlotTable, job: Job, what: str, epoch: Epoch) -> None:
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
    table.command(
        commands.SendHello(
            job_id=job_id,
            slots=tuple(
                allocations.offer_of(table, slot) for slot in held if slot.state is SlotState.ACTIVE
            ),
            tasks=tuple(
                events.HeldTask(
                    t.attempt_id, t.state, t.place, slot.allocation.allocation_id, t.splits
                )
                for slot in held
                if slot.allocation
                for t in slot.allocation.tasks.values()
            ),
            partitions=tuple(job.partitions.values()),
        )
    )
    for slot in held:
        if slot.allocation and not slot.allocation.accepted and slot.state is SlotState.ACTIVE:
            slot.allocation.offer_again_at = now  # it may not have seen the offer
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
    """Another one may follow: tasks wait for that one, also those that have ended, since it is not
    known whether anybody has heard of that, and so do results.
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


def give_up(table: SlotTable, job: Job, cause: str, now: float) -> None:
    job.backlog.clear()
    job.connected, job.closed = False, True
    results.release_all(table, job)
    table.command(commands.CloseJobMaster(job_id=job.job_id))
    for slot in table.slots_of(job.job_id):
        allocations.release(table, slot, cause, now)
    if table.jobs.get(job.job_id) is job and not table.slots_of(job.job_id):
        del table.jobs[job.job_id]


def give_up_at(table: SlotTable, job: Job) -> float | None:
    """When the JobMaster is given up if nothing is heard of it."""
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
