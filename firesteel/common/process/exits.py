"""Describes a process that has ended: its exit code and the end of its log."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def exit_reason(code: int) -> str:
    """Describes an exit code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"exit code {code} (killed by {signal.Signals(-code).name})"
    except ValueError:  # a real-time signal
        return f"exit code {code} (killed by signal {-code})"


def log_tail(log_path: Path, lines: int = 15) -> str:
    """Returns the last lines of a log, indented; empty if the log is missing."""
    try:
        with open(log_path, "rb") as log_file:
            log_file.seek(max(0, log_file.seek(0, os.SEEK_END) - 200 * lines))
            tail = log_file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in tail)
