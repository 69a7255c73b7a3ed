"""Keys of the database: the same bytes for equal keys, in the order of key groups, then of states.

4 bytes   key group, big-endian
2 bytes   length of the state's name, big-endian
...       the name, in UTF-8
8 bytes   of timers only: their time, big-endian, so that those of a key group are in its order
...       (key, namespace), as marshal's version 2 writes them: it has no references between
          objects, so equal values are equal bytes, which pickle does not promise

Values that marshal does not support are lists of one item, their pickle; a list is never a key.
"""

from __future__ import annotations

import datetime
import decimal
import marshal
import math
import pickle
from collections.abc import Callable
from typing import Any

from firesteel.common.checkpoints.key_group_content import has_timers
from firesteel.errors import FiresteelError

AFTER_ALL = b"\xff" * 4  # no key group is this large
TIME_BYTES = 8
_EARLIEST = -(2**63)
_VERSION = 2
_PLAIN = frozenset((int, str, bytes, bool, type(None)))
_PICKLED = (
    datetime.date,  # and datetime
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
)


def of_key_group(key_group: int) -> bytes:
    """Returns the prefix of all keys of the key group."""
    return key_group.to_bytes(4, "big")


def of_state(name: str) -> bytes:
    """Returns what follows the key group in all keys of the state."""
    encoded = name.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def of_time(timestamp: int) -> bytes:
    return (timestamp - _EARLIEST).to_bytes(TIME_BYTES, "big")


def time_in(encoded: bytes) -> int:
    """Returns the argument of `of_time`."""
    return int.from_bytes(encoded, "big") + _EARLIEST


def after(time: bytes) -> bytes:
    """Returns bytes that sort after everything with this time as prefix."""
    return time + b"\xff"


class KeyEncoder:
    """Encodes keys. Remembers the key group of the last key, since a record's calls share it."""

    def __init__(self, key_group_of: Callable[[Any], int]) -> None:
        self._key_group_of = key_group_of
        self._states: dict[str, bytes] = {}
        self._timed: set[str] = set()  # those of timers
        self._key: Any = None
        self._key_group = b""

    def __call__(self, name: str, key: Any, namespace: Any) -> bytes:
        """Encodes a key. The namespace of a timer is (time, namespace)."""
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = of_state(name)
            if has_timers(name):
                self._timed.add(name)
        if key is not self._key or not self._key_group:
            self._key_group = of_key_group(self._key_group_of(key))
            self._key = key
        if name in self._timed:
            timestamp, namespace = namespace
            state += of_time(timestamp)
        return self._key_group + state + _encoded(name, key, namespace)


def key_group_in(encoded: bytes) -> int:
    return int.from_bytes(encoded[:4], "big")


def decoded(encoded: bytes) -> tuple[str, Any, Any]:
    """Returns the state's name, the key and the namespace."""
    end = 6 + int.from_bytes(encoded[4:6], "big")
    name = encoded[6:end].decode()
    if not has_timers(name):
        key, namespace = marshal.loads(encoded[end:])
        return name, _original(key), _original(namespace)
    behind = end + TIME_BYTES
    key, namespace = marshal.loads(encoded[behind:])
    return name, _original(key), (time_in(encoded[end:behind]), _original(namespace))


def _encoded(name: str, key: Any, namespace: Any) -> bytes:
    plain = _PLAIN.issuperset(map(type, key)) if type(key) is tuple else type(key) in _PLAIN
    if not plain:
        key = _marshallable(name, key)
    if namespace is not None:
        namespace = _marshallable(name, namespace)
    return marshal.dumps((key, namespace), _VERSION)


def _marshallable(name: str, value: Any) -> Any:
    match value:
        case None | bool():
            return value
        case int():
            return int(value)  # of a subclass, too
        case float():
            return math.nan if math.isnan(value) else float(value) + 0.0  # no negative zero
        case str():
            return str(value)
        case bytes():
            return bytes(value)
        case tuple():
            return tuple(_marshallable(name, item) for item in value)
        case _ if isinstance(value, _PICKLED):
            return [pickle.dumps(value, protocol=5)]
        case _ if hasattr(value, "item"):  # a numpy scalar
            return _marshallable(name, value.item())
        case _:
            raise FiresteelError(
                f"the state {name!r} has a key or namespace of type {type(value).__name__}"
                f" ({value!r}): the rocksdb backend takes numbers, texts, bytes, dates, times and"
                " tuples of them. Use these, or state.backend.type: hashmap"
            )


def _original(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_original, value))
    return pickle.loads(value[0]) if type(value) is list else value
