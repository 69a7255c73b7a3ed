"""Cases and examples that repeat what others test. `make test-long` runs them, `make test` does
not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

HYPOTHESIS_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "same")
_FEWEST = 10


def long_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Returns values for `pytest.mark.parametrize`, of which `make test` runs the first `count`."""
    return [_long_unless(at < count, value) for at, value in enumerate(values)]


def long_but_every(step: int, values: Iterable[Any]) -> list[Any]:
    """Returns values for `pytest.mark.parametrize`, of which `make test` runs the first one and
    then every `step`-th. If `step` divides no length of a dimension of a product, each pair of
    values of two dimensions is among them.
    """
    return [_long_unless(at % step == 0, value) for at, value in enumerate(values)]


def _long_unless(wanted: bool, value: Any) -> Any:
    if wanted:
        return value
    if isinstance(value, ParameterSet):
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, pytest.mark.long])
    return pytest.param(value, marks=pytest.mark.long)


def fewer(count: int) -> int:
    """Returns the `max_examples` of a test that has `count` examples: `make test` tries the first
    third of them.
    """
    return count if HYPOTHESIS_PROFILE != "same" else max(count // 3, min(count, _FEWEST))
