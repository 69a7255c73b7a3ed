"""Lists where the processes of a cluster on this machine serve their metrics.

Each process writes a file into a folder of the cluster, in the format of Prometheus's file-based
service discovery (`file_sd_configs`), and removes it when it ends. A process that replaces a dead
one of the same kind reuses its port and its file; one of another kind that gets the port removes
the file. Processes of several hosts, such as containers, may share a folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import NamedTuple

import psutil

# Set in the environment of all processes of a cluster that `firesteel cluster start` or a program
# started, and of the containers of docker-compose.yml.
CLUSTER_ID = "FIRESTEEL_CLUSTER_ID"
FOLDER = "FIRESTEEL_METRICS_TARGETS"
_PID = "__firesteel_pid"  # Prometheus does not add labels of such names to series
_HOST = "__firesteel_host"


class Target(NamedTuple):
    process: str  # the kind of process: "dispatcher", "taskexecutor", ...
    address: str  # host:port
    pid: int
    host: str  # the host of the process `pid`

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def lives(self) -> bool:
        """Whether its process runs, as far as this host knows."""
        return self.host != socket.gethostname() or psutil.pid_exists(self.pid)


def targets(folder: Path) -> list[Target]:
    """Returns all targets with a file, including killed processes without a successor."""
    listed = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):  # just removed
            (entry,) = json.loads(path.read_text())
            labels = entry["labels"]
            address, pid = entry["targets"][0], int(labels[_PID])
            listed.append(
                Target(labels["process"], address, pid, labels.get(_HOST, socket.gethostname()))
            )
    return listed


def ports_of_dead(folder: Path, process: str) -> list[int]:
    """Returns the ports of killed processes of this kind."""
    return [each.port for each in targets(folder) if each.process == process and not each.lives]


def add(folder: Path, process: str, address: str) -> Path:
    """Writes this process's file, and creates the folder. Raises OSError."""
    host = socket.gethostname()
    target = Target(process, address, os.getpid(), host)
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, target)
    _remove_replaced(folder, target)
    labels = {"process": process, _PID: str(target.pid), _HOST: host}
    entry = {"targets": [address], "labels": labels}
    # Replaced as a whole, because Prometheus watches it.
    part = path.with_suffix(f".{target.pid}.part")
    part.write_text(json.dumps([entry]))
    part.replace(path)
    return path


def _remove_replaced(folder: Path, target: Target) -> None:
    """Removes files of dead processes of other kinds whose address is now the target's."""
    for each in targets(folder):
        other = each.process != target.process
        if other and (each.host, each.address) == (target.host, target.address):
            with contextlib.suppress(OSError):
                _path(folder, each).unlink()


def _path(folder: Path, target: Target) -> Path:
    return folder / f"{target.process}-{target.host}-{target.port}.json"
