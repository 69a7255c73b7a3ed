"""Analyzing: one slot runs the plan on empty input, so that schemas are known and wrong columns are
found before data flows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firesteel.common.ids import TaskExecutorId
from firesteel.common.states import JobStatus
from jobmaster.core import commands, events
from jobmaster.core.job import Job
from jobmaster.core.phases.phase import Phase
from jobmaster.core.slots.slot import Slot


@dataclass(frozen=True, slots=True)
class Analyzing(Phase):
    """The job fails with this slot: a plan that kills its process would also kill the next one."""

    statuses = frozenset({JobStatus.RUNNING})

    slot: Slot
    then: Phase  # the next phase once the plan is analysed

    @classmethod
    def enter(cls, job: Job, slot: Slot, *, then: Phase) -> Analyzing:
        phase = cls(slot, then)
        phase._request(job)
        return phase

    def waiting_for(self, job: Job, now: float) -> str:
        return job.slot_wait.describe(now) or "the analysis of its plan"

    def analyzed(self, job: Job, event: events.JobAnalyzed) -> Phase:
        if not self.analyzes_on(event.task_executor_id):
            job.stale_messages += 1
            return self
        job.take_analysis(event.operators)
        return self.then

    def analyzes_on(self, task_executor_id: TaskExecutorId) -> bool:
        return self.slot.task_executor_id == task_executor_id

    def analyzes_in(self, slots: Sequence[Slot]) -> bool:
        return any(slot is self.slot for slot in slots)

    def reconnected(self, job: Job, task_executor_id: TaskExecutorId) -> None:
        if self.analyzes_on(task_executor_id):
            self._request(job)  # the request may have been lost with the stream

    def _request(self, job: Job) -> None:
        job.out.append(
            commands.AnalyzeJob(
                task_executor_id=self.slot.task_executor_id,
                allocation_id=self.slot.allocation_id,
            )
        )
