"""An operator that runs a function with state: one call per row of its two inputs and per timer,
one output batch per input batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from firesteel.common.checkpoints.descriptions import DECLARED
from firesteel.common.error_report import summary_of
from firesteel.elements import Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import OperatorState, Output, RuntimeContext, StreamOperator
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

EVENT_TIME, PROCESSING_TIME = "event_time", "processing_time"

Results = Iterable[Any] | None


class FunctionOperator(StreamOperator):
    """What is common to the operators of all such functions, with or without keys."""

    inputs = 2
    keeps_event_time = True

    def __init__(
        self,
        function: Any,
        key_columns: Sequence[str] | None,
        schema: Any,
        side_outputs: Mapping[str, Any],
        now_ms: Callable[[], int],
    ) -> None:
        """`key_columns`: of the first input; None: the function has neither keys nor states of
        them. `now_ms`: the wall clock.
        """
        self._function = function
        self._key_columns = key_columns
        self._declared = schema, side_outputs
        self._now_ms = now_ms
        self._open = False

    # -- life

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._name = context.operator_name
        schema, sides = self._declared
        schema = context.output_schema or declared(schema, None)
        assert schema is not None, "the output schema of a function is declared"
        self._main = RowCollector(schema, output.emit, self._name)
        self._sides: dict[str, RowCollector] = {}
        for tag, side in sides.items():
            side_schema = declared(side, context.input_schemas[0])
            if side_schema is None:
                raise FiresteelError(
                    f"{self._name}: the schema of its side output {tag!r} is not known; declare one"
                )
            self._sides[tag] = RowCollector(side_schema, _to_side(output, tag), self._name)

    def initialize_state(self, state: OperatorState) -> None:
        keyed: KeyedState | None = None
        if self._key_columns is not None:
            keyed = state.keyed  # type: ignore[assignment]
        self._current = CurrentKey()
        self._times = FunctionTimers(self.context.timers, self._current)
        self._context = ProcessContext(self._current, self._times, self._sides)
        self._functions_context = FunctionContext(
            self.context,
            keyed,
            self._current,
            declared=state.broadcast_state(DECLARED),
            keys=columns_of_key(self.context.input_schemas[0], self._key_columns or ()),
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

    def _process(
        self, batch: pa.RecordBatch, key_columns: Sequence[str] | None, name: str, context: Any
    ) -> None:
        """Calls the function's method of this name for each row. `key_columns`: None if it has no
        key.
        """
        if not batch.num_rows:
            return
        with self.context.time("python"):
            keys: Sequence[Any] = (None,)
            ends = [batch.num_rows]
            if key_columns is not None:
                keyed = by_key(batch, key_columns)
                keys, ends, batch = keyed.keys, keyed.ends, keyed.batch
            make = row_maker(batch.schema.names)
            columns = [to_python(column) for column in batch.columns]
            function = getattr(self._function, name)
            self._times.now_ms = max(self._times.now_ms, self._now_ms())
            start = 0
            for key, end in zip(keys, ends, strict=True):
                self._begin(name, key)
                for values in zip(*(column[start:end] for column in columns), strict=True):
                    self._call(name, key, function, make(values), context)
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
            self._call("on_timer", key, self._function.on_timer, timestamp_ms, self._context)
            self._context.domain = None

    # -- calls of the user's code

    def _begin(self, name: str, key: Any) -> None:
        self._current.key = key
        self._main.begin(name, key)
        for side in self._sides.values():
            side.begin(name, key)

    def _call(
        self,
        name: str,
        key: Any,
        function: Callable[[Any, Any], Results],
        argument: Any,
        context: Any,
    ) -> None:
        """Errors of the function name the key; those of operators further down the chain are left
        alone.
        """
        try:
            results = function(argument, context)
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
        whose = "" if key is None else f" for key {shown_key(key)}"
        return FiresteelError(f"{self._name}: {name} failed{whose}: {summary_of(error)}")

    def _end(self) -> None:
        self._current.key = None
        self._main.flush()
        for side in self._sides.values():
            side.flush()


def _to_side(output: Output, tag: str) -> Callable[[pa.RecordBatch], None]:
    return lambda batch: output.emit_side(tag, batch)
