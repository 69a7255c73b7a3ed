"""Imports on demand, from the threads of several tasks."""

from __future__ import annotations

import threading
from importlib import import_module
from types import ModuleType

# Threads that import modules of the same packages in different orders may wait for each other's
# modules: then Python raises an error in one of them.
_one_at_a_time = threading.RLock()


def imported(name: str) -> ModuleType:
    """Returns the module. Threads import one after another."""
    with _one_at_a_time:
        return import_module(name)
