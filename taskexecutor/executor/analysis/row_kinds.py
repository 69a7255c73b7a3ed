"""Refuses to treat updates of a row as additional rows, and keeps the column `row_kind` with its
rows.

A running aggregate, and a window with allowed lateness, emit a row again when its values change. An
operator that relates rows to each other would count each of these updates, so none may follow.

Updates of a table's row must not overtake each other on their way to the table, because the last
one stays.

Where results may also be deleted (firesteel.row_kind), a row without its kind would change its
meaning: a deletion would become an additional row. Therefore each downstream operator must pass the
column on, and where an operator applies deletions, no upstream operator may have dropped only the
deletions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from firesteel.common.job_graph import JobEdge, Partitioner
from firesteel.connectors import KafkaSink, PostgresSink, Sink
from firesteel.errors import FiresteelError
from firesteel.operators import Spec
from firesteel.row_kind import DELETE, ROW_KIND
from taskexecutor.executor.analysis.dropped_changes import later
from taskexecutor.executor.analysis.step import (
    AnalysisStep,
    AnalyzedOutput,
    Retracting,
    Spread,
    Updating,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_not_aggregating(step: AnalysisStep, spec: Spec) -> None:
    """Raises FiresteelError for an operator that would count a deletion, or an update of a row, as
    an additional row.
    """
    if not spec.counts_rows:
        return
    name = step.operator_name.removesuffix(" partial")
    for number, given in enumerate(step.inputs):
        dropped = given.retracting and given.retracting.dropped
        if given.retracting and dropped and spec.applies_changes:
            raise FiresteelError(
                f"{name}: it would not see all changes of {given.retracting.who!r}, because"
                f" the condition of {dropped.who!r} drops some of them: {dropped.why}; filter "
                f"after {name!r} instead, or, {_OWN_ROWS}"
            )
        if given.retracting and not spec.applies_changes:
            instead = given.retracting.instead
            if dropped and dropped.one_kind:
                instead += f"; or, {_OWN_ROWS}"
            instead = spec.instead_of_changes(number) or instead
            raise FiresteelError(
                f"{name}: it would count rows of {given.retracting.who!r} that are no longer"
                f" valid: those are rows {_why(given.retracting)}; {instead}"
            )
        if given.updating is not None:
            raise FiresteelError(
                f"{name}: it would count each update of {given.updating.who} as an additional "
                f"row, because that emits {given.updating.when}; {given.updating.instead}"
            )


_OWN_ROWS = (
    "if each inserted row is a separate row, drop the column after the filter:"
    f" filter(\"{ROW_KIND} = 'insert'\").drop({ROW_KIND!r})"
)


def updating(step: AnalysisStep, spec: Spec, output: AnalyzedOutput) -> Updating | None:
    """Returns the operator whose updates this one emits: this one, or an upstream one."""
    if output.updating is not None or spec.sees_each_update:
        return output.updating
    return next((given.updating for given in step.inputs if given.updating), None)


def retracting(step: AnalysisStep, spec: Spec, output: AnalyzedOutput) -> Retracting | None:
    """Returns the upstream operator whose rows may be deleted in this operator's output; None if
    there is none.

    Raises FiresteelError if the operator loses the column `row_kind`, unless an upstream condition
    has left rows of one kind only: these are independent rows.
    """
    for given in step.inputs:
        if not given.retracting or output.settled or spec.is_sink:
            continue
        dropped = later(given.retracting.dropped, output.dropped)
        schema = output.schema
        if schema is None or ROW_KIND not in schema.names:
            if dropped is not None and dropped.one_kind:
                continue
            raise FiresteelError(
                f"{step.operator_name}: it drops the column {ROW_KIND}, but its input has rows of "
                f"{given.retracting.who!r}, {_why(given.retracting)}; keep the column, unchanged"
            )
        if schema.field(ROW_KIND).type != pa.string():
            raise _changes(step, given.retracting)
        return replace(given.retracting, dropped=dropped)
    return output.retracting


def united_changes(several: Sequence[Retracting]) -> Retracting | None:
    """Merges changelog streams into one: if one of them lacks changes, the result does."""
    lacking = [one for one in several if one.dropped]
    if not lacking:
        return several[0] if several else None
    if len(lacking) < len(several):
        lacking = [
            replace(one, dropped=replace(one.dropped, one_kind=False))
            for one in lacking
            if one.dropped is not None
        ]
    return min(lacking, key=lambda one: one.dropped is not None and one.dropped.one_kind)


def keeps_settled(step: AnalysisStep, output: AnalyzedOutput) -> bool:
    """Returns whether the column `row_kind` of this operator's output belongs to rows that are
    never deleted.
    """
    known = output.schema is not None and ROW_KIND in output.schema.names
    return known and output.retracting is None and any(given.settled for given in step.inputs)


def behind(edge: JobEdge, consumers: int, output: AnalyzedOutput) -> Updating | None:
    """Returns the updates that come through an edge, which may change their order. `consumers` is
    the parallelism downstream.
    """
    if output.updating is None or consumers == 1:
        return output.updating
    spread = f"{edge.partitioner.name.lower()} to {consumers} subtasks"
    match edge.partitioner:
        case Partitioner.REBALANCE | Partitioner.RESCALE:
            found = Spread(spread)
        case Partitioner.HASH:
            found = Spread(f"key_by({', '.join(edge.key_columns)})", edge.key_columns)
        case Partitioner.FORWARD | Partitioner.BROADCAST | Partitioner.WATERMARKS:
            return output.updating
    return replace(output.updating, spread=(*output.updating.spread, found))


def check_last_update(step: AnalysisStep, sink: Sink) -> None:
    """Raises FiresteelError if a table's row could keep an update that is not the last one."""
    columns = _replacing_key(sink)
    if not columns:
        return
    key = {column.lower() for column in columns}
    for updating in (given.updating for given in step.inputs if given.updating is not None):
        for spread in updating.spread:
            if not spread.keys or not key.issuperset(map(str.lower, spread.keys)):
                raise FiresteelError(
                    f"{step.operator_name}: an older update of {updating.who} could replace a "
                    "newer one in its table, because updates of one row can overtake each other "
                    "after "
                    f"{spread.what}; remove that, or use key_by with columns of the table's key "
                    f"there: {', '.join(columns)}"
                )


def _replacing_key(sink: Sink) -> Sequence[str]:
    """Returns the columns by which a row replaces an earlier one; none if each is added."""
    match sink:
        case PostgresSink():
            return sink.key
        case KafkaSink(upsert=True):
            return sink.key_columns or ("key",)
        case _:
            return ()


def check_order(edge: JobEdge, consumers: int, output: AnalyzedOutput) -> None:
    """Raises FiresteelError if a deletion and the insertion that replaces the row could overtake
    each other. `consumers` is the parallelism downstream of the edge.
    """
    if output.retracting and consumers > 1 and edge.partitioner in _WITHOUT_ORDER:
        raise FiresteelError(
            f"rows of {output.retracting.who!r} would arrive out of order at the {consumers}"
            f" subtasks after {edge.partitioner.name.lower()}: they are rows"
            f" {_why(output.retracting)}; "
            "give the next operator the same parallelism or 1, or put key_by(...) before it"
        )


_WITHOUT_ORDER = (Partitioner.REBALANCE, Partitioner.RESCALE)


def check_transform(step: AnalysisStep, given: DataFrame, result: DataFrame) -> None:
    """Raises FiresteelError if a transform replaces the column by a different one of the same
    name.
    """
    if step.inputs[0].retracting and _column_ids(result) - _column_ids(given):
        raise _changes(step, step.inputs[0].retracting)


def _column_ids(frame: DataFrame) -> set[int]:
    plan: Any = frame._jdf.queryExecution()
    columns = plan.analyzed().output()
    found = [columns.apply(index) for index in range(columns.size())]
    return {column.exprId().id() for column in found if column.name() == ROW_KIND}


def _why(retracting: Retracting) -> str:
    return (
        f"whose column {ROW_KIND} marks which of them are no longer valid ({DELETE!r}), because"
        f" {retracting.because}"
    )


def _changes(step: AnalysisStep, retracting: Retracting) -> FiresteelError:
    return FiresteelError(
        f"{step.operator_name}: it changes the column {ROW_KIND} of its input, rows of "
        f"{retracting.who!r}, {_why(retracting)}; keep the column unchanged"
    )
