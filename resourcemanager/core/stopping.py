"""TaskExecutors that are to stop, because somebody asked for it and waits.

At once: it is told to end. Drained, it is cordoned (it gets no slots any more) and every JobMaster
is told to vacate it; it ends when it holds no slot of a job, and no result that one may still read.
Its worker no longer counts, so the driver starts another one in its place if it is still needed.

A drain lasts as long as somebody waits for it, and is known to this ResourceManager only: if the
last one leaves before the TaskExecutor was told to end, or the ResourceManager is replaced, it
gives slots again, and what has moved stays where it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from firesteel.common.ids import JobId
from firesteel.common.resources import UNKNOWN
from resourcemanager.core import commands
from resourcemanager.core.commands import Command, StopProgress
from resourcemanager.core.events import Connection, Requirement
from resourcemanager.core.jobs import Job
from resourcemanager.core.matching import Need, Plan
from resourcemanager.core.shortage import explain
from resourcemanager.core.slots import SlotTable, Stop, TaskExecutor
from resourcemanager.core.workers import Growth, Workers


class Stops:
    def __init__(self, table: SlotTable, jobs: Mapping[JobId, Job], out: list[Command]) -> None:
        """All three are the SlotManager's own; `out` collects its commands."""
        self._table = table
        self._jobs = jobs
        self._out = out

    def wait(self, executor: TaskExecutor, request: int, *, force: bool) -> None:
        if executor.stop is None:
            executor.stop = Stop(force=force)
        elif force and not executor.stop.force:
            executor.stop.force = True
            executor.stop.told.clear()
        executor.stop.waiting[request] = None

    def abandoned(self, request: int) -> TaskExecutor | None:
        """The TaskExecutor, if it is no longer to stop because nobody waits for that any more."""
        for executor in self._table.executors.values():
            if executor.stop is None or request not in executor.stop.waiting:
                continue
            del executor.stop.waiting[request]
            if executor.stop.waiting or executor.leaving:
                return None
            for connection in self._connected():
                if connection in executor.stop.told:
                    self._vacate(connection, executor, withdrawn=True)
            executor.stop = None
            return executor
        return None

    def ended(self, executor: TaskExecutor, cause: str) -> None:
        """Of one that was not told to end, `cause` says why it has."""
        if executor.stop is None:
            return
        problem = "" if executor.leaving else cause
        for request in executor.stop.waiting:
            self._out.append(commands.StopEnded(request=request, problem=problem))

    def vacate(self) -> list[TaskExecutor]:
        """Tells JobMasters that do not know it yet. Returns those that may end now."""
        empty = []
        for executor in self._table.executors.values():
            if executor.stop is None or not executor.draining:
                continue
            for connection in self._connected():
                if connection not in executor.stop.told:
                    executor.stop.told.add(connection)
                    self._vacate(connection, executor, forced=executor.stop.force)
            if executor.taken == 0 and (executor.stop.force or executor.idle):
                empty.append(executor)
        return empty

    def tell(self) -> None:
        """Tells those who wait what is new."""
        for executor in self._table.executors.values():
            if executor.stop is not None:
                self._tell(executor, executor.stop)

    def _connected(self) -> Iterable[Connection]:
        return [job.connection for job in self._jobs.values() if job.connection is not None]

    def _vacate(
        self,
        connection: Connection,
        executor: TaskExecutor,
        *,
        forced: bool = False,
        withdrawn: bool = False,
    ) -> None:
        self._out.append(
            commands.Vacate(
                connection=connection,
                task_executor_id=executor.task_executor_id,
                forced=forced,
                withdrawn=withdrawn,
            )
        )

    def _tell(self, executor: TaskExecutor, stop: Stop) -> None:
        held = Counter(slot.job_id for slot in executor.slots.values() if slot.job_id is not None)
        short = [
            job.shortage
            for job_id in held
            if (job := self._jobs.get(job_id)) is not None and job.shortage is not None
        ]
        for request, sent in stop.waiting.items():
            progress = StopProgress(
                request=request,
                slots=tuple(sorted(held.items())),
                stored_partitions=executor.stored_partitions,
                missing=sum(each.missing for each in short),
                explanation=short[0].explanation if short else "",
            )
            if progress != sent:
                stop.waiting[request] = progress
                self._out.append(progress)


def places_of(executor: TaskExecutor, jobs: Iterable[Job], table: SlotTable) -> list[Need]:
    """The slots that jobs need elsewhere instead of those that they have there."""
    needs = []
    for job in jobs:
        held = [slot for slot in table.slots_of(job.job_id) if slot.executor is executor]
        any_size = any(requirement.profile.unknown for requirement in job.requirements)
        sizes = Counter(UNKNOWN if any_size else slot.profile for slot in held)
        wanted = tuple(Requirement(profile=size, count=n) for size, n in sizes.items())
        if wanted:
            needs.append(Need(job_id=job.job_id, requirements=wanted))
    return needs


def nowhere(
    moving: Sequence[Need], plan: Plan, growth: Growth, table: SlotTable, workers: Workers
) -> str:
    """Why there is no room for these needs, by a plan that has them in it; empty: there is, perhaps
    once workers have started.
    """
    concerned = {need.job_id for need in moving}
    unmet = [need for need in plan.unmet if need.job_id in concerned]
    missing = sum(
        sum(r.count for r in need.requirements) - growth.growing.get(need.job_id, 0)
        for need in unmet
    )
    if missing <= 0:
        return ""
    are = "slots are" if missing > 1 else "slot is"
    why = explain(unmet[0], table, workers, growth)
    return f"{missing} {are} missing elsewhere for the tasks that it runs: {why}"
