"""transform_with_state: PySpark's StatefulProcessor, as it is, on the task's own thread and on
Arrow batches, without the JVM.

Read it in this order:

    transform_with_state  the operator: what comes in, whom it calls, when output leaves
    grouping              a batch cut by key, once, vectorised
    rows, frames          Arrow columns to Rows or DataFrames for the processor, and back
    handle                what `init` gets: state variables and timers of the current key
    variables, expiring   ValueState, ListState and MapState on the keyed state backend; those whose values expire
    shapes                what a state schema allows, and copies of values that could be changed in place
"""

from taskexecutor.executor.operators.stateful.transform_with_state import TransformWithState

__all__ = ["TransformWithState"]
