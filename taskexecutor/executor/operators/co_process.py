"""The operator that runs a CoProcessFunction: one call per row of its two keyed inputs and per
timer, one output batch per input batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from firesteel.common.checkpoints.descriptions import DECLARED
from firesteel.common.error_report import summary_of
from firesteel.elements import Watermark
from firesteel.errors import FiresteelError
from firesteel.functions import CoProcessFunction
from firesteel.operator import OperatorState, Output, RuntimeContext, StreamOperator
from firesteel.plan.specs import CoProcessSpec
from taskexecutor.executor.operators.current_key import CurrentKey
from taskexecutor.executor.operators.function_context import (
    FunctionContext,
    FunctionTimers,
    ProcessContext,
)
from taskexecutor.executor.operators.stateful.grouping import by_key
from taskexecutor.executor.operators.stateful.row_collector import RowCollector, shown_key
from taskexecutor.executor.operators.stateful.rows import row_maker, to_python
from taskexecutor.executor.spark.schemas import columns_of_key, declared
from taskexecutor.executor.state import KeyedState
from taskexecutor.executor.timing.wall_clock import wall_clock_ms

EVENT_TIME, PROCESSING_TIME = "event_time", "processing_time"

Results = Iterable[Any] | None


class CoProcess(StreamOperator):
    """`now_ms`: the wall clock."""

    inputs = 2
    keeps_event_time = True

    def __init__(self, spec: CoProcessSpec, now_ms: Callable[[], int] = wall_clock_ms) -> None:
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
        self._times = FunctionTimers(self.context.timers, self._current)
        self._context = ProcessContext(self._current, self._times, self._sides)
        self._functions_context = FunctionContext(
            self.context,
            keyed,
            self._current,
            declared=state.broadcast_state(DECLARED),
            keys=columns_of_key(self.context.input_schemas[0], self._spec.first_key_columns),
        )

    def open(self) -> None:
        self._open = True
        try:
            self._function.open(self._functions_context)
        except Exception as error:
            raise FiresteelError(
                f"{self._name}: {type(self._function).__name__}.open failed: {summary_of(error)}"
            ) from error
        self._functions_context.opened()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._function.close()

    # -- data

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        with self.context.time("python"):
            spec = self._spec
            keyed = by_key(
                batch, spec.second_key_columns if input_index else spec.first_key_columns
            )
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
        """Errors of the function name the key; those of operators further down the chain are left
        alone.
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
