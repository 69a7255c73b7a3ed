"""Coroutine functions of the program, over rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from firesteel.operators.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class MapAsyncSpec(Spec):
    """Calls `function`, a coroutine function of a Row, or a firesteel.AsyncFunction. A call returns
    one row, or a list of rows.
    """

    function: Any
    schema: Any = None
    capacity: int = 100  # calls in flight, per subtask
    timeout_s: float | None = None  # per row, including retries; None: unlimited
    # Maps a Row to the result in place of the call's.
    on_timeout: Callable[[Any], Any] | None = None
    retry: Any = None  # a firesteel.AsyncRetryStrategy
    ordered: bool = True  # results keep the order of the rows
