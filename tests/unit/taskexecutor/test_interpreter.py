"""The tuned interpreter of a slot's process."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from taskexecutor.executor import interpreter


class _Node:
    def __init__(self) -> None:
        self.itself = self


def test_what_is_loaded_is_not_looked_through_again() -> None:
    kept = _Node()
    before = weakref.ref(_Node())
    try:
        interpreter.keep_what_is_loaded()
        assert before() is None  # garbage is not kept
        later = weakref.ref(_Node())
        assert not any(tracked is kept for tracked in gc.get_objects())
        gc.collect()
        assert later() is None
    finally:
        gc.unfreeze()


_FAULTS = """
import resource
import numpy as np
from taskexecutor.executor import interpreter

def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(2**17) for _ in range(16)]  # of a megabyte each
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

interpreter.keep_freed_memory()
first, again = faults(), faults()
interpreter.return_freed_memory()
print(first, again, faults())
"""


def test_freed_memory_is_kept_between_batches_and_returned_between_jobs() -> None:
    command = [sys.executable, "-c", _FAULTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, again, later = map(int, done.stdout.split())
    assert again * 4 < min(first, later)  # 16 MiB are up to 4096 pages


@pytest.fixture
def interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("interval")
def test_threads_switch_more_often_than_pythons() -> None:
    before = sys.getswitchinterval()
    interpreter.set_switch_interval()
    assert sys.getswitchinterval() == pytest.approx(interpreter.SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() < before
