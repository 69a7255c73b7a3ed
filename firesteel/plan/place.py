"""The place in the user's program where Firesteel is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

_FIRESTEEL = str(Path(__file__).parents[1]) + "/"


class Place(NamedTuple):
    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}, line {self.line}"


def place_of_call() -> Place:
    """Returns the line of the innermost call outside of Firesteel."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_FIRESTEEL) and frame.f_back is not None:
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)
