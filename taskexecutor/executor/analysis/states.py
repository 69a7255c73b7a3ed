"""Finds the states that an operator declares before it runs."""

from __future__ import annotations

import pyarrow as pa

from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.operator import StreamOperator
from taskexecutor.executor.analysis.step import AnalysisStep
from taskexecutor.executor.harness import OperatorHarness


def states_in_columns(
    operator: StreamOperator, name: str, step: AnalysisStep, output: pa.Schema | None
) -> StateDescriptions:
    """Returns the states of an operator whose spec has `state_in_columns`."""
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
