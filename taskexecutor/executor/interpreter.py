"""Tunes the slot's interpreter: when it imports pandas, collects garbage, returns memory and
switches threads.

pandas takes a fifth of the process's memory and a quarter of a second of its first job. Jobs that
need it import it before their records arrive. By default, pyarrow imports it at the first array
made from NumPy values, only to check whether they are pandas objects.

A collection of garbage stops every task.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa

from firesteel.common.units import MIB

# -- pandas

_PANDAS = "pandas"


def import_pandas() -> None:
    """Imports pandas ahead of use: pyarrow imports it when it infers the type of Python values."""
    import pandas  # noqa: F401


def import_pandas_aside() -> None:
    """Imports pandas in a separate thread, unless it is imported already."""
    if _PANDAS not in sys.modules:
        threading.Thread(target=import_pandas, name=_PANDAS, daemon=True).start()


def keep_pyarrow_from_pandas() -> None:
    """Makes pyarrow detect pandas only once something else has imported it."""
    if _PANDAS not in sys.modules and not any(
        isinstance(finder, _PandasLater) for finder in sys.meta_path
    ):
        finder = _PandasLater()
        sys.meta_path.insert(0, finder)
        _ = pa.lib._pandas_api.have_pandas  # looks for it only once
        finder.hides = False


class _PandasLater(MetaPathFinder):
    """Makes pyarrow look for pandas again after pandas is imported."""

    def __init__(self) -> None:
        self.hides = True

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _PANDAS:
            return None
        if self.hides:
            raise ModuleNotFoundError(name=name)
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (each.find_spec(name, path, target) for each in others)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_notify(module: ModuleType) -> None:
                execute(module)
                with suppress(Exception):  # the job has its own module with this name
                    _ = pa.lib._pandas_api.pd

            spec.loader.exec_module = execute_and_notify  # type: ignore[method-assign]
        return spec


# -- garbage, memory and threads

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


# A checkpoint passes through several threads: the link's, the tasks', the exchange's and the
# writers'. Each may find another thread running and wait for up to Python's default of 5 ms.
# Together, these waits are a quarter of a small job's checkpoint.
SWITCH_INTERVAL_S = 0.001


def set_switch_interval() -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
