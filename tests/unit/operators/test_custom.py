"""Operators of the program: they emit what they declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from firesteel.common.job_graph import Operator
from firesteel.errors import FiresteelError
from firesteel.operator import Output, StreamOperator
from firesteel.operators import CustomSpec
from firesteel.testing import OperatorHarness
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.operators.registry import create_operator

SCHEMA = pa.schema([("x", pa.int64()), ("y", pa.string())])
BATCH = pa.record_batch([[1, 2], ["a", None]], schema=SCHEMA)
NAMED = Operator(operator_id="0" * 32, name="mine", kind="Custom", spec=b"")  # type: ignore[arg-type]


def emitting(emit: Callable[[Output], None], **declared: Any) -> OperatorHarness:
    class Mine(StreamOperator):
        def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
            emit(self.output)

    operator = create_operator([OpenedOperator(NAMED, CustomSpec(factory=Mine, **declared), None)])
    return OperatorHarness(operator, [SCHEMA], name="mine").open()


def test_custom_operators_come_from_their_factory() -> None:
    made = StreamOperator()
    assert create_operator([OpenedOperator(NAMED, CustomSpec(factory=lambda: made), None)]) is made
    with pytest.raises(FiresteelError, match="mine: the factory returned a str"):
        create_operator([OpenedOperator(NAMED, CustomSpec(factory=str), None)])


def test_columns_are_matched_by_name_and_cast_safely() -> None:
    other = pa.record_batch([["a"], pa.array([7], pa.int8())], names=["y", "x"])
    harness = emitting(lambda output: output.emit(other))
    harness.process(BATCH)
    harness.watermark(5)
    assert harness.batches == [pa.record_batch([[7], ["a"]], schema=SCHEMA)]
    assert harness.watermarks_us == [5]


@pytest.mark.parametrize(
    ("emit", "message"),
    [
        (
            lambda o: o.emit(BATCH.select(["x"])),
            "mine: the operator emits another schema than it declares: "
            "expected x int64, y string; got x int64",
        ),
        (
            lambda o: o.emit(BATCH.set_column(0, "x", pa.array(["u", "v"]))),
            "got x string, y string; column 'x': Failed to parse",
        ),
        (lambda o: o.emit({"x": 1}), "mine: emits a dict; it must emit pyarrow.RecordBatch"),
        (
            lambda o: o.emit_side("odd", BATCH),
            "the operator emits to side output 'odd' another schema .*expected x int64; got x",
        ),
        (
            lambda o: o.emit_side("even", BATCH),
            "emits to the undeclared side output 'even'; declared: odd",
        ),
    ],
)
def test_another_schema_is_an_error_that_shows_both(
    emit: Callable[[Output], None], message: str
) -> None:
    harness = emitting(emit, side_outputs={"odd": pa.schema([("x", pa.int64())])})
    with pytest.raises(FiresteelError, match=message):
        harness.process(BATCH)
    harness.close()
