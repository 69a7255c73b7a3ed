"""Changes of a job's parallelism, with Flink's names of causes and outcomes, and the measurements
from which the autoscaler decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from firesteel.common.ids import VertexId
from firesteel.common.units import counted

KEPT = 16  # records of a job


class TriggerCause(Enum):
    UPDATE_REQUIREMENT = auto()  # requested by a user or by the autoscaler
    NEW_RESOURCE_AVAILABLE = auto()  # a running job uses more slots
    RECOVERABLE_FAILOVER = auto()  # a job that waits for slots uses fewer


class Outcome(Enum):
    IN_PROGRESS = auto()
    SUCCEEDED = auto()
    EXCEPTION_OCCURRED = auto()  # such as missing slots or a failed checkpoint
    NO_RESOURCES_OR_PARALLELISMS_CHANGE = auto()  # only the bounds have changed
    JOB_FINISHED = auto()
    JOB_FAILING = auto()
    JOB_FAILOVER_RESTARTING = auto()
    JOB_CANCELING = auto()

    @property
    def terminal_state(self) -> str | None:
        """COMPLETED, FAILED or IGNORED; None: the change is in progress."""
        if self is Outcome.IN_PROGRESS:
            return None
        states = {Outcome.SUCCEEDED: "COMPLETED", Outcome.EXCEPTION_OCCURRED: "FAILED"}
        return states.get(self, "IGNORED")


class StageEntered(NamedTuple):
    name: str  # SLOTS, CHECKPOINT, STORING or RESTARTING
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescale:
    """A change of the parallelism, which is by vertex."""

    rescale_id: str
    number: int  # from 1
    trigger: TriggerCause
    before: Mapping[str, int]
    after: Mapping[str, int]  # the requested one, until it is known what the slots allow
    lower: Mapping[str, int]
    upper: Mapping[str, int]
    stages: tuple[StageEntered, ...] = field(default=())
    end_ms: int = 0  # 0: in progress
    outcome: Outcome = Outcome.IN_PROGRESS
    reason: str = ""  # of the autoscaler, in words for users
    problem: str = ""  # why the parallelism is unchanged

    @property
    def start_ms(self) -> int:
        return self.stages[0].timestamp_ms

    @property
    def changes(self) -> dict[str, tuple[int, int]]:
        before = self.before
        return {v: (before[v], new) for v, new in self.after.items() if before.get(v, new) != new}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The measurements of a vertex, and the conclusion from them. Rates are records per second."""

    vertex_id: VertexId
    name: str
    parallelism: int
    measured_s: float = 0.0  # the time that the measurements cover; 0: there are none
    busy: float = 0.0
    rate: float = 0.0  # processed
    capacity: float = 0.0  # of all subtasks together; 0: not known
    demand: float = 0.0  # the rate at which records arrive
    backlog: float | None = None  # of a source; None: not known
    catch_up: float = 0.0  # the additional rate for the backlog, or the backlogs of its sources
    back_pressured: float = 0.0
    target: int = 0  # the parallelism that the load needs; 0: not known
    wanted: int = 0  # within the limits; the current parallelism within the band
    decided: int = 0  # after the other rules
    note: str = ""  # why `decided` is not `target`, or what is not known

    def reason(self, utilization: float) -> str:
        """Returns the decision as a sentence. `utilization` is the target."""
        verb = "raised" if self.decided > self.parallelism else "lowered"
        waits = f" {self.backlog:,.0f} wait," if self.backlog and self.backlog >= 1 else ""
        note = f"; {self.note}" if self.note else ""
        to, now = counted(self.decided, "subtask"), counted(self.parallelism, "subtask")
        return (
            f"{self.name!r} is {verb} from {self.parallelism} to {to}, because"
            f" {self.demand:,.0f} records/s arrive,{waits} and {now} can"
            f" process {self.capacity:,.0f} (busy {self.busy:.0%}, target {utilization:.0%}){note}"
        )
