"""Process functions of the program, with states and timers per key, on the task's thread."""

from __future__ import annotations

from firesteel.operators import BroadcastProcessSpec, CoProcessSpec, ProcessSpec
from taskexecutor.executor.operators.process.analysis import analyze_co_process, analyze_process
from taskexecutor.executor.operators.process.broadcast import BroadcastProcess
from taskexecutor.executor.operators.process.process import CoProcess, Process
from taskexecutor.executor.operators.registry import OperatorKind, alone

KINDS = (
    OperatorKind(ProcessSpec, analyze_process, alone(Process)),
    OperatorKind(CoProcessSpec, analyze_co_process, alone(CoProcess)),
    OperatorKind(BroadcastProcessSpec, analyze_process, alone(BroadcastProcess)),
)
