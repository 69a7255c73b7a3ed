"""Imports pandas only where needed: it takes a fifth of the process's memory and a quarter of a
second of its first job.

Jobs that need pandas import it before their records arrive. By default, pyarrow imports it at the
first array made from NumPy values, only to check whether they are pandas objects.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa

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
