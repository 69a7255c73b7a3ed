"""The JobMaster processes: which ones run, which job each serves, and when to start another.

A process serves one job. Some are started in advance (spares), so that a job does not wait for an
interpreter to start:

    StartProcess ──▶ started ──▶ registered (spare) ──▶ assigned ──▶ acknowledged ──▶ exited
                        │              │                    │
                        └──────────────┴── exits: replaced  └── exits: its job has failed

The delay before the next start grows with each consecutive failure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from dispatcher.core.submitted_jobs import Violation
from firesteel.common.backoff import Backoff
from firesteel.common.ids import JobId, JobMasterId

START_BACKOFF_S = 0.5
START_BACKOFF_MAX_S = 30.0
STARTS_BEFORE_GIVING_UP = 3  # after this many, the jobs that wait for a process fail
STARTING_MAX = 4  # interpreters that start concurrently
STORY_MAX = 20


@dataclass(slots=True, kw_only=True)
class JobMasterProcess:
    pid: int
    child: bool = False  # started by this Dispatcher, which is therefore notified of its exit
    log_path: str = ""
    job_master_id: JobMasterId | None = None
    address: str = ""
    connection: int | None = None
    job_id: JobId | None = None
    acknowledged: bool = False  # its job has ended; it is about to exit
    exit_reason: str | None = None  # None: it has not exited
    log_tail: str = ""
    lost_at: float | None = None  # declared lost then, unless it (re-)connects
    _story: deque[str] = field(default_factory=lambda: deque(maxlen=STORY_MAX), repr=False)

    @property
    def idle(self) -> bool:
        """Whether it has no job and can still get one."""
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
            return f"(pid {self.pid}) could no longer be reached{log}"
        return f"(pid {self.pid}) ended with {self.exit_reason}{log}"


class ProcessTable:
    def __init__(self, *, spares: int) -> None:
        self.by_pid: dict[int, JobMasterProcess] = {}
        self.starting = 0  # StartProcess commands without an outcome yet
        self.start_again_at: float | None = None
        self._spares = spares
        self._failed_starts = 0  # in a row
        self._backoff = Backoff(START_BACKOFF_S, START_BACKOFF_MAX_S)

    def __iter__(self) -> Iterator[JobMasterProcess]:
        return iter(self.by_pid.values())

    def get_or_add(self, pid: int) -> JobMasterProcess:
        """Returns the process; its start and its registration arrive in either order."""
        return self.by_pid.setdefault(pid, JobMasterProcess(pid=pid))

    def remove(self, process: JobMasterProcess) -> None:
        del self.by_pid[process.pid]

    def on(self, connection: int) -> JobMasterProcess | None:
        return next((p for p in self if p.connection == connection), None)

    def spares(self) -> list[JobMasterProcess]:
        return [p for p in self if p.idle and p.connection is not None]

    def to_start(self, waiting: int) -> int:
        """Returns the number of processes to start now, for `waiting` jobs and for spares."""
        if self.start_again_at is not None:
            return 0
        missing = waiting + self._spares - sum(p.idle for p in self) - self.starting
        return max(0, min(missing, STARTING_MAX - self.starting))

    def start_succeeded(self) -> None:
        self._failed_starts = 0
        self._backoff.reset()
        self.start_again_at = None

    def start_failed(self, now: float) -> bool:
        """Delays the next start. True if jobs that wait for a process should fail."""
        self._failed_starts += 1
        self.start_again_at = now + self._backoff.next()
        return self._failed_starts >= STARTS_BEFORE_GIVING_UP

    def violations(self) -> Iterator[Violation]:
        """Yields the invariants that a single process violates."""
        connections = [p.connection for p in self if p.connection is not None]
        for process in self:
            if process.connection is not None and connections.count(process.connection) > 1:
                yield Violation(process.pid, f"shares connection {process.connection}")
            if process.connection is None and process.lost_at is None:
                yield Violation(process.pid, "is not connected but has no deadline")
            if process.exit_reason is not None and process.lost_at is None:
                yield Violation(process.pid, "has exited but has no deadline")
            if process.job_id is not None and process.job_master_id is None:
                yield Violation(process.pid, "has a job, but has never registered")
        if not 0 <= self.starting <= STARTING_MAX:
            yield Violation(0, f"{self.starting} processes are starting, more than {STARTING_MAX}")
