"""Windows with a trigger of the program: `window(...).trigger(...)`, like Flink's WindowOperator.

A pane is a key's part of a window. The trigger is called for each row of each pane, and for the
timers that it registers. The results of all panes that fire with a batch, a watermark or a clock
tick are computed together.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from firesteel.common.error_report import summary_of
from firesteel.common.time_zones import in_zone
from firesteel.elements import MAX_TIMESTAMP_US, MIN_TIMESTAMP_US, Watermark
from firesteel.errors import FiresteelError
from firesteel.operator import OperatorState, Output, RuntimeContext, StreamOperator
from firesteel.operators import (
    GlobalSpec,
    SessionSpec,
    SlidingSpec,
    TumblingSpec,
    WindowApplySpec,
)
from firesteel.operators.assigners import WINDOW_END, WINDOW_START
from firesteel.triggers import (
    MAX_TIMESTAMP_MS,
    GlobalWindow,
    TimeWindow,
    Trigger,
    TriggerContext,
    TriggerResult,
    TriggerState,
)
from taskexecutor.executor.columnar import choose
from taskexecutor.executor.columnar.grouping.columns import as_table, described
from taskexecutor.executor.columnar.grouping.grouping import Ints
from taskexecutor.executor.columnar.grouping.row_log import RowLog, taken
from taskexecutor.executor.columnar.jvm.session import session_zone
from taskexecutor.executor.operators.columns import WINDOW_ID, as_timestamps
from taskexecutor.executor.operators.python_rows.rows import rows_of
from taskexecutor.executor.operators.windows.contents import StoredRows
from taskexecutor.executor.operators.windows.fired_rows import (
    MOST_ROWS,
    Keys,
    Results,
    with_window,
)
from taskexecutor.executor.timing.clock import wall_clock_us

_START, _END, _PANE = "_pane_start", "_pane_end", "_pane"
_SPARE = 65_536  # allowed rows or keys outside of panes, if greater than the number in panes

_PaneId = tuple[int, int, int]  # the key number, and the window's start and end


@dataclass(slots=True)
class _Pane:
    key: int
    start_us: int
    end_us: int
    window: Any  # the trigger's view of the window
    rows: list[int] = field(default_factory=list)  # row numbers in the log
    fired: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    event_timers: set[int] = field(default_factory=set)  # milliseconds
    processing_timers: set[int] = field(default_factory=set)

    @property
    def id(self) -> _PaneId:
        return self.key, self.start_us, self.end_us


class _Firing(NamedTuple):
    pane: _PaneId
    number: int  # of the pane's firings
    rows: list[int]


class TriggeredWindows(StreamOperator):
    computes = choose.GROUPING
    keeps_event_time = True

    def __init__(
        self,
        spec: WindowApplySpec,
        results: Results,
        *,
        clock_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        assert spec.trigger is not None
        self._spec = spec
        self._window = spec.window
        self._trigger: Trigger = spec.trigger
        self._results = results
        self._clock_us = clock_us
        self._rows = _Rows(spec)
        self._panes: dict[_PaneId, _Pane] = {}
        self._of_key: dict[int, list[_Pane]] = {}  # of sessions
        self._event_heap: list[tuple[int, _PaneId]] = []  # timers; deleted ones stay
        self._processing_heap: list[tuple[int, _PaneId]] = []
        self._ends: list[tuple[int, _PaneId]] = []  # of time windows
        self._firings: list[_Firing] = []
        self._logged = 0  # rows in the log
        self._in_panes = 0  # of these, counted once per pane
        self._event_time_ended = False
        self._ended = False  # processing-time timers are no longer registered

    def setup(self, context: RuntimeContext, output: Output) -> None:
        super().setup(context, output)
        self._zone = session_zone(context) if self._trigger.reads_elements else "UTC"
        self._rows.setup(context, output)
        self._results.setup(context, output)

    def initialize_state(self, state: OperatorState) -> None:
        schema = self.context.input_schemas[0]
        assert schema is not None
        self._schema: pa.Schema = schema
        keys, meaning = self._spec.key_columns, {"window": repr(self._window)}
        self._memory = state.columns
        self._rows_state = state.keyed_rows("rows", keys, {**meaning, "input": described(schema)})
        self._panes_state = state.keyed_rows("panes", keys, meaning)
        self._known = Keys(keys, self._memory)
        self._log = RowLog(memory=self._memory)

    # -- checkpoints

    def open(self) -> None:
        panes = self._panes_state.restored()
        for batch in panes.to_batches() if panes is not None else ():
            for key, start, end, content in zip(
                self._known.numbers(batch).tolist(),
                batch.column(batch.num_columns - 3).to_pylist(),
                batch.column(batch.num_columns - 2).to_pylist(),
                batch.column(batch.num_columns - 1).to_pylist(),
                strict=True,
            ):
                pane = self._opened(key, start, end)
                pane.fired, pane.state, event, processing = pickle.loads(content)
                for time in event:
                    self._register(pane, time, pane.event_timers, self._event_heap)
                for time in processing:
                    self._register_processing(pane, time)
        rows = self._rows_state.restored()
        for batch in rows.to_batches() if rows is not None else ():
            kept = batch.select(batch.schema.names[:-2])
            starts, ends = (batch.column(batch.num_columns - at).to_pylist() for at in (2, 1))
            keys = self._known.numbers(kept).tolist()
            for place, pane_id in enumerate(zip(keys, starts, ends, strict=True)):
                self._panes[pane_id].rows.append(self._logged + place)
            self._in_panes += kept.num_rows
            self._add_to_log(kept)

    def snapshot_state(self, checkpoint_id: int) -> None:
        pieces, names = self._log.pieces, self._known.columns
        panes = list(self._panes.values())
        columns = [
            column.take(pa.array([pane.key for pane in panes], pa.int64()))
            for column in self._known.frozen(self._schema)
        ]
        bounds = [pa.array([pane.id[at] for pane in panes], pa.int64()) for at in (1, 2)]
        content = [
            pickle.dumps((pane.fired, pane.state, [*pane.event_timers], [*pane.processing_timers]))
            for pane in panes
        ]
        places = np.array([row for pane in panes for row in pane.rows], np.int64)
        sizes = pa.array(np.repeat(np.arange(len(panes)), [len(pane.rows) for pane in panes]))

        def rows() -> pa.Table | None:
            if not len(places):
                return None
            table = as_table([taken(pieces, places)])
            for name, values in zip((_START, _END), bounds, strict=True):
                table = table.append_column(name, values.take(sizes))
            return table

        def of_panes() -> pa.Table | None:
            if not panes:
                return None
            contents = pa.array(content, pa.binary())
            return pa.table([*columns, *bounds, contents], [*names, _START, _END, _PANE])

        self._rows_state.keep(rows)
        self._panes_state.keep(of_panes)

    # -- arrival

    def process_batch(self, batch: pa.RecordBatch, input_index: int) -> None:
        if not batch.num_rows:
            return
        times = self._rows.times(batch)
        windows = self._windows_of(batch, times)
        kept = self._rows.kept(batch)
        watermark_us = self.context.timers.current_watermark_us
        over_us = MIN_TIMESTAMP_US if self._is_processing else watermark_us
        elements: Sequence[Any] = self._elements(kept)
        keys = self._known.numbers(kept).tolist()
        first, late = self._logged, []
        self._add_to_log(kept)
        with self.context.time("python"):
            for place, key in enumerate(keys):
                is_late = True
                for start_us, end_us in windows(place):
                    pane = self._pane_of(key, start_us, end_us, over_us)
                    if pane is None:  # its window is over
                        continue
                    is_late = False
                    pane.rows.append(first + place)
                    self._in_panes += 1
                    timestamp = None if times is None else int(times[place]) // 1_000
                    call = self._trigger.on_element
                    self._decide(pane, self._called(pane, call, elements[place], timestamp))
                if is_late:
                    late.append(place)
        if late:
            self._rows.too_late(kept.take(pa.array(late)))
        self._emit()

    def _elements(self, batch: pa.RecordBatch) -> Sequence[Any]:
        if not self._trigger.reads_elements:
            return [None] * batch.num_rows
        return [*rows_of(in_zone(batch, self._zone))]

    @property
    def _is_processing(self) -> bool:
        return self._window.processing_time

    def _windows_of(
        self, batch: pa.RecordBatch, times: Ints | None
    ) -> Callable[[int], Sequence[tuple[int, int]]]:
        """Returns a function of the windows of each row, by start and end in microseconds."""
        window = self._window
        if isinstance(window, GlobalSpec):
            return lambda place: [(0, MAX_TIMESTAMP_US)]
        starts = np.full(batch.num_rows, self._clock_us()) if times is None else times
        if isinstance(window, SessionSpec):
            ends = starts + self._rows.gaps(batch)
            bounds = [*zip(starts.tolist(), ends.tolist(), strict=True)]
            return lambda place: [bounds[place]]
        assert isinstance(window, TumblingSpec | SlidingSpec)
        size_us, slide_us = window.size_us, window.slide_us
        latest = (starts - (starts - window.offset_us) % slide_us).tolist()
        starts_us = starts.tolist()

        def of_row(place: int) -> list[tuple[int, int]]:
            start, found = latest[place], []
            while start + size_us > starts_us[place]:
                found.append((start, start + size_us))
                start -= slide_us
            return found[::-1]

        return of_row

    def _pane_of(self, key: int, start_us: int, end_us: int, over_us: int) -> _Pane | None:
        if isinstance(self._window, SessionSpec):
            return self._session_of(key, start_us, end_us, over_us)
        if _closed_us(end_us) - 1 <= over_us:
            return None
        return self._panes.get((key, start_us, end_us)) or self._opened(key, start_us, end_us)

    def _opened(self, key: int, start_us: int, end_us: int) -> _Pane:
        window: Any = GlobalWindow()
        if not isinstance(self._window, GlobalSpec):
            window = TimeWindow(start_us // 1_000, -(-end_us // 1_000), not self._is_processing)
        pane = self._panes[key, start_us, end_us] = _Pane(key, start_us, end_us, window)
        if isinstance(self._window, SessionSpec):
            self._of_key.setdefault(key, []).append(pane)
        if not isinstance(self._window, GlobalSpec):
            heapq.heappush(self._ends, (_closed_us(end_us), pane.id))
            if self._is_processing:
                self._wake(_closed_us(end_us) // 1_000)
        return pane

    def _session_of(self, key: int, start_us: int, end_us: int, over_us: int) -> _Pane | None:
        """Returns the session that a row joins, after merging the sessions that the row touches."""
        touched = [
            pane
            for pane in self._of_key.get(key, ())
            if pane.start_us <= end_us and start_us <= pane.end_us
        ]
        start_us = min([start_us, *(pane.start_us for pane in touched)])
        end_us = max([end_us, *(pane.end_us for pane in touched)])
        if _closed_us(end_us) - 1 <= over_us:
            return None
        if len(touched) == 1 and touched[0].id == (key, start_us, end_us):
            return touched[0]
        for pane in touched:
            self._forget(pane)
        merged = self._opened(key, start_us, end_us)
        if touched:
            merged.rows = sorted(row for pane in touched for row in pane.rows)
            merged.fired = max(pane.fired for pane in touched)
            context = _Context(self, merged, touched)
            self._guarded(partial(self._trigger.on_merge, merged.window, context))
        return merged

    def _forget(self, pane: _Pane) -> None:
        del self._panes[pane.id]
        if isinstance(self._window, SessionSpec):
            self._of_key[pane.key].remove(pane)
            if not self._of_key[pane.key]:
                del self._of_key[pane.key]

    # -- the trigger

    def _called(self, pane: _Pane, call: Callable[..., Any], *arguments: Any) -> TriggerResult:
        context = _Context(self, pane)
        result = self._guarded(partial(call, *arguments, pane.window, context))
        if not isinstance(result, TriggerResult):
            raise FiresteelError(
                f"{self.context.operator_name}: {type(self._trigger).__name__}.{call.__name__}"
                f" returned {type(result).__name__} {result!r}; it must return a TriggerResult"
            )
        return result

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise FiresteelError(
                f"{self.context.operator_name}: {type(self._trigger).__name__} failed:"
                f" {summary_of(error)}"
            ) from error

    def _decide(self, pane: _Pane, result: TriggerResult) -> None:
        if result.is_fire() and pane.rows:
            rows = pane.rows if result.is_purge() else pane.rows.copy()
            self._firings.append(_Firing(pane.id, pane.fired, rows))
            pane.fired += 1
        if result.is_purge():
            self._in_panes -= len(pane.rows)
            pane.rows = []

    # -- time

    def process_watermark(self, watermark: Watermark) -> None:
        self._advance(watermark.timestamp_us)
        self._emit()
        self.output.emit_watermark(watermark)

    def _advance(self, watermark_us: int) -> None:
        """Fires the event-time timers, and closes the windows that are over."""
        self._event_time_ended = watermark_us >= MAX_TIMESTAMP_US
        self._fire_timers(
            self._event_heap,
            lambda pane: pane.event_timers,
            _complete_ms(watermark_us),
            self._trigger.on_event_time,
        )
        if not self._is_processing:
            self._close_windows(watermark_us)

    def on_processing_time(self, timestamp_ms: int, key: Any, namespace: Any) -> None:
        if self._spec.at_end:
            return
        self._fire_timers(
            self._processing_heap,
            lambda pane: pane.processing_timers,
            timestamp_ms - 1,
            self._trigger.on_processing_time,
        )
        if self._is_processing:
            self._close_windows(timestamp_ms * 1_000 - 1)
        self._emit()

    def finish(self) -> None:
        """Fires the remaining processing-time timers once, as a batch in Flink does."""
        self._advance(MAX_TIMESTAMP_US)
        self._ended = True
        self._fire_timers(
            self._processing_heap,
            lambda pane: pane.processing_timers,
            MAX_TIMESTAMP_MS,
            self._trigger.on_processing_time,
        )
        self._emit()

    def _fire_timers(
        self,
        heap: list[tuple[int, _PaneId]],
        timers_of: Callable[[_Pane], set[int]],
        now_ms: int,
        call: Callable[..., Any],
    ) -> None:
        while heap and heap[0][0] <= now_ms:
            time, pane_id = heapq.heappop(heap)
            pane = self._panes.get(pane_id)
            if pane is None or time not in timers_of(pane):
                continue  # deleted
            timers_of(pane).remove(time)
            self._decide(pane, self._called(pane, call, time))

    def _close_windows(self, now_us: int) -> None:
        while self._ends and self._ends[0][0] - 1 <= now_us:
            pane = self._panes.get(heapq.heappop(self._ends)[1])
            if pane is not None:
                self._guarded(partial(self._trigger.clear, pane.window, _Context(self, pane)))
                self._in_panes -= len(pane.rows)
                self._forget(pane)

    def _register(
        self, pane: _Pane, time: int, timers: set[int], heap: list[tuple[int, _PaneId]]
    ) -> None:
        if time not in timers:
            timers.add(time)
            heapq.heappush(heap, (time, pane.id))

    def _register_processing(self, pane: _Pane, time: int) -> None:
        if not self._ended:
            self._register(pane, time, pane.processing_timers, self._processing_heap)
            self._wake(time + 1)  # once the millisecond is over, as in Flink

    def _wake(self, time_ms: int) -> None:
        if not self._spec.at_end and time_ms < MAX_TIMESTAMP_US // 1_000:  # it may still come
            self.context.timers.register_processing_time(time_ms)

    # -- firing

    def _emit(self) -> None:
        firings, self._firings = self._firings, []
        for some in self._together(firings):
            rows = np.array([row for each in some for row in each.rows], np.int64)
            sizes = [len(each.rows) for each in some]
            if self._spec.window_columns == (WINDOW_ID,):
                ids = np.repeat([each.number for each in some], sizes)
                columns = {WINDOW_ID: pa.array(ids, pa.int64())}
            else:
                starts, ends = (
                    np.repeat(np.array([each.pane[at] for each in some], np.int64), sizes)
                    for at in (1, 2)
                )
                columns = {WINDOW_START: as_timestamps(starts), WINDOW_END: as_timestamps(ends)}
            self._results.run(with_window(as_table([taken(self._log.pieces, rows)]), columns))
        if self._logged > 2 * self._in_panes + _SPARE:
            self._drop()
        if self._known.count > 2 * len(self._panes) + _SPARE:
            self._forget_keys()

    def _together(self, firings: Sequence[_Firing]) -> Iterator[list[_Firing]]:
        """Yields firings that are computed together: at most one of each key, or of each window of
        a key if a key's windows may be together.
        """
        by_id = self._spec.window_columns == (WINDOW_ID,)
        turns: list[list[_Firing]] = []
        seen: dict[Any, int] = {}
        for each in firings:
            alike: Any = each.pane if self._results.together else each.pane[0]
            if by_id and self._results.together:
                alike = (each.pane, each.number)
            turn = seen[alike] = seen.get(alike, -1) + 1
            if turn == len(turns):
                turns.append([])
            turns[turn].append(each)
        for turn_ in turns:
            some, rows = list[_Firing](), 0
            for each in turn_:
                if some and rows + len(each.rows) > MOST_ROWS:
                    yield some
                    some, rows = [], 0
                some.append(each)
                rows += len(each.rows)
            yield some

    def _add_to_log(self, batch: pa.RecordBatch) -> None:
        self._log.add(batch)
        self._logged += batch.num_rows

    def _drop(self) -> None:
        """Drops the rows that are in no pane."""
        panes = self._panes.values()
        places = np.unique(np.array([row for pane in panes for row in pane.rows], np.int64))
        for pane in panes:
            pane.rows = np.searchsorted(places, pane.rows).tolist() if pane.rows else []
        pieces, self._log = self._log.pieces, RowLog(memory=self._memory)
        self._logged = 0
        if len(places):
            self._add_to_log(taken(pieces, places))

    def _forget_keys(self) -> None:
        """Renumbers the keys that have panes."""
        panes = [*self._panes.values()]
        old = sorted({pane.key for pane in panes})
        columns = [column.take(pa.array(old)) for column in self._known.frozen(self._schema)]
        self._known = Keys(self._known.columns, self._memory)
        if not old:
            self._panes, self._of_key = {}, {}
            return
        numbers = self._known.numbers(pa.record_batch(columns, [*self._known.columns]))
        new = dict(zip(old, numbers.tolist(), strict=True))
        for pane in panes:
            pane.key = new[pane.key]
        self._panes = {pane.id: pane for pane in panes}
        self._of_key = {new[key]: of for key, of in self._of_key.items()}
        for heap in (self._event_heap, self._processing_heap, self._ends):
            kept = [(at, pane_id) for at, pane_id in heap if pane_id[0] in new]
            heap[:] = [(at, (new[key], start, end)) for at, (key, start, end) in kept]
            heapq.heapify(heap)

    def close(self) -> None:
        self._panes.clear()
        self._results.close()


class _Rows(StoredRows):
    """The times of rows, and the output of late rows."""

    def __init__(self, spec: WindowApplySpec) -> None:
        self._spec: WindowApplySpec = spec

    def times(self, batch: pa.RecordBatch) -> Ints | None:
        """Returns times in microseconds; None without event time."""
        return self.bounds(batch).starts if self._spec.time_column else None


class _Context(TriggerContext):
    __slots__ = ("_merged", "_operator", "_pane")

    def __init__(
        self, operator: TriggeredWindows, pane: _Pane, merged: Sequence[_Pane] = ()
    ) -> None:
        self._operator = operator
        self._pane = pane
        self._merged = merged

    def get_current_processing_time(self) -> int:
        return self._operator._clock_us() // 1_000

    def get_current_watermark(self) -> int:
        if self._operator._event_time_ended:
            return MAX_TIMESTAMP_MS
        return _complete_ms(self._operator.context.timers.current_watermark_us)

    def register_processing_time_timer(self, time: int) -> None:
        self._operator._register_processing(self._pane, time)

    def register_event_time_timer(self, time: int) -> None:
        operator, pane = self._operator, self._pane
        operator._register(pane, time, pane.event_timers, operator._event_heap)

    def delete_processing_time_timer(self, time: int) -> None:
        self._pane.processing_timers.discard(time)

    def delete_event_time_timer(self, time: int) -> None:
        self._pane.event_timers.discard(time)

    def get_partitioned_state(self, name: Any) -> TriggerState:
        return _State(self._pane.state, _name_of(name))

    def merge_partitioned_state(self, name: Any, reduce: Callable[[Any, Any], Any]) -> None:
        name = _name_of(name)
        values = [pane.state[name] for pane in self._merged if name in pane.state]
        if values:
            merged = values[0]
            for value in values[1:]:
                merged = reduce(merged, value)
            self._pane.state[name] = merged


class _State(TriggerState):
    __slots__ = ("_name", "_values")

    def __init__(self, values: dict[str, Any], name: str) -> None:
        self._values = values
        self._name = name

    def value(self) -> Any:
        return self._values.get(self._name)

    def update(self, value: Any) -> None:
        self._values[self._name] = value

    def clear(self) -> None:
        self._values.pop(self._name, None)


def _name_of(name: Any) -> str:
    return name if isinstance(name, str) else str(name.name)


def _closed_us(end_us: int) -> int:
    """Returns when a window is over: triggers see its end in whole milliseconds."""
    return -(-end_us // 1_000) * 1_000


def _complete_ms(watermark_us: int) -> int:
    """Returns the last millisecond that has passed completely."""
    return MAX_TIMESTAMP_MS if watermark_us >= MAX_TIMESTAMP_US else (watermark_us + 1) // 1_000 - 1
