"""Drivers start and stop TaskExecutors as the SlotManager decides.

A worker is a TaskExecutor that a driver starts, under an id that it registers with. Each driver is
a module next to this one:

        none         starts nothing: the operator starts TaskExecutors, which register (standalone)
    local        processes on this machine (`local_driver.py`)

Planned: a Kubernetes driver. Its request creates a pod named <cluster id>-taskmanager-<worker id>
and owned by the Deployment, its release deletes the pod, its watch posts WorkerStarted and
WorkerExited, and the pods found at its start are the previous workers.
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
    task_executor_id: str  # empty: not assigned yet
    paths: Sequence[Path]  # its log and those of its slots


class WorkerDriver(Protocol):
    """No method blocks or raises: drivers post results as events, on the caller's event loop."""

    def start(
        self, resource_manager_address: str, post: Callable[[WorkerEvent], None]
    ) -> Sequence[WorkerId]:
        """Called once, when TaskExecutors can register at this address. An empty address means that
        workers look up the leader.

        Returns the live workers of an earlier ResourceManager.
        """

    def request_worker(self, worker_id: WorkerId) -> None:
        """Starts a worker. Posts WorkerStarted and later WorkerExited, or WorkerStartFailed."""

    def release_worker(self, worker_id: WorkerId, cause: str) -> None:
        """Stops a worker, with SIGTERM first, also while it starts. Ignores workers that have
        ended.
        """

    async def stop(self) -> None:
        """Stops all workers and waits for their end; posts no more events."""

    def logs(self) -> Sequence[WorkerLogs]:
        """Returns the logs of all workers that this process can read. Reads files; thread-safe."""


class NoDriver:
    """Standalone mode: the SlotManager requests no workers (`Settings.worker` is None)."""

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
