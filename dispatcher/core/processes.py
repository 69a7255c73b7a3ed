"""The JobMaster processes: which run, which job each has, and when to start another.

A process serves one job. Some are started beforehand (spares), so that a job does not wait for an
interpreter:

    StartProcess ──▶ started ──▶ registered (spare) ──▶ assigned ──▶ acknowledged ──▶ exited
                        │              │                    │
                        └──────────────┴── exits: replaced  └── exits: its job has failed

Starts that fail in a row delay the next start more and more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from dispatcher.core.jobs import Violation
from firesteel.common.backoff import Backoff
from firesteel.common.ids import JobId, JobMasterId

START_BACKOFF_S = 0.5
START_BACKOFF_MAX_S = 30.0
STARTS_BEFORE_GIVING_UP = 3  # then the jobs that wait for a process fail
STARTING_MAX = 4  # interpreters brought up at the same time
STORY_MAX = 20


@dataclass(slots=True, kw_only=True)
class JobMasterProcess:
    pid: int
    child: bool = False  # started by this Dispatcher, which therefore learns of its exit
    log_path: str = ""
    job_master_id: JobMasterId | None = None
    address: str = ""
    connection: int | None = None
    job_id: JobId | None = None
    acknowledged: bool = False  # its job is over; it is about to exit
    exit_reason: str | None = None  # None: it has not exited
    log_tail: str = ""
    lost_at: float | None = None  # given up then, unless it has (re-)connected
    _story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_MAX), repr=False)

    @property
    def idle(self) -> bool:
        """It has no job, and can still get one."""
        return self.job_id is None and self.exit_reason is None

    def note(self, what: str, now: float) -> None:
        self._story.append(f"{now:.3f} {what}")

    def story(self) -> list[str]:
        return list(self._story)

    def how_it_ended(self) -> str:
        log = f"; its log is {self.log_path}" if self.log_path else ""
        if self.log_tail:
            log += f"; it ends with\n{self.log_tail}"
        if self.exit_reason is None:
            return f"(pid {self.pid}) could not be reached any more{log}"
        return f"(pid {self.pid}) ended with {self.exit_reason}{log}"


class ProcessTable:
    def __init__(self, *, spares: int) -> None:
        self.by_pid: dict[int, JobMasterProcess] = {}
        self.starting = 0  # StartProcess commands without an outcome so far
        self.start_again_at: float | None = None
        self._spares = spares
        self._failed_starts = 0  # in a row
        self._backoff = Backoff(START_BACKOFF_S, START_BACKOFF_MAX_S)

    def __iter__(self) -> Iterator[JobMasterProcess]:
        return iter(self.by_pid.values())

    def get_or_add(self, pid: int) -> JobMasterProcess:
        """Its start and its registration come in either order."""
        return self.by_pid.setdefault(pid, JobMasterProcess(pid=pid))

    def remove(self, process: JobMasterProcess) -> None:
        del self.by_pid[process.pid]

    def on(self, connection: int) -> JobMasterProcess | None:
        return next((p for p in self if p.connection == connection), None)

    def spares(self) -> list[JobMasterProcess]:
        return [p for p in self if p.idle and p.connection is not None]

    def to_start(self, waiting: int) -> int:
        """How many processes to start now, for `waiting` jobs and for spares."""
        if self.start_again_at is not None:
            return 0
        missing = waiting + self._spares - sum(p.idle for p in self) - self.starting
        return max(0, min(missing, STARTING_MAX - self.starting))

    def start_succeeded(self) -> None:
        self._failed_starts = 0
        self._backoff.reset()
        self.start_again_at = None

    def start_failed(self, now: float) -> bool:
        """Delays the next start. True if so many have failed in a row that nothing else helps."""
        self._failed_starts += 1
        self.start_again_at = now + self._backoff.next()
        return self._failed_starts >= STARTS_BEFORE_GIVING_UP

    def violations(self) -> Iterator[Violation]:
        """What must hold of each process by itself, and does not."""
        connections = [p.connection for p in self if p.connection is not None]
        for process in self:
            if process.connection is not None and connections.count(process.connection) > 1:
                yield Violation(process.pid, f"shares connection {process.connection}")
            if process.connection is None and process.lost_at is None:
                yield Violation(process.pid, "is not connected, and has no deadline")
            if process.exit_reason is not None and process.lost_at is None:
                yield Violation(process.pid, "has exited, and has no deadline")
            if process.job_id is not None and process.job_master_id is None:
                yield Violation(process.pid, "has a job, but has never registered")
        if not 0 <= self.starting <= STARTING_MAX:
            yield Violation(0, f"{self.starting} processes start, of at most {STARTING_MAX}")
