"""Waits for conditions that certainly become true, but that no event announces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 120.0  # for events that certainly happen, but not immediately


def eventually(
    condition: Callable[[], T],
    what: str | Callable[[], str] = "it is so",
    *,
    patience_s: float = PATIENCE_S,
) -> T:
    """Returns the value of the condition once it is true. If that does not happen, raises
    AssertionError with `what`.
    """
    for pause_s in _pauses(what, patience_s):
        if value := condition():
            return value
        time.sleep(pause_s)
    raise AssertionError("unreachable")


async def until(
    condition: Callable[[], object], what: str = "it is so", *, patience_s: float = PATIENCE_S
) -> None:
    """Does what `eventually` does, while other coroutines run."""
    for pause_s in _pauses(what, patience_s):
        if condition():
            return
        await asyncio.sleep(pause_s)


def _pauses(what: str | Callable[[], str], patience_s: float) -> Iterator[float]:
    """Yields pauses that grow with the time waited: a condition may start processes or call a
    service, and tests that run at the same time need the machine.
    """
    began = time.monotonic()
    while (waited_s := time.monotonic() - began) < patience_s:
        yield min(max(0.001, waited_s / 20), 0.1)
    awaited = what if isinstance(what, str) else what()
    raise AssertionError(f"after {patience_s:g} s still not: {awaited}")
