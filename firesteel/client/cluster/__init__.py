"""A session cluster on this machine: its supervisor, its folder, and the handle that starts and
stops it.
"""

from firesteel.client.cluster.directory import (
    ClusterDirectory,
    ClusterExists,
    ClusterState,
    NoCluster,
    default_directory,
)
from firesteel.client.cluster.local import LocalCluster, start_detached, wait_for_slots

__all__ = [
    "ClusterDirectory",
    "ClusterExists",
    "ClusterState",
    "LocalCluster",
    "NoCluster",
    "default_directory",
    "start_detached",
    "wait_for_slots",
]
