"""Processes: starting and watching children, ending with the cluster, temporary folders, Java."""

from firesteel.common.process.child import (
    READY_TIMEOUT_S,
    WITHOUT_FORK_HANDLERS,
    BlockingChild,
    Child,
    StartFailed,
    exit_reason,
    log_tail,
    module_command,
    spawn,
    spawn_blocking,
)
from firesteel.common.process.lifeline import announce_ready, watch_lifeline

__all__ = [
    "READY_TIMEOUT_S",
    "WITHOUT_FORK_HANDLERS",
    "BlockingChild",
    "Child",
    "StartFailed",
    "announce_ready",
    "exit_reason",
    "log_tail",
    "module_command",
    "spawn",
    "spawn_blocking",
    "watch_lifeline",
]
