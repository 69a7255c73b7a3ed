"""Windows: assignment of rows to windows, firing, and contents."""

from __future__ import annotations

from collections.abc import Callable

from firesteel.operators import (
    CountSpec,
    GlobalSpec,
    SessionSpec,
    WindowAggregateSpec,
    WindowApplySpec,
    WindowTopNSpec,
)
from taskexecutor.executor.operators.registry import OperatorKind, alone
from taskexecutor.executor.operators.windows.analysis import (
    analyze_window_aggregate,
    analyze_window_apply,
    analyze_window_top_n,
)
from taskexecutor.executor.operators.windows.contents import Contents
from taskexecutor.executor.operators.windows.count_windows import CountWindows
from taskexecutor.executor.operators.windows.panes import PaneWindows
from taskexecutor.executor.operators.windows.partial_contents import PartialContents
from taskexecutor.executor.operators.windows.sessions import SessionWindows
from taskexecutor.executor.operators.windows.top_contents import TopContents
from taskexecutor.executor.operators.windows.triggered_windows import TriggeredWindows
from taskexecutor.executor.timing.clock import wall_clock_us


def window_operator(
    spec: WindowAggregateSpec | WindowApplySpec | WindowTopNSpec,
    *,
    clock_us: Callable[[], int] = wall_clock_us,
) -> PaneWindows | SessionWindows | CountWindows | TriggeredWindows:
    """`clock_us` is processing time, in microseconds since the epoch."""
    if isinstance(spec, WindowApplySpec) and (spec.trigger or isinstance(spec.window, CountSpec)):
        from taskexecutor.executor.operators.windows.spark_windows import SparkWindows

        if spec.trigger is None:
            return CountWindows(spec, SparkWindows(spec))
        return TriggeredWindows(spec, SparkWindows(spec), clock_us=clock_us)
    assert not isinstance(spec.window, CountSpec | GlobalSpec)
    contents: Contents
    if isinstance(spec, WindowAggregateSpec):
        contents = PartialContents(spec)
    elif isinstance(spec, WindowTopNSpec):
        contents = TopContents(spec)
    else:
        from taskexecutor.executor.operators.windows.row_contents import RowContents

        contents = RowContents(spec)
    lateness_us = spec.allowed_lateness_us
    if isinstance(spec.window, SessionSpec):
        return SessionWindows(
            spec.window, contents, allowed_lateness_us=lateness_us, clock_us=clock_us
        )
    return PaneWindows(spec.window, contents, allowed_lateness_us=lateness_us, clock_us=clock_us)


KINDS = (
    OperatorKind(WindowAggregateSpec, analyze_window_aggregate, alone(window_operator)),
    OperatorKind(WindowApplySpec, analyze_window_apply, alone(window_operator)),
    OperatorKind(WindowTopNSpec, analyze_window_top_n, alone(window_operator)),
)
