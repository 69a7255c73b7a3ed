"""The operator that runs a CoProcessFunction: rows of two keyed inputs and timers, one call each;
output leaves per batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from firesteel.common.error_report import summary_of
from firesteel.elements import Watermark
from firesteel.errors import FiresteelError
from firesteel.functions import CoProcessFunction
from firesteel.operator import (
    Counter,
    OperatorState,
    Output,
    RuntimeContext,
    StreamOperator,
    TaskInfo,
    TimerService,
)
from firesteel.plan.specs import CoProcessSpec
from taskexecutor.executor.operators.function_state import (
    CurrentKey,
    KeyedList,
    KeyedMap,
    KeyedValue,
)
from taskexecutor.executor.operators.stateful.grouping import by_key
from taskexecutor.executor.operators.stateful.rows import (
    RowCollector,
    row_maker,
    shown_key,
    to_python,
)
from taskexecutor.executor.spark.schemas import declared, missing_column
from taskexecutor.executor.state import KeyedState

EVENT_TIME, PROCESSING_TIME = "event_time", "processing_time"

Results = Iterable[Any] | None


class CoProcess(StreamOperator):
    """`now_ms` is the wall clock."""

    inputs = 2

    def __init__(
        self, spec: CoProcessSpec, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self._spec = spec
        self._function: CoProcessFunction = spec.function
        self._now_ms = now_ms
        self._open = False

    # -- life

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._name = context.operator_name
        schema = context.output_schema or declared(self._spec.schema, None)
        assert schema is not None, "co_process has an output schema"
        self._main = RowCollector(schema, output.emit, self._name)
        self._sides: dict[str, RowCollector] = {}
        for tag, side in self._spec.side_outputs.items():
            side_schema = declared(side, context.input_schemas[0])
            if side_schema is None:
                raise FiresteelError(
                    f"{self._name}: the schema of its side output {tag!r} is not known; declare one"
                )
            self._sides[tag] = RowCollector(side_schema, _to_side(output, tag), self._name)

    def initialize_state(self, state: OperatorState) -> None:
        keyed: KeyedState = state.keyed  # type: ignore[assignment]
        self._current = CurrentKey()
        self._times = _Timers(self.context.timers, self._current)
        self._context = _Context(self._current, self._times, self._sides)
        self._functions_context = _OpenContext(self.context, keyed, self._current)

    def open(self) -> None:
        self._open = True
        try:
            self._function.open(self._functions_context)
        except Exception as error:
            raise FiresteelError(
                f"{self._name}: {type(self._function).__name__}.open failed: {summary_of(error)}"
            ) from error

    def close(self) -> None:
        if self._open:
            self._open = False
            self._function.close()

    # -- data

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        with self.context.time("python"):
            keyed = by_key(batch, self._key_positions(batch, input_index))
            make = row_maker(batch.schema.names)
            columns = [to_python(column) for column in keyed.batch.columns]
            name = "process_element2" if input_index else "process_element1"
            function = (
                self._function.process_element2 if input_index else self._function.process_element1
            )
            self._times.now_ms = max(self._times.now_ms, self._now_ms())
            start = 0
            for key, end in zip(keyed.keys, keyed.ends, strict=True):
                self._begin(name, key)
                for values in zip(*(column[start:end] for column in columns), strict=True):
                    self._call(name, key, function, make(values))
                start = end
            self._end()

    def flush(self) -> None:
        self._end()

    def _key_positions(self, batch: pa.RecordBatch, input_index: int) -> list[int]:
        columns = self._spec.second_key_columns if input_index else self._spec.first_key_columns
        positions = [batch.schema.get_field_index(column) for column in columns]
        if -1 in positions:
            missing = columns[positions.index(-1)]
            raise missing_column(f'key_by("{missing}")', missing, batch.schema.names)
        return positions

    # -- time

    def process_watermark(self, watermark: Watermark) -> None:
        self._end()
        self.output.emit_watermark(watermark)

    def on_event_time(self, timestamp_us: int, key: Any, namespace: Any) -> None:
        self._times.now_ms = max(self._times.now_ms, self._now_ms())
        self._fire(EVENT_TIME, timestamp_us // 1000, key)

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        self._times.now_ms = max(self._times.now_ms, timestamp_ms)
        self._fire(PROCESSING_TIME, timestamp_ms, key)
        self._end()

    def _fire(self, domain: str, timestamp_ms: int, key: Any) -> None:
        with self.context.time("python"):
            self._begin("on_timer", key)
            self._context.domain = domain
            self._call("on_timer", key, self._function.on_timer, timestamp_ms)
            self._context.domain = None

    # -- calls of the user's code

    def _begin(self, name: str, key: Any) -> None:
        self._current.key = key
        self._main.begin(name, key)
        for side in self._sides.values():
            side.begin(name, key)

    def _call(
        self, name: str, key: Any, function: Callable[[Any, Any], Results], argument: Any
    ) -> None:
        """Only what the function itself raises is its failure, not what is raised further down the
        chain.
        """
        try:
            results = function(argument, self._context)
            if results is None:
                return
            if not hasattr(results, "__iter__"):
                raise FiresteelError(
                    f"it returned {type(results).__name__}, and must return an iterator or None"
                )
            rest: Iterator[Any] = iter(results)
            full = self._main.fill(rest)
        except Exception as error:
            raise self._failure(name, key, error) from error
        while full:
            self._main.flush()
            try:
                full = self._main.fill(rest)
            except Exception as error:
                raise self._failure(name, key, error) from error

    def _failure(self, name: str, key: Any, error: Exception) -> FiresteelError:
        return FiresteelError(
            f"{self._name}: {name} failed for key {shown_key(key)}: {summary_of(error)}"
        )

    def _end(self) -> None:
        self._current.key = None
        self._main.flush()
        for side in self._sides.values():
            side.flush()


def _to_side(output: Output, tag: str) -> Callable[[pa.RecordBatch], None]:
    return lambda batch: output.emit_side(tag, batch)


class _Timers:
    """See `firesteel.functions.FunctionTimers`."""

    def __init__(self, service: TimerService, current: CurrentKey) -> None:
        self._service = service
        self._current = current
        self.now_ms = 0

    def current_processing_time(self) -> int:
        return self.now_ms

    def current_watermark(self) -> int:
        return self._service.current_watermark_us // 1000

    def register_event_time_timer(self, timestamp_ms: int) -> None:
        self._service.register_event_time(timestamp_ms * 1000, self._current.of("a timer"))

    def register_processing_time_timer(self, timestamp_ms: int) -> None:
        self._service.register_processing_time(timestamp_ms, self._current.of("a timer"))

    def delete_event_time_timer(self, timestamp_ms: int) -> None:
        self._service.delete_event_time(timestamp_ms * 1000, self._current.of("a timer"))

    def delete_processing_time_timer(self, timestamp_ms: int) -> None:
        self._service.delete_processing_time(timestamp_ms, self._current.of("a timer"))


class _Context:
    """See `firesteel.functions.ProcessContext`."""

    def __init__(
        self, current: CurrentKey, times: _Timers, sides: Mapping[str, RowCollector]
    ) -> None:
        self._current = current
        self._times = times
        self._sides = sides
        self.domain: str | None = None

    def get_current_key(self) -> Any:
        key = self._current.of("get_current_key()")
        return key[0] if len(key) == 1 else key

    def timer_service(self) -> _Timers:
        return self._times

    def time_domain(self) -> str | None:
        return self.domain

    def output(self, tag: str, row: Any) -> None:
        side = self._sides.get(tag)
        if side is None:
            raise FiresteelError(
                f"there is no side output {tag!r}; declared: {', '.join(sorted(self._sides)) or 'none'}"
            )
        if side.fill(iter((row,))):
            side.flush()


class _OpenContext:
    """See `firesteel.functions.FunctionContext`."""

    def __init__(self, context: RuntimeContext, backend: KeyedState, current: CurrentKey) -> None:
        self._context = context
        self._backend = backend
        self._current = current
        self._kinds: dict[str, type] = {}

    @property
    def task(self) -> TaskInfo:
        return self._context.task

    def get_state(self, name: str) -> KeyedValue:
        return KeyedValue(self._backend, self._current, self._named(name, KeyedValue))

    def get_list_state(self, name: str) -> KeyedList:
        return KeyedList(self._backend, self._current, self._named(name, KeyedList))

    def get_map_state(self, name: str) -> KeyedMap:
        return KeyedMap(self._backend, self._current, self._named(name, KeyedMap))

    def counter(self, name: str) -> Counter:
        return self._context.counter(name)

    def _named(self, name: str, kind: type) -> str:
        if not isinstance(name, str) or not name:
            raise FiresteelError(f"a state's name is a text that is not empty, not {name!r}")
        if self._kinds.setdefault(name, kind) is not kind:
            raise FiresteelError(
                f"the state {name!r} is used as a value, a list or a map; take another name"
            )
        return name
