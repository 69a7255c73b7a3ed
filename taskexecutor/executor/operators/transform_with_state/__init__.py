"""transform_with_state: PySpark's StatefulProcessor, unchanged, on the task's thread and on Arrow
batches, without the JVM.

Reading order:

    transform_with_state  the operator: its input, the calls it makes, when it emits
    grouping              splits a batch by key
    python_rows           Arrow columns to Rows or DataFrames for the processor, and back
    handle                the argument of `init`: declares state variables
    processor_timers      timers of all keys
    variables, expiring   ValueState, ListState and MapState on the keyed state backend, without and
                          with a time to live
"""

from __future__ import annotations

from firesteel.operators import TransformWithStateSpec
from taskexecutor.executor.operators.registry import OperatorKind, alone
from taskexecutor.executor.operators.transform_with_state.analysis import (
    analyze_transform_with_state,
)
from taskexecutor.executor.operators.transform_with_state.transform_with_state import (
    TransformWithState,
)

KINDS = (
    OperatorKind(TransformWithStateSpec, analyze_transform_with_state, alone(TransformWithState)),
)
