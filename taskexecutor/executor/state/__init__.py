"""State of operators: keyed state, partitioned by key group, in a map or in columns; and operator
state (list, union list, broadcast).

The interface is designed for checkpoints: `snapshot()` is the synchronous part and takes constant
time with respect to the state's size. Another thread writes the returned snapshot and then releases
it.
"""

from firesteel.common.checkpoints.key_group_content import KeyedStateEntry, RowsSlice
from firesteel.common.key_groups import KeyGroupRange, key_group_range
from taskexecutor.executor.state.backends import CreateKeyedState, StateBackends
from taskexecutor.executor.state.hashmap import HashMapKeyedStateBackend
from taskexecutor.executor.state.in_flight import RestoredInFlight
from taskexecutor.executor.state.keyed import KeyedState, KeyedStateSnapshot
from taskexecutor.executor.state.operator_state import (
    OperatorStateSnapshot,
    RestoredOperatorState,
    TaskOperatorState,
)

__all__ = [
    "CreateKeyedState",
    "HashMapKeyedStateBackend",
    "KeyGroupRange",
    "KeyedState",
    "KeyedStateEntry",
    "KeyedStateSnapshot",
    "OperatorStateSnapshot",
    "RestoredInFlight",
    "RestoredOperatorState",
    "RowsSlice",
    "StateBackends",
    "TaskOperatorState",
    "key_group_range",
]
