"""Creates the operator of a join: a stream join, or an as-of join."""

from __future__ import annotations

from collections.abc import Callable

from firesteel.operators import AsOfSpec, JoinSpec
from taskexecutor.executor.operators.joins.as_of_join import AsOfJoin
from taskexecutor.executor.operators.joins.stream_join import StreamJoin
from taskexecutor.executor.timing.clock import wall_clock_ms


def join_operator(
    spec: JoinSpec, *, now_ms: Callable[[], int] = wall_clock_ms
) -> AsOfJoin | StreamJoin:
    """`now_ms` is the wall clock."""
    if isinstance(spec.within, AsOfSpec):
        return AsOfJoin(spec)
    return StreamJoin(spec, now_ms=now_ms)
