"""Stops TaskExecutors on request of callers that wait for their end.

A TaskExecutor that is stopped without draining shuts down immediately. One that drains is cordoned
(it gets no more slots), and every JobMaster is requested to vacate it; it shuts down when it holds
no slot of a job and no result that a job may still read. Its worker no longer counts, so the driver
starts another one in its place if it is still needed.

A drain lasts as long as a caller waits for it, and only this ResourceManager knows of it: if the
last caller leaves before the TaskExecutor was requested to shut down, or the ResourceManager is
replaced, the TaskExecutor offers slots again. Tasks that have moved stay where they are.

Drains without a caller are final: of workers that something else ends, such as the drain of a
node, and of workers with an earlier configuration, which are replaced one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from firesteel.common.ids import JobId
from firesteel.common.resources import UNKNOWN
from resourcemanager.core import commands
from resourcemanager.core.commands import Command, StopProgress
from resourcemanager.core.events import Connection, Requirement
from resourcemanager.core.matching import Need, Plan
from resourcemanager.core.registered_jobs import RegisteredJob
from resourcemanager.core.shortage import explain
from resourcemanager.core.slots import SlotTable, Stop, TaskExecutor
from resourcemanager.core.workers import Growth, Workers


class Stops:
    def __init__(self, table: SlotTable, jobs: Mapping[JobId, RegisteredJob]) -> None:
        """The SlotManager owns both arguments."""
        self._table = table
        self._jobs = jobs

    def wait(self, executor: TaskExecutor, request: int, *, force: bool) -> None:
        if executor.stop is None:
            executor.stop = Stop(force=force)
        elif force and not executor.stop.force:
            executor.stop.force = True
            executor.stop.told.clear()
        executor.stop.waiting[request] = None

    def start(self, executor: TaskExecutor, *, without_slots: bool = False) -> None:
        """Starts a drain that no caller waits for, and no caller withdraws."""
        stop = executor.stop = executor.stop or Stop(force=False)
        if not stop.final or without_slots != stop.without_slots:
            stop.told.clear()
        stop.final, stop.without_slots = True, without_slots

    def abandoned(self, request: int) -> tuple[TaskExecutor | None, list[Command]]:
        """A caller has left. Returns its TaskExecutor if it was the last caller and the
        TaskExecutor keeps running, with the commands that end the drain.
        """
        for executor in self._table.executors.values():
            if executor.stop is None or request not in executor.stop.waiting:
                continue
            del executor.stop.waiting[request]
            if executor.stop.waiting or executor.stop.final or executor.leaving:
                break
            told, executor.stop = executor.stop.told, None
            return executor, [
                commands.VacateWithdrawn(
                    connection=connection, task_executor_id=executor.task_executor_id
                )
                for connection in self._connected()
                if connection in told
            ]
        return None, []

    def ended(self, executor: TaskExecutor, cause: str) -> list[Command]:
        """Reports the end to the callers; `cause` is a problem unless it was requested to shut
        down.
        """
        if executor.stop is None:
            return []
        problem = "" if executor.leaving else cause
        waiting = executor.stop.waiting
        return [commands.StopEnded(request=request, problem=problem) for request in waiting]

    def vacate(self) -> list[Command]:
        """Requests JobMasters to vacate draining TaskExecutors."""
        requests: list[Command] = []
        for executor, stop in self._draining():
            for connection in self._connected():
                if connection not in stop.told:
                    stop.told.add(connection)
                    requests.append(
                        commands.Vacate(
                            connection=connection,
                            task_executor_id=executor.task_executor_id,
                            forced=stop.force,
                            without_slots=stop.without_slots,
                        )
                    )
        return requests

    def vacated(self) -> list[TaskExecutor]:
        """Returns the draining TaskExecutors that may shut down now."""
        return [
            executor
            for executor, stop in self._draining()
            if executor.taken == 0 and (stop.force or executor.idle)
        ]

    def _draining(self) -> list[tuple[TaskExecutor, Stop]]:
        executors = self._table.executors.values()
        return [(e, e.stop) for e in executors if e.stop is not None and e.draining]

    def report(self) -> list[Command]:
        """Reports changed progress to the waiting callers."""
        return [
            progress
            for executor in self._table.executors.values()
            if executor.stop is not None
            for progress in self._progress(executor, executor.stop)
        ]

    def _connected(self) -> Iterable[Connection]:
        return [job.connection for job in self._jobs.values() if job.connection is not None]

    def _progress(self, executor: TaskExecutor, stop: Stop) -> list[Command]:
        held = Counter(slot.job_id for slot in executor.slots.values() if slot.job_id is not None)
        short = [
            job.shortage
            for job_id in held
            if (job := self._jobs.get(job_id)) is not None and job.shortage is not None
        ]
        changed: list[Command] = []
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
                changed.append(progress)
        return changed


def places_of(
    executor: TaskExecutor, jobs: Iterable[RegisteredJob], table: SlotTable
) -> list[Need]:
    """Returns the slots that jobs require elsewhere in place of those on `executor`."""
    needs = []
    for job in jobs:
        held = [slot for slot in table.slots_of(job.job_id) if slot.executor is executor]
        any_size = any(requirement.profile.unknown for requirement in job.requirements)
        sizes = Counter(UNKNOWN if any_size else slot.profile for slot in held)
        wanted = tuple(Requirement(profile=size, count=n) for size, n in sizes.items())
        if wanted:
            needs.append(job.need(wanted))
    return needs


def nowhere(
    moving: Sequence[Need], plan: Plan, growth: Growth, table: SlotTable, workers: Workers
) -> str:
    """Returns why a plan that includes these needs has no room for them. Empty if there is room, or
    will be once workers have started.
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
