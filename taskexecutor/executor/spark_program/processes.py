"""Ends processes of Spark with those that they have started."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

import psutil

_END_S = 5.0


def end_trees(pids: Sequence[int]) -> None:
    """Kills processes of this slot and all of their descendants, and waits until they are gone.

    The ancestors are killed first. An executor that a worker starts at this moment ends by itself,
    because it watches its worker.
    """
    ended: list[psutil.Process] = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            ancestor = psutil.Process(pid)
            ended += [ancestor, *ancestor.children(recursive=True)]
    for process in ended:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(ended, _END_S)


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def listens(pid: int, port: int) -> bool:
    """Whether this process listens on the port. Raises psutil.NoSuchProcess if it has ended."""
    connections = psutil.Process(pid).net_connections("tcp")
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)
