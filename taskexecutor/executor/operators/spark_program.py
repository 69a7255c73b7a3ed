"""Spark programs: the driver and the executors."""

from __future__ import annotations

from firesteel.operators.spark_program import SparkDriverSpec, SparkExecutorsSpec
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.operators.registry import OperatorKind, alone
from taskexecutor.executor.spark_program.driver import SparkDriver
from taskexecutor.executor.spark_program.executors import SparkExecutor
from taskexecutor.executor.spark_program.standalone import SlotShare


def _analyze(step: AnalysisStep, spec: SparkDriverSpec | SparkExecutorsSpec) -> AnalyzedOutput:
    SlotShare.of(cores=step.engine.cores, heap_bytes=step.engine.heap_bytes)
    return AnalyzedOutput(schema=None)


KINDS = (
    OperatorKind(SparkDriverSpec, _analyze, alone(SparkDriver)),
    OperatorKind(SparkExecutorsSpec, _analyze, alone(lambda spec: SparkExecutor())),
)
