"""Checks the parallelism of jobs that are rescaled or follow the slots that there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from firesteel.common.rescales import Outcome, Rescale, TriggerCause
from firesteel.common.states import JobStatus
from jobmaster.core.elasticity import SchedulerMode, fitted
from jobmaster.shell import RunningJob

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


class Elasticity:
    def __init__(self) -> None:
        self._records: dict[str, Rescale] = {}
        self._checked: dict[tuple[str, int], object] = {}

    def check(self, job: RunningJob) -> str:
        """Returns which vertex leaves its bounds or has more subtasks than key groups; empty if
        there is none.
        """
        core, key = job.core, (job.job_id, job.epoch)
        stored = core.job.parallelism.stored
        self._records.update((each.rescale_id, each) for each in core.job.rescales.records)
        if self._checked.get(key) is stored:
            return ""
        self._checked[key] = stored
        for vertex in core.graph.job_graph.vertices:
            v, most = vertex.vertex_id, vertex.max_parallelism
            low, number, high = stored.lower[v], stored.by_vertex[v], stored.upper[v]
            if not 1 <= low <= number <= high <= most:
                return f"{vertex.name} has {number} subtasks of [{low}, {high}], at most {most}"
        return ""

    def happened(self) -> Counter[str]:
        names = {
            TriggerCause.UPDATE_REQUIREMENT: "requested rescales",
            TriggerCause.NEW_RESOURCE_AVAILABLE: "rescales to more slots",
            TriggerCause.RECOVERABLE_FAILOVER: "rescales to fewer slots",
        }
        done = [each for each in self._records.values() if each.outcome is Outcome.SUCCEEDED]
        return Counter(names[each.trigger] for each in done)


def elastic_jobs_use_their_slots(cluster: Cluster) -> Iterator[str]:
    """A job that follows its slots has the highest parallelism that they allow. With its lower
    bounds it would need fewer.
    """
    for _, job_master in cluster.job_masters:
        job = job_master.job
        if job is None or job.core.graph.status is not JobStatus.RUNNING:
            continue
        context, stored = job.core.job, job.core.job.parallelism.stored
        if context.parallelism.mode is SchedulerMode.DEFAULT or not context.all_run:
            continue
        held = context.pool.requirements_held
        possible = fitted(job.core.graph.job_graph, stored.lower, stored.upper, held)
        if possible != stored.by_vertex:
            yield f"job {job.job_id}: {stored.by_vertex} of {possible} with {held.total()} slots"
