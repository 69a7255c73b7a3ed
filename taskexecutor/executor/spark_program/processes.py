"""Ends processes of Spark with those that they have started."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Sequence

import psutil

_END_S = 5.0


def end_trees(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kills those of these processes that still run, and all of their descendants, and waits until
    they are gone.

    The ancestors are killed first. An executor that a worker starts at this moment ends by itself,
    because it watches its worker.
    """
    descendants: list[psutil.Process] = []
    for child in started:
        if child.poll() is not None:
            continue  # another process may have its id
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants += psutil.Process(child.pid).children(recursive=True)
        child.kill()
    for process in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for child in started:
        child.wait()
    psutil.wait_procs(descendants, _END_S)


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def listens(pid: int, port: int) -> bool:
    """Whether this process listens on the port. Raises psutil.NoSuchProcess if it has ended."""
    connections = psutil.Process(pid).net_connections("tcp")
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)
