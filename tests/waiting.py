"""Waits for conditions that certainly become true, but that no event announces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

PATIENCE_S = 60.0  # for events that certainly happen, but not immediately


def eventually(
    condition: Callable[[], object], what: str = "it is so", *, patience_s: float = PATIENCE_S
) -> None:
    """Returns once the condition holds. Raises AssertionError if it does not come true."""
    for pause_s in _pauses(what, patience_s):
        if condition():
            return
        time.sleep(pause_s)


async def until(
    condition: Callable[[], object], what: str = "it is so", *, patience_s: float = PATIENCE_S
) -> None:
    """Does what `eventually` does, while other coroutines run."""
    for pause_s in _pauses(what, patience_s):
        if condition():
            return
        await asyncio.sleep(pause_s)


def _pauses(what: str, patience_s: float) -> Iterator[float]:
    """Yields pauses that grow with the time waited: a condition may start processes or call a
    service, and tests that run at the same time need the machine.
    """
    began = time.monotonic()
    while (waited_s := time.monotonic() - began) < patience_s:
        yield min(max(0.001, waited_s / 20), 0.1)
    raise AssertionError(f"after {patience_s:g} s still not: {what}")
