"""When the process looks for garbage, as every task stops meanwhile, and when it returns memory."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

import pyarrow as pa

from firesteel.common.units import MIB

# Stateful processors create tens of thousands of Python objects per batch, and imports as many.
# Collecting garbage after every 700 of them, which is Python's default, takes as long as everything
# else.
NEW_OBJECTS_PER_COLLECTION = 50_000
# Of the C library's mallopt().
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 * MIB
_MAPPED_BYTES = 16 * MIB


def collect_rarely() -> None:
    gc.set_threshold(NEW_OBJECTS_PER_COLLECTION, 10, 10)


def keep_what_is_loaded() -> None:
    """All that exists by now stays as long as the process: collections no longer look through it.
    That is 70,000 objects when the modules are imported, or 40 ms of every full collection, of
    which there is at least one for each job.
    """
    gc.collect()
    gc.freeze()


def keep_freed_memory() -> None:
    """Arrays of megabytes come and go with each batch that is grouped. By default, their memory
    goes back to the system, and new pages come with the next ones: as long as the grouping takes.
    """
    with suppress(OSError, AttributeError):  # another C library than GNU's
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def return_freed_memory() -> None:
    """What is kept between batches is of no use between jobs, nor before the first one."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
