"""Cases and examples that repeat what others test. `make test-long` runs them, `make test` does
not.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

HYPOTHESIS_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "same")
_FEWEST = 8


def long_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Returns values for `pytest.mark.parametrize`, of which `make test` runs the first `count`."""
    return [
        value if at < count else pytest.param(value, marks=pytest.mark.long)
        for at, value in enumerate(values)
    ]


def mark_as_long(items: Iterable[pytest.Item]) -> None:
    """Marks cases of tests with the marker `one_in(step)`: `make test` runs the first case and then
    every `step`-th.
    """
    seen: Counter[tuple[Path, str]] = Counter()
    for item in items:
        for marker in item.iter_markers("one_in"):
            (step,) = marker.args
            test = (item.path, item.name.partition("[")[0])
            if seen[test] % step:
                item.add_marker(pytest.mark.long)
            seen[test] += 1


def fewer(count: int) -> int:
    """Returns the `max_examples` of a test that has `count` examples: `make test` tries the first
    quarter of them.
    """
    return count if HYPOTHESIS_PROFILE != "same" else max(count // 4, min(count, _FEWEST))
