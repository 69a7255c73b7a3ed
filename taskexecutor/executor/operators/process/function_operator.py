"""An operator that runs a function with state: one call per row of its inputs and per timer, one
output batch per input batch.

The loops over rows and timers run once per row of a stream, so they make few calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from types import GeneratorType
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from firesteel.broadcast_functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from firesteel.column_names import column_index
from firesteel.common.checkpoints.descriptions import DECLARED
from firesteel.common.error_report import summary_of
from firesteel.common.time_zones import in_zone
from firesteel.elements import Watermark
from firesteel.errors import FiresteelError
from firesteel.functions import ProcessFunction
from firesteel.operator import OperatorState, Output, RuntimeContext, StreamOperator
from firesteel.operators import RowTimeSpec
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.jvm.session import session_zone
from taskexecutor.executor.columnar.schemas import columns_of_key, declared
from taskexecutor.executor.operators.process.context import (
    FunctionContext,
    FunctionTimers,
    ProcessContext,
)
from taskexecutor.executor.operators.python_rows.current_key import CurrentKey, ShownKeys
from taskexecutor.executor.operators.python_rows.row_collector import RowCollector, shown_key
from taskexecutor.executor.operators.python_rows.rows import milliseconds_of, rows_of
from taskexecutor.executor.operators.python_rows.slices import Slices
from taskexecutor.executor.operators.transform_with_state.expiring import Sweeps
from taskexecutor.executor.operators.transform_with_state.grouping import by_key
from taskexecutor.executor.state import KeyedState

EVENT_TIME, PROCESSING_TIME = "event_time", "processing_time"


class FunctionOperator(StreamOperator):
    """Base of the operators of all such functions, with or without keys."""

    computes = choose.PYTHON
    keeps_event_time = True

    def __init__(
        self,
        function: Any,
        key_columns: Sequence[str] | None,
        schema: Any,
        side_outputs: Mapping[str, Any],
        times: Sequence[RowTimeSpec | None],
        now_ms: Callable[[], int],
    ) -> None:
        """`key_columns` are those of the first input; None: the function has neither keys nor keyed
        state. `times` describe where the rows of each input have their event time. `now_ms` is the
        wall clock.
        """
        self._function = function
        self._key_columns = key_columns
        self._declared = schema, side_outputs
        self._row_times = times
        self._now_ms = now_ms
        self._open = False

    # -- life cycle

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._name = context.operator_name
        self._zone = session_zone(context)
        self._slices = Slices(context)
        schema, sides = self._declared
        schema = context.output_schema or declared(schema, None)
        assert schema is not None, "the output schema of a function is declared"
        self._main = RowCollector(schema, output.emit, self._name)
        self._sides: dict[str, RowCollector] = {}
        for tag, side in sides.items():
            side_schema = declared(side, context.input_schemas[0])
            if side_schema is None:
                raise FiresteelError(
                    f"{self._name}: the schema of its side output {tag!r} is unknown; declare it"
                )
            self._sides[tag] = RowCollector(
                side_schema,
                _to_side(output, tag),
                self._name,
                f"called ctx.output({tag!r}, ...) with",
            )

    def initialize_state(self, state: OperatorState) -> None:
        keyed: KeyedState | None = None
        if self._key_columns is not None:
            keyed = state.keyed  # type: ignore[assignment]
        self._current = current_key_of(self._function)
        self._current.now_ms = self._now_ms()
        first = self.context.input_schemas[0]
        shown_as = ShownKeys(first, self._key_columns or (), self._zone)
        self._current.shown_as = shown_as
        for collector in (self._main, *self._sides.values()):
            collector.shown_as = shown_as
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
        self._sweeps = Sweeps(self.context.timers, self._functions_context.expiring)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._function.close()

    # -- data

    def _process(
        self,
        batch: pa.RecordBatch,
        input_index: int,
        key_columns: Sequence[str] | None,
        name: str,
        context: ProcessContext,
    ) -> None:
        """Calls the function's method of this name for each row. `key_columns` is None if the input
        has no key.
        """
        with self.context.time("python"):
            for part in self._slices.of(batch):
                self._slices.timed(
                    self._process_slice, part, input_index, key_columns, name, context
                )
                self._end()

    def _process_slice(
        self,
        batch: pa.RecordBatch,
        input_index: int,
        key_columns: Sequence[str] | None,
        name: str,
        context: ProcessContext,
    ) -> None:
        keys: Sequence[Any] = (None,)
        ends = [batch.num_rows]
        if key_columns is not None:
            keyed = by_key(batch, key_columns)
            keys, ends, batch = keyed.keys, keyed.ends, keyed.batch
        rows = zip(
            rows_of(in_zone(batch, self._zone)),
            self._times_of(batch, input_index, context),
            strict=True,
        )
        function, current, main = getattr(self._function, name), self._current, self._main
        current.now_ms = max(current.now_ms, self._now_ms())
        context.method = name
        start = 0
        for key, end in zip(keys, ends, strict=True):
            current.key = key
            origin = name, key
            for row, context.time_ms in islice(rows, end - start):
                try:
                    results = function(row, context)
                    if type(results) is not GeneratorType:
                        if results is None:
                            continue
                        results = _iterated(results)
                    full = main.fill_from(results, origin)
                except Exception as error:
                    raise self._failure(name, key, error) from error
                if full:
                    self._emit_rest(name, key, results)
            start = end

    def _times_of(
        self, batch: pa.RecordBatch, input_index: int, context: ProcessContext
    ) -> Iterator[int | None]:
        """Yields the event time of each row."""
        time, context.no_time = self._row_times[input_index], ""
        if time is None:
            return repeat(None, batch.num_rows)
        index = column_index(batch.schema, time.column)
        if index < 0:
            context.no_time = (
                f"it is the time in {time.column!r}, the column of the stream's watermarks, but the"
                f" rows have only {', '.join(batch.schema.names)}; keep the column"
            )
            return repeat(None, batch.num_rows)
        return iter(milliseconds_of(batch.column(index), time.shift_us))

    def flush(self) -> None:
        self._end()

    # -- time

    def process_watermark(self, watermark: Watermark) -> None:
        self._end()
        self.output.emit_watermark(watermark)

    def on_event_times(self, due: Iterator[tuple[int, Any, Any]]) -> None:
        current = self._current
        current.now_ms = max(current.now_ms, self._now_ms())
        with self.context.time("python"):
            self._fire(EVENT_TIME, due, 1000)

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        current = self._current
        current.now_ms = max(current.now_ms, timestamp_ms)
        if self._sweeps.fired(namespace, max(current.now_ms, self._now_ms())):
            return
        with self.context.time("python"):
            self._fire(PROCESSING_TIME, ((timestamp_ms, key, namespace),), 1)
        self._end()

    def _fire(self, domain: str, timers: Iterable[tuple[int, Any, Any]], per_ms: int) -> None:
        """Fires `timers`: times, keys and namespaces. Firing a timer may add others. `per_ms` is
        the number of time units in a millisecond.
        """
        name, function, context = "on_timer", self._function.on_timer, self._context
        current, main = self._current, self._main
        context.method, context.domain, context.no_time = name, domain, ""
        for timestamp, key, _ in timers:
            current.key = key
            context.time_ms = timestamp_ms = timestamp // per_ms
            try:
                results = function(timestamp_ms, context)
                if type(results) is not GeneratorType:
                    if results is None:
                        continue
                    results = _iterated(results)
                full = main.fill_from(results, (name, key))
            except Exception as error:
                raise self._failure(name, key, error) from error
            if full:
                self._emit_rest(name, key, results)
        context.domain = None

    # -- calls of user code

    def _emit_rest(self, name: str, key: Any, results: Iterator[Any]) -> None:
        """Emits the remaining results. Errors of the function name the key; those of downstream
        operators are not changed.
        """
        full = True
        while full:
            self._main.flush()
            try:
                full = self._main.fill(results)
            except Exception as error:
                raise self._failure(name, key, error) from error

    def _failure(self, name: str, key: Any, error: Exception) -> FiresteelError:
        shown_as = self._main.shown_as
        whose = "" if key is None else f" for key {shown_key(shown_as(key))}"
        return FiresteelError(f"{self._name}: {name} failed{whose}: {summary_of(error)}")

    def _end(self) -> None:
        self._current.key = None
        self._main.flush()
        for side in self._sides.values():
            side.flush()


def _iterated(results: Any) -> Iterator[Any]:
    if isinstance(results, (str, bytes, dict, Row)) or not hasattr(results, "__iter__"):
        raise FiresteelError(
            f"it returned {type(results).__name__}; it must return an iterator or None"
        )
    return iter(results)


def current_key_of(function: Any) -> CurrentKey:
    """Returns the key holder of a function's states and timers. A function without keys never has a
    key.
    """
    match function:
        case ProcessFunction():
            place, keyed = "process(...)", "KeyedProcessFunction"
        case BroadcastProcessFunction() if not isinstance(function, KeyedBroadcastProcessFunction):
            place, keyed = "connect(...)", "KeyedBroadcastProcessFunction"
        case _:
            return CurrentKey()
    return CurrentKey(
        f"this function has no keys: derive it from {keyed}, and call key_by(...) before {place}"
    )


def _to_side(output: Output, tag: str) -> Callable[[pa.RecordBatch], None]:
    return lambda batch: output.emit_side(tag, batch)
