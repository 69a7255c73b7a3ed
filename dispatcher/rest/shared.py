"""Values that many callers share, each loaded once for all of them.

    missing -> loading -> fresh, for `kept_s` -> stale, for as long again -> missing

A stale value is returned while the next one is loaded, so that callers rarely wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

MAX_KEPT = 1_000


@dataclass(slots=True)
class _Value:
    value: asyncio.Future[Any]
    fresh_until_s: float
    stale_until_s: float
    next: asyncio.Future[Any] | None = None

    @property
    def loaded(self) -> bool:
        return self.value.done() and not self.failed

    @property
    def failed(self) -> bool:
        done = self.value.done()
        return done and (self.value.cancelled() or self.value.exception() is not None)


class Shared:
    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._values: dict[str, _Value] = {}

    async def get(self, key: str, load: Callable[[], Awaitable[Any]], kept_s: float) -> Any:
        """Returns what `load` returns. Failures are not kept."""
        now_s = self._now_s()
        kept = self._values.get(key)
        if kept is not None and not kept.failed and now_s < kept.fresh_until_s:
            return await asyncio.shield(kept.value)
        loading = kept.next if kept is not None else None
        if loading is None:
            loading = asyncio.ensure_future(load())
            loading.add_done_callback(lambda done: self._loaded(key, done, kept_s))
            if kept is not None and kept.value.done():
                kept.next = loading
            else:
                self._keep(key, loading, kept_s)
        if kept is not None and kept.loaded and now_s < kept.stale_until_s:
            return kept.value.result()
        return await asyncio.shield(loading)

    def forget(self) -> None:
        self._values.clear()

    def _keep(self, key: str, value: asyncio.Future[Any], kept_s: float) -> None:
        now_s = self._now_s()
        self._values = {k: v for k, v in self._values.items() if now_s < v.stale_until_s}
        if len(self._values) < MAX_KEPT:
            self._values[key] = _Value(value, now_s + kept_s, now_s + 2 * kept_s)

    def _loaded(self, key: str, done: asyncio.Future[Any], kept_s: float) -> None:
        kept = self._values.get(key)
        if kept is None or kept.next is not done:
            return
        kept.next = None
        if not done.cancelled() and done.exception() is None:
            self._keep(key, done, kept_s)
