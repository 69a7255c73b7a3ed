"""Operators of the program, whose output must have the declared schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from firesteel.elements import StreamStatus, Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import Output, RuntimeContext, StreamOperator
from firesteel.operators import CustomSpec
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.columnar.schemas import declared
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.operators.map.batches import fit
from taskexecutor.executor.operators.registry import OperatorKind


def custom_operator(spec: CustomSpec, name: str) -> StreamOperator:
    operator = spec.factory()
    if not isinstance(operator, StreamOperator):
        raise FiresteelError(
            f"{name}: the factory returned a {type(operator).__name__}; it must return a "
            "StreamOperator"
        )
    set_up = operator.setup

    def setup(context: RuntimeContext, output: Output) -> None:
        known = context.input_schemas[0] if context.input_schemas else None
        main = context.output_schema or declared(spec.schema, known)
        sides = {tag: declared(schema, known) for tag, schema in spec.side_outputs.items()}
        set_up(context, DeclaredOutput(output, main, sides, context.operator_name))

    operator.setup = setup  # type: ignore[method-assign]
    return operator


class DeclaredOutput:
    """An Output that checks batches against the declared schemas; None is an unknown schema."""

    def __init__(
        self,
        output: Output,
        schema: pa.Schema | None,
        sides: Mapping[str, pa.Schema | None],
        name: str,
    ) -> None:
        self._output = output
        self._schema = schema
        self._sides = sides
        self._name = name

    def emit(self, batch: pa.RecordBatch) -> None:
        self._output.emit(self._fitted(batch, self._schema, ""))

    def emit_side(self, tag: str, batch: pa.RecordBatch) -> None:
        if tag not in self._sides:
            known = ", ".join(self._sides) or "none"
            raise FiresteelError(
                f"{self._name}: emits to the undeclared side output {tag!r}; declared: {known}"
            )
        self._output.emit_side(
            tag, self._fitted(batch, self._sides[tag], f" to side output {tag!r}")
        )

    def emit_watermark(self, watermark: Watermark) -> None:
        self._output.emit_watermark(watermark)

    def emit_status(self, status: StreamStatus) -> None:
        self._output.emit_status(status)

    def _fitted(
        self, batch: pa.RecordBatch, schema: pa.Schema | None, where: str
    ) -> pa.RecordBatch:
        if not isinstance(batch, pa.RecordBatch):
            raise FiresteelError(
                f"{self._name}: emits a {type(batch).__name__}{where}; "
                "it must emit pyarrow.RecordBatch"
            )
        return (
            batch
            if schema is None
            else fit(batch, schema, self._name, f"the operator emits{where}")
        )


def _analyze(step: AnalysisStep, spec: CustomSpec) -> AnalyzedOutput:
    return AnalyzedOutput(schema=step.declared(spec.schema, step.input_schema))


def _create(group: Sequence[OpenedOperator]) -> StreamOperator:
    (opened,) = group
    assert isinstance(opened.spec, CustomSpec)
    return custom_operator(opened.spec, opened.operator.name)


KINDS = (OperatorKind(CustomSpec, _analyze, _create),)
