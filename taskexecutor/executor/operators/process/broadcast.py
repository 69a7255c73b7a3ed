"""The operator that runs a BroadcastProcessFunction, with or without keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from firesteel.errors import FiresteelError
from firesteel.operator import OperatorState
from firesteel.operators import BroadcastProcessSpec
from taskexecutor.executor.operators.process.context import FunctionTimers, ProcessContext
from taskexecutor.executor.operators.process.function_operator import FunctionOperator
from taskexecutor.executor.operators.process.state import FunctionState
from taskexecutor.executor.operators.python_rows.current_key import CurrentKey
from taskexecutor.executor.operators.python_rows.row_collector import RowCollector
from taskexecutor.executor.timing.clock import wall_clock_ms

_BROADCAST = 1


class BroadcastProcess(FunctionOperator):
    """The second input is broadcast and updates operator state. `now_ms` is the wall clock."""

    inputs = 2

    def __init__(
        self, spec: BroadcastProcessSpec, now_ms: Callable[[], int] = wall_clock_ms
    ) -> None:
        super().__init__(
            spec.function,
            spec.key_columns,
            spec.schema,
            spec.side_outputs,
            spec.times,
            now_ms,
        )
        self._names = spec.states
        if spec.broadcast_first:
            self.reads_first = _BROADCAST

    def initialize_state(self, state: OperatorState) -> None:
        super().initialize_state(state)
        self._states = {
            name: BroadcastMap(name, state.broadcast_state(name)) for name in self._names
        }
        common = self._current, self._times, self._sides, self._states
        self._context = self._reading = ReadContext(*common)
        self._writing = WriteContext(*common)

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if input_index != _BROADCAST:
            self._process(batch, 0, self._key_columns, "process_element", self._reading)
            return
        for state in self._states.values():
            state.writable = True
        try:
            self._process(batch, _BROADCAST, None, "process_broadcast_element", self._writing)
        finally:
            for state in self._states.values():
                state.writable = False


class ReadContext(ProcessContext):
    """Implements `firesteel.broadcast_functions.BroadcastReadContext`."""

    def __init__(
        self,
        current: CurrentKey,
        times: FunctionTimers,
        sides: Mapping[str, RowCollector],
        states: Mapping[str, BroadcastMap],
    ) -> None:
        super().__init__(current, times, sides)
        self._states = states

    def get_broadcast_state(self, name: str) -> BroadcastMap:
        state = self._states.get(name)
        if state is None:
            raise FiresteelError(
                f"there is no broadcast state {name!r}; broadcast(...) declares:"
                f" {', '.join(self._states)}"
            )
        return state


class WriteContext(ReadContext):
    """Implements `firesteel.broadcast_functions.BroadcastWriteContext`."""

    def apply_to_keyed_state(self, state: Any, function: Callable[[Any, Any], None]) -> None:
        if not isinstance(state, FunctionState):
            raise FiresteelError(
                "apply_to_keyed_state() takes a state that open() returned, such as"
                f" context.get_state('total'), not {type(state).__name__} {state!r:.100}"
            )
        try:
            for key in state.all_keys():
                self._current.key = key
                function(self.get_current_key(), state)
        finally:
            self._current.key = None


class BroadcastMap:
    """Implements `firesteel.broadcast_functions.BroadcastState`. `kept` is the checkpointed
    dictionary.
    """

    def __init__(self, name: str, kept: dict[Any, Any]) -> None:
        self._name = name
        self._kept = kept
        self.writable = False  # True while a row of the broadcast stream is processed

    def get(self, key: Any) -> Any:
        return self._kept.get(key)

    def contains(self, key: Any) -> bool:
        return key in self._kept

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(list(self._kept.items()))

    def keys(self) -> Iterator[Any]:
        return iter(list(self._kept))

    def values(self) -> Iterator[Any]:
        return iter(list(self._kept.values()))

    def is_empty(self) -> bool:
        return not self._kept

    def put(self, key: Any, value: Any) -> None:
        self._written("put()")[key] = value

    def remove(self, key: Any) -> None:
        self._written("remove()").pop(key, None)

    def clear(self) -> None:
        self._written("clear()").clear()

    def _written(self, call: str) -> dict[Any, Any]:
        if not self.writable:
            raise FiresteelError(
                f"{call} of the broadcast state {self._name!r}: it can only be written in"
                " process_broadcast_element, which all subtasks call for the same rows;"
                " otherwise the subtasks' states would differ"
            )
        return self._kept
