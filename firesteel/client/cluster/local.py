"""A cluster on this machine, from the side of whoever starts it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from firesteel.client.cluster.directory import ClusterDirectory, ClusterState, end_processes
from firesteel.client.cluster.supervisor import import_path
from firesteel.client.job_details import ClusterOverview
from firesteel.common.config import Configuration, options
from firesteel.common.process import temporary
from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    from firesteel.client.client import Client

START_TIMEOUT_S = 60.0
Progress = Callable[[ClusterOverview], None]


class LocalCluster:
    """The services of a session cluster as processes of this machine, ended with the `with` block.

        with LocalCluster(task_executors=2, slots=2) as cluster:
            cluster.wait_for_slots(4)
            cluster.client().submit(job_graph)

    Without `directory` it lives in a temporary one, which goes with it. Whatever happens to this
    process, the cluster's processes end with it; a temporary directory that it could not remove is
    removed by the next cluster that needs one.
    """

    def __init__(
        self,
        conf: Configuration | None = None,
        *,
        task_executors: int = 2,
        slots: int | None = None,
        directory: Path | None = None,
        port: int = 0,
    ) -> None:
        conf = conf or Configuration.load()
        self.conf = (
            conf.with_overrides({options.TASK_SLOTS.key: str(slots)}) if slots is not None else conf
        )
        self.task_executors = task_executors
        self.start_duration_s = 0.0
        self._given_directory = directory
        self._port = port
        self._directory: ClusterDirectory | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._address = ""
        self._cluster_id = ""
        self._keep = False
        self._clients: list[Client] = []

    @property
    def address(self) -> str:
        """The Dispatcher's, once `start` has returned."""
        if not self._address:
            raise FiresteelError(
                "the cluster has not been started; use `with LocalCluster(...) as cluster:`"
            )
        return self._address

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise FiresteelError(
                "the cluster has not been started; use `with LocalCluster(...) as cluster:`"
            )
        return self._directory.path

    @property
    def slots(self) -> int:
        return self.task_executors * self.conf.get(options.TASK_SLOTS)

    def start(self) -> LocalCluster:
        """Returns when the Dispatcher serves; slots come a little later (see `wait_for_slots`).
        Raises FiresteelError.
        """
        begin = time.monotonic()
        if self._given_directory is None:
            temporary.sweep()
        path = self._given_directory or temporary.make()
        self._directory = ClusterDirectory(path)
        atexit.register(self.stop)
        try:
            self._supervisor, self._lifeline, facts = launch(
                self._directory,
                self.conf,
                task_executors=self.task_executors,
                port=self._port,
                detached=False,
            )
        except BaseException:
            self.stop()
            raise
        self._address, self._cluster_id = facts["address"], facts["cluster_id"]
        self.start_duration_s = time.monotonic() - begin
        return self

    def client(self) -> Client:
        """A client of this cluster, closed with it."""
        from firesteel.client.client import Client

        client = Client(self.address, conf=self.conf)
        self._clients.append(client)
        return client

    def wait_for_slots(
        self,
        count: int | None = None,
        *,
        timeout_s: float = 120.0,
        progress: Progress | None = None,
    ) -> None:
        """Until that many slots (all, if None) are warm. Raises FiresteelError when they are not
        within `timeout_s`.
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
        """Leaves the logs of a temporary directory when the cluster ends, for a week; returns where
        they are.
        """
        self._keep = True
        return self.directory

    def stop(self) -> None:
        """Returns when every process of the cluster is gone. May be called again."""
        atexit.unregister(self.stop)
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self._supervisor is not None:
            end(self._supervisor, self._lifeline, self._cluster_id)
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
            if not name.endswith(".log"):
                Path(folder, name).unlink(missing_ok=True)
        for name in folders:
            with contextlib.suppress(OSError):  # not empty
                Path(folder, name).rmdir()


def start_detached(
    directory: ClusterDirectory, conf: Configuration, *, task_executors: int
) -> ClusterState:
    """Starts a cluster that outlives this process; returns when its Dispatcher serves. Raises
    FiresteelError.
    """
    launch(directory, conf, task_executors=task_executors, port=None, detached=True)
    return directory.read()


def launch(
    directory: ClusterDirectory,
    conf: Configuration,
    *,
    task_executors: int,
    port: int | None,
    detached: bool,
) -> tuple[subprocess.Popen[bytes], int, dict[str, str]]:
    """(the supervisor, the write end of its lifeline or -1, what it announced). Raises
    FiresteelError.
    """
    directory.logs.mkdir(parents=True, exist_ok=True)
    argv = [
        sys.executable,
        "-m",
        "firesteel.client.cluster",
        "--dir",
        str(directory.path),
        "--task-executors",
        str(task_executors),
    ]
    argv += ["--port", str(port)] if port is not None else []
    ready_read, ready_write = os.pipe()
    passed = [ready_write]
    lifeline_read, lifeline_write = (-1, -1) if detached else os.pipe()
    env = {**os.environ, "PYTHONPATH": import_path(), "FIRESTEEL_READY_FD": str(ready_write)}
    # No FIRESTEEL_PARENT_PID: it would tie the cluster to the thread that starts it, which may well
    # end before.
    for inherited in ("FIRESTEEL_LIFELINE_FD", "FIRESTEEL_PARENT_PID"):
        env.pop(inherited, None)
    if not detached:
        passed.append(lifeline_read)
        env["FIRESTEEL_LIFELINE_FD"] = str(lifeline_read)
    log_path = directory.logs / "supervisor.log"
    with open(log_path, "ab") as log_file:
        supervisor = subprocess.Popen(
            [*argv, *conf.to_arguments()],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            cwd=directory.path,
            env=env,
            pass_fds=passed,
            start_new_session=True,  # Ctrl-C in the terminal is not for the cluster
        )
    for fd in passed:
        os.close(fd)
    try:
        facts = _announced(ready_read, supervisor, log_path)
    except BaseException:
        end(supervisor, lifeline_write, "")
        raise
    return supervisor, lifeline_write, facts


def end(supervisor: subprocess.Popen[bytes], lifeline: int, cluster_id: str) -> None:
    """Asks politely first; closing the lifeline then ends what is left."""
    with contextlib.suppress(ProcessLookupError):
        supervisor.send_signal(signal.SIGTERM)
    try:
        supervisor.wait(10)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()
    if lifeline >= 0:
        os.close(lifeline)
    if cluster_id:
        end_processes(cluster_id, timeout_s=10.0)


def wait_for_slots(
    client: Client, count: int, *, logs: Path, timeout_s: float, progress: Progress | None = None
) -> None:
    """Until `count` slots are warm: a job that gets them need not wait for a SparkSession."""
    deadline = time.monotonic() + timeout_s
    while True:
        overview = client.cluster_overview()
        if progress is not None:
            progress(overview)
        if overview.slots_warm >= count:
            return
        if time.monotonic() > deadline:
            raise FiresteelError(
                f"only {overview.slots_warm} of {count} slots are warm after {timeout_s:g} s"
                f" ({overview.slots_total} are registered); the logs in {logs} tell why"
            )
        time.sleep(0.1)


def _announced(
    ready_read: int, supervisor: subprocess.Popen[bytes], log_path: Path
) -> dict[str, str]:
    """What the supervisor wrote when it was ready."""
    with os.fdopen(ready_read, "rb") as pipe:
        line = b""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise FiresteelError(
                    f"the cluster was not up within {START_TIMEOUT_S:g} s; see {log_path}"
                )
            data = os.read(pipe.fileno(), 65536)
            if not data:
                break
            line += data
    if not line:
        tail = "\n  ".join(log_path.read_text(errors="replace").splitlines()[-15:])
        raise FiresteelError(
            f"the cluster did not start (exit code {supervisor.wait()}); the end of {log_path}:\n  {tail}"
        )
    facts: dict[str, str] = json.loads(line)
    if "error" in facts:
        raise FiresteelError(facts["error"])
    return facts
