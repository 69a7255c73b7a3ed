"""Concurrent calls of coroutine functions: `map_async` (Flink's AsyncWaitOperator)."""

from __future__ import annotations

from firesteel.errors import FiresteelError
from firesteel.operators import MapAsyncSpec
from taskexecutor.executor.analysis.step import AnalysisStep, AnalyzedOutput
from taskexecutor.executor.operators.map_async.map_async import MapAsync
from taskexecutor.executor.operators.registry import OperatorKind, alone


def _analyze_map_async(step: AnalysisStep, spec: MapAsyncSpec) -> AnalyzedOutput:
    """Refuses unordered results for changelog streams, in which changes of a row could overtake
    each other.
    """
    given = step.inputs[0]
    changes = given.retracting or given.updating
    if not spec.ordered and changes is not None:
        raise FiresteelError(
            f"{step.operator_name}: ordered=False would let the rows of {changes.who!r} overtake"
            " each other, and later ones replace earlier ones there; leave ordered=False out"
        )
    return AnalyzedOutput(
        schema=step.declared(spec.schema, step.input_schema),
        repeatable=spec.ordered,  # otherwise the rows repeat, but their order may differ
    )


KINDS = (OperatorKind(MapAsyncSpec, _analyze_map_async, alone(MapAsync)),)
