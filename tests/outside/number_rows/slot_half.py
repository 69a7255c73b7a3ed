"""The analysis and the runtime of NumberRowsSpec, which slots import."""

import pyarrow as pa

from firesteel.operator import OperatorState, StreamOperator
from number_rows import NumberRowsSpec
from taskexecutor.executor.analysis.checks import check_keys
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.columnar.schemas import to_arrow
from taskexecutor.executor.operators.registry import OperatorKind, alone


def analyze(step: AnalysisStep, spec: NumberRowsSpec) -> AnalyzedOutput:
    schema = to_arrow(step.frame().frame.schema)
    check_keys(schema, spec.key_columns)
    return AnalyzedOutput(schema=schema.append(pa.field("number", pa.int64())))


class NumberRows(StreamOperator):
    def __init__(self, spec: NumberRowsSpec) -> None:
        self._key_columns = spec.key_columns

    def initialize_state(self, state: OperatorState) -> None:
        self._counts = state.keyed

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        numbers = []
        for row in batch.select(self._key_columns).to_pylist():
            key = tuple(row.values())
            numbers.append((self._counts.get("count", key) or 0) + 1)
            self._counts.put("count", key, numbers[-1])
        self.output.emit(batch.append_column("number", pa.array(numbers, pa.int64())))


KINDS = (OperatorKind(NumberRowsSpec, analyze, alone(NumberRows)),)
