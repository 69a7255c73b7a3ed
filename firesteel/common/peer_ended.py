"""The kind of an error that only reports the end of another task, however that ended."""

from __future__ import annotations

from firesteel.errors import FiresteelError


class PeerEnded(FiresteelError):
    """The task cannot continue because another task has ended. The cause is the other task's."""
