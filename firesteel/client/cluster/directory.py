"""The folder of a cluster on this machine: its lock, its state file and its logs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from firesteel.common.metrics_targets import CLUSTER_ID
from firesteel.common.process import temporary
from firesteel.common.process.lock_file import LockFile
from firesteel.errors import FiresteelError


class ClusterExists(FiresteelError):
    """A cluster already runs on the folder."""


class NoCluster(FiresteelError):
    """No cluster runs on the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterProcess:
    """One of the masters that the supervisor keeps running. `office` is the value of an
    `Office`.
    """

    office: str
    address: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The content of cluster.json while a cluster runs."""

    cluster_id: str
    supervisor_pid: int
    dispatcher_address: str
    resource_manager_address: str
    task_executors: int
    slots_per_task_executor: int
    started_ms: int
    version: str
    masters: tuple[MasterProcess, ...] = ()
    rest_address: str = ""  # of the first Dispatcher; empty: it serves no REST API
    spark_connect_url: str = ""  # of the first Dispatcher; empty: it does not serve Spark Connect
    own_ensemble: bool = False  # the supervisor has also started the ZooKeeper servers


SUPERVISOR = "firesteel.client.cluster"  # the module that the process runs


class UnusableDirectory(FiresteelError):
    """The cluster's folder cannot be created, read or written."""


def default_directory() -> Path:
    """Raises UnusableDirectory for a user without a home directory."""
    if named := os.environ.get("FIRESTEEL_DIR"):
        return Path(named)
    try:
        return Path.home() / ".firesteel" / "cluster"
    except RuntimeError:  # a user id that the system does not know, as containers may have
        raise UnusableDirectory(
            "this user has no home directory, which would hold the cluster's folder; name a folder"
            " with FIRESTEEL_DIR"
        ) from None


class ClusterDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self._lock = LockFile(self.path / "lock")
        self._acquired = False

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def metrics(self) -> Path:
        """The folder of Prometheus targets: see `firesteel.common.metrics_targets`."""
        return self.path / "metrics"

    def create(self) -> None:
        """Creates the folder and that of its logs. Raises UnusableDirectory."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self.unusable(error) from None

    def unusable(self, error: OSError) -> UnusableDirectory:
        """Returns the error to raise for a failed access to the folder."""
        reason = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename not in (None, str(self.path)) else ""
        return UnusableDirectory(
            f"the folder {self.path} cannot be used for a cluster: {reason}{where}; name another"
            " one with --dir or FIRESTEEL_DIR"
        )

    def acquire(self) -> None:
        """Locks the folder for this process, until the process ends. Raises ClusterExists, or
        UnusableDirectory.
        """
        self.create()
        try:
            self._lock.acquire()
        except BlockingIOError:
            raise ClusterExists(
                f"a cluster already runs on {self.path} (supervisor pid {self._holder()});"
                f" stop it with `firesteel cluster stop --dir {self.path}`, or choose another --dir"
            ) from None
        except OSError as error:
            raise self.unusable(error) from None
        try:
            self._lock.write_text(f"{os.getpid()}\n")
        except OSError as error:  # a full disk
            self._lock.release()
            raise self.unusable(error) from None
        self._acquired = True

    def _holder(self) -> str:
        """Returns the pid of the supervisor that holds the folder, or "unknown"."""
        with contextlib.suppress(OSError):
            return self._lock.path.read_text().strip() or "unknown"
        return "unknown"

    def sweep(self) -> None:
        """Removes the files that TaskExecutors of earlier clusters left; keeps logs for a week.

        The folder must be locked.
        """
        now_s = time.time()
        for folder in self.path.glob("worker-*"):
            old = now_s - folder.stat().st_mtime > temporary.KEPT_S
            for left in (
                (folder,) if old else (path for path in folder.iterdir() if path.name != "log")
            ):
                shutil.rmtree(left, ignore_errors=True)

    def release(self) -> None:
        if self._acquired:
            if self._lock.is_in_place:  # else the folder may be another cluster's by now
                (self.path / "cluster.json").unlink(missing_ok=True)
            self._lock.release()
            self._acquired = False

    def is_held(self) -> bool:
        """Whether a supervisor runs on the folder now. Raises UnusableDirectory."""
        try:
            return self._lock.is_held()
        except OSError as error:
            raise self.unusable(error) from None

    def write(self, state: ClusterState) -> None:
        unfinished = self.path / "cluster.json.part"
        unfinished.write_text(json.dumps(asdict(state), indent=2) + "\n")
        unfinished.replace(self.path / "cluster.json")

    def read(self) -> ClusterState:
        """Raises NoCluster, or UnusableDirectory."""
        if not self.is_held():
            if (pid := self._deserted()) is not None:
                raise NoCluster(
                    f"the folder {self.path} was removed or moved, and the cluster that was started"
                    f" on it still runs (supervisor pid {pid}): move the folder back, or end the"
                    f" cluster with `kill {pid}`"
                )
            raise NoCluster(
                f"no cluster runs on {self.path};"
                f" start one with `firesteel cluster start --dir {self.path}`"
            )
        try:
            state = json.loads((self.path / "cluster.json").read_text())
            state["masters"] = tuple(MasterProcess(**master) for master in state["masters"])
            return ClusterState(**state)
        except (OSError, ValueError, TypeError, KeyError):
            raise NoCluster(
                f"the cluster on {self.path} (supervisor pid {self._holder()}) is still starting;"
                f" its logs are in {self.logs}"
            ) from None

    def _deserted(self) -> int | None:
        """Returns the pid of a supervisor that was started on this path, if the path is gone."""
        if self.path.exists():
            return None
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError, ValueError):
                argv = process.cmdline()
                if SUPERVISOR in argv and argv[argv.index("--dir") + 1] == str(self.path):
                    return process.pid
        return None

    def stop(self, *, timeout_s: float = 20.0) -> ClusterState:
        """Stops the supervisor; returns when every process of the cluster has ended.

        Raises NoCluster.
        """
        state = self.read()
        try:
            os.kill(state.supervisor_pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        except PermissionError:
            raise FiresteelError(
                f"the cluster on {self.path} belongs to another user (supervisor pid"
                f" {state.supervisor_pid}), who can stop it"
            ) from None
        deadline = time.monotonic() + timeout_s
        while self.is_held() and time.monotonic() < deadline:
            time.sleep(0.05)
        end_processes(state.cluster_id, timeout_s=max(5.0, deadline - time.monotonic()))
        return state


def end_processes(cluster_id: str, *, timeout_s: float) -> None:
    """Waits until no process of the cluster is left; sends SIGKILL to the remaining ones
    half-way.
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
    """Yields all live processes of the cluster, whatever their parents are."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(CLUSTER_ID) == cluster_id:
                yield process
