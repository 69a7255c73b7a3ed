"""Reconciling: tasks of an earlier JobMaster run, and this one waits for their reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firesteel.common.ids import TaskExecutorId
from firesteel.common.states import JobEvent, JobStatus, TaskEvent
from jobmaster.core import events
from jobmaster.core.adoption import Adoption
from jobmaster.core.execution_graph import ExecutionVertex
from jobmaster.core.job import Job
from jobmaster.core.phases.phase import Phase


@dataclass(frozen=True, slots=True)
class Reconciling(Phase):
    statuses = frozenset({JobStatus.RECONCILING})

    adoption: Adoption

    @classmethod
    def enter(
        cls,
        job: Job,
        analysis: Sequence[events.OperatorAnalysis],
        listed: Sequence[events.ListedTask],
        timeout_s: float,
        now: float,
    ) -> Reconciling:
        job.take_analysis(analysis)
        job.take_collected()
        job.graph.apply(JobEvent.ADOPT, job.now_ms(now))
        for execution in job.graph.executions():
            execution.apply(TaskEvent.ADOPT, job.now_ms(now))
        adoption = Adoption(deadline=now + timeout_s, timeout_s=timeout_s)
        adoption.take_listed(job, listed, now)
        return cls(adoption)

    def restarts_soon(self, vertex: ExecutionVertex) -> bool:
        return True  # it may: nothing is released until that is known

    def deadline(self) -> float | None:
        return self.adoption.deadline

    def waiting_for(self, job: Job, now: float) -> str:
        return self.adoption.waiting_for(job, now)

    def connected(self, job: Job, event: events.TaskExecutorConnected, now: float) -> None:
        self.adoption.connected(job, event, now)

    def reconnected(self, job: Job, task_executor_id: TaskExecutorId) -> None:
        self.adoption.ask(job, task_executor_id)  # the request may have been lost
