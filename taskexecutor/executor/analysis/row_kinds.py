"""Keeps the column `row_kind` with its rows.

Behind windows whose results may go away (firesteel.row_kind), a row without its kind would mean
something else: a deleted row would be one more row. So each operator behind them must pass the
column on, and none may aggregate such rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.common.job_graph import JobEdge, Partitioner
from firesteel.errors import FiresteelError
from firesteel.plan.specs import (
    DropDuplicatesSpec,
    PartialWindowAggregateSpec,
    SinkSpec,
    Spec,
    WindowApplySpec,
    WindowTopNSpec,
)
from firesteel.row_kind import DELETE, ROW_KIND
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_AGGREGATING = (
    PartialWindowAggregateSpec,
    WindowApplySpec,
    WindowTopNSpec,
    DropDuplicatesSpec,
)
_WHY = (
    f"whose column {ROW_KIND} says which of them late records have made invalid ({DELETE!r}), "
    "because of allowed_lateness"
)


def check_not_aggregating(step: AnalysisStep, spec: Spec) -> None:
    """Raises FiresteelError for an operator that would take a deleted row for one more row."""
    retracting = next((given for given in step.inputs if given.retracting), None)
    if retracting is not None and isinstance(spec, _AGGREGATING):
        raise FiresteelError(
            f"{step.operator_name}: it would count rows of {retracting.retracting!r} that are no "
            f"longer valid: those are rows {_WHY}; leave out allowed_lateness there"
        )


def retracting(step: AnalysisStep, spec: Spec, output: AnalyzedOutput) -> str:
    """The name of the window before whose rows may go away in this operator's output; "" if there
    is none.

    Raises FiresteelError if the operator loses the column that tells.
    """
    for given in step.inputs:
        if not given.retracting or isinstance(spec, SinkSpec):
            continue
        schema = output.schema
        if schema is None or ROW_KIND not in schema.names:
            raise FiresteelError(
                f"{step.operator_name}: it drops the column {ROW_KIND}, and its input has rows of "
                f"{given.retracting!r}, {_WHY}; keep the column, unchanged"
            )
        if schema.field(ROW_KIND).type != pa.string():
            raise _changes(step, given)
        return given.retracting
    return output.retracting


def check_order(edge: JobEdge, consumers: int, output: AnalyzedOutput) -> None:
    """Raises FiresteelError if a deleted row could overtake, or be overtaken by, one that replaces
    it. `consumers`: the parallelism behind the edge.
    """
    if output.retracting and consumers > 1 and edge.partitioner in _WITHOUT_ORDER:
        raise FiresteelError(
            f"rows of {output.retracting!r} would arrive out of order at the {consumers} subtasks "
            f"behind {edge.partitioner.name.lower()}: they are rows {_WHY}; "
            "give the next operator the same parallelism or 1, or put key_by(...) before it"
        )


_WITHOUT_ORDER = (Partitioner.REBALANCE, Partitioner.RESCALE)


def check_transform(step: AnalysisStep, given: DataFrame, result: DataFrame) -> None:
    """Raises FiresteelError if a transform replaces the column by another of the same name."""
    if step.inputs[0].retracting and _column_ids(result) - _column_ids(given):
        raise _changes(step, step.inputs[0])


def _column_ids(frame: DataFrame) -> set[int]:
    plan: Any = frame._jdf.queryExecution()
    columns = plan.analyzed().output()
    found = [columns.apply(index) for index in range(columns.size())]
    return {column.exprId().id() for column in found if column.name() == ROW_KIND}


def _changes(step: AnalysisStep, given: AnalyzedOutput) -> FiresteelError:
    return FiresteelError(
        f"{step.operator_name}: it changes the column {ROW_KIND} of its input, rows of "
        f"{given.retracting!r}, {_WHY}; keep the column as it is"
    )
