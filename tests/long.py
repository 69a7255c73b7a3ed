"""Marks cases that repeat what other cases test. `make test-long` runs them, `make test` does not."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

import pytest


def long_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Returns values for `pytest.mark.parametrize`, of which `make test` runs the first `count`."""
    remaining = iter(values)
    first = list(islice(remaining, count))
    return list(chain(first, (pytest.param(value, marks=pytest.mark.long) for value in remaining)))
