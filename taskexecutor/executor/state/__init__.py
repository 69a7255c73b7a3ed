"""State of operators: keyed, partitioned by key group, in a map or in columns; and per operator
(list, union list, broadcast).

The shape is made for checkpoints: `snapshot()` is the synchronous part and takes constant time
whatever the state's size; what it returns is written by another thread and then released.
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
