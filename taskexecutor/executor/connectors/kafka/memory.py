"""Reads what C libraries hold in this process's memory as columns, without an object for each
value.

Nothing here checks an address: each must point into memory that lives during the call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

Integers = np.ndarray[Any, np.dtype[np.int64]]

WORD = 8  # bytes
_SHIFT = 3  # from bytes to words
_FIRST = 4_096  # the lowest address; nothing is mapped below
_END = 2**48  # above all addresses of a process on x86-64 and AArch64


class _AllMemory:
    __array_interface__ = {  # noqa: RUF012
        "version": 3,
        "typestr": "<i8",
        "data": (_FIRST, False),
        "shape": ((_END - _FIRST) // WORD,),
    }


# Views of the whole address space. Only what is selected is read.
_WORDS: Integers = np.asarray(_AllMemory())
_BYTES = pa.foreign_buffer(_FIRST, _END - _FIRST, base=_WORDS)


def words(addresses: Integers, index: int) -> Integers:
    """Returns the word at `index` of each structure. `addresses` are multiples of 8."""
    return _WORDS.take(((addresses - _FIRST) >> _SHIFT) + index)


def strings(addresses: Integers, sizes: Integers) -> pa.BinaryArray:
    """Copies strings of bytes into a column. Those at address 0 are null.

    The values of `everything` are the strings and, between them, the gaps between their addresses,
    which are never selected. Arrow reads and copies the selected ones.
    """
    count = len(addresses)
    if not addresses.any():
        return pa.nulls(count, pa.binary())
    null = addresses == 0
    starts = np.where(null, 0, addresses - _FIRST)
    sizes = np.where(null, 0, sizes)
    bounds = np.empty(2 * count + 1, np.int64)
    bounds[0:-1:2] = starts
    bounds[1:-1:2] = starts + sizes
    # Arrow reserves memory by the mean size, which it takes from the first and the last bound.
    bounds[-1] = bounds[0] + 2 * int(sizes.sum())
    everything = pa.Array.from_buffers(
        pa.large_binary(), 2 * count, [None, pa.py_buffer(bounds), _BYTES]
    )
    selected = pa.array(np.arange(0, 2 * count, 2), mask=null if null.any() else None)
    return everything.take(selected).cast(pa.binary())
