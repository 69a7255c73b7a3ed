"""Names of files that several checkpoints of a job refer to.

DIR/JOB-ID/shared/7-...    written by checkpoint 7
"""

from __future__ import annotations

SHARED = "shared"


def shared_path(checkpoint_id: int, name: str) -> str:
    return f"{SHARED}/{checkpoint_id}-{name}"


def is_shared(path: str) -> bool:
    return path.startswith(f"{SHARED}/")


def writer_of(path: str) -> int | None:
    """Returns the checkpoint that wrote a shared file; None if its name has another form."""
    number = path.removeprefix(f"{SHARED}/").partition("-")[0]
    return int(number) if is_shared(path) and number.isdecimal() else None
