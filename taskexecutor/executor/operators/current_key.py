"""The key that a stateful operator is processing."""

from __future__ import annotations

from typing import Any

from firesteel.errors import FiresteelError


class CurrentKey:
    """Shared by an operator's state variables, timers and contexts, which all belong to a key."""

    __slots__ = ("_missing", "key", "now_ms")

    def __init__(self, missing: str = "no key is being processed here") -> None:
        """`missing`: why there is none, in errors."""
        self._missing = missing
        self.key: tuple[Any, ...] | None = None  # None: no key is being processed
        self.now_ms = 0  # processing time of the current batch or timer

    def of(self, what: str) -> tuple[Any, ...]:
        """The key. Raises FiresteelError if none is being processed."""
        if self.key is None:
            raise FiresteelError(f"{what} belongs to a key, and {self._missing}")
        return self.key
