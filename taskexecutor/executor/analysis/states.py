"""What states an operator has, as far as it declares them before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from firesteel.column_names import column_index
from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.operator import StreamOperator
from firesteel.plan.specs import (
    DropDuplicatesSpec,
    RunningAggregateSpec,
    WindowAggregateSpec,
    WindowApplySpec,
    WindowTopNSpec,
)
from taskexecutor.executor.analysis.step import AnalysisStep
from taskexecutor.executor.harness import OperatorHarness
from taskexecutor.executor.spark.schemas import to_spark

IN_COLUMNS = (
    DropDuplicatesSpec,
    RunningAggregateSpec,
    WindowAggregateSpec,
    WindowApplySpec,
    WindowTopNSpec,
)


def states_in_columns(
    operator: StreamOperator, name: str, step: AnalysisStep, output: pa.Schema | None
) -> StateDescriptions:
    """Of an operator of one of the specs `IN_COLUMNS`."""
    harness = OperatorHarness(
        operator,
        [producer.schema for producer in step.inputs],
        output_schema=output,
        name=name,
        spark=step.session,
    )
    harness.initialize()
    harness.close()
    return harness.state.described_rows


def columns_of_key(schema: pa.Schema | None, names: Sequence[str]) -> Any:
    """As Spark's JSON; None if they are not known."""
    if schema is None or any(column_index(schema, name) < 0 for name in names):
        return None
    return to_spark(pa.schema([schema.field(column_index(schema, n)) for n in names])).jsonValue()
