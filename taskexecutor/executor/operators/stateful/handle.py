"""The StatefulProcessorHandle that `init` gets: state variables, and timers of the key that is
being processed.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.errors import PySparkValueError
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType

from firesteel.elements import MAX_TIMESTAMP_US
from firesteel.errors import FiresteelError
from firesteel.operator import TimerService
from taskexecutor.executor.operators.stateful.expiring import (
    ExpiringList,
    ExpiringMap,
    ExpiringValue,
    ExpiringVariable,
)
from taskexecutor.executor.operators.stateful.grouping import Key
from taskexecutor.executor.operators.stateful.shapes import Shape
from taskexecutor.executor.operators.stateful.variables import (
    CurrentKey,
    ListVariable,
    MapVariable,
    ValueVariable,
    Variable,
)
from taskexecutor.executor.state import KeyedState

NONE, PROCESSING_TIME, EVENT_TIME = "none", "processing_time", "event_time"

_Schema = StructType | str


class ProcessorTimers:
    """Timers of every key, in milliseconds. The set of a key's timers is keyed state, so it is
    snapshotted and can be listed; the task's timer service has the same timers in the order of
    time.
    """

    ENTRY = "timers"

    def __init__(
        self, time_mode: str, current: CurrentKey, backend: KeyedState, service: TimerService
    ) -> None:
        self._time_mode = time_mode
        self._current = current
        self._backend = backend
        self._service = service
        # Event-time timers that were registered for a time which has been: they fire after the
        # batch, or at the next watermark. One that a timer registers fires with it if it is for
        # later, so that a chain of timers catches up; one that is for no later waits for the next
        # time, because it could go on like that for ever.
        self._overdue: list[
            tuple[int, int, Key]
        ] = []  # a heap; the number in the middle is the order of registration
        self._deferred: list[tuple[int, int, Key]] = []
        self._registered = 0
        self._firing_ms: int | None = None
        self._advancing = False  # the timer service fires, which takes what is registered meanwhile

    def restore(self) -> None:
        for entry in self._backend.entries(self.ENTRY):
            for expiry_ms in entry.value:
                self._schedule(entry.key, expiry_ms)

    def register(self, expiry_ms: int) -> None:
        key = self._key()
        if self._time_mode == EVENT_TIME and self._service.current_watermark_us >= MAX_TIMESTAMP_US:
            return  # event time has ended: there is no later
        timers = self._backend.owned(self.ENTRY, key, set)
        if timers is None:
            self._backend.put(self.ENTRY, key, {expiry_ms})
        elif expiry_ms in timers:
            return
        else:
            timers.add(expiry_ms)
        if self._time_mode == EVENT_TIME and expiry_ms * 1000 <= self._service.current_watermark_us:
            self._register_for_the_past(key, expiry_ms)
        else:
            self._schedule(key, expiry_ms)

    def _register_for_the_past(self, key: Key, expiry_ms: int) -> None:
        self._registered += 1
        timer = (expiry_ms, self._registered, key)
        if self._firing_ms is not None and expiry_ms <= self._firing_ms:
            self._deferred.append(timer)
        elif self._advancing:
            self._schedule(key, expiry_ms)
        else:
            heapq.heappush(self._overdue, timer)

    def delete(self, expiry_ms: int) -> None:
        key = self._key()
        self.forget(key, expiry_ms)
        if self._time_mode == EVENT_TIME:
            self._service.delete_event_time(_us(expiry_ms), key)
        else:
            self._service.delete_processing_time(expiry_ms, key)

    def pending(self) -> Iterator[int]:
        """Of the current key, in the order of time."""
        return iter(sorted(self._backend.get(self.ENTRY, self._key()) or ()))

    def is_pending(self, key: Key, expiry_ms: int) -> bool:
        return expiry_ms in (self._backend.get(self.ENTRY, key) or ())

    def forget(self, key: Key, expiry_ms: int) -> None:
        """It has fired, or is not wanted any more."""
        timers = self._backend.owned(self.ENTRY, key, set)
        if timers is not None:
            timers.discard(expiry_ms)
            if not timers:
                self._backend.remove(self.ENTRY, key)

    def begin_firing(self, expiry_ms: int, *, advancing: bool) -> None:
        self._firing_ms, self._advancing = expiry_ms, advancing

    def end_firing(self, key: Key, expiry_ms: int) -> None:
        """As in PySpark, a timer is gone only when it has fired: it is listed meanwhile, and cannot
        be registered again.
        """
        self._firing_ms, self._advancing = None, False
        self.forget(key, expiry_ms)

    def next_overdue(self) -> tuple[Key, int] | None:
        """None: the rest is for the next time."""
        while self._overdue:
            expiry_ms, _, key = heapq.heappop(self._overdue)
            if self.is_pending(key, expiry_ms):
                return key, expiry_ms
        self._overdue, self._deferred = sorted(self._deferred), []
        return None

    def _schedule(self, key: Key, expiry_ms: int) -> None:
        if self._time_mode == EVENT_TIME:
            self._service.register_event_time(_us(expiry_ms), key)
        else:
            self._service.register_processing_time(expiry_ms, key)

    def _key(self) -> Key:
        if self._time_mode == NONE:
            raise PySparkValueError(
                errorClass="UNSUPPORTED_OPERATION",
                messageParameters={"operation": "Timers with TimeMode.None"},
            )
        if self._current.key is None:
            raise FiresteelError("timers belong to a key, and no key is being processed here")
        return self._current.key


def _us(time_ms: int) -> int:
    return min(time_ms * 1000, MAX_TIMESTAMP_US)


class ProcessorHandle(StatefulProcessorHandle):
    def __init__(
        self, time_mode: str, current: CurrentKey, backend: KeyedState, timers: ProcessorTimers
    ) -> None:
        self._time_mode = time_mode
        self._current = current
        self._backend = backend
        self._timers = timers
        self._variables: dict[
            str, tuple[object, Any]
        ] = {}  # by name: how it was declared, and the variable
        self._initialised = False

    def initialised(self) -> None:
        """`init` has returned: no more state variables."""
        self._initialised = True

    @property
    def expiring(self) -> list[ExpiringVariable]:
        return [
            variable
            for _, variable in self._variables.values()
            if isinstance(variable, ExpiringVariable)
        ]

    # -- PySpark's interface

    def getValueState(
        self, stateName: str, schema: _Schema, ttlDurationMs: int | None = None
    ) -> ValueState:
        def make(shape: Shape, ttl_ms: int | None) -> Variable:
            if ttl_ms is None:
                return ValueVariable(self._current, self._backend, stateName, shape)
            return ExpiringValue(self._current, self._backend, stateName, shape, ttl_ms)

        return self._declare("value", stateName, schema, None, ttlDurationMs, make)  # type: ignore[no-any-return]

    def getListState(
        self, stateName: str, schema: _Schema, ttlDurationMs: int | None = None
    ) -> ListState:
        def make(shape: Shape, ttl_ms: int | None) -> Variable:
            if ttl_ms is None:
                return ListVariable(self._current, self._backend, stateName, shape)
            return ExpiringList(self._current, self._backend, stateName, shape, ttl_ms)

        return self._declare("list", stateName, schema, None, ttlDurationMs, make)  # type: ignore[no-any-return]

    def getMapState(
        self,
        stateName: str,
        userKeySchema: _Schema,
        valueSchema: _Schema,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        def make(shape: Shape, ttl_ms: int | None) -> Variable:
            keys = Shape(userKeySchema, f"state {stateName!r}, keys")
            if ttl_ms is None:
                return MapVariable(self._current, self._backend, stateName, keys, shape)
            return ExpiringMap(self._current, self._backend, stateName, keys, shape, ttl_ms)

        return self._declare("map", stateName, valueSchema, userKeySchema, ttlDurationMs, make)  # type: ignore[no-any-return]

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._timers.register(operator.index(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._timers.delete(operator.index(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        return self._timers.pending()

    def deleteIfExists(self, stateName: str) -> None:
        _, variable = self._variables.pop(
            stateName, (None, Variable(self._current, self._backend, stateName, _NO_SHAPE))
        )
        variable.delete()

    # -- inside

    def _declare(
        self,
        kind: str,
        name: str,
        schema: _Schema,
        key_schema: _Schema | None,
        ttl: int | None,
        make: Callable[[Shape, int | None], Variable],
    ) -> Any:
        if not isinstance(name, str) or not name:
            raise FiresteelError(f"a state variable is named by a text, not by {name!r}")
        if self._initialised:
            raise FiresteelError(f"state {name!r}: state variables are declared in init() only")
        ttl_ms = self._ttl_ms(name, ttl)
        declared = (kind, schema, key_schema, ttl_ms)
        if name in self._variables:
            before, variable = self._variables[name]
            if before != declared:
                raise FiresteelError(f"state {name!r} is declared twice, and not in the same way")
            return variable
        variable = make(Shape(schema, f"state {name!r}"), ttl_ms)
        self._variables[name] = (declared, variable)
        return variable

    def _ttl_ms(self, name: str, ttl: int | None) -> int | None:
        if ttl is None:
            return None
        if self._time_mode != PROCESSING_TIME:
            raise FiresteelError(
                f"state {name!r} has a TTL, and that is processing time; "
                f'use time_mode="processing_time" instead of "{self._time_mode}"'
            )
        ttl_ms = operator.index(ttl)
        if ttl_ms <= 0:
            raise FiresteelError(f"state {name!r}: ttlDurationMs is {ttl_ms}; it must be positive")
        return ttl_ms


_NO_SHAPE = Shape(StructType([]), "no state")
