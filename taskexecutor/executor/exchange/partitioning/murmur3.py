"""Hash values of key columns: murmur3_x86_32, seed 0, over each value's key bytes. Pure and
vectorised.

These values determine where state is, on every machine and in every release, so they never change
(tests hold golden values).

    value                        key bytes, hashed as `mmh3.hash(key_bytes, 0, signed=False)` does
    ---------------------------  -----------------------------------------------------------------
    integers of every width      int64, little-endian (uint64 above 2**63 - 1: its 64 bits)
    bool                         one byte, 0 or 1
    float16, float32, float64    float64, little-endian; -0.0 as 0.0, any NaN as 0x7ff8000000000000
    string                       its UTF-8 bytes
    binary, fixed-size binary    its bytes
    date32, date64               days since the epoch, as an integer
    timestamp, time, duration    microseconds, rounded down, as an integer (zones do not matter)
    decimal                      its shortest plain decimal text: 1.50 and 1.5 are one key
    array, struct                the hashes of its elements or fields, as those of several columns
    null of any type             no bytes, so the value 0
    dictionary, extension        the value it stands for; the storage's value

One key column: the hash of the value. Several: the hash of their hashes, each as four little-endian
bytes, in order.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from taskexecutor.executor.exchange.errors import UnsupportedKey
from taskexecutor.executor.numbers import as_numpy

Hashes = npt.NDArray[np.uint32]

_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_EXACT = decimal.Context(prec=100)
_MICROSECONDS = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
_MS_PER_DAY = 86_400_000
# Each distinct text is hashed once if texts are longer than this on average, or if each of the
# first texts occurs this often.
_SHORT_BYTES = 64
_SAMPLE, _REPEATED = 512, 8


def hash_columns(columns: Sequence[pa.Array]) -> Hashes:
    """Returns one hash per row, of the key made of these columns. Raises UnsupportedKey."""
    hashes = [hash_array(column) for column in columns]
    return hashes[0] if len(hashes) == 1 else hash_blocks(hashes)


def hash_array(array: pa.Array) -> Hashes:
    """Returns one hash per value. Raises UnsupportedKey."""
    kind = array.type
    if types.is_null(kind):
        return np.zeros(len(array), np.uint32)
    if isinstance(array, pa.ExtensionArray):
        return hash_array(array.storage)
    if types.is_dictionary(kind):
        return _by_index(hash_array(array.dictionary), array.indices)
    if not array.null_count:
        return _hash_valid(array)
    if types.is_nested(kind):
        hashes = _hash_nested(array)
    elif _fixed_width(kind):
        hashes = _hash_valid(array.fill_null(_zero(kind)))
    elif _block_by_block(array):
        hashes = _hash_bytes(array)
    else:
        return _hash_distinct(array)
    hashes[as_numpy(array.is_null())] = 0
    return hashes


def hash_int64(values: npt.NDArray[np.int64]) -> Hashes:
    """Returns murmur3_x86_32 of each value's eight little-endian bytes."""
    blocks = np.ascontiguousarray(values, dtype="<i8").view("<u4")
    return hash_blocks([blocks[0::2], blocks[1::2]])


def hash_blocks(blocks: Sequence[npt.NDArray[np.uint32]]) -> Hashes:
    """Returns murmur3_x86_32 of keys of `len(blocks)` four-byte blocks each; `blocks[i]` holds
    block i of every key.
    """
    hashes = np.zeros(len(blocks[0]), np.uint32)
    for block in blocks:
        hashes ^= _mixed(block)
        hashes = _rotated(hashes, 13)
        hashes *= np.uint32(5)
        hashes += np.uint32(0xE6546B64)
    return _finished(hashes, np.uint32(4 * len(blocks)))


def _mixed(block: npt.NDArray[np.uint32]) -> Hashes:
    mixed = _rotated(block * _C1, 15)
    mixed *= _C2
    return mixed


def _finished(hashes: Hashes, lengths: Hashes | np.uint32) -> Hashes:
    hashes ^= lengths
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes


def _rotated(values: Hashes, bits: int) -> Hashes:
    high = values << np.uint32(bits)
    high |= values >> np.uint32(32 - bits)
    return high


def _fixed_width(kind: pa.DataType) -> bool:
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_temporal(kind)
    )


def _zero(kind: pa.DataType) -> pa.Scalar:
    if types.is_boolean(kind):
        return pa.scalar(False, pa.bool_())
    return pa.scalar(0, pa.int64() if kind.bit_width == 64 else pa.int32()).cast(kind)


def _hash_valid(array: pa.Array) -> Hashes:
    """Returns the hashes of an array without nulls."""
    kind = array.type
    if types.is_integer(kind):
        return hash_int64(_numbers(array).astype(np.int64, copy=False))  # uint64: its bits
    if types.is_boolean(kind):
        table = np.array(
            [mmh3.hash(b"\x00", 0, signed=False), mmh3.hash(b"\x01", 0, signed=False)], np.uint32
        )
        bools: Hashes = table[as_numpy(array).astype(np.intp)]
        return bools
    if types.is_floating(kind):
        floats = as_numpy(array).astype(np.float64) + 0.0  # -0.0 + 0.0 is 0.0
        floats[np.isnan(floats)] = np.nan  # one of many bit patterns of NaN
        return hash_int64(floats.view(np.int64))
    if types.is_date(kind):
        days = _numbers(array.view(pa.int32() if types.is_date32(kind) else pa.int64())).astype(
            np.int64
        )
        return hash_int64(days if types.is_date32(kind) else days // _MS_PER_DAY)
    if types.is_temporal(kind) and not types.is_interval(kind):
        ticks = _numbers(array.view(pa.int32() if kind.bit_width == 32 else pa.int64())).astype(
            np.int64, copy=False
        )
        times, divided_by = _MICROSECONDS[kind.unit]
        return hash_int64(ticks * times if divided_by == 1 else ticks // divided_by)
    if types.is_nested(kind):
        return _hash_nested(array)
    return _hash_bytes(array) if _block_by_block(array) else _hash_distinct(array)


def _hash_nested(array: pa.Array) -> Hashes:
    """Returns the hashes of arrays and structs; those of nulls are undefined."""
    kind = array.type
    if types.is_struct(kind):
        fields = [hash_array(field) for field in array.flatten()]
        return hash_blocks(fields) if fields else np.zeros(len(array), np.uint32)
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        raise _unsupported(kind)
    # of values that are not null
    elements = np.ascontiguousarray(hash_array(array.flatten()), "<u4")
    lengths = as_numpy(pc.list_value_length(array).fill_null(0))
    ends = 4 * np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(elements)]
    return _hash_distinct(pa.Array.from_buffers(pa.large_binary(), len(array), buffers))


def _unsupported(kind: pa.DataType) -> UnsupportedKey:
    return UnsupportedKey(
        f"a column of type {kind} cannot be a key: keys are numbers, strings, binaries, booleans,"
        " dates or times, or arrays and structs of them"
    )


def _block_by_block(array: pa.Array) -> bool:
    """Returns whether the array has texts or binaries that are short and mostly distinct, as keys
    are.
    """
    kind = array.type
    if not len(array) or not (types.is_string(kind) or types.is_binary(kind)):
        return False
    ends = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
    if int(ends[-1]) - int(ends[0]) > _SHORT_BYTES * len(array):
        return False
    sample = array.slice(0, _SAMPLE)
    return len(sample.unique()) * _REPEATED > len(sample)


def _hash_bytes(array: pa.Array) -> Hashes:
    """Hashes the bytes of all values together, block by block. Hashes of nulls are undefined."""
    _, ends_buffer, data = array.buffers()
    ends = np.frombuffer(ends_buffer, np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
    first = int(ends[0])
    size = int(ends[-1]) - first
    content = np.zeros(max(size, 4), np.uint8)  # room for one block, if there are fewer bytes
    if size:
        content[:size] = np.frombuffer(data, np.uint8, size, first)
    starts, lengths = ends[:-1] - first, np.diff(ends)
    order = None
    if (lengths != lengths[0]).any():  # longest first: values with an i-th block come first
        longest = int(lengths.max())
        # numpy sorts 16-bit words by radix, in linear time.
        narrow = np.uint16 if longest < 2**16 else np.int64
        order = np.argsort((longest - lengths).astype(narrow), kind="stable")
        starts, lengths = starts[order], lengths[order]
    # overlapping: a block at every byte
    blocks = np.ndarray((len(content) - 3,), "<u4", content, strides=(1,))
    hashes = np.zeros(len(array), np.uint32)
    for index, count in enumerate(_having(lengths // 4)):
        part = hashes[:count]
        part ^= _mixed(blocks[starts[:count] + 4 * index])
        part[:] = _rotated(part, 13)
        part *= np.uint32(5)
        part += np.uint32(0xE6546B64)
    rests = (lengths % 4).astype(np.uint32)
    places = starts + lengths - rests
    inside = np.minimum(places, len(blocks) - 1)
    tails = blocks[inside] >> (np.uint32(8) * (places - inside).astype(np.uint32))
    hashes ^= _mixed(tails & ((np.uint32(1) << (np.uint32(8) * rests)) - np.uint32(1)))
    hashes = _finished(hashes, lengths.astype(np.uint32))
    if order is None:
        return hashes
    by_row = np.empty_like(hashes)
    by_row[order] = hashes
    return by_row


def _having(blocks: npt.NDArray[np.int64]) -> list[int]:
    """Returns how many values have a first block, a second one, and so on. `blocks` is
    descending.
    """
    most = int(blocks[0])
    counts: list[int] = np.searchsorted(-blocks, -np.arange(most), side="left").tolist()
    return counts


def _numbers(array: pa.Array) -> npt.NDArray[np.generic]:
    numbers: npt.NDArray[np.generic] = as_numpy(array)
    return numbers


def _hash_distinct(array: pa.Array) -> Hashes:
    """Hashes values of variable width: each distinct value once."""
    kind = array.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        array = (
            array.cast(pa.large_binary())
            if not types.is_string_view(kind)
            else array.cast(pa.string()).cast(pa.binary())
        )
    elif types.is_binary_view(kind):
        array = array.cast(pa.binary())
    elif not (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_decimal(kind)
    ):
        raise _unsupported(kind)
    encoded = array.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    if types.is_decimal(kind):
        distinct = [_decimal_text(value) for value in distinct]
    hashes = np.fromiter(
        (mmh3.hash(value, 0, signed=False) for value in distinct), np.uint32, len(distinct)
    )
    return _by_index(hashes, encoded.indices)


def _decimal_text(value: decimal.Decimal) -> bytes:
    return b"0" if not value else format(value.normalize(_EXACT), "f").encode()


def _by_index(hashes: Hashes, indices: pa.Array) -> Hashes:
    """Returns the hash of each row's dictionary entry; 0 for null."""
    if indices.null_count:
        indices = indices.cast(pa.int64()).fill_null(len(hashes))
        hashes = np.append(hashes, np.uint32(0))  # the entry for nulls
    by_row: Hashes = hashes[as_numpy(indices)]
    return by_row
