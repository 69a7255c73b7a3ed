"""A cluster on this machine, from the viewpoint of the process that starts it."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from firesteel.client.cluster.directory import (
    SUPERVISOR,
    ClusterDirectory,
    ClusterState,
    end_processes,
)
from firesteel.client.job_details import ClusterOverview
from firesteel.common.config import Configuration, absolute_directories, options
from firesteel.common.installation import service_environment
from firesteel.common.process import (
    BlockingChild,
    StartFailed,
    module_command,
    spawn_blocking,
    temporary,
)
from firesteel.common.security.folder import SecurityFolder, security_directory
from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    from firesteel.client.client import Client

_NOT_STARTED = "the cluster has not been started; use `with LocalCluster(...) as cluster:`"
Progress = Callable[[ClusterOverview], None]


class LocalCluster:
    """Runs the services of a session cluster as processes of this machine, until the `with` block
    ends.

        with LocalCluster(task_executors=2, slots=2) as cluster:
            cluster.wait_for_slots(4)
            cluster.client().submit(job_graph)

    Without `directory` it uses a temporary one, which is removed when the cluster stops. The
    cluster's processes end with this process, however it ends; a temporary directory that is left
    over is then removed by the next cluster that needs one.
    """

    def __init__(
        self,
        conf: Configuration | None = None,
        *,
        task_executors: int = 2,
        slots: int | None = None,
        masters: int = 1,
        directory: Path | None = None,
        port: int = 0,
    ) -> None:
        conf = conf or Configuration.load()
        self.conf = (
            conf.with_overrides({options.TASK_SLOTS.key: str(slots)}) if slots is not None else conf
        )
        self.task_executors = task_executors
        self.masters = masters
        self.start_duration_s = 0.0
        self._given_directory = directory
        self._port = port
        self._directory: ClusterDirectory | None = None
        self._supervisor: BlockingChild | None = None
        self._lifeline = -1  # its write end: the cluster ends when this process does
        self._address = ""
        self._keep = False
        self._clients: list[Client] = []
        # Now, not in `start`: callbacks registered after this are called while the cluster serves.
        atexit.register(self.stop)

    @property
    def address(self) -> str:
        """The address of the Dispatcher, once `start` has returned."""
        if not self._address:
            raise FiresteelError(_NOT_STARTED)
        return self._address

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise FiresteelError(_NOT_STARTED)
        return self._directory.path

    @property
    def slots(self) -> int:
        return self.task_executors * self.conf.get(options.TASK_SLOTS)

    def start(self) -> LocalCluster:
        """Starts the cluster. Returns when the Dispatcher serves; slots are ready later
        (`wait_for_slots`).

        Raises FiresteelError.
        """
        begin = time.monotonic()
        if self._given_directory is None:
            temporary.sweep()
        path = self._given_directory or temporary.make()
        self._directory = ClusterDirectory(path)
        if SecurityFolder(security_directory(self.conf)).is_clients:  # of another cluster
            own = {options.SECURITY_DIRECTORY.key: str(self._directory.path / "security")}
            self.conf = self.conf.with_overrides(own)
        try:
            lifeline, self._lifeline = os.pipe()
            try:
                self._supervisor = _start_supervisor(
                    self._directory,
                    self.conf,
                    task_executors=self.task_executors,
                    masters=self.masters,
                    port=self._port,
                    lifeline=lifeline,
                )
            finally:
                os.close(lifeline)
        except BaseException:
            self.stop()
            raise
        self._address = self._supervisor.ready["address"]
        self.start_duration_s = time.monotonic() - begin
        return self

    def client(self) -> Client:
        """Returns a client of this cluster, which is closed with it."""
        # Imported late: the supervisor, which imports this module, needs neither gRPC nor Arrow.
        from firesteel.client.client import Client

        client = Client(self.address, conf=self.conf, own_cluster=True)
        self._clients.append(client)
        return client

    def wait_for_slots(
        self,
        count: int | None = None,
        *,
        timeout_s: float = 120.0,
        progress: Progress | None = None,
    ) -> None:
        """Returns when `count` slots (all, if None) are warm.

        Raises FiresteelError after `timeout_s`.
        """
        count = self.slots if count is None else count
        wait_for_slots(
            self.client(),
            count,
            logs=self.directory / "logs",
            timeout_s=timeout_s,
            progress=progress,
        )

    def keep_logs(self) -> Path:
        """Keeps the logs of a temporary directory for a week; returns their directory."""
        self._keep = True
        return self.directory

    def stop(self) -> None:
        """Stops the cluster. Returns when every process has ended. May be called again."""
        atexit.unregister(self.stop)
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self._supervisor is not None:
            self._supervisor.stop()
        if self._lifeline >= 0:
            os.close(self._lifeline)  # ends processes that the supervisor could not stop
        if self._supervisor is not None:
            end_processes(self._supervisor.ready["cluster_id"], timeout_s=10.0)
        self._supervisor, self._lifeline, self._address = None, -1, ""
        if self._directory is not None and self._given_directory is None:
            if self._keep:
                _remove_all_but_logs(self._directory.path)
                temporary.keep(self._directory.path)
            else:
                temporary.remove(self._directory.path)

    def __enter__(self) -> LocalCluster:
        return self if self._address else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _remove_all_but_logs(directory: Path) -> None:
    for folder, folders, files in os.walk(directory, topdown=False):
        for name in files:
            if not name.endswith((".log", ".log.1")):
                Path(folder, name).unlink(missing_ok=True)
        for name in folders:
            with contextlib.suppress(OSError):  # not empty
                Path(folder, name).rmdir()


def start_detached(
    directory: ClusterDirectory, conf: Configuration, *, task_executors: int, masters: int = 1
) -> ClusterState:
    """Starts a cluster that outlives this process; returns when its Dispatcher serves.

    Raises FiresteelError.
    """
    _start_supervisor(
        directory,
        conf,
        task_executors=task_executors,
        masters=masters,
        port=None,
        lifeline=None,
    )
    return directory.read()


def _start_supervisor(
    directory: ClusterDirectory,
    conf: Configuration,
    *,
    task_executors: int,
    masters: int,
    port: int | None,
    lifeline: int | None,
) -> BlockingChild:
    """Returns when the Dispatcher serves. Raises FiresteelError."""
    directory.create()
    conf = Configuration(absolute_directories(conf.to_dict()))
    argv = module_command(SUPERVISOR, "--dir", str(directory.path))
    argv += ["--task-executors", str(task_executors), "--masters", str(masters)]
    argv += ["--port", str(port)] if port is not None else []
    try:
        supervisor = spawn_blocking(
            [*argv, *conf.to_arguments()],
            log_path=directory.logs / "supervisor.log",
            env=service_environment({**os.environ, **conf.to_environment()}),
            cwd=directory.path,
            lifeline=lifeline,
        )
    except StartFailed as error:
        raise FiresteelError(f"the cluster did not start: {error}") from None
    except OSError as error:
        raise directory.unusable(error) from None
    if "error" in supervisor.ready:
        supervisor.process.wait()
        raise FiresteelError(supervisor.ready["error"])
    return supervisor


def wait_for_slots(
    client: Client, count: int, *, logs: Path, timeout_s: float, progress: Progress | None = None
) -> None:
    """Returns when `count` slots are warm: a job that gets them starts without delay.

    Raises FiresteelError after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        overview = client.cluster_overview()
        if progress is not None:
            progress(overview)
        if overview.slots_warm >= count:
            return
        if time.monotonic() > deadline:
            problems = (f"; {t.slot_problem}" for t in overview.task_executors if t.slot_problem)
            raise FiresteelError(
                f"only {overview.slots_warm} of {count} slots are warm after {timeout_s:g} s"
                f" ({overview.slots_total} are registered); see the logs in {logs}"
                + next(problems, "")
            )
        time.sleep(0.1)
