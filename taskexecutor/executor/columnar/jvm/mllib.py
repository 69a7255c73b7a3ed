"""Registers MLlib's SQL functions (`vector_to_array`, `array_to_vector`) when Python imports
pyspark.ml.

MLlib itself does so in every new session by Scala reflection, which takes 15 % of a start. The copy
of its jar in slots (see `archive`) omits that.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PACKAGE = "pyspark.ml"
_REGISTRATION = "org.apache.spark.sql.ml.InternalFunctionRegistration$"


class _OnImport(MetaPathFinder):
    """Finds no modules; calls `then` once, before `package` is first imported."""

    def __init__(self, package: str, then: Callable[[], None]) -> None:
        self._package = package
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == self._package:
            forget(self)
            self._then()
        return None


def register_when_imported(jvm: Any) -> MetaPathFinder | None:
    """Returns the hook, for `forget`. The JVM registers the functions only once."""

    def register() -> None:
        jvm.java.lang.Class.forName(
            _REGISTRATION, True, jvm.java.lang.Thread.currentThread().getContextClassLoader()
        )

    if _PACKAGE in sys.modules:
        register()
        return None
    finder = _OnImport(_PACKAGE, register)
    sys.meta_path.insert(0, finder)
    return finder


def forget(finder: MetaPathFinder | None) -> None:
    with contextlib.suppress(ValueError):
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
