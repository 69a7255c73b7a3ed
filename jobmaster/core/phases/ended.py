"""Ended: the job is over, at least for this master. Peers that still connect are dismissed."""

from __future__ import annotations

from dataclasses import dataclass

from firesteel.common.service.core import Tick
from firesteel.common.states import JobEvent, JobStatus
from jobmaster.core import commands, events
from jobmaster.core.job import Job
from jobmaster.core.phases.phase import Phase


@dataclass(frozen=True, slots=True)
class Ended(Phase):
    """The process waits for the Dispatcher to store the status."""

    statuses = frozenset(status for status in JobStatus if status.terminal)

    cause: str  # sent to TaskExecutors

    @classmethod
    def enter(cls, job: Job, event: JobEvent, now: float, *, cause: str = "") -> Ended:
        """Withdraws the requirements, returns all slots and reports the status."""
        job.graph.apply(event, job.now_ms(now), cause)
        phase = cls(f"the job is {job.graph.status.name}")
        slots = job.pool.clear(now)
        job.declare()
        job.free(slots, phase.cause)
        job.log("info", "job ended", status=job.graph.status.name)
        job.report_status()
        for task_executor_id in job.task_executors.all():
            job.dismiss(task_executor_id, phase.cause)
            job.task_executors.remove(task_executor_id)
        job.slot_wait.update(now, missing=False)
        return phase

    @classmethod
    def suspend(cls, job: Job, now: float) -> Ended:
        """Ends the job for this master only: it continues under another master, or is over."""
        job.scheduler.forget()
        job.tasks.abandon(now, job.now_ms(now))
        phase = cls.enter(job, JobEvent.SUSPEND, now)
        job.out.append(commands.Exit())
        return phase

    def waiting_for(self, job: Job, now: float) -> str:
        return ""

    def handle(self, job: Job, event: events.Event | Tick) -> None:
        match event:
            case events.CheckpointStored():  # the next master restores it; tasks are not notified
                job.out += job.checkpoints.late_answer(event.checkpoint_id)
            case events.CheckpointNotStored():
                job.out += job.checkpoints.late_answer(event.checkpoint_id, event.problem)
            case events.CheckpointRequested():
                job.out.append(commands.AnswerRequest(request=event.request, problem=self.cause))
            case events.TerminalStatusStored():
                job.out += job.checkpoints.ended(job.graph.status)
                job.out.append(commands.Exit())
            case events.Superseded() if job.graph.status.globally_terminal:
                # A checkpoint was stored after this end: its acknowledgement is on its way, and
                # files may be deleted only then. If another master has the job instead, the
                # Dispatcher ends this process.
                pass
            case events.Superseded():
                job.out.append(commands.Exit())
            case events.TaskExecutorConnected():
                job.dismiss(event.task_executor_id, self.cause)
            case events.SlotsOffered():
                job.out.append(
                    commands.AnswerSlots(
                        task_executor_id=event.task_executor_id,
                        accepted=(),
                        rejected=tuple(slot.allocation_id for slot in event.slots),
                    )
                )
            case events.ResourceManagerConnected():
                job.declare(force=True)
            case _:
                job.stale_messages += 1
