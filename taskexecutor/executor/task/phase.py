"""The phases of a task attempt, and the event that drives each transition (spec 000, spec 001).

    CREATED ─▶ INITIALIZING ─▶ RUNNING ─▶ FINISHING ─▶ DRAINING ─▶ CLOSING ─▶ ENDED
       │            │             │           │            │          │         ▲
       └────────────┴─────────────┴───────────┴────────────┴──────────┴─▶ INTERRUPTED

The JobMaster sees INITIALIZING and RUNNING under these names, FINISHING to INTERRUPTED as RUNNING,
and ENDED as FINISHED, CANCELED or FAILED. A task that reads an initial state is INITIALIZING to the
JobMaster until it has read it.
"""

from __future__ import annotations

from enum import Enum

from firesteel.common.states import IllegalTransition


class TaskPhase(Enum):
    CREATED = 0
    INITIALIZING = 1  # the operators are created, restored and opened
    RUNNING = 2  # the loop processes input
    FINISHING = 3  # event time ends, timers are quiesced, operators finish
    DRAINING = (
        # 4 # EndOfData is sent; the task awaits its acknowledgement and the inputs' EndOfPartition
        4
    )
    CLOSING = 5  # operators and gates are closed, EndOfPartition is sent
    INTERRUPTED = 6  # everything is closed because of a failure or a cancellation
    ENDED = 7  # only the report is left


class TaskEvent(Enum):
    STARTED = 0  # the task's thread has started
    OPENED = 1  # all operators are open
    INPUT_ENDED = 2  # every input has sent EndOfData, or the source is exhausted
    END_OF_DATA_SENT = 3
    ACKNOWLEDGED = 4  # the consumers have taken all data, and all producers have ended
    CLOSED = 5  # all resources are freed
    INTERRUPTED = 6  # a failure or a cancellation


_P, _E = TaskPhase, TaskEvent
TRANSITIONS: dict[TaskPhase, dict[TaskEvent, TaskPhase]] = {
    _P.CREATED: {_E.STARTED: _P.INITIALIZING, _E.INTERRUPTED: _P.INTERRUPTED},
    _P.INITIALIZING: {_E.OPENED: _P.RUNNING, _E.INTERRUPTED: _P.INTERRUPTED},
    _P.RUNNING: {_E.INPUT_ENDED: _P.FINISHING, _E.INTERRUPTED: _P.INTERRUPTED},
    _P.FINISHING: {_E.END_OF_DATA_SENT: _P.DRAINING, _E.INTERRUPTED: _P.INTERRUPTED},
    _P.DRAINING: {_E.ACKNOWLEDGED: _P.CLOSING, _E.INTERRUPTED: _P.INTERRUPTED},
    _P.CLOSING: {_E.CLOSED: _P.ENDED, _E.INTERRUPTED: _P.INTERRUPTED},
    _P.INTERRUPTED: {_E.CLOSED: _P.ENDED},
    _P.ENDED: {},
}


class TaskLifecycle:
    """The phase of one task. Written only by the task's thread."""

    __slots__ = ("_name", "_passed", "phase")

    def __init__(self, name: str) -> None:
        self.phase = TaskPhase.CREATED
        self._name = name
        self._passed: list[TaskPhase] = []

    def on(self, event: TaskEvent) -> None:
        following = TRANSITIONS[self.phase].get(event)
        if following is None:
            raise IllegalTransition(
                f"task {self._name}: {event.name} cannot happen while {self.phase.name}; it was"
                f" {', '.join(phase.name for phase in self._passed) or 'nothing'} before"
            )
        self._passed.append(self.phase)
        self.phase = following
