"""A Spark program: its executors learn from the JobMaster where the master of its driver is.

        driver --SparkMasterStarted--> here --SparkMaster--> all executors
      executor --SparkMasterAwaited--> here --SparkMaster--> this executor
    the driver finishes: SparkProgramEnded --> all executors

A driver that restarts has a new master, for which its executors leave the old one. After a lost
stream, or with a new JobMaster, the tasks are requested to resend, and repeat their messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from firesteel.common.ids import AttemptId, OperatorId
from firesteel.common.job_graph import JobGraph
from firesteel.common.operator_messages import (
    SparkMaster,
    SparkMasterStarted,
    SparkProgramEnded,
)

# The kinds of operators whose coordinator this is.
DRIVER, EXECUTORS = "spark-driver", "spark-executors"


class ToExecutor(NamedTuple):
    operator_id: OperatorId
    attempt_id: AttemptId
    message: SparkMaster | SparkProgramEnded


@dataclass(slots=True)
class SparkProgram:
    """The Spark program of a job. It has no operators if the job is of another kind."""

    drivers: frozenset[OperatorId] = frozenset()
    executors: frozenset[OperatorId] = frozenset()
    ui_address: str = ""  # of the running SparkContext; empty: there is none
    ended: bool = False  # with success: no more executors are needed
    _master: SparkMaster = SparkMaster(url="")
    _waiting: dict[AttemptId, OperatorId] = field(default_factory=dict)  # running executors

    @classmethod
    def of(cls, job_graph: JobGraph) -> SparkProgram:
        operators = [o for vertex in job_graph.vertices for o in vertex.operators]
        drivers, executors = (
            frozenset(o.operator_id for o in operators if o.coordinator_kind == kind)
            for kind in (DRIVER, EXECUTORS)
        )
        return cls(drivers, executors)

    def __contains__(self, operator_id: OperatorId) -> bool:
        return operator_id in self.drivers or operator_id in self.executors

    def __bool__(self) -> bool:
        return bool(self.drivers)

    def started(self, report: SparkMasterStarted) -> list[ToExecutor]:
        """The live attempt of the driver has a master."""
        self.ui_address, self.ended = report.ui_address, False
        master = SparkMaster(url=report.url, secret=report.secret)
        if master == self._master:
            return []
        self._master = master
        return self._to_all(master)

    def awaited(self, operator_id: OperatorId, attempt_id: AttemptId) -> list[ToExecutor]:
        """A live attempt of an executor has requested the master."""
        self._waiting[attempt_id] = operator_id
        answer = SparkProgramEnded() if self.ended else self._master
        return [ToExecutor(operator_id, attempt_id, answer)]

    def finished(self, operator_id: OperatorId) -> list[ToExecutor]:
        """A task of this operator has finished: if it is the driver, the program has ended."""
        if operator_id not in self.drivers:
            return []
        self._leave_master(ended=True)
        return self._to_all(SparkProgramEnded())

    def attempt_ended(self, operator_id: OperatorId, attempt_id: AttemptId) -> None:
        """An attempt has failed or was cancelled. Executors keep the master until they get the
        next one.
        """
        self._waiting.pop(attempt_id, None)
        if operator_id in self.drivers:
            self._leave_master(ended=False)

    def start_over(self) -> None:
        """Starts all tasks again."""
        self._leave_master(ended=False)
        self._waiting.clear()

    def _leave_master(self, *, ended: bool) -> None:
        self._master, self.ui_address, self.ended = SparkMaster(url=""), "", ended

    def _to_all(self, message: SparkMaster | SparkProgramEnded) -> list[ToExecutor]:
        return [
            ToExecutor(operator_id, attempt_id, message)
            for attempt_id, operator_id in self._waiting.items()
        ]
