"""Job and task states, and the events that lead from one state to another (spec 002).

task:
            ┌──────────────────────────── RECONCILING (re-adopted by a new master)
            ▼
CREATED ─▶ SCHEDULED ─▶ DEPLOYING ─▶ INITIALIZING ─▶ RUNNING ─▶ FINISHED
   │           │            │             │             │
   └───────────┴────────────┴──▶ CANCELING ──▶ CANCELED │     (any non-terminal state) ─▶ FAILED
                             ▲────────────┴─────────────┘

job:
INITIALIZING ─▶ CREATED ─▶ RUNNING ─▶ FINISHED
                 │ │ ▲        │ ▲
                 │ │ │        │ └─────────── RECONCILING ◀─ CREATED (under a new master)
                 │ │ │        ▼                  │
                 │ │ └─ RESTARTING ◀─ FAILING    │
                 │ │        ▲            │       │
                 │ │        └────────────┼───────┘
                 │ └──▶ CANCELLING       └─▶ FAILED
                 ▼          └─▶ CANCELED
             SUSPENDED (from any state that is not globally terminal)
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class ExecutionState(Enum):
    CREATED = 0
    SCHEDULED = 1
    DEPLOYING = 2
    INITIALIZING = 3
    RUNNING = 4
    FINISHED = 5
    CANCELING = 6
    CANCELED = 7
    FAILED = 8
    RECONCILING = 9

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL_TASK


_TERMINAL_TASK = frozenset(
    {ExecutionState.FINISHED, ExecutionState.CANCELED, ExecutionState.FAILED}
)


class TaskEvent(Enum):
    """The events that move a task from one state to the next."""

    SCHEDULE = 0  # the scheduler requests its slot
    DEPLOY = 1  # the task has its slot, and its deployment is sent
    REPORTED_INITIALIZING = 2  # its process restores state and opens operators
    REPORTED_RUNNING = 3  # all operators are open
    REPORTED_FINISHED = 4  # all input has ended, and it has closed
    CANCEL = 5  # the task is no longer wanted
    REPORTED_CANCELED = 6  # the task has closed after a cancel, or its slot is gone
    FAIL = 7  # it was rejected or raised, its slot died, or there is no slot for it
    ADOPT = 8  # a new master waits for the report of the worker that runs it
    RESTORED_FINISHED = 9  # it had finished in the checkpoint that is restored
    NOT_BEGUN = 10  # under the previous master, as far as known


_T, _TE = ExecutionState, TaskEvent
# Reports may be lost, so a later one is accepted without those before it.
TASK_TRANSITIONS: dict[ExecutionState, dict[TaskEvent, ExecutionState]] = {
    _T.CREATED: {
        _TE.SCHEDULE: _T.SCHEDULED,
        _TE.CANCEL: _T.CANCELED,  # it has no requests yet
        _TE.FAIL: _T.FAILED,
        _TE.ADOPT: _T.RECONCILING,
        _TE.RESTORED_FINISHED: _T.FINISHED,
    },
    _T.SCHEDULED: {
        _TE.DEPLOY: _T.DEPLOYING,
        _TE.CANCEL: _T.CANCELED,  # nothing runs yet
        _TE.FAIL: _T.FAILED,
    },
    _T.DEPLOYING: {
        _TE.REPORTED_INITIALIZING: _T.INITIALIZING,
        _TE.REPORTED_RUNNING: _T.RUNNING,
        _TE.REPORTED_FINISHED: _T.FINISHED,
        _TE.CANCEL: _T.CANCELING,
        _TE.FAIL: _T.FAILED,
    },
    _T.INITIALIZING: {
        _TE.REPORTED_RUNNING: _T.RUNNING,
        _TE.REPORTED_FINISHED: _T.FINISHED,
        _TE.CANCEL: _T.CANCELING,
        _TE.FAIL: _T.FAILED,
    },
    _T.RUNNING: {
        _TE.REPORTED_FINISHED: _T.FINISHED,
        _TE.CANCEL: _T.CANCELING,
        _TE.FAIL: _T.FAILED,
    },
    _T.CANCELING: {
        _TE.REPORTED_CANCELED: _T.CANCELED,
        _TE.REPORTED_FINISHED: _T.FINISHED,  # the task ended before the cancel reached it
        _TE.FAIL: _T.FAILED,  # it raised while closing
    },
    _T.RECONCILING: {
        _TE.REPORTED_INITIALIZING: _T.INITIALIZING,
        _TE.REPORTED_RUNNING: _T.RUNNING,
        _TE.REPORTED_FINISHED: _T.FINISHED,
        _TE.REPORTED_CANCELED: _T.CANCELED,
        _TE.CANCEL: _T.CANCELED,
        _TE.FAIL: _T.FAILED,
        _TE.NOT_BEGUN: _T.CREATED,
    },
    _T.FINISHED: {},
    _T.CANCELED: {},
    _T.FAILED: {},
}


class JobStatus(Enum):
    INITIALIZING = 0
    CREATED = 1
    RUNNING = 2
    FAILING = 3
    FAILED = 4
    CANCELLING = 5
    CANCELED = 6
    FINISHED = 7
    RESTARTING = 8
    SUSPENDED = 9
    RECONCILING = 10

    @property
    def globally_terminal(self) -> bool:
        """Whether the job is over for every master: it is cleaned up and never runs again."""
        return self in _TERMINAL_JOB

    @property
    def terminal(self) -> bool:
        """Whether it is over for this master at least (SUSPENDED is only locally terminal)."""
        return self in _TERMINAL_JOB or self is JobStatus.SUSPENDED


_TERMINAL_JOB = frozenset({JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED})


class JobEvent(Enum):
    """The events that move a job from one status to the next."""

    BUILD = 0  # its JobMaster has built the ExecutionGraph
    REJECT = 1  # its JobMaster cannot run such a graph
    START = 2  # its tasks are scheduled
    FINISH = 3  # every task is FINISHED
    FAIL = 4  # a task, a slot or the plan failed
    GIVE_UP = 5  # after a failure all tasks have ended, and it is not restarted
    RESTART = 6  # after a failure all tasks have ended, and they are restarted
    SLOTS_READY = 7  # the restarted job has all its slots
    CANCEL = 8  # its user cancels it
    CANCELED = 9  # after a cancel all tasks have ended
    SUSPEND = 10  # this master gives up; another one may take over
    ADOPT = 11  # a new master found it running
    RECONCILED = 12  # the workers have reported its tasks to the new master
    NOT_FOUND = 13  # no worker runs a task of it: it starts from its latest checkpoint


_J, _JE = JobStatus, JobEvent
JOB_TRANSITIONS: dict[JobStatus, dict[JobEvent, JobStatus]] = {
    _J.INITIALIZING: {
        _JE.BUILD: _J.CREATED,
        _JE.REJECT: _J.FAILED,
        _JE.CANCEL: _J.CANCELLING,
        _JE.SUSPEND: _J.SUSPENDED,
    },
    _J.CREATED: {
        _JE.START: _J.RUNNING,
        _JE.FAIL: _J.FAILING,
        _JE.CANCEL: _J.CANCELLING,
        _JE.SUSPEND: _J.SUSPENDED,
        _JE.ADOPT: _J.RECONCILING,
    },
    _J.RUNNING: {
        _JE.FINISH: _J.FINISHED,
        _JE.FAIL: _J.FAILING,
        _JE.CANCEL: _J.CANCELLING,
        _JE.SUSPEND: _J.SUSPENDED,
    },
    _J.FAILING: {
        _JE.GIVE_UP: _J.FAILED,
        _JE.RESTART: _J.RESTARTING,
        _JE.CANCEL: _J.CANCELLING,
        _JE.SUSPEND: _J.SUSPENDED,
    },
    _J.CANCELLING: {
        _JE.CANCELED: _J.CANCELED,
        _JE.GIVE_UP: _J.FAILED,  # its JobMaster died
        _JE.SUSPEND: _J.SUSPENDED,
    },
    _J.RESTARTING: {
        _JE.SLOTS_READY: _J.CREATED,
        _JE.FAIL: _J.FAILING,
        _JE.CANCEL: _J.CANCELLING,
        _JE.SUSPEND: _J.SUSPENDED,
    },
    _J.RECONCILING: {
        _JE.RECONCILED: _J.RUNNING,
        _JE.NOT_FOUND: _J.RESTARTING,
        _JE.FAIL: _J.FAILING,
        _JE.CANCEL: _J.CANCELLING,
        _JE.SUSPEND: _J.SUSPENDED,
    },
    _J.SUSPENDED: {},
    _J.FINISHED: {},
    _J.CANCELED: {},
    _J.FAILED: {},
}


class IllegalTransition(Exception):
    """The event does not occur in this state; the message has the history of the task or job."""


def next_job_status(story: str, status: JobStatus, event: JobEvent) -> JobStatus:
    following = JOB_TRANSITIONS[status].get(event)
    if following is None:
        raise IllegalTransition(f"job {story}: {event.name} is illegal in {status.name}")
    return following


def running_since_ms(changes: Iterable[tuple[JobStatus, int]]) -> int | None:
    """Returns since when a job has been running; None if it is not. `changes` are its statuses and
    when it entered them, oldest first. A JobMaster that adopts the tasks does not interrupt them.
    """
    since_ms, status = None, JobStatus.INITIALIZING
    for status, entered_ms in changes:
        if status is JobStatus.RUNNING:
            since_ms = entered_ms if since_ms is None else since_ms
        elif status not in (JobStatus.INITIALIZING, JobStatus.RECONCILING):
            since_ms = None
    return since_ms if status is JobStatus.RUNNING else None
