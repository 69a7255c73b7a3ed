"""Divides batches among the calls of slow functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import pyarrow as pa

from firesteel.operator import RuntimeContext, TaskCancelled

QUICK_S = 0.02  # a quicker slice doubles the size of the next
SLOW_S = 0.1  # a slower slice reduces it

P = ParamSpec("P")
R = TypeVar("R")


class Slices:
    """Slices of batches, for a function of the program that is called for each row.

    Results are emitted after each slice, and a cancellation ends the task between two slices. So a
    function that takes a second per row delays neither by more than a row. The first slice has one
    row; their sizes double up to whole batches while the function is quick.
    """

    def __init__(
        self, context: RuntimeContext, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._context = context
        self._clock = clock
        self._rows = 1
        self._took_s = 0.0

    def of(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the slices of a batch. Raises TaskCancelled if the task is cancelled."""
        start = 0
        while start < batch.num_rows:
            if self._context.cancelled:
                raise TaskCancelled
            part = batch.slice(start, self._rows)
            self._took_s = 0.0
            yield part
            start += part.num_rows
            if self._took_s > SLOW_S:
                self._rows = max(1, int(part.num_rows * SLOW_S / self._took_s))
            elif self._took_s < QUICK_S and part.num_rows == self._rows:
                self._rows *= 2

    def timed(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function for rows of the current slice. Time outside does not count: a slow
        consumer makes no slice smaller.
        """
        started = self._clock()
        try:
            return call(*args, **kwargs)
        finally:
            self._took_s += self._clock() - started
