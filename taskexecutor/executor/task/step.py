"""What one turn of a task's loop came to."""

from __future__ import annotations

from enum import Enum


class Step(Enum):
    MORE = 0  # something was processed; look again at once
    DRY = 1  # nothing to do until a mail or new input
    END = 2  # nothing more will come
