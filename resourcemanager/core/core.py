"""The SlotManager, a pure core: events in, commands out; no I/O, no clock, no randomness.

It owns the ResourceManager's view of TaskExecutors, slots, JobMasters and workers, and keeps three
rules:

* TaskExecutors own the truth about slots, JobMasters the truth about requirements, and both always
  send their complete state. Nothing needs to be stored: after any loss, the next report or
  declaration corrects the view.
* After every change, the same three steps run from current facts: match, scale, notify (`_settle`).
* There is one verdict on a dead TaskExecutor, and every JobMaster receives it immediately
  (invariant 22). A JobMaster's finding becomes the verdict unless the SlotManager still hears the
  TaskExecutor.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import assert_never

from firesteel.common.ids import AllocationId, IdSource, JobId, TaskExecutorId
from firesteel.common.resources import SlotStatus
from firesteel.common.service.core import Effects, Tick
from resourcemanager.core import commands, events
from resourcemanager.core.commands import Command
from resourcemanager.core.events import Connection, Event, WorkerId
from resourcemanager.core.fence import Fence
from resourcemanager.core.matching import Need, Plan, match_slots
from resourcemanager.core.registered_jobs import LostExecutor, RegisteredJob, unmet
from resourcemanager.core.settings import (
    GRACE_AFTER_PAUSE_S,
    HEARTBEATS_MISSED,
    PAUSED_S,
    PROCESS_ENDED,
    RECONNECT_GRACE_S,
    REGISTRATION_S,
    Deadline,
    Settings,
    Timer,
)
from resourcemanager.core.shortage import explain
from resourcemanager.core.slot_requests import SlotRequests
from resourcemanager.core.slots import Slot, SlotState, SlotTable, TaskExecutor
from resourcemanager.core.stopping import Stops, nowhere, places_of
from resourcemanager.core.timers import Timers
from resourcemanager.core.workers import Growth, Workers, WorkerSpec, WorkerState

_ENDED_MAX = 100  # whose logs may follow


class SlotManager:
    def __init__(self, settings: Settings, ids: IdSource) -> None:
        self.settings = settings
        self.table = SlotTable()
        # Served in this order, the order of registration.
        self.jobs: dict[JobId, RegisteredJob] = {}
        self.workers = Workers(
            initial=settings.initial_workers,
            max_slots=settings.max_slots,
            spec=settings.worker,
            ids=ids,
        )
        self.missing = 0  # slots required that no free slot can provide
        # Declared dead, and not known to have ended.
        self.lost_workers: dict[WorkerId, TaskExecutorId] = {}
        self._ended: OrderedDict[WorkerId, TaskExecutorId] = OrderedDict()  # the latest ones
        self.fence = Fence(settings.epoch)
        self._ids = ids
        self._timers: Timers[Timer] = Timers()
        self._unsettled = False  # facts that matching depends on have changed
        self._history: deque[tuple[float, Event]] = deque(maxlen=500)
        self._commands: list[Command] = []  # of the current event, in order
        self._requests = SlotRequests(self.table, self.jobs, self._timers)
        self._stops = Stops(self.table, self.jobs)
        self._now = 0.0
        self._lenient_until = 0.0  # after a pause of this process
        self._started_at = self._heartbeat_at = 0.0

    # ------------------------------------------------------------ the core's interface

    def handle(self, event: Event, now: float) -> Effects[None, Command]:
        self._now = self.table.now = now
        deadline = self._timers.next()
        if deadline is not None and now - deadline >= PAUSED_S:
            self._lenient_until = now + GRACE_AFTER_PAUSE_S
        self._commands.clear()
        if not isinstance(event, Tick | events.TaskExecutorHeartbeat | events.JobMasterHeartbeat):
            self._history.append((now, event))
        self._apply(event)
        if isinstance(event, Tick):
            self._run_timers()
        if self._unsettled and self.workers.outdated and not self.workers.recovers:
            self._replace_outdated()
        self._commands += self._stops.vacate()
        for executor in self._stops.vacated():
            self._shut_down(executor, "it was drained")
        if self._unsettled and not self.workers.recovers:
            self._settle()
        self._commands += self._stops.report()
        return Effects(commands=tuple(self._commands))

    def next_deadline(self) -> float | None:
        return self._timers.next()

    def _apply(self, event: Event) -> None:
        match event:
            case events.Started():
                self._started_at = self._now
                if event.previous_workers is None:
                    self.workers.undiscovered = self.workers.waits_for_discovery = True
                    self._arm(Deadline.DISCOVERY, after_s=self.settings.recovery_timeout_s)
                else:
                    self.workers.recover(event.previous_workers, self._now)
                    self._wait_for_recovering()
                self._unsettled = True
                self._arm_heartbeat()
            case events.TaskExecutorRegistered():
                self._register_executor(event)
            case events.JobMasterRegistered():
                self._register_job_master(event)
            case (
                events.SlotsReported()
                | events.SlotRequestAccepted()
                | events.SlotRequestRejected()
                | events.TaskExecutorHeartbeat()
            ):
                if (
                    executor := self.fence.admit_executor(event, self.table.executors, self._now)
                ) is not None:
                    self._heard_executor(executor, event)
            case (
                events.RequirementsDeclared()
                | events.TaskExecutorReportedLost()
                | events.JobMasterHeartbeat()
            ):
                if (job := self.fence.admit_job(event, self.jobs, self._now)) is not None:
                    self._heard_job(job, event)
            case events.TaskExecutorGone(task_executor_id=task_executor_id):
                executor = self.table.executors.get(task_executor_id)
                if executor is not None and executor.connection is None:
                    self._process_gone(executor)
            case events.StopRequested():
                self._stop_executor(event)
            case events.StopAbandoned(request=request):
                executor, withdrawn = self._stops.abandoned(request)
                self._commands += withdrawn
                if executor is not None:
                    self._uncordon(executor)
            case events.ConnectionClosed(connection=connection):
                self._connection_ended(connection, None)
            case events.ConnectionBroken(connection=connection, cause=cause):
                self._connection_ended(connection, cause)
            case events.PreviousWorkersFound(worker_ids=worker_ids):
                self.workers.recover(worker_ids, self._now)
                self._timers.cancel(Timer(Deadline.DISCOVERY))
                self._wait_for_recovering()
                self._unsettled = True
            case events.DriverImpeded(problem=problem):
                self.workers.impediment = problem
                self._unsettled = True
            case events.WorkerDelayed(worker_id=worker_id, problem=problem):
                self._delayed(worker_id, problem)
            case events.WorkerStarted(worker_id=worker_id):
                if self._armed(Deadline.WORKER_START, worker_id):  # not registered yet
                    self._arm(
                        Deadline.WORKER_START,
                        worker_id,
                        after_s=self.settings.worker_start_timeout_s,
                    )
            case events.WorkerLeaving(worker_id=worker_id):
                self._worker_leaves(worker_id)
            case events.WorkersOutdated(worker_ids=worker_ids):
                self.workers.outdated.update(worker_ids)
                self._unsettled = True
            case (
                events.WorkerStartFailed(worker_id=worker_id, cause=cause)
                | events.WorkerExited(worker_id=worker_id, cause=cause)
            ):
                self._worker_ended(worker_id, cause)
            case events.WorkerLogRead(worker_id=worker_id, log=log):
                if (ended := self._ended.get(worker_id)) is not None:
                    self._explain_loss(ended, log=log)
            case Tick():
                pass
            case _:
                assert_never(event)

    # ------------------------------------------------------------ TaskExecutors

    def _register_executor(self, event: events.TaskExecutorRegistered) -> None:
        if self.fence.repeats(event):
            self._commands.append(commands.Welcome(connection=event.connection))
            return
        executor = self._known_executor(event)
        if executor is None:
            executor = TaskExecutor(
                task_executor_id=event.task_executor_id,
                address=event.address,
                host=event.host,
                pid=event.pid,
                worker_id=event.worker_id,
                total=event.total,
                default_slot=event.default_slot,
                leaving=event.worker_id in self.workers.ending,
            )
            self.table.add(executor, (status.slot_index for status in event.slots))
        executor.address, executor.pid, executor.gone = event.address, event.pid, False
        self.fence.connect_executor(executor, event.connection, self._now)
        self._cancel(Deadline.EXECUTOR_GRACE, executor.task_executor_id)
        if executor.worker_id is not None and executor.gives_slots:
            spec = WorkerSpec(
                slots=len(executor.slots), total=executor.total, default_slot=executor.default_slot
            )
            self.workers.registered(executor.worker_id, spec, self._now)
            self._cancel(Deadline.WORKER_START, executor.worker_id)
            if executor.worker_id in self.workers.leaving:
                self._drain(executor)
        self._commands.append(commands.Welcome(connection=event.connection))
        if executor.leaving:  # the request may have been lost with the old connection
            self._commands.append(
                commands.Shutdown(connection=event.connection, cause="it was released earlier")
            )
        self._reconcile(executor, event.slots)
        for slot in executor.slots.values():
            if slot.state is SlotState.PENDING:  # the request was lost with the old connection
                self._commands += self._requests.send(slot, self._now)
        for job_id in {slot.job_id for slot in executor.slots.values()} | executor.stored_jobs:
            if job_id is not None and (job := self.jobs.get(job_id)) is not None:
                self._introduce(job, executor)
        self._unsettled = True

    def _known_executor(self, event: events.TaskExecutorRegistered) -> TaskExecutor | None:
        """Returns the TaskExecutor that reconnects, if its slots are unchanged."""
        executor = self.table.executors.get(event.task_executor_id)
        if executor is None:
            return None
        self._close(executor, "it has registered on another connection")
        reported = (
            event.total,
            event.default_slot,
            event.worker_id,
            {status.slot_index for status in event.slots},
        )
        if (
            executor.total,
            executor.default_slot,
            executor.worker_id,
            set(executor.slots),
        ) == reported:
            return executor
        self.table.remove(executor)
        return None

    def _heard_executor(self, executor: TaskExecutor, event: events.FromTaskExecutor) -> None:
        match event:
            case events.SlotsReported():
                executor.report_sequence = event.sequence
                self._unsettled |= bool(event.stored_partitions) != bool(executor.stored_partitions)
                executor.stored_partitions = event.stored_partitions
                executor.stored_bytes = event.stored_bytes
                self._keeps_results_of(executor, event.stored_jobs)
                self._reconcile(executor, event.slots)
            case events.SlotRequestAccepted(allocation_id=allocation_id):
                if (slot := self._pending(executor, allocation_id)) is not None:
                    self._requests.accepted(slot)
            case events.SlotRequestRejected(allocation_id=allocation_id):
                if (slot := self._pending(executor, allocation_id)) is not None:
                    self._requests.rejected(slot, self._now)
                    self._unsettled = True
            case events.TaskExecutorHeartbeat():
                pass
            case _:
                assert_never(event)

    def _keeps_results_of(self, executor: TaskExecutor, jobs: frozenset[JobId]) -> None:
        """Introduces the JobMasters of these jobs: the TaskExecutor may still know earlier ones."""
        new, executor.stored_jobs = jobs - executor.stored_jobs, jobs
        for job_id in sorted(new):
            if (job := self.jobs.get(job_id)) is not None:
                self._unsettled = True
                self._introduce(job, executor)

    def _pending(self, executor: TaskExecutor, allocation_id: AllocationId) -> Slot | None:
        slot = self.table.slot_of(allocation_id)
        if slot is None or slot.executor is not executor or slot.state is not SlotState.PENDING:
            self.fence.drop("answer to a slot request that is settled or abandoned")
            return None
        return slot

    def _reconcile(self, executor: TaskExecutor, statuses: tuple[SlotStatus, ...]) -> None:
        result = self.table.reconcile(executor, statuses)
        for allocation_id in result.doubled:
            self.fence.drop("allocation reported on two slots")
            if executor.connection is not None:
                cause = "the allocation is held by another slot"
                self._commands.append(
                    commands.FreeSlot(
                        connection=executor.connection, allocation_id=allocation_id, cause=cause
                    )
                )
        for slot in result.given_up:
            self._requests.pause(slot, self._now)
        self._unsettled |= result.changed

    def _close(self, peer: TaskExecutor | RegisteredJob, cause: str) -> None:
        """Closes the peer's connection, if it has one."""
        if (connection := self.fence.disconnect(peer)) is not None:
            self._commands.append(commands.CloseConnection(connection=connection, cause=cause))

    def _lose_executor(self, executor: TaskExecutor, cause: str) -> None:
        """Declares the TaskExecutor dead for all JobMasters, whatever may still run there."""
        self._close(executor, cause)
        self._commands += self._stops.ended(executor, cause)
        self.table.remove(executor)
        self._cancel(Deadline.EXECUTOR_GRACE, executor.task_executor_id)
        self._cancel(Deadline.IDLE, executor.task_executor_id)
        for job in self.jobs.values():
            if job.connection is None:
                job.lost_meanwhile.append(LostExecutor(executor.task_executor_id, cause))
            else:
                self._notify_lost(job.connection, executor.task_executor_id, cause)
        if executor.worker_id is not None and self.workers.failed(
            executor.worker_id, cause, self._now
        ):
            self.workers.released(executor.worker_id)
            self._commands.append(
                commands.ReleaseWorker(worker_id=executor.worker_id, cause=cause, failed=True)
            )
            self.lost_workers[executor.worker_id] = executor.task_executor_id
        self._unsettled = True

    def _process_gone(self, executor: TaskExecutor) -> None:
        """Waits a moment for the driver's verdict, which has the reason."""
        patience_s = self.settings.reason_patience_s
        if executor.worker_id is None or patience_s == 0:
            self._lose_executor(executor, PROCESS_ENDED)
        elif not executor.gone:
            executor.gone = True
            self._arm(Deadline.EXECUTOR_GRACE, executor.task_executor_id, after_s=patience_s)

    def _judge(self, job: RegisteredJob, report: events.TaskExecutorReportedLost) -> None:
        """Decides on a JobMaster's finding. A TaskExecutor that the SlotManager still hears is
        alive, and only this JobMaster cannot reach it: it loses the job's slots and nothing else.
        """
        executor = self.table.executors.get(report.task_executor_id)
        if executor is None:
            return  # the verdict is on its way, or was sent to an earlier JobMaster
        heard_within_s = HEARTBEATS_MISSED * self.settings.heartbeat_interval_s
        if executor.connection is None or executor.heard_at + heard_within_s < self._now:
            self._lose_executor(executor, report.cause)
            return
        self.fence.drop("verdict of a JobMaster on a TaskExecutor that is heard here")
        cause = f"its JobMaster has lost the TaskExecutor: {report.cause}"
        self._commands += self._requests.take_back(job, executor, cause, self._now)

    def _notify_lost(
        self, connection: Connection, task_executor_id: TaskExecutorId, cause: str
    ) -> None:
        self._commands.append(
            commands.TaskExecutorLost(
                connection=connection, task_executor_id=task_executor_id, cause=cause
            )
        )

    # ------------------------------------------------------------ TaskExecutors that are to stop

    def _stop_executor(self, event: events.StopRequested) -> None:
        executor = self.table.executors.get(event.task_executor_id)
        if executor is None:
            self._refuse_stop(event, "there is no TaskExecutor with this id", unknown=True)
            return
        if event.drain and executor.gives_slots:
            self._cordon(executor)
            missing = self._nowhere(executor)
            if missing and not event.force:
                self._uncordon(executor)
                self._refuse_stop(event, missing)
                return
            self._give_up(executor.slots.values(), "its TaskExecutor is to stop")
        self._stops.wait(executor, event.request, force=event.force)
        if not event.drain and not executor.leaving:
            self._shut_down(executor, "it was stopped (`firesteel stop-task-executor`)")

    def _nowhere(self, executor: TaskExecutor) -> str:
        """Returns why there is no room elsewhere for the tasks of a cordoned TaskExecutor."""
        moving, plan = self._moved(executor)
        growth = self.workers.plan_growth(plan.unmet, self.table.lasting, now=self._now)
        return nowhere(moving, plan, growth, self.table, self.workers)

    def _moved(self, executor: TaskExecutor) -> tuple[list[Need], Plan]:
        """Returns the slots that jobs need in place of those there, and a plan with them."""
        moving = places_of(executor, self.jobs.values(), self.table)
        needs = [*self._needs(), *moving]
        return moving, match_slots(self.table.offers(), needs, spread=self.settings.spread)

    def _drain(self, executor: TaskExecutor, *, without_slots: bool = False) -> None:
        """Starts a drain that ends with the end of the TaskExecutor."""
        if executor.gives_slots:
            self._cordon(executor)
        self._give_up(executor.slots.values(), "its TaskExecutor is to stop")
        if not executor.leaving:
            self._stops.start(executor, without_slots=without_slots)

    def _worker_leaves(self, worker_id: WorkerId) -> None:
        """Moves its tasks while there is time, and lets a replacement start."""
        self.workers.leaving.add(worker_id)
        found = [x for x in self.table.executors.values() if x.worker_id == worker_id]
        for executor in found:
            self._drain(executor)
        if not found:
            self.workers.overdue(worker_id)
        self._unsettled = True

    def _replace_outdated(self) -> None:
        """Starts the drain of one worker with an earlier configuration, if no other one is under
        way. Its replacement starts first if the limit on slots allows it.
        """
        begin_at = self._started_at + REGISTRATION_S  # the masters change as well
        if self._now < begin_at:
            self._arm(Deadline.SETTLE, after_s=begin_at - self._now)
            return
        outdated = [
            x for x in self.table.executors.values() if x.worker_id in self.workers.outdated
        ]
        busy = any(not executor.gives_slots for executor in outdated) or self.workers.starting
        connected = [executor for executor in outdated if executor.connection is not None]
        if busy or not connected:
            return
        executor = min(connected, key=lambda each: each.taken)
        self._cordon(executor)
        moving, plan = self._moved(executor)
        fits = not {need.job_id for need in moving} & {need.job_id for need in plan.unmet}
        room = self.table.total + len(executor.slots) <= self.workers.slots_limit
        self._drain(executor, without_slots=not fits and not room)

    def _refuse_stop(
        self, event: events.StopRequested, problem: str, *, unknown: bool = False
    ) -> None:
        self._commands.append(
            commands.StopRefused(request=event.request, problem=problem, unknown=unknown)
        )

    def _give_up(self, slots: Iterable[Slot], cause: str) -> None:
        self._commands += self._requests.give_up_all(slots, cause, self._now)

    def _cordon(self, executor: TaskExecutor) -> None:
        executor.draining = self._unsettled = True
        if executor.worker_id is not None:
            self.workers.cordon(executor.worker_id)

    def _uncordon(self, executor: TaskExecutor) -> None:
        executor.draining, self._unsettled = False, True
        if executor.worker_id is not None:
            self.workers.uncordon(executor.worker_id)

    def _shut_down(self, executor: TaskExecutor, cause: str) -> None:
        executor.leaving, executor.draining = True, False
        if executor.connection is not None:
            self._commands.append(commands.Shutdown(connection=executor.connection, cause=cause))
        if executor.worker_id is not None:
            self.workers.released(executor.worker_id)
            self._commands.append(commands.ReleaseWorker(worker_id=executor.worker_id, cause=cause))
        self._unsettled = True

    # ------------------------------------------------------------ JobMasters

    def _register_job_master(self, event: events.JobMasterRegistered) -> None:
        if self.fence.repeats(event):
            self._commands.append(commands.Welcome(connection=event.connection))
            return
        if self.fence.superseded(event):
            cause = f"a JobMaster of job {event.job_id} with a higher epoch has registered"
            self._commands.append(
                commands.CloseConnection(connection=event.connection, cause=cause)
            )
            return
        job = self.jobs.get(event.job_id)
        if job is None:
            job = RegisteredJob(
                job_id=event.job_id, name=event.job_name, address=event.address, epoch=event.epoch
            )
            self.jobs[event.job_id] = job
        self._close(job, "its JobMaster has registered on another connection")
        if (job.epoch, job.address) != (
            event.epoch,
            event.address,
        ):  # another process: it declares from the start
            self._give_up(self.table.slots_of(job.job_id), "its JobMaster was replaced")
            job.sequence, job.requirements = -1, ()
        job.epoch, job.address, job.name = event.epoch, event.address, event.job_name
        job.shortage, job.told_holders = None, None
        self.fence.connect_job(job, event.connection, self._now)
        self._cancel(Deadline.JOB_GRACE, job.job_id)
        self._commands.append(commands.Welcome(connection=event.connection))
        for task_executor_id, cause in job.lost_meanwhile:
            self._notify_lost(event.connection, task_executor_id, cause)
        job.lost_meanwhile.clear()
        for executor in self._holders(job):
            self._introduce(job, executor)
        if job.epoch > 1:  # it takes the job over
            complete_at = self._started_at + REGISTRATION_S
            self._arm(Deadline.HOLDERS, job.job_id, after_s=max(0.0, complete_at - self._now))
        self._unsettled = True

    def _holders(self, job: RegisteredJob) -> list[TaskExecutor]:
        """Returns the TaskExecutors with slots of the job, requests for them, or results."""
        found = {slot.executor.task_executor_id for slot in self.table.slots_of(job.job_id)}
        executors = self.table.executors
        found |= {
            each for each, executor in executors.items() if job.job_id in executor.stored_jobs
        }
        return [executors[each] for each in sorted(found)]

    def _introduce(self, job: RegisteredJob, executor: TaskExecutor) -> None:
        """Names the job's JobMaster to the TaskExecutor, which may still know an earlier one."""
        if executor.connection is not None:
            self._commands.append(
                commands.JobMasterChanged(
                    connection=executor.connection,
                    job_id=job.job_id,
                    job_master_address=job.address,
                    job_master_epoch=job.epoch,
                )
            )

    def _tell_holders(self, job: RegisteredJob) -> None:
        holders = tuple(executor.task_executor_id for executor in self._holders(job))
        if job.connection is not None and holders != job.told_holders:
            job.told_holders = holders
            self._commands.append(
                commands.SlotHolders(connection=job.connection, task_executor_ids=holders)
            )

    def _heard_job(self, job: RegisteredJob, event: events.FromJobMaster) -> None:
        match event:
            case events.RequirementsDeclared():
                job.sequence, job.requirements, job.environment = (
                    event.sequence,
                    event.requirements,
                    event.environment,
                )
                if job.requirements:  # it knows its slots, or does not need the list
                    job.told_holders = None
                if self.settings.requirements_delay_s > 0:
                    self._arm(Deadline.SETTLE, after_s=self.settings.requirements_delay_s)
                else:
                    self._unsettled = True
            case events.TaskExecutorReportedLost():
                self._judge(job, event)
            case events.JobMasterHeartbeat():
                pass
            case _:
                assert_never(event)

    def _lose_job(self, job: RegisteredJob, cause: str) -> None:
        """Drops the job's requirements. Its slots become free once their TaskExecutors report them
        so.
        """
        self._close(job, cause)
        self._cancel(Deadline.JOB_GRACE, job.job_id)
        self._cancel(Deadline.HOLDERS, job.job_id)
        self._give_up(self.table.slots_of(job.job_id), cause)
        del self.jobs[job.job_id]
        self._unsettled = True

    # ------------------------------------------------------------ streams and workers that end

    def _connection_ended(self, connection: Connection, broken: str | None) -> None:
        """Handles the end of a connection. `broken` says why it broke; None means that the peer
        closed it in order and does not come back.
        """
        if (task_executor_id := self.fence.executor_on.get(connection)) is not None:
            executor = self.table.executors[task_executor_id]
            self.fence.disconnect(executor)
            if broken is None:
                self._lose_executor(executor, "it closed its connection to the ResourceManager")
            else:
                self._arm(Deadline.EXECUTOR_GRACE, task_executor_id, after_s=self._grace_s)
                self._commands.append(
                    commands.ProbeTaskExecutor(
                        task_executor_id=task_executor_id, address=executor.address
                    )
                )
        elif (job_id := self.fence.job_on.get(connection)) is not None:
            job = self.jobs[job_id]
            self.fence.disconnect(job)
            if broken is None:
                self._lose_job(job, "its JobMaster closed its connection")
            else:
                self._arm(Deadline.JOB_GRACE, job_id, after_s=self._grace_s)

    @property
    def _grace_s(self) -> float:
        """How long a peer whose stream has broken may take to reconnect."""
        return max(RECONNECT_GRACE_S, self._lenient_until - self._now)

    def _worker_ended(self, worker_id: WorkerId, cause: str) -> None:
        self._cancel(Deadline.WORKER_START, worker_id)
        self.workers.failed(worker_id, cause, self._now)
        self.workers.ending.discard(worker_id)
        lost = self.lost_workers.pop(worker_id, None)
        if lost is not None:  # the verdict did not wait for the reason
            self.workers.last_end = cause
            self._ended[worker_id] = lost
            self._explain_loss(lost, cause=cause)
        for executor in [x for x in self.table.executors.values() if x.worker_id == worker_id]:
            self._ended[worker_id] = executor.task_executor_id
            self._lose_executor(executor, cause)
        while len(self._ended) > _ENDED_MAX:
            self._ended.popitem(last=False)
        self._unsettled = True

    def _explain_loss(self, lost: TaskExecutorId, *, cause: str = "", log: str = "") -> None:
        self._commands += [
            commands.LossExplained(connection=c, task_executor_id=lost, cause=cause, log=log)
            for job in self.jobs.values()
            if (c := job.connection) is not None
        ]

    def _delayed(self, worker_id: WorkerId, problem: str) -> None:
        worker = self.workers.known.get(worker_id)
        if worker is not None and worker.state is WorkerState.STARTING:
            shown, worker.problem = self.workers.problem, problem
            self._unsettled |= self.workers.problem != shown

    # ------------------------------------------------------------ match, scale, notify

    def _settle(self) -> None:
        """Acts on the current facts; runs after every change of them."""
        self._unsettled = False
        for job in self.jobs.values():
            if job.told_holders is not None:
                self._tell_holders(job)
        plan = self._match()
        self.missing = plan.missing
        growth = self._scale(plan)
        self._notify_jobs(plan, growth)

    def _needs(self) -> list[Need]:
        """Returns the unmet requirements of each connected job."""
        needs = []
        for job in self.jobs.values():
            if job.connection is None or not job.requirements:
                continue
            if lacking := unmet(job.requirements, self.table.held_by(job.job_id)):
                needs.append(job.need(lacking))
        return needs

    def _match(self) -> Plan:
        needs = self._needs()
        if not needs:
            return Plan()
        plan = match_slots(self.table.offers(), needs, spread=self.settings.spread)
        for assignment in plan.assignments:
            slot = self.table.executors[assignment.task_executor_id].slots[assignment.slot_index]
            allocation_id = AllocationId(self._ids.next(AllocationId))
            self.table.request(slot, allocation_id, assignment.job_id, assignment.profile)
            self._commands += self._requests.send(slot, self._now)
        return plan

    def _scale(self, plan: Plan) -> Growth:
        growth = self.workers.plan_growth(plan.unmet, self.table.lasting, now=self._now)
        for _ in range(growth.workers_to_start):
            worker = self.workers.request(self._now)
            self._commands.append(commands.RequestWorker(worker_id=worker.worker_id))
            self._arm(
                Deadline.WORKER_START,
                worker.worker_id,
                after_s=self.settings.worker_start_timeout_s,
            )
        if self.workers.not_before > self._now:
            self._arm(Deadline.SETTLE, after_s=self.workers.not_before - self._now)
        surplus = self.workers.may_release()
        for executor in self.table.executors.values():
            if executor.worker_id is None or not executor.gives_slots:
                continue
            if not executor.idle or not surplus:
                self._cancel(Deadline.IDLE, executor.task_executor_id)
            elif not self._armed(Deadline.IDLE, executor.task_executor_id):
                self._arm(
                    Deadline.IDLE, executor.task_executor_id, after_s=self.settings.idle_timeout_s
                )
        return growth

    def _release_idle(self, executor: TaskExecutor) -> None:
        if (
            executor.worker_id is None
            or not executor.idle
            or not executor.gives_slots
            or not self.workers.may_release()
        ):
            return
        self._shut_down(executor, f"it was idle for {self.settings.idle_timeout_s:g} s")

    def _notify_jobs(self, plan: Plan, growth: Growth) -> None:
        """Sends every job that lacks slots the reason, if it differs from the one sent last."""
        lacking = {need.job_id: need for need in plan.unmet}
        for job in self.jobs.values():
            need = lacking.get(job.job_id)
            if need is None or job.connection is None:
                job.shortage = None
                continue
            shortage = commands.NotEnoughResources(
                connection=job.connection,
                sequence=job.sequence,
                missing=sum(requirement.count for requirement in need.requirements),
                growing=growth.growing.get(job.job_id, 0),
                explanation=explain(need, self.table, self.workers, growth),
            )
            if shortage != job.shortage:
                job.shortage = shortage
                self._commands.append(shortage)

    # ------------------------------------------------------------ time

    def _run_timers(self) -> None:
        for kind, subject, index in self._timers.due(self._now):
            match kind:
                case Deadline.HEARTBEAT:
                    self._heartbeat()
                case Deadline.EXECUTOR_GRACE:
                    executor = self.table.executors[TaskExecutorId(subject)]
                    broke = "its connection broke, and it did not reconnect in time"
                    self._lose_executor(executor, PROCESS_ENDED if executor.gone else broke)
                case Deadline.JOB_GRACE:
                    self._lose_job(self.jobs[JobId(subject)], "its JobMaster's connection broke")
                case Deadline.HOLDERS:
                    if (job := self.jobs.get(JobId(subject))) is not None:
                        self._tell_holders(job)
                case Deadline.REQUEST:
                    allocation_id = AllocationId(subject)
                    self._commands += self._requests.overdue(allocation_id, self._now)
                    self._unsettled |= self.table.slot_of(allocation_id) is None
                case Deadline.UNCLEAR:
                    self._unsettled |= self._requests.pause_over(TaskExecutorId(subject), index)
                case Deadline.IDLE:
                    self._release_idle(self.table.executors[TaskExecutorId(subject)])
                case Deadline.WORKER_START if WorkerId(subject) in self.workers.recovering:
                    # Its tasks may run although it cannot reach this ResourceManager.
                    self.workers.overdue(WorkerId(subject))
                    self._arm(
                        Deadline.WORKER_START,
                        WorkerId(subject),
                        after_s=self.settings.worker_start_timeout_s,
                    )
                    self._unsettled = True
                case Deadline.WORKER_START:
                    cause = "it did not register in time"
                    if (known := self.workers.known.get(WorkerId(subject))) and known.problem:
                        cause += f": {known.problem}"
                    self._commands.append(
                        commands.ReleaseWorker(
                            worker_id=WorkerId(subject), cause=cause, failed=True
                        )
                    )
                    self._worker_ended(WorkerId(subject), cause)
                    self.workers.released(WorkerId(subject))
                case Deadline.DISCOVERY:
                    self.workers.waits_for_discovery = False
                    self._unsettled = True
                case Deadline.SETTLE:
                    self._unsettled = True
                case _:
                    assert_never(kind)

    def _wait_for_recovering(self) -> None:
        for worker_id in sorted(self.workers.recovering):
            self._arm(Deadline.WORKER_START, worker_id, after_s=self.settings.recovery_timeout_s)

    def _arm_heartbeat(self) -> None:
        interval_s = self.settings.heartbeat_interval_s
        self._heartbeat_at = self._now + interval_s
        self._arm(Deadline.HEARTBEAT, after_s=interval_s)

    def _heartbeat(self) -> None:
        if self._now - self._heartbeat_at > self.settings.heartbeat_interval_s:
            # While the SlotManager did not act, no TaskExecutor could register.
            self._wait_for_recovering()
        self._arm_heartbeat()
        silent_since = self._now - self.settings.heartbeat_timeout_s
        cause = f"it has been silent for {self.settings.heartbeat_timeout_s:g} s"
        for executor in list(self.table.executors.values()):
            if executor.connection is not None and executor.heard_at < silent_since:
                self._lose_executor(executor, cause)
        for job in list(self.jobs.values()):
            if job.connection is not None and job.heard_at < silent_since:
                self._lose_job(job, cause)
        for connection in (*self.fence.executor_on, *self.fence.job_on):
            self._commands.append(commands.SendHeartbeat(connection=connection))

    def _arm(self, kind: Deadline, subject: str = "", index: int = 0, *, after_s: float) -> None:
        self._timers.set(Timer(kind, subject, index), self._now + after_s)

    def _armed(self, kind: Deadline, subject: str, index: int = 0) -> bool:
        return Timer(kind, subject, index) in self._timers

    def _cancel(self, kind: Deadline, subject: str) -> None:
        self._timers.cancel(Timer(kind, subject))

    # ------------------------------------------------------------ invariants

    def story(self, of: str) -> list[str]:
        """Returns how the slot with this allocation came to its state; for any other id, the recent
        events that contain it.
        """
        if (slot := self.table.slot_of(AllocationId(of))) is not None:
            return slot.story()
        return [f"{at:.3f} {event}" for at, event in self._history if of in repr(event)]

    def validate(self) -> None:
        """Raises AssertionError with the violated invariants and the last events. O(slots)."""
        found = self.table.violations() + self.fence.violations(self.table.executors, self.jobs)
        for executor in self.table.executors.values():
            if executor.connection is None and not self._armed(
                Deadline.EXECUTOR_GRACE, executor.task_executor_id
            ):
                name = f"TaskExecutor {executor.task_executor_id}"
                found.append(f"{name} is disconnected, and no timer ends it")
            for slot in executor.slots.values():
                if slot.state is SlotState.PENDING and not self._armed(
                    Deadline.REQUEST, str(slot.allocation_id)
                ):
                    found.append(f"{slot}: no timer ends its wait")
                if slot.state is SlotState.UNCLEAR and not self._armed(
                    Deadline.UNCLEAR, executor.task_executor_id, slot.index
                ):
                    found.append(f"{slot}: no timer clears it")
        for job in self.jobs.values():
            if job.connection is None and not self._armed(Deadline.JOB_GRACE, job.job_id):
                found.append(f"job {job.job_id} is disconnected, and no timer ends it")
        if found:
            story = "\n".join(f"  {at:.3f} {event}" for at, event in list(self._history)[-30:])
            raise AssertionError("\n".join([*found, "after", story]))
