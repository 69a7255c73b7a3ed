"""Regular CSV text: every line has the same number of values, nothing is quoted, and lines end with
newlines.

Most text is regular, and NumPy finds its values in one pass over the bytes, in half the time of a
general parser. Values that are plain digits, or times in a single form, are converted eight bytes
at a time, and runs of equal times once; other values are returned as texts, for
`csv_columns.converted`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from firesteel.common.units import KIB
from taskexecutor.executor.columnar.readers.pieces import Differs
from taskexecutor.executor.numbers import as_numpy

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_NEWLINE, _RETURN, _DOT = 10, 13, 46
_CACHED = 256 * KIB  # bytes that are searched at a time
_AHEAD = 32  # bytes that are read after the start of a value
_LATE_ROWS = 4_096  # smaller batches are merged, which would copy their dictionaries
_MOST_DIGITS = 16
_MOST_DAYS = 64  # consecutive days in the times of a block
_US = 1_000_000
_DAY, _CLOCK = len("2024-01-01 "), len("00:00:00")

# Constants for words of eight bytes, whose lowest byte is the first in memory.
_ZEROS = np.uint64(0x3030303030303030)  # digits
_MIDNIGHT = np.uint64(int.from_bytes(b"00:00:00", "little"))
_COLONS = np.uint64(0x0000FF0000FF0000)  # at the positions of colons
_HIGH, _SIX = np.uint64(0xF0F0F0F0F0F0F0F0), np.uint64(0x0606060606060606)
_PAIRS = np.uint64(0x000000FF000000FF)


class _Values(NamedTuple):
    """The positions of a column's values."""

    starts: Ints
    ends: Ints
    sizes: Ints


class RegularText:
    """Finds the values of a column by its index."""

    def __init__(self, text: bytes, starts: Ints, ends: npt.NDArray[np.int64]) -> None:
        """`starts` of the lines and `ends` of each line's values; at least `_AHEAD` more bytes
        follow.
        """
        self._text = text
        self._buffer = pa.py_buffer(text)
        self._bytes = np.frombuffer(text, np.uint8)
        self._words = np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))
        self._longest = np.ndarray((len(text) - _AHEAD + 1,), f"V{_AHEAD}", text, strides=(1,))
        self._starts = starts
        self._ends = ends

    @staticmethod
    def of(text: bytes, start: int, end: int, separator: str, columns: int) -> RegularText | None:
        """Returns None if `text[start:end]`, complete lines without a quote, is not regular.
        Carriage returns are only allowed before newlines.
        """
        if start == end or text[end - 1] != _NEWLINE:
            return None
        if len(text) < end + _AHEAD:
            text += bytes(_AHEAD)
        content = np.frombuffer(text, np.uint8)
        places, newlines = [], 0
        for at in range(start, end, _CACHED):
            part = content[at : min(at + _CACHED, end)]
            borders = part == _NEWLINE
            newlines += int(np.count_nonzero(borders))
            borders |= part == ord(separator)
            (found,) = borders.nonzero()
            found += at
            places.append(found)
        found = np.concatenate(places)
        lines, more = divmod(len(found), columns)
        if more or newlines != lines:
            return None
        ends = found.reshape(lines, columns)
        lasts = np.ascontiguousarray(ends[:, -1])
        if not (content[lasts] == _NEWLINE).all() or (content[lasts - 1] == _RETURN).any():
            return None
        starts = np.empty(lines, np.int64)
        starts[0] = start
        starts[1:] = lasts[:-1] + 1
        return RegularText(text, starts, ends)

    @property
    def lines(self) -> int:
        return len(self._starts)

    def of_lines(self, places: Ints) -> RegularText:
        """Returns the same text with these lines only."""
        return RegularText(self._text, self._starts[places], self._ends[places])

    def column(self, number: int, kind: pa.DataType, *, utc: bool) -> pa.Array | None:
        """Returns the values if they are not null and have the usual form of the type; otherwise
        None. `utc`: times without a zone are UTC.
        """
        values = self._values(number)
        if pa.types.is_signed_integer(kind):
            return self._integers(values, kind)
        if pa.types.is_timestamp(kind) and (utc or kind.tz is None):
            times = self._times(values)
            return None if times is None else pa.array(times).view(kind)
        return None

    def texts(self, number: int, kind: pa.DataType) -> pa.Array:
        """Returns the values as strings or binaries; empty ones are null. Raises Differs."""
        every, places = self._every(number, kind)
        found = every.take(places)
        if pa.types.is_string(kind) and not self._is_ascii:
            try:
                found.validate(full=True)
            except pa.ArrowInvalid as error:
                raise Differs(str(error)) from None
        return found

    def late_texts(self, number: int) -> pa.DictionaryArray | None:
        """Returns the strings as a dictionary array that references them in place; None unless they
        are ASCII, and many.
        """
        if len(self._starts) < _LATE_ROWS or not self._is_ascii:
            return None
        every, places = self._every(number, pa.string())
        return pa.DictionaryArray.from_arrays(places, every, safe=False)

    def _every(self, number: int, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
        """Returns the column's values and the text between them, in place, and the positions of the
        values. Empty values have no position.
        """
        starts, ends, sizes = self._values(number)
        offsets = np.empty((len(starts), 2), np.int32)
        offsets[:, 0], offsets[:, 1] = starts, ends
        count = 2 * len(starts) - 1
        every = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), self._buffer])
        validity = None
        if not sizes.all():
            validity = pa.py_buffer(np.packbits(sizes != 0, bitorder="little"))
        places = pa.py_buffer(np.arange(0, count, 2, dtype=np.int32))
        return every, pa.Array.from_buffers(pa.int32(), len(starts), [validity, places])

    @functools.cached_property
    def _is_ascii(self) -> bool:
        return bool(self._bytes[self._starts[0] : self._ends[-1, -1]].max() < 128)

    def _values(self, number: int) -> _Values:
        starts = self._ends[:, number - 1] + 1 if number else self._starts
        ends = np.ascontiguousarray(self._ends[:, number])
        return _Values(starts, ends, ends - starts)

    # -- values of digits

    def _integers(self, values: _Values, kind: pa.DataType) -> pa.Array | None:
        _, ends, sizes = values
        if sizes.min() < 1 or sizes.max() > _MOST_DIGITS or ends[0] < _MOST_DIGITS:
            return None
        numbers = _digits(self._words[ends - 8], np.minimum(sizes, 8))
        if numbers is not None and sizes.max() > 8:
            higher = _digits(self._words[ends - 16], np.maximum(sizes - 8, 0))
            numbers = numbers + higher * 10**8 if higher is not None else None
        if numbers is None:
            return None
        if kind.bit_width < 64 and int(numbers.max()) >= 1 << (kind.bit_width - 1):
            return None
        return pa.array(numbers).cast(kind)

    # -- times, such as 2024-01-01 23:59:59.999

    def _times(self, values: _Values) -> Ints | None:
        """Returns times in microseconds; None unless all have the same number of digits."""
        starts, _, sizes = values
        size = int(sizes[0])
        digits = size - _DAY - _CLOCK - 1  # after the dot
        if not (digits == -1 or 1 <= digits <= 6) or not (sizes == size).all():
            return None
        texts = self._longest[starts]
        heads = _heads(*(_words(texts, at) for at in (0, _DAY - 8, _DAY, size - 8)))
        if 2 * len(heads) > len(texts):
            return _moments(texts, digits)
        times = _moments(texts[heads], digits)
        return None if times is None else np.repeat(times, np.diff(heads, append=len(texts)))


def _digits(words: Words, sizes: Ints | np.int64) -> Ints | None:
    """Returns numbers of at most eight digits at the end of words; None if there are other
    characters.
    """
    words = words ^ _ZEROS
    others = ((8 - sizes) * 8).astype(np.uint64)  # number of bits before the value
    words >>= others
    words <<= others
    if not _are_digits(words):
        return None
    words = words * np.uint64(10) + (words >> np.uint64(8))  # two digits each
    low = (words & _PAIRS) * np.uint64(100 + (1_000_000 << 32))
    words >>= np.uint64(16)
    words &= _PAIRS
    words *= np.uint64(1 + (10_000 << 32))
    words += low
    words >>= np.uint64(32)
    return words.view(np.int64)


def _moments(texts: npt.NDArray[np.void], digits: int) -> Ints | None:
    """Returns times with `digits` digits after the dot, or without a dot if -1, in microseconds."""
    days = _days(texts)
    clock = _words(texts, _DAY) ^ _MIDNIGHT
    if days is None or (clock & _COLONS).any() or not _are_digits(clock):
        return None
    clock = clock * np.uint64(10) + (clock >> np.uint64(8))
    hours, minutes, seconds = (
        ((clock >> np.uint64(bits)) & np.uint64(255)).view(np.int64) for bits in (0, 24, 48)
    )
    if hours.max() > 23 or minutes.max() > 59 or seconds.max() > 59:
        return None
    times = days + ((hours * 60 + minutes) * 60 + seconds) * _US
    if digits < 0:
        return times
    dot = _DAY + _CLOCK
    if not (texts.view(np.uint8)[dot::_AHEAD] == _DOT).all():
        return None
    fractions = _digits(_words(texts, dot + 1 + digits - 8), np.int64(digits))
    return times + fractions * 10 ** (6 - digits) if fractions is not None else None


def _days(texts: npt.NDArray[np.void]) -> Ints | None:
    """Returns the days at the start of texts in microseconds: Arrow reads the first one of each
    run. Returns a single value if all are equal.
    """
    heads = _heads(_words(texts, 0), _words(texts, _DAY - 8))
    if len(heads) > _MOST_DAYS:
        return None
    dates = [text.tobytes()[:_DAY] + b"00:00:00" for text in texts[heads]]
    try:
        days = pc.cast(pa.array(dates).cast(pa.string()), pa.timestamp("us")).cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    found: Any = as_numpy(days)
    return np.repeat(found, np.diff(heads, append=len(texts))) if len(heads) > 1 else found


def _words(texts: npt.NDArray[np.void], at: int) -> Words:
    """Returns the eight bytes at this offset of each text."""
    return np.ndarray((len(texts),), "<u8", texts, at, (texts.itemsize,))


def _heads(*words: Words) -> Ints:
    """Returns where rows differ from the preceding ones."""
    differs = np.zeros(len(words[0]) - 1, np.bool_)
    for word in words:
        differs |= word[1:] != word[:-1]
    return np.concatenate((np.zeros(1, np.int64), np.flatnonzero(differs) + 1))


def _are_digits(words: Words) -> bool:
    """Returns whether all bytes are less than ten."""
    return not (((words + _SIX) | words) & _HIGH).any()
