"""Limits log files: their size, and how many logs of ended processes are kept.

A process limits the log that its parent opened for it (`keep_short`), and touches it. So the logs
of live processes are the newest, and `prune` spares them.
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

# Environment variable: the file to which a child's output is appended.
LOG_FILE = "FIRESTEEL_LOG_FILE"

LOOK_INTERVAL_S = 1.0
AFTER_FAILURE_S = 60.0  # the disk is full: the log cannot be copied, but cannot grow either
IN_USE_S = 60.0  # a log that was touched within this time may belong to a live process


def keep_short(max_bytes: int, *, first_line: Callable[[], bytes]) -> Path | None:
    """Limits the log of this process to about `max_bytes`; 0: no limit.

    A log that starts over has `first_line` as its first line. Returns the log's path. Does nothing,
    and returns None, if the parent opened no log for this process.
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
    """Moves the contents of the log to `path`.1, replaces what was there, and starts it again.

    The log is copied, because other processes (Spark's JVM) append to the same open file. Text that
    they write during the copy may be lost; this process waits.
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
    """Returns the log of a slot in its TaskExecutor's folder."""
    return directory / "log" / f"slot-{slot_index}.log"


def slot_logs(directory: Path) -> list[Path]:
    return sorted((directory / "log").glob("slot-*.log"))


def old(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def prune(folder: Path, pattern: str, kept: int) -> list[Path]:
    """Deletes the logs that match, except the newest `kept` and those in use; returns them."""
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
