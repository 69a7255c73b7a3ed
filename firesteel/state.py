"""Descriptors of the states of functions: name, types and time to live.

Names are those of `pyflink.datastream.state`. Types are optional: a DDL string such as "BIGINT" or
"n BIGINT, at DATE" (columns, if values are tuples), or one of Spark's types. Without a type, values
may be any picklable objects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from firesteel.durations import Duration, positive_us
from firesteel.errors import InvalidProgram

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = [
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "ReduceFunction",
    "ReducingStateDescriptor",
    "StateDescriptor",
    "StateTtlConfig",
    "ValueStateDescriptor",
]

Type: TypeAlias = "str | DataType | None"


class _UpdateType(Enum):
    Disabled = 0
    OnCreateAndWrite = 1
    OnReadAndWrite = 2


class _StateVisibility(Enum):
    ReturnExpiredIfNotCleanedUp = 0
    NeverReturnExpired = 1


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """How long a value lives after its last update, in processing time: PyFlink's StateTtlConfig.

    `ttl` is a duration such as "1 hour", at least one millisecond. Each element of a list and each
    entry of a map has a separate time to live. An expired value is never returned, with either
    visibility, and is removed in the background. Raises InvalidProgram for an invalid duration.
    """

    UpdateType: ClassVar = _UpdateType
    StateVisibility: ClassVar = _StateVisibility

    ttl: Duration
    update_type: _UpdateType = _UpdateType.OnCreateAndWrite
    state_visibility: _StateVisibility = _StateVisibility.NeverReturnExpired

    def __post_init__(self) -> None:
        if positive_us(self.ttl, "ttl of StateTtlConfig") < 1000:
            raise InvalidProgram(f"ttl of StateTtlConfig is {self.ttl!r}; it must be at least 1 ms")

    @property
    def ttl_ms(self) -> int | None:
        """The time to live in milliseconds, or None if it is disabled."""
        if self.update_type is _UpdateType.Disabled:
            return None
        return positive_us(self.ttl, "ttl of StateTtlConfig") // 1000

    @staticmethod
    def new_builder(ttl: Duration) -> _Builder:
        """Returns a builder that starts with OnCreateAndWrite and NeverReturnExpired."""
        return _Builder(StateTtlConfig(ttl))


class _Builder:
    """Builds a StateTtlConfig."""

    def __init__(self, config: StateTtlConfig) -> None:
        self._config = config

    def set_update_type(self, update_type: _UpdateType) -> _Builder:
        """Sets which accesses prolong the life of a value."""
        return _Builder(replace(self._config, update_type=update_type))

    def update_ttl_on_create_and_write(self) -> _Builder:
        """Only writing a value prolongs its life."""
        return self.set_update_type(_UpdateType.OnCreateAndWrite)

    def update_ttl_on_read_and_write(self) -> _Builder:
        """Reading a value also prolongs its life."""
        return self.set_update_type(_UpdateType.OnReadAndWrite)

    def set_state_visibility(self, state_visibility: _StateVisibility) -> _Builder:
        """Has no effect: expired values are never returned."""
        return _Builder(replace(self._config, state_visibility=state_visibility))

    def never_return_expired(self) -> _Builder:
        """Sets the only supported behaviour."""
        return self.set_state_visibility(_StateVisibility.NeverReturnExpired)

    def cleanup_full_snapshot(self) -> _Builder:
        """Has no effect: expired values are removed in the background."""
        return self

    def cleanup_incrementally(self, *settings: Any) -> _Builder:
        """Has no effect: expired values are removed in the background."""
        return self

    def cleanup_in_rocksdb_compact_filter(self, *settings: Any) -> _Builder:
        """Has no effect: expired values are removed in the background."""
        return self

    def disable_cleanup_in_background(self) -> _Builder:
        """Has no effect: expired values are removed in the background."""
        return self

    def build(self) -> StateTtlConfig:
        """Returns the configuration."""
        return self._config


class StateDescriptor:
    """Base of the descriptors."""

    key_type: Type = None  # of a map's own keys

    def __init__(self, name: str, type_info: Type = None) -> None:
        self.name = name
        self.type = type_info
        self.ttl: StateTtlConfig | None = None

    def get_name(self) -> str:
        """Returns the name."""
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Sets a time to live for values. The state must have a type."""
        if not isinstance(ttl_config, StateTtlConfig):
            raise InvalidProgram(
                f"enable_time_to_live() takes a StateTtlConfig, not {type(ttl_config).__name__}"
                f' {ttl_config!r:.100}, such as StateTtlConfig.new_builder("1 hour").build()'
            )
        self.ttl = ttl_config


class ValueStateDescriptor(StateDescriptor):
    """Describes a state of one value per key."""

    def __init__(self, name: str, value_type_info: Type = None) -> None:
        super().__init__(name, value_type_info)


class ListStateDescriptor(StateDescriptor):
    """Describes a state of a list per key; the type is that of its elements."""

    def __init__(self, name: str, elem_type_info: Type = None) -> None:
        super().__init__(name, elem_type_info)


class MapStateDescriptor(StateDescriptor):
    """Describes a state of a dictionary per key. Both keys and values have types, or neither."""

    def __init__(self, name: str, key_type_info: Type = None, value_type_info: Type = None) -> None:
        super().__init__(name, value_type_info)
        self.key_type = key_type_info


class ReduceFunction:
    """Combines two values into one of the same type: PyFlink's ReduceFunction."""

    def reduce(self, value1: Any, value2: Any) -> Any:
        """Returns the stored value combined with a new one."""
        raise NotImplementedError


class ReducingStateDescriptor(StateDescriptor):
    """Describes a state of one value per key, which combines added values with `reduce_function`, a
    function of two values or a ReduceFunction.
    """

    def __init__(
        self,
        name: str,
        reduce_function: ReduceFunction | Callable[[Any, Any], Any],
        type_info: Type = None,
    ) -> None:
        super().__init__(name, type_info)
        reduce = getattr(reduce_function, "reduce", reduce_function)
        if not callable(reduce):
            raise InvalidProgram(
                f"ReducingStateDescriptor({name!r}, ...) takes a function of two values or a"
                f" ReduceFunction, not {type(reduce_function).__name__}"
            )
        self.reduce: Callable[[Any, Any], Any] = reduce


class AggregateFunction:
    """Aggregates values in an accumulator: PyFlink's AggregateFunction. States do not call its
    `merge`.
    """

    def create_accumulator(self) -> Any:
        """Returns an empty accumulator."""
        raise NotImplementedError

    def add(self, value: Any, accumulator: Any) -> Any:
        """Returns an accumulator with one more value. May change the given one in place."""
        raise NotImplementedError

    def get_result(self, accumulator: Any) -> Any:
        """Returns the result of the values so far."""
        raise NotImplementedError


class AggregatingStateDescriptor(StateDescriptor):
    """Describes a state of one accumulator per key; the type is that of the accumulator."""

    def __init__(
        self, name: str, agg_function: AggregateFunction, state_type_info: Type = None
    ) -> None:
        super().__init__(name, state_type_info)
        if not isinstance(agg_function, AggregateFunction):
            raise InvalidProgram(
                f"AggregatingStateDescriptor({name!r}, ...) takes an AggregateFunction, not"
                f" {type(agg_function).__name__}"
            )
        self.function = agg_function
