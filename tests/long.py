"""Cases and examples that repeat what others test. `make test-long` runs them, `make test` does
not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

import pytest

HYPOTHESIS_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "same")
_FEWEST = 10


def long_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Returns values for `pytest.mark.parametrize`, of which `make test` runs the first `count`."""
    remaining = iter(values)
    first = list(islice(remaining, count))
    return list(chain(first, (pytest.param(value, marks=pytest.mark.long) for value in remaining)))


def fewer(count: int) -> int:
    """Returns the `max_examples` of a test that has `count` examples: `make test` tries the first
    third of them.
    """
    return count if HYPOTHESIS_PROFILE != "same" else max(count // 3, min(count, _FEWEST))
