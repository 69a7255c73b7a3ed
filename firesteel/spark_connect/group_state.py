"""`applyInPandasWithState` as a stateful processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pandas as pd

_NO_TIME = -1
_TIME_MODES = {
    GroupStateTimeout.NoTimeout: "none",
    GroupStateTimeout.ProcessingTimeTimeout: "processing_time",
    GroupStateTimeout.EventTimeTimeout: "event_time",
}

Function = Callable[[Any, Iterator[Any], GroupState], Iterator[Any]]


class GroupStateProcessor(StatefulProcessor):
    """Calls `function(key, frames, state)` for the rows of a key, and when the key times out: then
    without frames. `timeout` is one of PySpark's GroupStateTimeout.
    """

    def __init__(self, function: Function, state_type: StructType, timeout: str) -> None:
        self._function = function
        self._state_type = state_type
        self._timeout = timeout

    @property
    def time_mode(self) -> str:
        return _TIME_MODES[self._timeout]

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("state", self._state_type)
        self._due = handle.getValueState("timeout", "due_ms BIGINT")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        return self._called(key, rows, timerValues, timed_out=False)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        return self._called(key, iter(()), timerValues, timed_out=True)

    def close(self) -> None:
        """Has nothing to release."""

    def _called(
        self, key: Any, frames: Iterator[Any], times: Any, *, timed_out: bool
    ) -> Iterator[Any]:
        self._forget_timeout(fired=timed_out)
        state = self._group_state(times, timed_out)
        yield from self._function(key, frames, state)
        if state._removed:
            self._state.clear()
        elif state._updated:
            self._state.update(tuple(state._value))
        if state._timeout_timestamp != _NO_TIME:
            due_ms = int(state._timeout_timestamp)
            if self._timeout == GroupStateTimeout.EventTimeTimeout:
                due_ms += 1  # the watermark must have passed it
            self._handle.registerTimer(due_ms)
            self._due.update((due_ms,))

    def _forget_timeout(self, *, fired: bool) -> None:
        """Forgets the timeout of the last call: each call sets the next one, or none."""
        if self._timeout == GroupStateTimeout.NoTimeout or not self._due.exists():
            return
        (due_ms,) = self._due.get() or ()
        if not fired:
            self._handle.deleteTimer(due_ms)
        self._due.clear()

    def _group_state(self, times: Any, timed_out: bool) -> GroupState:
        known = self._state.exists()
        in_event_time = self._timeout == GroupStateTimeout.EventTimeTimeout
        now_ms = 0 if in_event_time else times.getCurrentProcessingTimeInMs()
        watermark_ms = times.getCurrentWatermarkInMs() if in_event_time else _NO_TIME
        return GroupState(
            optionalValue=Row(*(self._state.get() or ())),
            batchProcessingTimeMs=now_ms,
            eventTimeWatermarkMs=watermark_ms,
            timeoutConf=self._timeout,
            hasTimedOut=timed_out,
            watermarkPresent=in_event_time,
            defined=known,
            updated=False,
            removed=False,
            timeoutTimestamp=_NO_TIME,
            keyAsUnsafe=b"",
            valueSchema=self._state_type,
        )
