"""The state of the core: slots, the jobs that hold them, their history, and the commands of the
current event.

`SlotTable` drives the state machines and looks things up. The decisions are in one module per
subject: `slot_requests`, `allocations`, `processes`, `tasks`, `job_masters`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple, TypeVar

from firesteel.common.backoff import Backoff
from firesteel.common.fencing import Refusals
from firesteel.common.ids import AllocationId, AttemptId, Epoch, ExecutorId, IdSource, JobId
from firesteel.common.resources import ResourceProfile, SlotStatus
from firesteel.common.states import ExecutionState, IllegalTransition
from taskexecutor.core.commands import CloseJobMaster, Command, ReportSlots, Stored, ToJobMaster
from taskexecutor.core.hosted_jobs import FILES_TRANSITIONS, FilesEvent, FilesState, HostedJob
from taskexecutor.core.settings import Settings
from taskexecutor.core.slots import (
    PROCESS_TRANSITIONS,
    SLOT_TRANSITIONS,
    Allocation,
    ProcessEvent,
    ProcessState,
    Slot,
    SlotEvent,
    SlotProcess,
    SlotState,
    Task,
)

BACKLOG_MAX = 10_000  # messages kept for a JobMaster that is not connected
ENDED_ALLOCATIONS_MAX = 1_000
HISTORY_MAX = 2_000  # transitions, of all slots together

State = TypeVar("State", bound=Enum)
Trigger = TypeVar("Trigger", bound=Enum)


class Happened(NamedTuple):
    at: float
    # the slot's index and the ids of the job, allocation, process and task
    to: tuple[int | str, ...]
    text: str


class RunningTask(NamedTuple):
    slot: Slot
    allocation: Allocation
    task: Task


class SlotTable:
    def __init__(self, settings: Settings, ids: IdSource) -> None:
        self.settings = settings
        self.ids = ids
        self.now = 0.0  # time of the current event
        self.slots = [
            Slot(
                index=index,
                start_backoff=Backoff(settings.start_backoff_s, settings.max_start_backoff_s),
            )
            for index in range(settings.slots)
        ]
        self.jobs: dict[JobId, HostedJob] = {}
        self.resource_manager_epoch = Epoch(0)
        self.stopping = False
        self.warm_not_before = 0.0  # processes of free slots start after this; 0: now
        # Maps ended allocations to the reason, which answers late messages about them.
        self.ended: OrderedDict[AllocationId, str] = OrderedDict()
        self.dropped: Counter[str] = Counter()  # stale or late messages, by type
        self.refusals = Refusals()  # refusals of replaced masters
        self.report_due = False
        self.stored = Stored()  # partitions stored by all jobs
        self._reported: tuple[object, ...] = ()
        self._report_sequence = 0
        self._commands: list[Command] = []
        self._history: deque[Happened] = deque(maxlen=HISTORY_MAX)

    # -- state machines

    def drive_slot(self, slot: Slot, event: SlotEvent, reason: str = "") -> None:
        slot.state = self._driven(
            SLOT_TRANSITIONS, slot.state, event, reason, f"slot {slot.index}", self._about(slot)
        )

    def drive_process(self, slot: Slot, event: ProcessEvent, reason: str = "") -> None:
        process = self.process_in(slot)
        process.state = self._driven(
            PROCESS_TRANSITIONS,
            process.state,
            event,
            reason,
            f"process {process.executor_id}",
            self._about(slot),
        )

    def drive_files(self, job: HostedJob, event: FilesEvent, reason: str = "") -> None:
        job.files = self._driven(
            FILES_TRANSITIONS, job.files, event, reason, "files", (job.job_id,)
        )

    def set_task_state(self, slot: Slot, task: Task, state: ExecutionState) -> None:
        """Sets the state that the task's process reported. Reports may be lost, so only the
        JobMaster checks their order.
        """
        self.note(
            f"task {task.attempt_id}: {task.state.name} -> {state.name}", slot, task.attempt_id
        )
        task.state = state
        if state.terminal:
            task.cancel_deadline = None

    def note(self, text: str, slot: Slot, *more: str) -> None:
        """Adds an entry to the slot's history."""
        self._history.append(Happened(self.now, (*self._about(slot), *more), text))

    def story(self, of: int | str) -> list[str]:
        """Returns the remembered transitions of a slot (by its index), job, allocation, process or
        task.
        """
        return [f"at {item.at:.3f} s: {item.text}" for item in self._history if of in item.to]

    def _driven(
        self,
        transitions: Mapping[State, Mapping[Trigger, State]],
        state: State,
        event: Trigger,
        reason: str,
        what: str,
        about: tuple[int | str, ...],
    ) -> State:
        following = transitions[state].get(event)
        if following is None:
            story = "; ".join(self.story(about[0]))
            raise IllegalTransition(f"{what} is {state.value}: {event.name} is illegal; {story}")
        why = reason.partition("\n")[0] or event.value
        text = f"{what}: {state.value} -> {following.value} ({event.name}): {why}"
        self._history.append(Happened(self.now, about, text))
        return following

    @staticmethod
    def _about(slot: Slot) -> tuple[int | str, ...]:
        about: tuple[int | str, ...] = (slot.index,)
        if slot.allocation is not None:
            about += (slot.allocation.job_id, slot.allocation.allocation_id)
        if slot.process is not None:
            about += (slot.process.executor_id,)
        return about

    # -- looking things up

    def slot_of(self, allocation_id: AllocationId) -> Slot | None:
        return next((slot for slot in self.slots if slot.holds(allocation_id)), None)

    def slot_running(self, executor_id: ExecutorId) -> Slot | None:
        return next(
            (
                slot
                for slot in self.slots
                if slot.process and slot.process.executor_id == executor_id
            ),
            None,
        )

    def slots_of(self, job_id: JobId) -> list[Slot]:
        return [slot for slot in self.slots if slot.allocation and slot.allocation.job_id == job_id]

    def task(self, job_id: JobId, attempt_id: AttemptId) -> RunningTask | None:
        for slot in self.slots:
            allocation = slot.allocation
            if allocation and allocation.job_id == job_id and attempt_id in allocation.tasks:
                return RunningTask(slot, allocation, allocation.tasks[attempt_id])
        return None

    def process_in(self, slot: Slot) -> SlotProcess:
        """Returns the slot's process, which must exist."""
        assert slot.process is not None, (
            f"slot {slot.index} has no process: {'; '.join(self.story(slot.index))}"
        )
        return slot.process

    def allocation_of(self, slot: Slot) -> Allocation:
        """Returns the slot's allocation, which must exist."""
        assert slot.allocation is not None, (
            f"slot {slot.index} is not allocated: {'; '.join(self.story(slot.index))}"
        )
        return slot.allocation

    def name_of(self, slot: Slot) -> str:
        """Returns the slot's name for messages."""
        return f"slot {slot.index} of TaskExecutor {self.settings.task_executor_id}"

    def remaining(self) -> ResourceProfile:
        """Returns the resources that are not allocated to any slot."""
        left = self.settings.total
        for slot in self.slots:
            if slot.allocation:
                left = left - slot.allocation.profile
        return left

    def limit(self, slot: Slot) -> ResourceProfile:
        return slot.allocation.profile if slot.allocation else self.settings.default_slot

    def statuses(self) -> tuple[SlotStatus, ...]:
        return tuple(
            SlotStatus(
                slot_index=slot.index,
                profile=slot.profile,
                allocation_id=slot.allocation.allocation_id if slot.allocation else None,
                job_id=slot.allocation.job_id if slot.allocation else None,
                warm=slot.process is not None
                and slot.process.state in (ProcessState.READY, ProcessState.BUSY),
                problem=slot.start_problem,
                environment=slot.process.shape.environment.key if slot.process else "",
            )
            for slot in self.slots
        )

    # -- commands

    def command(self, command: Command) -> None:
        self._commands.append(command)

    def to_job_master(self, job_id: JobId, command: ToJobMaster, *, keep: bool = True) -> None:
        """Sends the command, or keeps it until the JobMaster is connected again."""
        job = self.jobs.get(job_id)
        if job is None or job.closed:
            self.dropped[type(command).__name__] += 1
        elif job.connected:
            self._commands.append(command)
        elif keep and len(job.backlog) < BACKLOG_MAX:
            job.backlog.append(command)
        elif keep:
            self.dropped[type(command).__name__] += 1

    def take_commands(self) -> list[Command]:
        """Returns the commands of this event. A slot report comes last, so that it shows the state
        after them.
        """
        statuses, stored = self.statuses(), self.stored
        stored_jobs = tuple(job.job_id for job in self.jobs.values() if job.partitions)
        if self.report_due or (statuses, stored, stored_jobs) != self._reported:
            self._report_sequence += 1
            self._reported = statuses, stored, stored_jobs
            self.report_due = False
            self._commands.append(
                ReportSlots(
                    sequence=self._report_sequence,
                    slots=statuses,
                    stored_partitions=stored.partitions,
                    stored_bytes=stored.size_bytes,
                    stored_jobs=stored_jobs,
                )
            )
        commands, self._commands = self._commands, []
        return commands

    def forget(self, job: HostedJob) -> None:
        if self.jobs.pop(job.job_id, None) is not None and not job.closed:
            self._commands.append(CloseJobMaster(job_id=job.job_id))

    def remember_ended(self, allocation_id: AllocationId, reason: str) -> None:
        self.ended[allocation_id] = reason
        while len(self.ended) > ENDED_ALLOCATIONS_MAX:
            self.ended.popitem(last=False)

    # -- invariants

    def validate(self) -> None:
        """Raises AssertionError if an invariant that holds between events is broken."""
        allocations = [slot.allocation.allocation_id for slot in self.slots if slot.allocation]
        assert len(allocations) == len(set(allocations)), (
            f"an allocation is on two slots: {allocations}"
        )
        assert not set(allocations) & set(self.ended), "an allocation that has ended holds a slot"
        processes = [slot.process for slot in self.slots if slot.process]
        executors = [process.executor_id for process in processes]
        assert len(executors) == len(set(executors)), f"a process is in two slots: {executors}"
        starting = sum(process.state is ProcessState.STARTING for process in processes)
        assert starting <= self.settings.max_starting, (
            f"{starting} processes are starting at the same time"
        )
        left = self.remaining()
        assert left.cpu_cores >= -1e-6 and ResourceProfile().fits_in(
            left if left.cpu_cores >= 0 else left + ResourceProfile(cpu_cores=1)
        ), f"more is allocated than exists: {left}"
        kept = [part.size_bytes for job in self.jobs.values() for part in job.partitions.values()]
        assert self.stored == (len(kept), sum(kept)), f"{self.stored} are counted, {kept} are kept"
        for slot in self.slots:
            broken = self._broken_in_slot(slot)
            assert not broken, f"slot {slot.index}: {broken}; {'; '.join(self.story(slot.index))}"
        for job in self.jobs.values():
            broken = self._broken_in_job(job)
            assert not broken, f"job {job.job_id}: {broken}; {'; '.join(self.story(job.job_id))}"

    def _broken_in_slot(self, slot: Slot) -> str:
        process, allocation = slot.process, slot.allocation
        if (allocation is None) != (slot.state is SlotState.FREE):
            return f"it is {slot.state.value} with allocation {allocation}"
        if process and process.state is ProcessState.DEAD:
            return "it keeps a dead process"
        if process and bool(process.kill_reason) != (process.state is ProcessState.STOPPING):
            return f"its process is {process.state.value} with {process.kill_reason=}"
        used = process is not None and process.state is ProcessState.BUSY
        if slot.state in (SlotState.ACTIVE, SlotState.RELEASING):
            if not used and not (process and process.state is ProcessState.STOPPING):
                return f"it is {slot.state.value} without a process that serves the job"
        elif used:
            return f"it is {slot.state.value}, but its process is busy"
        if allocation is None:
            return ""
        job = self.jobs.get(allocation.job_id)
        if job is None:
            return f"it is allocated to job {allocation.job_id}, which is not known"
        if allocation.waiting and job.files is not FilesState.PREPARING:
            return f"tasks wait for the job's files, which are {job.files.value}"
        if allocation.tasks and slot.state is SlotState.ALLOCATED:
            return "it has tasks, but was not offered"
        if allocation.clean_deadline is not None and slot.state is not SlotState.RELEASING:
            return f"it is {slot.state.value}, but its process is being cleaned"
        if any(t.cancel_deadline is not None and not t.cancelled for t in allocation.running()):
            return "a task that was not cancelled has a deadline to end"
        return ""

    def _broken_in_job(self, job: HostedJob) -> str:
        if job.connected and (job.backlog or job.closed):
            return "its JobMaster is connected, but messages are kept for it or it is given up"
        if job.partitions and job.closed:
            return "its JobMaster is given up, but its results are kept"
        if not self.slots_of(job.job_id) and (job.closed or job.files is not FilesState.UNKNOWN):
            return "it has no slot, but its files or its given-up JobMaster are remembered"
        return ""
