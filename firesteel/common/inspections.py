"""Inspections: views of a running task and of the threads of processes, which change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from firesteel.common.ids import AttemptId, JobId, VertexId

MAX_SAMPLING_S = 30.0
MAX_ROWS = 100
ROWS_S = 10.0  # how long to wait for rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSampling:
    """Samples the stacks of the task's threads."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSampling:
    """Copies the next rows that the task sends to its consumers, at most `count`."""

    count: int
    seconds: float = ROWS_S


Inspection: TypeAlias = StackSampling | RowSampling


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInspection:
    """A request to inspect the current attempt of a subtask."""

    job_id: JobId
    vertex_id: VertexId
    subtask: int
    inspection: Inspection


class StackFrame(NamedTuple):
    """A function in sampled stacks, below its caller."""

    name: str
    kind: str  # python, jvm or native
    caller: int  # its index among the frames, which is lower; -1: a thread starts here
    on_cpu: int  # samples in which it, or a function that it called, used the CPU
    off_cpu: int  # samples in which it waited


class FlameGraph(NamedTuple):
    samples: int
    seconds: float
    frames: Sequence[StackFrame]


class SampledColumn(NamedTuple):
    name: str
    type: str  # Arrow's name


class SampledRows(NamedTuple):
    columns: Sequence[SampledColumn]
    rows: Sequence[str]  # each a JSON array
    note: str = ""  # why there are fewer rows, or what they are


InspectionResult: TypeAlias = FlameGraph | SampledRows


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectTask:
    """The JobMaster's request to a slot."""

    job_id: JobId
    attempt_ids: tuple[AttemptId, ...]  # one
    inspection_id: str
    inspection: Inspection


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """The slot's answer."""

    request: InspectTask
    result: InspectionResult | None = None
    problem: str = ""  # why there is no result
    busy: bool = False  # because of another inspection


class ThreadStack(NamedTuple):
    process: str  # e.g. "slot-0"
    name: str
    stack: str  # as text, in the form of the language


def problem_with(inspection: Inspection) -> str:
    """Returns why the inspection exceeds its limits; empty if it does not."""
    if not 0 < inspection.seconds <= MAX_SAMPLING_S:
        return f"seconds={inspection.seconds:g}: expected more than 0, at most {MAX_SAMPLING_S:g}"
    if isinstance(inspection, RowSampling) and not 0 < inspection.count <= MAX_ROWS:
        return f"count={inspection.count}: expected 1 to {MAX_ROWS}"
    return ""
