"""Running: tasks are deployed. The job ends when all of them have finished.

Tasks that fail restart with their regions, while all others continue. The steps are: the tasks are
cancelled; they end, the restart strategy's delay passes, and the latest checkpoint is known; new
attempts are scheduled, and deployed once they have their slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from firesteel.common.states import JobEvent, JobStatus
from jobmaster.core.execution_graph import ExecutionVertex
from jobmaster.core.job import Job
from jobmaster.core.phases.ended import Ended
from jobmaster.core.phases.phase import Phase


@dataclass(frozen=True, slots=True)
class RegionRestart:
    """A restart of regions, until the new attempts are scheduled."""

    vertices: tuple[ExecutionVertex, ...]
    at: float | None  # the earliest time; None: it has passed

    @property
    def ended(self) -> bool:
        return all(vertex.current.terminal for vertex in self.vertices)


@dataclass(frozen=True, slots=True)
class Running(Phase):
    statuses = frozenset({JobStatus.RUNNING})

    restarts: tuple[RegionRestart, ...] = ()  # no task is in two of them

    def deadline(self) -> float | None:
        return min((r.at for r in self.restarts if r.at is not None), default=None)

    def waiting_for(self, job: Job, now: float) -> str:
        if not self.restarts:
            return job.slot_wait.describe(now)
        tasks = sum(len(restart.vertices) for restart in self.restarts)
        after_s = max(0.0, max(r.at if r.at is not None else now for r in self.restarts) - now)
        return f"the restart of {tasks} task{'s' if tasks != 1 else ''} (in {after_s:.0f} s)"

    @property
    def restarting(self) -> frozenset[ExecutionVertex]:
        """The tasks that will restart."""
        return frozenset(vertex for restart in self.restarts for vertex in restart.vertices)

    def restarts_soon(self, vertex: ExecutionVertex) -> bool:
        return any(vertex in restart.vertices for restart in self.restarts)

    def restart(
        self, job: Job, vertices: Sequence[ExecutionVertex], at: float, now: float
    ) -> Running:
        """Cancels these tasks; they restart once they have ended, at `at` or later."""
        job.end_tasks(vertices, now)
        job.partitions.replace_those_of(vertices)
        wanted = dict.fromkeys(vertices)
        others = []
        for restart in self.restarts:
            if wanted.keys().isdisjoint(restart.vertices):
                others.append(restart)
                continue
            wanted.update(dict.fromkeys(restart.vertices))
            at = max(at, restart.at if restart.at is not None else now)
        return Running((*others, RegionRestart(tuple(wanted), at)))

    def advance(self, job: Job, now: float) -> Phase:
        for restart in self.restarts:
            if restart.at is not None and restart.at <= now:
                return self._with(restart, replace(restart, at=None))
            if restart.at is None and restart.ended and job.checkpoints.settled:
                job.restart(restart.vertices, now)
                return self._with(restart)
        if job.graph.live == 0 and not self.restarts:
            return Ended.enter(job, JobEvent.FINISH, now)
        if job.can_deploy:
            job.deploy(now)
        return self

    def _with(self, old: RegionRestart, *new: RegionRestart) -> Running:
        return Running((*(r for r in self.restarts if r is not old), *new))
