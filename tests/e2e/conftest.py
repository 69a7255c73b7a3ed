"""One session cluster, of real processes, shared by the end-to-end tests: 2 TaskExecutors x 2
slots, all warm.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import psutil
import pytest
from click.testing import CliRunner

from firesteel import Environment
from firesteel.client.cli import main
from firesteel.client.client import Client
from firesteel.client.cluster import LocalCluster
from firesteel.client.execution_context import ExecutionContext, active
from firesteel.client.job_details import ClusterOverview, JobDetails
from firesteel.common.config import Configuration
from firesteel.common.failpoints import FOLDER
from firesteel.common.states import ExecutionState, JobStatus
from firesteel.errors import ClusterUnreachable, FiresteelError
from firesteel.program import Program
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
SLOTS = 4
# Secrets of the shared cluster, which nothing uses. No process may leave them anywhere.
PLANTED = {
    "s3__secret_key": "planted-1-s3",
    "high_availability__zookeeper__client__authorization": "digest:ada:planted-2-zookeeper",
    "spark__hadoop__planted__password": "planted-3-spark",
}
# The commands that only call services. A process would need a second to import its modules.
CALLS = (
    *("cancel", "dashboard", "inspect", "list", "logs"),
    *("savepoint", "scale", "show", "stop", "stop-task-executor"),
)
WARM_S = 600.0  # patience with the JVMs of a cluster, which start together


class Session:
    """The cluster as a user of the Python client sees it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.client: Client = cluster.client()

    @property
    def address(self) -> str:
        return self.cluster.address

    def submit(self, env: Environment | Program, name: str = "job", **overrides: str) -> str:
        return self.client.submit(
            env.job_graph(name, overrides={k.replace("__", "."): v for k, v in overrides.items()})
        )

    def run(self, env: Environment, name: str = "job") -> JobDetails:
        return self.client.wait(self.submit(env, name))

    def wait_until(self, job_id: str, condition: Callable[[JobDetails], bool]) -> JobDetails:
        """The first details for which `condition` holds; fails if the job ends before."""
        for details in self.client.watch_job(job_id):
            if condition(details):
                return details
        raise AssertionError(
            f"job {job_id} ended {details.status.name} before it was so: {details.exceptions}"
        )

    def overview(self) -> ClusterOverview:
        """Returns the overview once both the Dispatcher and the ResourceManager answer."""
        overview: list[ClusterOverview] = []

        def answered() -> bool:
            with contextlib.suppress(ClusterUnreachable):
                overview[:] = [self.client.cluster_overview()]
            return bool(overview) and not overview[0].resource_manager_problem

        eventually(answered, "the ResourceManager answers")
        return overview[0]

    def free_slots(self) -> int:
        return self.client.cluster_overview().slots_free

    def wait_until_all_slots_are_free(self) -> None:
        eventually(lambda: self.free_slots() == SLOTS, f"{SLOTS} free slots")

    def cancel_all(self) -> None:
        """Returns when every job has ended, which may be after its slots are free."""
        alive = [job for job in self.client.list_jobs() if not job.status.globally_terminal]
        for job in alive:
            with contextlib.suppress(FiresteelError):  # it has just ended
                self.client.cancel(job.job_id)
        if alive:
            eventually(
                lambda: all(job.status.globally_terminal for job in self.client.list_jobs()),
                "every job has ended",
            )


def running(details: JobDetails) -> bool:
    """Whether all tasks of the job run."""
    return details.status is JobStatus.RUNNING and set(details.states) == {ExecutionState.RUNNING}


def attempt_ids(details: JobDetails) -> list[list[str]]:
    """The attempts of each subtask."""
    return [[a.attempt_id for a in s.attempts] for v in details.vertices for s in v.subtasks]


@contextlib.contextmanager
def own_cluster(
    directory: Path, *, task_executors: int = 1, slots: int = 1, **overrides: str
) -> Iterator[Session]:
    """A cluster with another configuration than the shared one, once its slots are warm. In
    `overrides`, __ stands for a dot and _ for a hyphen.
    """
    keys = {name.replace("__", ".").replace("_", "-"): value for name, value in overrides.items()}
    conf = Configuration.load(overrides={"metrics.reporter.prom.port": "0", **keys})
    with LocalCluster(
        conf, task_executors=task_executors, slots=slots, directory=directory
    ) as cluster:
        cluster.wait_for_slots(timeout_s=WARM_S)
        yield Session(cluster)


def command(process: psutil.Process) -> str:
    """Empty if the process has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def name(process: psutil.Process) -> str:
    """Empty if the process has ended."""
    try:
        return process.name()
    except psutil.Error:
        return ""


def files_below(folder: Path) -> Iterator[Path]:
    """Yields the files below a folder. Unlike with `Path.rglob`, some may be deleted while it runs."""
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)


def logs_below(folder: Path, pattern: str = "*.log") -> Iterator[str]:
    """Yields the text of each log, except logs that are deleted while it runs."""
    for path in files_below(folder):
        if path.match(pattern):
            with contextlib.suppress(FileNotFoundError):
                yield path.read_text(errors="replace")


def services(session: Session, module: str) -> list[psutil.Process]:
    """The cluster's processes of one kind, also those whose parent has died and come back
    meanwhile.
    """
    marks = (str(session.cluster.directory), session.address)
    return processes(lambda line: f"-m {module} " in line and any(mark in line for mark in marks))


def processes(wanted: Callable[[str], bool]) -> list[psutil.Process]:
    """Returns the processes with such a command line."""
    found = {p.pid: p for p in psutil.process_iter() if wanted(command(p))}
    # A child has its parent's command line until it executes its own.
    return [p for p in found.values() if parent(p) not in found]


def parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.Error:
        return 0


def job_master_pid(session: Session, job_id: str) -> int:
    (pid,) = {
        pid
        for log in logs_below(session.cluster.directory, "jobmaster-*.log")
        if job_id in log
        for pid in re.findall(r"process=jobmaster\[(\d+)\]", log)
    }
    return int(pid)


def job_masters(directory: Path, job_id: str) -> dict[int, int]:
    """Returns the pids of the JobMasters that have started the job, by epoch, in this cluster."""
    started = re.compile(
        rf'process=jobmaster\[(\d+)\] event="job starts" job_id={job_id} .*epoch=(\d+)'
    )
    return {
        int(epoch): int(pid)
        for log in logs_below(directory, "jobmaster-*.log")
        for pid, epoch in started.findall(log)
    }


@pytest.fixture(scope="module")
def shipped_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Jobs bring the classes of the test's module along: slots cannot import it."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="session")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in it kills whoever in the shared cluster reaches the point with its name."""
    return tmp_path_factory.mktemp("failpoints")


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory, failpoints: Path) -> Iterator[Session]:
    directory = tmp_path_factory.mktemp("cluster")
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv(FOLDER, str(failpoints))
            cluster = own_cluster(
                directory,
                task_executors=2,
                slots=2,
                task__cancellation__timeout="3 s",
                rest__port="0",  # no other cluster takes it while the Dispatcher restarts
                **PLANTED,
            )
            session = stack.enter_context(cluster)
        yield session


@pytest.fixture
def session(shared_cluster: Session) -> Iterator[Session]:
    """The shared cluster, at rest before and after: whatever a test does, every slot comes back."""
    shared_cluster.wait_until_all_slots_are_free()
    yield shared_cluster
    shared_cluster.cancel_all()
    shared_cluster.wait_until_all_slots_are_free()


@pytest.fixture
def in_session(session: Session) -> Iterator[None]:
    """Programs run on the session cluster, as with `firesteel run -m`."""
    with active(ExecutionContext(mode="remote", address=session.address)):
        yield


def firesteel(
    *arguments: str, cwd: Path = ROOT, timeout_s: float = WARM_S, modules: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Runs the command as a user would. `modules`: a folder of more modules, of all processes.

    Commands that only call services run in this process.
    """
    if arguments and arguments[0] in CALLS:
        return in_this_process(*arguments)
    return subprocess.run(
        [sys.executable, "-m", "firesteel", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{modules}", "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def in_this_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as `firesteel` does, a second faster."""
    done = CliRunner(env={"COLUMNS": "160"}).invoke(main, arguments, catch_exceptions=False)
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)
