"""The bounds of log files: how long one may be, and how many of ended processes are kept.

A process keeps the log that its parent opened for it short (`keep_short`), and touches it: so the
logs of live processes are the newest, and `prune` leaves them alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from firesteel.common import output

LOG_FILE = "FIRESTEEL_LOG_FILE"  # environment variable: what a child's output is appended to

LOOK_INTERVAL_S = 1.0
AFTER_FAILURE_S = 60.0  # the disk is full: nothing can be copied, and the log cannot grow either
IN_USE_S = 60.0  # a log that was touched within this time may be a live process's


def keep_short(max_bytes: int, *, first_line: Callable[[], bytes]) -> Path | None:
    """From now on, the log of this process is not much longer than `max_bytes`; 0: any length.

    A log that starts over begins with `first_line`. Returns the log's path. Does nothing, and
    returns None, if the parent has opened no log for this process.
    """
    path = os.environ.pop(LOG_FILE, None)
    if path is None:
        return None
    threading.Thread(
        target=_watch, args=(Path(path), max_bytes, first_line), name="log-size", daemon=True
    ).start()
    return Path(path)


def _watch(path: Path, max_bytes: int, first_line: Callable[[], bytes]) -> None:
    while True:
        pause_s = LOOK_INTERVAL_S
        try:
            os.utime(path)
            if max_bytes and path.stat().st_size > max_bytes:
                empty(path, first_line())
        except OSError:
            pause_s = AFTER_FAILURE_S
        time.sleep(pause_s)


def empty(path: Path, first_line: bytes = b"") -> None:
    """Moves what is in the log to `path`.1, in place of what was there, and begins it anew.

    It is copied: other processes (Spark's JVM) append to the same open file. What they write during
    the copy may be lost; this process waits.
    """
    copy = old(path).with_suffix(".copy")
    with output.paused():
        try:
            shutil.copyfile(path, copy)
            os.replace(copy, old(path))
        except OSError:
            copy.unlink(missing_ok=True)
            raise
        os.truncate(path, 0)
        with open(path, "ab") as file:
            file.write(first_line)


def slot_log(directory: Path, slot_index: int) -> Path:
    """In a TaskExecutor's folder."""
    return directory / "log" / f"slot-{slot_index}.log"


def slot_logs(directory: Path) -> list[Path]:
    return sorted((directory / "log").glob("slot-*.log"))


def old(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def prune(folder: Path, pattern: str, kept: int) -> list[Path]:
    """Deletes the logs that match, but for the newest `kept` and those in use; returns them."""
    touched_s: dict[Path, float] = {}
    for path in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            touched_s[path] = path.stat().st_mtime
    newest_first = sorted(touched_s, key=lambda path: touched_s[path], reverse=True)
    in_use_since_s = time.time() - IN_USE_S
    dropped = [path for path in newest_first[kept:] if touched_s[path] < in_use_since_s]
    for path in dropped:
        path.unlink(missing_ok=True)
        old(path).unlink(missing_ok=True)
    return dropped
