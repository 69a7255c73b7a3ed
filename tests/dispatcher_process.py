"""A real Dispatcher without a cluster: its jobs get JobMasters, and no slots."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from firesteel.client.client import Client
from firesteel.client.cluster.supervisor import reserved_port
from firesteel.common.ids import JobId
from firesteel.common.job_graph import JobGraph
from firesteel.common.process import BlockingChild, spawn_blocking
from tests.job_master import job, vertex
from tests.waiting import eventually


@dataclass(frozen=True, slots=True)
class DispatcherProcesses:
    """Dispatchers in one folder and at one address, one after another."""

    directory: Path
    port: int
    lifeline: int

    def start(self, *options: str, env: Mapping[str, str] | None = None) -> BlockingChild:
        """Raises StartFailed."""
        return spawn_blocking(
            [
                *(sys.executable, "-m", "dispatcher", "--resource-manager", "127.0.0.1:9"),
                *("--dir", str(self.directory), "--port", str(self.port)),
                *("-Dmetrics.reporter.prom.port=0", *options),
            ],
            log_path=self.log,
            env={**os.environ, **(env or {})},
            lifeline=self.lifeline,
        )

    @property
    def log(self) -> Path:
        return self.directory / "dispatcher.log"


@contextmanager
def dispatcher_processes(directory: Path) -> Iterator[DispatcherProcesses]:
    """All of them, and their JobMasters, end with the `with`."""
    read, write = os.pipe()
    reserved, port = reserved_port("127.0.0.1")
    try:
        with reserved:
            yield DispatcherProcesses(directory, port, read)
    finally:
        os.close(write)
        os.close(read)


def a_job(number: int = 0) -> JobGraph:
    """`number`: makes its id."""
    return replace(job(vertex("source", 1)), job_id=JobId(f"{number:032x}"))


def submit(client: Client, number: int = 0) -> str:
    """A job that waits for slots, for there is no ResourceManager."""
    job_id = client.submit(a_job(number))
    eventually(lambda: "slot" in client.job_details(job_id).waiting_for, "it has its JobMaster")
    return job_id
