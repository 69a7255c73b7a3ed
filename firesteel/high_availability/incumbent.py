"""The holders of offices as clients find them, whatever elects them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from firesteel.common.leader import Leader
from firesteel.errors import FiresteelError


class LeadersUnreachable(FiresteelError):
    """The service that elects the leaders does not respond."""


class Incumbent(NamedTuple):
    """The holder of an office, and the time since when."""

    leader: Leader
    since_ms: int


class Finder(Protocol):
    """Finds the leader of one office."""

    def find(self, *, timeout_s: float) -> Leader | None:
        """Returns the leader. Waits up to `timeout_s` while there is none, and then returns None.

        Raises LeadersUnreachable or FiresteelError.
        """

    def close(self) -> None: ...
