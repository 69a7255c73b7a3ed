"""Processes: starting and watching children, ending with the cluster, temporary folders, Java."""

from firesteel.common.process.child import Child, StartFailed, spawn
from firesteel.common.process.exits import exit_reason, log_tail
from firesteel.common.process.lifeline import announce_ready, watch_lifeline

__all__ = [
    "Child",
    "StartFailed",
    "announce_ready",
    "exit_reason",
    "log_tail",
    "spawn",
    "watch_lifeline",
]
