"""The folder of a cluster on this machine: who runs it, where its services are, and whether it is
still there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from firesteel.common.process import temporary
from firesteel.errors import FiresteelError

CLUSTER_ID = (
    "FIRESTEEL_CLUSTER_ID"  # in the environment of every process of a cluster, down to the JVMs
)


class ClusterExists(FiresteelError):
    """A cluster already runs on the folder."""


class NoCluster(FiresteelError):
    """No cluster runs on the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """What cluster.json holds while a cluster runs."""

    cluster_id: str
    supervisor_pid: int
    dispatcher_address: str
    resource_manager_address: str
    task_executors: int
    slots_per_task_executor: int
    started_ms: int
    version: str


def default_directory() -> Path:
    return Path(os.environ.get("FIRESTEEL_DIR") or Path.home() / ".firesteel" / "cluster")


class ClusterDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self._lock: int | None = None

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def acquire(self) -> None:
        """Takes the folder for this process until it ends, however it ends. Raises ClusterExists."""
        self.logs.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(lock, 20, 0).decode().strip() or "unknown"
            os.close(lock)
            raise ClusterExists(
                f"a cluster already runs on {self.path} (supervisor pid {pid});"
                f" stop it with `firesteel cluster stop --dir {self.path}`, or choose another --dir"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def sweep(self) -> None:
        """Removes what TaskExecutors of the folder's former clusters have left; of the last week's,
        all but their logs.

        For whoever has acquired the folder.
        """
        now_s = time.time()
        for folder in self.path.glob("worker-*"):
            old = now_s - folder.stat().st_mtime > temporary.KEPT_S
            for left in (
                (folder,) if old else (path for path in folder.iterdir() if path.name != "log")
            ):
                shutil.rmtree(left, ignore_errors=True)

    def release(self) -> None:
        if self._lock is not None:
            (self.path / "cluster.json").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def is_held(self) -> bool:
        """Whether a supervisor runs on the folder now."""
        try:
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def write(self, state: ClusterState) -> None:
        unfinished = self.path / "cluster.json.part"
        unfinished.write_text(json.dumps(asdict(state), indent=2) + "\n")
        unfinished.replace(self.path / "cluster.json")

    def read(self) -> ClusterState:
        """Raises NoCluster."""
        if not self.is_held():
            raise NoCluster(
                f"no cluster runs on {self.path}; start one with `firesteel cluster start --dir {self.path}`"
            )
        try:
            return ClusterState(**json.loads((self.path / "cluster.json").read_text()))
        except (OSError, ValueError, TypeError):
            raise NoCluster(
                f"the cluster on {self.path} is still starting; its logs are in {self.logs}"
            ) from None

    def stop(self, *, timeout_s: float = 20.0) -> ClusterState:
        """Asks the supervisor to end, and returns when every process of the cluster is gone. Raises
        NoCluster.
        """
        state = self.read()
        with contextlib.suppress(ProcessLookupError):
            os.kill(state.supervisor_pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while self.is_held() and time.monotonic() < deadline:
            time.sleep(0.05)
        end_processes(state.cluster_id, timeout_s=max(5.0, deadline - time.monotonic()))
        return state


def end_processes(cluster_id: str, *, timeout_s: float) -> None:
    """Waits until no process of the cluster is left; half-way, those that remain are ended with
    SIGKILL.
    """
    begin = time.monotonic()
    while left := list(processes_of(cluster_id)):
        waited_s = time.monotonic() - begin
        if waited_s > timeout_s:
            pids = ", ".join(str(process.pid) for process in left)
            raise FiresteelError(f"these processes of the cluster did not end: {pids}")
        if waited_s > timeout_s / 2:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        time.sleep(0.05)


def processes_of(cluster_id: str) -> Iterator[psutil.Process]:
    """All live processes of the cluster, whoever their parents are now."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(CLUSTER_ID) == cluster_id:
                yield process
