"""Job and task states with every legal transition (spec 002).

task:
            ┌──────────────────────────── RECONCILING (re-adopted by a new master)
            ▼
CREATED ─▶ SCHEDULED ─▶ DEPLOYING ─▶ INITIALIZING ─▶ RUNNING ─▶ FINISHED
   │           │            │             │             │
   └───────────┴────────────┴──▶ CANCELING ──▶ CANCELED │     (any non-terminal state) ─▶ FAILED
                             ▲────────────┴─────────────┘

job:
INITIALIZING ─▶ CREATED ─▶ RUNNING ─▶ FINISHED
                   │ ▲        │ ▲
                   │ │        ▼ └ RECONCILING
                   │ └─ RESTARTING ◀─ FAILING ─▶ FAILED
                   └──▶ CANCELLING ─▶ CANCELED        (any non-globally-terminal state) ─▶ SUSPENDED
"""

from __future__ import annotations

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

_T = ExecutionState
TASK_TRANSITIONS: dict[ExecutionState, frozenset[ExecutionState]] = {
    _T.CREATED: frozenset(
        {
            _T.SCHEDULED,  # the scheduler asks for its slot
            _T.CANCELED,  # cancelled before anything was asked for it
            _T.FAILED,  # its slot can never be had
            _T.RECONCILING,  # a new master waits for the workers' reports
        }
    ),
    _T.SCHEDULED: frozenset(
        {
            _T.DEPLOYING,  # slot given, deployment sent
            _T.CANCELED,  # cancelled while waiting for a slot: nothing runs yet
            _T.FAILED,  # no slot within slot.request.timeout, or the plan's analysis found an error
        }
    ),
    _T.DEPLOYING: frozenset(
        {
            _T.INITIALIZING,  # the slot's process accepted it and restores state, opens operators
            _T.RUNNING,  # seen when the report of INITIALIZING was lost
            _T.FINISHED,  # seen when the reports between were lost
            _T.CANCELING,  # cancel sent
            _T.FAILED,  # rejected, or its slot died
        }
    ),
    _T.INITIALIZING: frozenset(
        {
            _T.RUNNING,  # all operators are open
            _T.FINISHED,  # seen when the report of RUNNING was lost
            _T.CANCELING,  # cancel sent
            _T.FAILED,  # an operator raised, or its slot died
        }
    ),
    _T.RUNNING: frozenset(
        {
            _T.FINISHED,  # end of all input, closed
            _T.CANCELING,  # cancel sent
            _T.FAILED,  # an operator raised, or its slot died
        }
    ),
    _T.CANCELING: frozenset(
        {
            _T.CANCELED,  # the task has closed, or its slot is gone
            _T.FINISHED,  # it ended by itself before the cancel reached it
            _T.FAILED,  # it raised while closing
        }
    ),
    _T.RECONCILING: frozenset(
        {_T.RUNNING, _T.INITIALIZING, _T.FINISHED, _T.CANCELED, _T.FAILED}
    ),  # as the worker reports
    _T.FINISHED: frozenset(),
    _T.CANCELED: frozenset(),
    _T.FAILED: frozenset(),
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
        """The job is over for every master: clean up, never run again."""
        return self in _TERMINAL_JOB

    @property
    def terminal(self) -> bool:
        """Over for this master, at least (SUSPENDED is only locally terminal)."""
        return self in _TERMINAL_JOB or self is JobStatus.SUSPENDED


_TERMINAL_JOB = frozenset({JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED})

_J = JobStatus
JOB_TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    _J.INITIALIZING: frozenset(
        {
            _J.CREATED,  # the JobMaster has built the ExecutionGraph
            _J.FAILED,  # the JobMaster could not be started
            _J.CANCELLING,  # cancelled before its JobMaster was up
            _J.SUSPENDED,
        }
    ),
    _J.CREATED: frozenset(
        {
            _J.RUNNING,  # scheduling begins
            _J.FAILING,
            _J.CANCELLING,
            _J.RECONCILING,  # a new master found the job running
            _J.SUSPENDED,
        }
    ),
    _J.RUNNING: frozenset(
        {
            _J.FINISHED,  # every task FINISHED
            _J.FAILING,  # a failure that must not, or can no more, be restarted
            _J.RESTARTING,  # a region is restarted
            _J.CANCELLING,
            _J.SUSPENDED,
        }
    ),
    _J.FAILING: frozenset(
        {
            _J.FAILED,  # all tasks terminal, not restartable
            _J.RESTARTING,  # all tasks terminal, restartable
            _J.CANCELLING,
            _J.SUSPENDED,
        }
    ),
    _J.CANCELLING: frozenset({_J.CANCELED, _J.FAILED, _J.SUSPENDED}),
    _J.RESTARTING: frozenset({_J.CREATED, _J.RUNNING, _J.FAILING, _J.CANCELLING, _J.SUSPENDED}),
    _J.RECONCILING: frozenset({_J.RUNNING, _J.FAILING, _J.CANCELLING, _J.SUSPENDED}),
    _J.SUSPENDED: frozenset(),
    _J.FINISHED: frozenset(),
    _J.CANCELED: frozenset(),
    _J.FAILED: frozenset(),
}


class IllegalTransition(Exception):
    """A state machine was asked for a step its table does not have; the message tells the entity's
    story.
    """


def check_task_transition(entity: str, old: ExecutionState, new: ExecutionState) -> None:
    if new not in TASK_TRANSITIONS[old]:
        raise IllegalTransition(
            f"task {entity}: {old.name} -> {new.name} is not a legal transition"
        )


def check_job_transition(entity: str, old: JobStatus, new: JobStatus) -> None:
    if new not in JOB_TRANSITIONS[old]:
        raise IllegalTransition(f"job {entity}: {old.name} -> {new.name} is not a legal transition")
