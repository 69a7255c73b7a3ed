"""Key groups: the unit in which keyed state moves when the parallelism changes.

key group = murmur3(key) mod max parallelism; subtask = key group * parallelism // max parallelism.
The hash of a single key here equals the hash of the same value in a column (see the table of key
bytes in exchange/partitioning/murmur3.py), so that the subtask that gets a key's records owns its
state. A tuple is a key of several columns.
"""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from dataclasses import dataclass
from typing import Any

import mmh3

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_MICROSECOND = datetime.timedelta(microseconds=1)
_EXACT = decimal.Context(prec=100)
_NAN = struct.pack("<Q", 0x7FF8000000000000)


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """The key groups first <= g < end."""

    first: int
    end: int

    def __contains__(self, key_group: int) -> bool:
        return self.first <= key_group < self.end

    def covers(self, other: KeyGroupRange) -> bool:
        return self.first <= other.first and other.end <= self.end

    def overlaps(self, other: KeyGroupRange) -> bool:
        return self.first < other.end and other.first < self.end

    def __len__(self) -> int:
        return self.end - self.first


def key_group_range(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """Returns the key groups g with g * parallelism // max_parallelism == subtask."""
    if not 0 <= subtask < parallelism <= max_parallelism:
        raise ValueError(
            f"subtask {subtask} of {parallelism} with max parallelism {max_parallelism} is not"
            " possible"
        )
    return KeyGroupRange(
        -(-subtask * max_parallelism // parallelism),
        -(-(subtask + 1) * max_parallelism // parallelism),
    )


def key_group(key: Any, max_parallelism: int) -> int:
    """Returns the key's group. Raises TypeError if values of the key's type cannot be keys."""
    return key_hash(key) % max_parallelism


def key_hash(key: Any) -> int:
    """Returns the key's murmur3_x86_32 hash with seed 0, unsigned."""
    if isinstance(key, tuple) and len(key) != 1:
        return mmh3.hash(
            b"".join(struct.pack("<I", _value_hash(value)) for value in key), 0, signed=False
        )
    return _value_hash(key[0] if isinstance(key, tuple) else key)


def _value_hash(value: Any) -> int:
    return 0 if value is None else mmh3.hash(_key_bytes(value), 0, signed=False)


def _key_bytes(value: Any) -> bytes:
    match value:
        case tuple():  # an array or a struct
            return b"".join(struct.pack("<I", _value_hash(part)) for part in value)
        case bool():
            return b"\x01" if value else b"\x00"
        case int():
            return struct.pack("<Q", value & 0xFFFFFFFFFFFFFFFF)
        case float():
            return _NAN if math.isnan(value) else struct.pack("<d", value + 0.0)
        case str():
            return value.encode()
        case bytes():
            return value
        case datetime.datetime():
            aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
            return struct.pack("<q", (aware - _EPOCH) // _MICROSECOND)
        case datetime.date():
            return struct.pack("<q", value.toordinal() - _EPOCH_DAY)
        case datetime.timedelta():
            return struct.pack("<q", value // _MICROSECOND)
        case datetime.time():
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            return struct.pack("<q", seconds * 1_000_000 + value.microsecond)
        case decimal.Decimal():
            return b"0" if not value else format(value.normalize(_EXACT), "f").encode()
        case _:
            if hasattr(value, "item"):  # a numpy scalar
                return _key_bytes(value.item())
            raise TypeError(f"a {type(value).__name__} cannot be a key")
