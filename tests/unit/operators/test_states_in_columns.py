"""Windows, aggregates and drop_duplicates declare their state before data flows, which decides
whether a changed program can restore it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from firesteel.common.checkpoints.descriptions import StateDescriptions
from firesteel.common.checkpoints.evolution import changed_states
from firesteel.operators import (
    DropDuplicatesSpec,
    RunningAggregateSpec,
    SessionSpec,
    TumblingSpec,
    WindowAggregateSpec,
    WindowTopNSpec,
)
from firesteel.plan.aggregates.parse import parse_aggregates
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.analyze import states_in_columns
from taskexecutor.executor.operators.drop_duplicates import DropDuplicates
from taskexecutor.executor.operators.running_aggregate import RunningAggregate
from taskexecutor.executor.operators.windows import window_operator

TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", TIME)])
TEN = TumblingSpec(size_us=10)


def states(operator: Any, schema: pa.Schema) -> StateDescriptions:
    step = AnalysisStep(
        operator_name="o",
        inputs=[AnalyzedOutput(schema=schema)],
        engine=SimpleNamespace(session=None),  # type: ignore[arg-type]
    )
    return states_in_columns(operator, "o", step, None)


def aggregate(*expressions: str, window: Any = None, key: str = "string") -> Any:
    items = parse_aggregates(expressions)
    partial = [(name, pa.int64()) for item in items for name in item.partial]
    schema = pa.schema([("k", pa.type_for_alias(key)), *partial, ("_rows", pa.int64())])
    if window is None:
        spec = RunningAggregateSpec(key_columns=("k",), aggregates=items)
        return states(RunningAggregate(spec), schema)
    windows = WindowAggregateSpec(key_columns=("k",), window=window, aggregates=items)
    return states(window_operator(windows), schema)


def top(n: int) -> StateDescriptions:
    spec = WindowTopNSpec(
        key_columns=("k",), window=TEN, n=n, by=("n",), ascending=(True,), time_column="at"
    )
    return states(window_operator(spec), ROWS)


def once(within_us: int) -> StateDescriptions:
    spec = DropDuplicatesSpec(key_columns=("k",), time_column="at", within_us=within_us)
    return states(DropDuplicates(spec), ROWS)


@pytest.mark.parametrize("window", [None, TEN, SessionSpec(gap_us=10)])
def test_aggregates_may_go_but_not_come(window: Any) -> None:
    both = aggregate("sum(n) AS s", "max(n) AS m", window=window)
    one = aggregate("max(n) AS most", window=window)
    assert changed_states(both, both) == ""
    assert changed_states(both, one) == ""
    assert "it has no sum(n) int64, only max(n) int64: a new aggregate" in changed_states(one, both)


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (
            aggregate("max(n)", window=TEN),
            aggregate("max(n)", window=TumblingSpec(size_us=20)),
            r"state 'panes' cannot be restored: its window was .*size_us=10.* is .*size_us=20",
        ),
        (
            aggregate("max(n)", window=TEN),
            aggregate("max(n)", window=SessionSpec(gap_us=10)),
            "it has no state 'panes', which the checkpoint has, only 'sessions', 'results'",
        ),
        (aggregate("max(n)"), top(1), "it has no state 'totals', .* only 'panes'"),
        (
            aggregate("max(n)"),
            aggregate("max(n)", key="int64"),
            "its input was k string, .* in the checkpoint, and is k int64",
        ),
        (
            aggregate("count(DISTINCT n) AS d", "max(n)"),
            aggregate("max(n)"),
            "it has no state 'values of ",
        ),
        (top(1), top(2), "its choice was 1 by n .* is 2 by n"),
        (once(10), once(20), "its time was at within 10 us in the checkpoint, and is at within 20"),
    ],
)
def test_state_that_stands_for_something_else_is_refused(
    before: StateDescriptions, now: StateDescriptions, says: str
) -> None:
    assert changed_states(before, before) == ""
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(changed_states(before, now))
