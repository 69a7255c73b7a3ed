"""What a slot's process collects."""

from __future__ import annotations

import gc
import weakref

from taskexecutor.executor import garbage


class _Node:
    def __init__(self) -> None:
        self.itself = self


def test_what_is_loaded_is_not_looked_through_again() -> None:
    kept = _Node()
    before = weakref.ref(_Node())
    try:
        garbage.keep_what_is_loaded()
        assert before() is None  # garbage is not kept
        later = weakref.ref(_Node())
        assert not any(found is kept for found in gc.get_objects())
        gc.collect()
        assert later() is None
    finally:
        gc.unfreeze()
