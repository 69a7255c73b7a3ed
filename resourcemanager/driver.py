"""Drivers start and stop TaskExecutors, as the SlotManager decides.

A worker is a TaskExecutor that a driver starts, under an id that it registers with. Each driver is
a module beside this one:

    none         starts nothing: TaskExecutors are started by hand and register (standalone)
    local        processes on this machine (`local_driver.py`)

To come: a Kubernetes driver, whose request creates a pod named <cluster id>-taskmanager-<worker id>
and owned by the Deployment, whose release deletes it, whose watch posts WorkerStarted and
WorkerExited, and for which the pods found at its start are the previous workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from resourcemanager.core.events import WorkerEvent, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLogs:
    worker_id: WorkerId
    task_executor_id: str  # empty: it has not started as far as that
    paths: Sequence[Path]  # its own and those of its slots


class WorkerDriver(Protocol):
    """No method blocks or raises: results are posted as events, on the loop of the caller."""

    def start(
        self, resource_manager_address: str, post: Callable[[WorkerEvent], None]
    ) -> Sequence[WorkerId]:
        """Called once, when TaskExecutors can register at this address; empty: they find it.

        Returns the workers of an earlier ResourceManager that still live.
        """

    def request_worker(self, worker_id: WorkerId) -> None:
        """Posts WorkerStarted and later WorkerExited, or WorkerStartFailed."""

    def release_worker(self, worker_id: WorkerId, cause: str) -> None:
        """Stops it, with SIGTERM first, also while it starts. Does nothing if it has ended."""

    async def stop(self) -> None:
        """Stops all workers and waits for their end; posts nothing from now on."""

    def logs(self) -> Sequence[WorkerLogs]:
        """The logs of all workers that this process can read. May read files; thread-safe."""


class NoDriver:
    """Standalone: the SlotManager requests no workers (`Settings.worker` is None)."""

    def start(
        self, resource_manager_address: str, post: Callable[[WorkerEvent], None]
    ) -> Sequence[WorkerId]:
        return ()

    def request_worker(self, worker_id: WorkerId) -> None:
        raise AssertionError(f"worker {worker_id} was requested, but there is no driver")

    def release_worker(self, worker_id: WorkerId, cause: str) -> None:
        pass

    async def stop(self) -> None:
        pass

    def logs(self) -> Sequence[WorkerLogs]:
        return ()
