"""What the slot table knows: its slots, its jobs' JobMasters, and the commands of the event now
being handled.

The rules are in the modules that act on it, one subject each: `allocation`, `processes`, `tasks`,
`job_masters`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from firesteel.common.backoff import Backoff
from firesteel.common.ids import (
    AllocationId,
    AttemptId,
    Epoch,
    ExecutorId,
    IdSource,
    JobId,
)
from firesteel.common.resources import ResourceProfile, SlotStatus
from taskexecutor.core.commands import (
    CloseJobMaster,
    Command,
    ReportSlots,
    ToJobMaster,
)
from taskexecutor.core.settings import Settings
from taskexecutor.core.slots import Allocation, ProcessState, Slot, SlotState, Task

MAX_BACKLOG = 10_000  # messages kept for a JobMaster that is not connected just now
ENDED_ALLOCATIONS_KEPT = 1_000


class FilesState(Enum):
    UNKNOWN = "unknown"  # nothing was deployed yet, so nobody said which
    PREPARING = "preparing"
    READY = "ready"


@dataclass(slots=True, kw_only=True)
class Job:
    """A job that has, or just had, slots here, and its JobMaster."""

    job_id: JobId
    address: str
    epoch: Epoch  # of its JobMaster; lower ones are stale
    heard_at: float
    connected: bool = False
    closed: bool = False  # given up: only slots that are being released still refer to it
    disconnected_at: float | None = None  # since when nothing was heard after a break
    backlog: list[ToJobMaster] = field(default_factory=list)  # only while not connected
    files: FilesState = FilesState.UNKNOWN
    job_dir: str = ""
    python_paths: tuple[str, ...] = ()
    single_use: bool = False


class SlotTable:
    def __init__(self, settings: Settings, ids: IdSource) -> None:
        self.settings = settings
        self.ids = ids
        self.slots = [
            Slot(
                index=index,
                start_backoff=Backoff(settings.start_backoff_s, settings.max_start_backoff_s),
            )
            for index in range(settings.slots)
        ]
        self.jobs: dict[JobId, Job] = {}
        self.resource_manager_epoch = Epoch(0)
        self.stopping = False
        self.warm_not_before = 0.0  # free slots' processes; 0: now
        self.ended: OrderedDict[AllocationId, str] = (
            OrderedDict()
        )  # with why; late messages about them are answered
        self.dropped: Counter[str] = Counter()  # stale or late messages, by type
        self._commands: list[Command] = []
        self._sequence = 0
        self._reported: tuple[SlotStatus, ...] = ()
        self.report_due = False

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

    def task(self, job_id: JobId, attempt_id: AttemptId) -> tuple[Slot, Allocation, Task] | None:
        for slot in self.slots:
            allocation = slot.allocation
            if allocation and allocation.job_id == job_id and attempt_id in allocation.tasks:
                return slot, allocation, allocation.tasks[attempt_id]
        return None

    def remaining(self) -> ResourceProfile:
        """What no slot has been allocated."""
        left = self.settings.total
        for slot in self.slots:
            if slot.allocation:
                left = left - slot.allocation.profile
        return left

    def limit(self, slot: Slot) -> ResourceProfile:
        return slot.allocation.profile if slot.allocation else self.settings.default_slot

    def process_in(self, slot: Slot) -> ExecutorId:
        assert slot.process is not None, (
            f"slot {slot.index} ({slot.state.value}) has no process: {'; '.join(slot.story)}"
        )
        return slot.process.executor_id

    # -- what to do about the event

    def command(self, command: Command) -> None:
        self._commands.append(command)

    def to_job_master(self, job_id: JobId, command: ToJobMaster, *, keep: bool = True) -> None:
        job = self.jobs.get(job_id)
        if job is None or job.closed:
            self.dropped[type(command).__name__] += 1
        elif job.connected:
            self._commands.append(command)
        elif keep and len(job.backlog) < MAX_BACKLOG:
            job.backlog.append(command)
        elif keep:
            self.dropped[type(command).__name__] += 1

    def take_commands(self) -> list[Command]:
        """The commands of this event; a slot report comes last, so that it tells the state after
        all of them.
        """
        statuses = self.statuses()
        if self.report_due or statuses != self._reported:
            self._sequence += 1
            self._reported = statuses
            self.report_due = False
            self._commands.append(ReportSlots(sequence=self._sequence, slots=statuses))
        commands, self._commands = self._commands, []
        return commands

    def forget(self, job: Job) -> None:
        """Nothing ties us to it any more."""
        if self.jobs.pop(job.job_id, None) is not None and not job.closed:
            self._commands.append(CloseJobMaster(job_id=job.job_id))

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
            )
            for slot in self.slots
        )

    def remember_ended(self, allocation_id: AllocationId, why: str) -> None:
        self.ended[allocation_id] = why
        while len(self.ended) > ENDED_ALLOCATIONS_KEPT:
            self.ended.popitem(last=False)

    def validate(self) -> None:
        """The invariants that hold after every event; raises AssertionError."""
        allocations = [slot.allocation.allocation_id for slot in self.slots if slot.allocation]
        assert len(allocations) == len(set(allocations)), (
            f"one allocation on two slots: {allocations}"
        )
        executors = [slot.process.executor_id for slot in self.slots if slot.process]
        assert len(executors) == len(set(executors)), f"one process in two slots: {executors}"
        starting = sum(
            1 for slot in self.slots if slot.process and slot.process.state is ProcessState.STARTING
        )
        assert starting <= self.settings.max_starting, f"{starting} processes are starting at once"
        left = self.remaining()
        assert left.cpu_cores >= -1e-6 and left.heap_bytes >= 0 and left.off_heap_bytes >= 0, (
            f"overcommitted: {left}"
        )
        for slot in self.slots:
            _validate_slot(self, slot)


def _validate_slot(table: SlotTable, slot: Slot) -> None:
    story = "; ".join(slot.story)
    assert (slot.allocation is None) == (slot.state is SlotState.FREE), (
        f"slot {slot.index} is {slot.state}: {story}"
    )
    if slot.process:
        assert slot.process.state is not ProcessState.DEAD, (
            f"slot {slot.index} keeps a dead process: {story}"
        )
    if slot.state in (SlotState.ACTIVE, SlotState.RELEASING):
        assert slot.process and slot.process.state in (ProcessState.BUSY, ProcessState.STOPPING), (
            f"slot {slot.index}: {story}"
        )
    elif slot.process:
        assert slot.process.state is not ProcessState.BUSY, (
            f"slot {slot.index} is busy for nobody: {story}"
        )
    if slot.allocation:
        assert slot.allocation.job_id in table.jobs, (
            f"slot {slot.index} serves a job that is not known: {story}"
        )
        if slot.allocation.waiting:
            assert table.jobs[slot.allocation.job_id].files is FilesState.PREPARING, (
                f"slot {slot.index} waits in vain: {story}"
            )
