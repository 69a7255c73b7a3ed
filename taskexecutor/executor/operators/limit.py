"""Keeps the first rows of a stream."""

from __future__ import annotations

import pyarrow as pa

from firesteel.operator import OperatorState, StreamOperator
from firesteel.operators import LimitSpec
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.operators.registry import OperatorKind, alone


class Limit(StreamOperator):
    """The state is the number of rows that are still to come."""

    def __init__(self, spec: LimitSpec) -> None:
        self._left = spec.rows
        self._state: list[int] = []

    def initialize_state(self, state: OperatorState) -> None:
        self._state = state.list_state("rows left")
        if self._state:
            (self._left,) = self._state

    def snapshot_state(self, checkpoint_id: int) -> None:
        self._state[:] = [self._left]

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        first = batch.slice(0, self._left)
        if first.num_rows:
            self._left -= first.num_rows
            self.output.emit(first)


def _analyze(step: AnalysisStep, spec: LimitSpec) -> AnalyzedOutput:
    return AnalyzedOutput(schema=step.input_schema)


KINDS = (OperatorKind(LimitSpec, _analyze, alone(Limit)),)
