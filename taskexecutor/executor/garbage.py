"""Tunes when the process collects garbage, which stops every task, and when it returns memory to
the system.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

import pyarrow as pa

from firesteel.common.units import MIB

# Stateful processors create tens of thousands of Python objects per batch, and so do imports. With
# Python's default, a collection after every 700 objects, collecting takes as long as everything
# else.
NEW_OBJECTS_PER_COLLECTION = 50_000
# Parameters of the C library's mallopt().
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 * MIB
_MAPPED_BYTES = 16 * MIB


def collect_rarely() -> None:
    gc.set_threshold(NEW_OBJECTS_PER_COLLECTION, 10, 10)


def keep_what_is_loaded() -> None:
    """Excludes all existing objects from later collections, because they live as long as the
    process. Once the modules are imported, that is 70,000 objects, or 40 ms of every full
    collection, of which each job causes at least one.
    """
    gc.collect()
    gc.freeze()


def keep_freed_memory() -> None:
    """Keeps freed memory for reuse. Every batch that is grouped allocates and frees arrays of
    megabytes. By default, their pages return to the system and are faulted in again, which takes as
    long as the grouping.
    """
    with suppress(OSError, AttributeError):  # a C library other than glibc
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def return_freed_memory() -> None:
    """Returns memory that is kept for reuse between batches. Called between jobs and before the
    first one.
    """
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
