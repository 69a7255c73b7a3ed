"""How TaskExecutors come to be: the interface between the SlotManager's decisions and whatever
starts processes.

A driver starts and stops workers; it decides nothing. A worker is one TaskExecutor with a name of
our choosing, which it tells when it registers. Each driver is one module beside this one:

    none         no worker is ever started: TaskExecutors are started by hand and register (standalone)
    local        processes on this machine (`local_driver.py`)
    kubernetes   pods named <cluster id>-taskmanager-<worker id>, owned by the Deployment (`kubernetes_driver.py`,
                 to come: request creates the pod, release deletes it, a watch posts WorkerStarted
                 and WorkerExited, and pods found at start are the previous workers)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from resourcemanager.core.events import WorkerEvent, WorkerId


class WorkerDriver(Protocol):
    """Nothing here blocks or raises: results come as events, posted on the loop that calls these
    methods.
    """

    def start(
        self, resource_manager_address: str, post: Callable[[WorkerEvent], None]
    ) -> Sequence[WorkerId]:
        """Called once, when TaskExecutors can register at this address.

        Returns the workers that an earlier ResourceManager had started and that still live.
        """

    def request_worker(self, worker_id: WorkerId) -> None:
        """Answered by WorkerStarted or WorkerStartFailed, later by WorkerExited, once each."""

    def release_worker(self, worker_id: WorkerId, cause: str) -> None:
        """Ends it, politely first; also while it is starting, and nothing happens if it is gone."""

    async def stop(self) -> None:
        """Ends all workers and returns when they are gone; posts nothing any more."""


class NoDriver:
    """Standalone: there is nobody to ask for more TaskExecutors, and nobody asks (`Settings.worker`
    is None).
    """

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
