"""Drivers start and stop TaskExecutors as the SlotManager decides.

A worker is a TaskExecutor that a driver starts, under an id that it registers with. Each driver is
a module next to this one:

    none         starts nothing: the operator starts TaskExecutors, which register (standalone)
    local        processes on this machine (`local_driver.py`)
    kubernetes   pods (`kubernetes/`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from firesteel.common.ids import Epoch
from resourcemanager.core.events import WorkerEvent, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLogs:
    worker_id: WorkerId
    task_executor_id: str  # empty: not assigned yet
    paths: Sequence[Path]  # its log and those of its slots


class WorkerDriver(Protocol):
    """No method blocks or raises: drivers post results as events, on the caller's event loop."""

    # How long the loss of a dead worker waits for the driver to report the reason.
    reason_patience_s: float

    def start(
        self, resource_manager_address: str, post: Callable[[WorkerEvent], None], epoch: Epoch
    ) -> Sequence[WorkerId] | None:
        """Called once, when TaskExecutors can register at this address. An empty address means that
        workers look up the leader. `epoch` is the ResourceManager's.

        Returns the live workers of an earlier ResourceManager; None if they are not known yet, and
        PreviousWorkersFound follows.
        """

    def request_worker(self, worker_id: WorkerId) -> None:
        """Starts a worker. Posts WorkerStarted and later WorkerExited, or WorkerStartFailed."""

    def release_worker(self, worker_id: WorkerId, cause: str, *, failed: bool = False) -> None:
        """Stops a worker, with SIGTERM first, also while it starts. Ignores workers that have
        ended. `failed`: the worker is dead or did not register, so its log is of interest.
        """

    async def stop(self, *, end_workers: bool = True) -> None:
        """Stops all workers and waits for their end, unless they end with the cluster or another
        ResourceManager follows; posts no more events.
        """

    def logs(self) -> Sequence[WorkerLogs]:
        """Returns the logs of all workers that this process can read. Reads files; thread-safe."""

    def gauges(self) -> Mapping[str, float]:
        """Returns the driver's own metrics, by their names without the scope."""


class NoDriver:
    """Standalone mode: the SlotManager requests no workers (`Settings.worker` is None)."""

    reason_patience_s = 0.0

    def start(
        self, resource_manager_address: str, post: Callable[[WorkerEvent], None], epoch: Epoch
    ) -> Sequence[WorkerId]:
        return ()

    def request_worker(self, worker_id: WorkerId) -> None:
        raise AssertionError(f"worker {worker_id} was requested, but there is no driver")

    def release_worker(self, worker_id: WorkerId, cause: str, *, failed: bool = False) -> None:
        pass

    async def stop(self, *, end_workers: bool = True) -> None:
        pass

    def logs(self) -> Sequence[WorkerLogs]:
        return ()

    def gauges(self) -> Mapping[str, float]:
        return {}
