"""pandas in a slot's process: a fifth of its memory, and a quarter of a second of its first job.

Imported for the jobs that need it, before their records wait for it. Left alone, pyarrow imports it
at the first array it makes of NumPy's values, only to see whether they are pandas' own.
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
    """Before it is needed: pyarrow imports it when it has to find out the type of Python values."""
    import pandas  # noqa: F401


def import_pandas_aside() -> None:
    """The same on a thread of its own, unless that has been done."""
    if _PANDAS not in sys.modules:
        threading.Thread(target=import_pandas, name=_PANDAS, daemon=True).start()


def keep_pyarrow_from_pandas() -> None:
    """Makes pyarrow know of pandas once something else imports it, not before."""
    if _PANDAS not in sys.modules and not any(
        isinstance(finder, _PandasLater) for finder in sys.meta_path
    ):
        finder = _PandasLater()
        sys.meta_path.insert(0, finder)
        _ = pa.lib._pandas_api.have_pandas  # looks for it once only
        finder.hides = False


class _PandasLater(MetaPathFinder):
    """Has pyarrow look for pandas again, after pandas is imported."""

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

            def execute_and_tell(module: ModuleType) -> None:
                execute(module)
                with suppress(Exception):  # a module of the job's own that has this name
                    _ = pa.lib._pandas_api.pd

            spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec
