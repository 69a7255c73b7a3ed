"""Ending: all tasks of the job are being cancelled, including those that an earlier JobMaster left.
These are adopted to be cancelled, so that no task of the job runs after its end.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self

from firesteel.common.states import ExecutionState
from jobmaster.core import events
from jobmaster.core.adoption import Adoption
from jobmaster.core.job import Job
from jobmaster.core.phases.phase import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending(Phase):
    adoption: Adoption | None = None  # until all running tasks are known

    @abstractmethod
    def ended(self, job: Job, now: float) -> Phase:
        """Returns the next phase once all tasks have ended."""

    def begin(self, job: Job, now: float) -> Self:
        """Cancels the tasks that are known."""
        if self.adoption is None:
            job.end_all_tasks(now)
            return self
        known = [
            vertex
            for vertex in job.graph.execution_vertices()
            if vertex.current.state is not ExecutionState.RECONCILING
        ]
        job.end_tasks(known, now)
        return self

    def deadline(self) -> float | None:
        return None if self.adoption is None else self.adoption.deadline

    def waiting_for(self, job: Job, now: float) -> str:
        return ""

    def connected(self, job: Job, event: events.TaskExecutorConnected, now: float) -> None:
        if self.adoption is not None:
            self.adoption.connected(job, event, now)
            self.begin(job, now)

    def advance(self, job: Job, now: float) -> Phase:
        if self.adoption is not None:
            if not self.adoption.all_known(job, now):
                return self
            # Includes tasks that no TaskExecutor reported.
            return replace(self, adoption=None).begin(job, now)
        return self.ended(job, now) if job.graph.live == 0 else self
