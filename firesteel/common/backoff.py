"""Pauses between attempts that grow with every failure in a row."""

from __future__ import annotations

import random


class Backoff:
    """Pauses that start at `first_s` and grow by `factor`, up to `max_s`.

    Draws nothing unless `jitter` is positive: then a pause is longer or shorter by up to that
    fraction, as `source` decides. Cores pass their own source, or leave the jitter at 0.
    """

    __slots__ = ("_factor", "_first_s", "_jitter", "_max_s", "_next_s", "_source")

    def __init__(
        self,
        first_s: float,
        max_s: float,
        factor: float = 2.0,
        jitter: float = 0.0,
        source: random.Random | None = None,
    ) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._factor = factor
        self._jitter = jitter
        self._source = source or (random.Random() if jitter else None)
        self._next_s = first_s

    def next(self) -> float:
        """Returns the seconds to wait now; the next pause is longer."""
        pause_s = min(self._next_s, self._max_s)
        self._next_s = min(self._next_s * self._factor, self._max_s)
        if self._source is not None:
            pause_s *= 1 + self._jitter * self._source.uniform(-1, 1)
        return pause_s

    def reset(self) -> None:
        """Starts over with the first pause, after a success."""
        self._next_s = self._first_s
