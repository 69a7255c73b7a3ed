"""transform_with_state: PySpark's StatefulProcessor, unchanged, on the task's thread and on Arrow
batches, without the JVM.

Reading order:

    transform_with_state  the operator: its input, the calls it makes, when it emits
    grouping              splits a batch by key
    rows, row_collector   Arrow columns to Rows for the processor, and its Rows back to Arrow
    frames                the same with pandas DataFrames
    handle                the argument of `init`: declares state variables
    processor_timers      timers of all keys
    variables, expiring   ValueState, ListState and MapState on the keyed state backend, without and
                          with a time to live
    shapes                the values that a state's schema allows
"""

from taskexecutor.executor.operators.stateful.transform_with_state import TransformWithState

__all__ = ["TransformWithState"]
