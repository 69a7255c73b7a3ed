"""The StatefulProcessorHandle that `init` receives: declares state variables and sets timers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType

from firesteel.common.checkpoints.descriptions import (
    StateDescription,
    StateDescriptions,
    StateKind,
)
from firesteel.common.checkpoints.evolution import changed_state
from firesteel.errors import FiresteelError
from taskexecutor.executor.operators.python_rows.current_key import CurrentKey
from taskexecutor.executor.operators.python_rows.shapes import Shape
from taskexecutor.executor.operators.transform_with_state.expiring import (
    ExpiringList,
    ExpiringMap,
    ExpiringValue,
    ExpiringVariable,
)
from taskexecutor.executor.operators.transform_with_state.migration import migration
from taskexecutor.executor.operators.transform_with_state.processor_timers import (
    PROCESSING_TIME,
    ProcessorTimers,
)
from taskexecutor.executor.operators.transform_with_state.variables import (
    ListVariable,
    MapVariable,
    ValueVariable,
    Variable,
)
from taskexecutor.executor.state import KeyedState
from taskexecutor.executor.timing.clock import wall_clock_ms

_Schema = StructType | str


class _Declared(NamedTuple):
    how: tuple[StateKind, _Schema, _Schema | None, int | None]  # schema, schema of keys, TTL
    variable: Variable


class ProcessorHandle(StatefulProcessorHandle):
    """`restored` describes the backend's states as written; they are converted to the declarations
    of `init`. `keys` are the key columns, as Spark's JSON; None if they are unknown.
    """

    def __init__(
        self,
        time_mode: str,
        current: CurrentKey,
        backend: KeyedState,
        timers: ProcessorTimers,
        *,
        restored: StateDescriptions | None = None,
        keys: Any = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._time_mode = time_mode
        self._current = current
        self._backend = backend
        self._timers = timers
        self._restored = restored or {}
        self._keys = keys
        self._now_ms = now_ms
        self._variables: dict[str, _Declared] = {}  # by name
        self._deleted: set[str] = set()
        self._initialised = False

    def initialised(self) -> None:
        """Called when `init` has returned: no more state variables can be declared."""
        self._initialised = True

    @property
    def expiring(self) -> list[ExpiringVariable]:
        return [
            declared.variable
            for declared in self._variables.values()
            if isinstance(declared.variable, ExpiringVariable)
        ]

    @property
    def declared(self) -> dict[str, StateDescription]:
        """Returns the state variables by name, including those that the program deletes."""
        return {
            **{name: StateDescription(kind=StateKind.DELETED) for name in self._deleted},
            **{
                name: self._described(name, declared.how[0], declared.variable, declared.how[3])
                for name, declared in self._variables.items()
            },
        }

    # -- PySpark's interface

    def getValueState(
        self, stateName: str, schema: _Schema, ttlDurationMs: int | None = None
    ) -> ValueState:
        def make(shape: Shape, ttl_ms: int | None) -> Variable:
            if ttl_ms is None:
                return ValueVariable(self._current, self._backend, stateName, shape)
            return ExpiringValue(self._current, self._backend, stateName, shape, ttl_ms)

        return self._declare(StateKind.VALUE, stateName, schema, None, ttlDurationMs, make)  # type: ignore[no-any-return]

    def getListState(
        self, stateName: str, schema: _Schema, ttlDurationMs: int | None = None
    ) -> ListState:
        def make(shape: Shape, ttl_ms: int | None) -> Variable:
            if ttl_ms is None:
                return ListVariable(self._current, self._backend, stateName, shape)
            return ExpiringList(self._current, self._backend, stateName, shape, ttl_ms)

        return self._declare(StateKind.LIST, stateName, schema, None, ttlDurationMs, make)  # type: ignore[no-any-return]

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

        return self._declare(  # type: ignore[no-any-return]
            StateKind.MAP, stateName, valueSchema, userKeySchema, ttlDurationMs, make
        )

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._timers.register(operator.index(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._timers.delete(operator.index(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        return self._timers.pending()

    def deleteIfExists(self, stateName: str) -> None:
        self._deleted.add(stateName)
        declared = self._variables.pop(stateName, None)
        if declared is None:  # it may be from an earlier version of the program
            Variable(self._current, self._backend, stateName, _NO_SHAPE).delete()
        else:
            declared.variable.delete()

    # -- declarations

    def _declare(
        self,
        kind: StateKind,
        name: str,
        schema: _Schema,
        key_schema: _Schema | None,
        ttl: int | None,
        make: Callable[[Shape, int | None], Variable],
    ) -> Any:
        if not isinstance(name, str) or not name:
            raise FiresteelError(f"the name of a state variable must be a string, not {name!r}")
        if self._initialised:
            raise FiresteelError(f"state {name!r}: state variables can only be declared in init()")
        ttl_ms = self._ttl_ms(name, ttl)
        how = (kind, schema, key_schema, ttl_ms)
        before = self._variables.get(name)
        if before is not None:
            if before.how != how:
                raise FiresteelError(
                    f"state {name!r} is declared twice, with different schemas or times to live"
                )
            return before.variable
        variable = make(Shape(schema, f"state {name!r}"), ttl_ms)
        self._variables[name] = _Declared(how, variable)
        self._migrate(name, variable, self._described(name, kind, variable, ttl_ms))
        return variable

    def _described(
        self, name: str, kind: StateKind, variable: Variable, ttl_ms: int | None
    ) -> StateDescription:
        return StateDescription(
            kind=kind,
            keys=self._keys,
            values=variable.shape.schema.jsonValue(),
            map_keys=(
                variable.map_keys.schema.jsonValue() if variable.map_keys is not None else None
            ),
            ttl_ms=ttl_ms,
            replaces=name in self._deleted,
        )

    def _migrate(self, name: str, variable: Variable, now: StateDescription) -> None:
        """Converts restored values to the current declaration."""
        before = self._restored.get(name)
        if before is None or now.replaces:
            return
        if problem := changed_state(before, now):
            raise FiresteelError(f"state {name!r} cannot be restored: {problem}")
        if (convert := migration(before, now, self._now_ms())) is not None:
            variable.convert(convert)

    def _ttl_ms(self, name: str, ttl: int | None) -> int | None:
        if ttl is None:
            return None
        if self._time_mode != PROCESSING_TIME:
            raise FiresteelError(
                f"state {name!r} has a TTL, which requires processing time; "
                f'use time_mode="processing_time" instead of "{self._time_mode}"'
            )
        ttl_ms = operator.index(ttl)
        if ttl_ms <= 0:
            raise FiresteelError(f"state {name!r}: ttlDurationMs is {ttl_ms}; it must be positive")
        return ttl_ms


_NO_SHAPE = Shape(StructType([]), "no state")
