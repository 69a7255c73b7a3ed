"""Joins of two streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from firesteel.operator import StreamOperator
from firesteel.operators import AsOfSpec, JoinSpec
from taskexecutor.executor.operator_factory import OpenedOperator
from taskexecutor.executor.operators.joins.analysis import analyze_join
from taskexecutor.executor.operators.joins.as_of_join import AsOfJoin
from taskexecutor.executor.operators.joins.stream_join import StreamJoin
from taskexecutor.executor.operators.joins.whole_join import WholeJoin, joins_whole
from taskexecutor.executor.operators.registry import OperatorKind
from taskexecutor.executor.timing.clock import wall_clock_ms


def join_operator(
    spec: JoinSpec, *, now_ms: Callable[[], int] = wall_clock_ms
) -> AsOfJoin | StreamJoin:
    """`now_ms` is the wall clock."""
    if isinstance(spec.within, AsOfSpec):
        return AsOfJoin(spec)
    return StreamJoin(spec, now_ms=now_ms)


def _create(group: Sequence[OpenedOperator]) -> StreamOperator:
    (opened,) = group
    spec = opened.spec
    assert isinstance(spec, JoinSpec)
    if spec.whole and joins_whole(spec, opened.output_schema):
        return WholeJoin(spec, opened.output_schema)
    return join_operator(spec)


KINDS = (OperatorKind(JoinSpec, analyze_join, _create),)
