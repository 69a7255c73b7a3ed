"""The Dispatcher's process with real JobMasters, but no slots: what clients see, and how it
ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from dispatcher.core.core import JOB_MASTERS_IN_A_ROW
from firesteel.client.cli import main
from firesteel.client.client import Client
from firesteel.client.cluster.supervisor import reserved_port
from firesteel.client.files import UserFile
from firesteel.client.job_details import JobDetails
from firesteel.common.failpoints import FOLDER, Failpoint
from firesteel.common.ids import JobId
from firesteel.common.job_graph import BlobKind, JobGraph
from firesteel.common.states import JobStatus
from firesteel.errors import (
    ClusterUnreachable,
    JobCanceled,
    JobFailed,
    JobNotFound,
    SubmissionRejected,
)
from tests.job_master import job, operator_id, vertex
from tests.waiting import PATIENCE_S, eventually

# Runs the Dispatcher with a garbage collector that destroys dropped objects immediately.
TIDY = """\
import gc, runpy
gc.set_threshold(100, 1, 1)
runpy.run_module("dispatcher", run_name="__main__", alter_sys=True)
"""


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # the process has ended
        return ""


class Dispatcher:
    """Can be started again on its directory and port, as a supervisor would. Its JobMasters hang on
    this process.
    """

    def __init__(self, directory: Path, *definitions: str) -> None:
        self.directory = directory
        self._definitions = definitions
        self.log = directory / "dispatcher.log"
        self._lifeline, self._held = os.pipe()
        # Nothing listens where its ResourceManager should be.
        self._reserved = [reserved_port("127.0.0.1") for _ in range(2)]
        self.port, self._resource_manager_port = (port for _, port in self._reserved)
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        argv = [
            sys.executable,
            "-c",
            TIDY,
            "--port",
            str(self.port),
            "--resource-manager",
            f"127.0.0.1:{self._resource_manager_port}",
        ]
        argv += ["--dir", str(self.directory), "-D", "metrics.reporter.prom.port=0"]
        argv += [argument for definition in self._definitions for argument in ("-D", definition)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                argv,
                stdout=log,
                stderr=log,
                env={**os.environ, "FIRESTEEL_LIFELINE_FD": str(self._lifeline)},
                pass_fds=[self._lifeline],
                process_group=0,
            )
        return self.process

    def client(self) -> Client:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return Client(f"127.0.0.1:{self.port}")
            except ClusterUnreachable:
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.05)

    def wait_for_log(self, text: str) -> None:
        eventually(lambda: text in self.log.read_text(), f"{text!r} is in {self.log}")

    def end(self) -> None:
        """The JobMasters end with their lifeline, wherever they hang."""
        family = [
            p
            for p in psutil.process_iter()
            if p.pid == self.process.pid or f"127.0.0.1:{self.port}" in _command(p)
        ]
        os.close(self._held)
        os.close(self._lifeline)
        self.process.wait(PATIENCE_S)
        _, alive = psutil.wait_procs(family, PATIENCE_S)
        assert alive == []
        for reserved, _ in self._reserved:
            reserved.close()


@pytest.fixture
def dispatcher(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(tmp_path, *getattr(request, "param", ()))
    dispatcher.wait_for_log("a JobMaster registered")
    yield dispatcher
    dispatcher.end()


def a_job() -> JobGraph:
    return job(vertex("a", 1), vertex("b", 1))


def until_running(client: Client, job_id: str) -> JobDetails:
    return next(
        details for details in client.watch_job(job_id) if details.status is JobStatus.RUNNING
    )


def read_results(client: Client, job_id: str) -> None:
    with contextlib.suppress(Exception):  # the client is closed before they end
        list(client.fetch_results(job_id, operator_id("a")))


def job_masters(dispatcher: Dispatcher) -> list[psutil.Process]:
    found = psutil.Process(dispatcher.process.pid).children(recursive=True)
    return [process for process in found if "-m jobmaster " in _command(process)]


def test_clients_see_changes_and_an_orderly_end_logs_no_error(dispatcher: Dispatcher) -> None:
    with dispatcher.client() as client:
        job_id = client.submit(a_job())
        until_running(client, job_id)
        client.cancel(job_id)
        assert list(client.watch_job(job_id))[-1].status is JobStatus.CANCELED
        dispatcher.wait_for_log("a JobMaster process has ended")
        job_id = client.submit(a_job())
        watch = client.watch_job(job_id)
        next(watch)
        threading.Thread(target=read_results, args=(client, job_id), daemon=True).start()
        dispatcher.process.terminate()
        assert dispatcher.process.wait(PATIENCE_S) == 0
    assert "Traceback" not in dispatcher.log.read_text()
    assert "CancelledError" not in dispatcher.log.read_text()
    assert "Task was destroyed" not in dispatcher.log.read_text()


def killed_job_masters(dispatcher: Dispatcher, client: Client, job_id: str) -> set[int]:
    """Kills the JobMasters of a job until the job has ended. Returns their pids."""
    killed = set()
    for details in client.watch_job(job_id):
        if details.status is JobStatus.RUNNING:
            for process in job_masters(dispatcher):
                with contextlib.suppress(psutil.NoSuchProcess):  # of a job that has ended
                    process.kill()
                    killed.add(process.pid)
    return killed


STRAY_CALLS = (  # messages of asyncio and gRPC about calls that were not ended properly
    "Task was destroyed",
    "cannot reuse already awaited coroutine",
    "was never retrieved",
    "was never awaited",
    "Traceback",
)


@pytest.mark.parametrize("dispatcher", [("heartbeat.interval=50ms",)], indirect=True)
def test_calls_that_peers_break_off_leave_nothing_in_the_log(
    dispatcher: Dispatcher,
) -> None:
    with dispatcher.client() as steady:
        ids = [f"{number:x}" * 32 for number in range(1, 5)]
        for job_id in ids:
            steady.submit(replace(a_job(), job_id=JobId(job_id)))
            until_running(steady, job_id)
            impatient = dispatcher.client()
            watches = [impatient.watch_job(job_id) for _ in range(3)]
            for watch in watches:
                next(watch)
            reader = threading.Thread(target=read_results, args=(impatient, job_id), daemon=True)
            reader.start()
            impatient.close()  # in the middle of all of its calls
            reader.join(PATIENCE_S)
        *_, killed = ids
        for job_id in ids:
            if job_id == killed:
                assert killed_job_masters(dispatcher, steady, job_id)
            else:
                steady.cancel(job_id)
            assert list(steady.watch_job(job_id))[-1].status.globally_terminal
        dispatcher.wait_for_log("a JobMaster process has ended")
        dispatcher.process.terminate()
        assert dispatcher.process.wait(PATIENCE_S) == 0
    logged = dispatcher.log.read_text()
    assert [stray for stray in STRAY_CALLS if stray in logged] == [], logged


def test_a_job_whose_job_masters_die_fails_with_exit_code_and_log(dispatcher: Dispatcher) -> None:
    """No task was deployed, so it starts again some times."""
    with dispatcher.client() as client:
        job_id = client.submit(a_job())
        killed = killed_job_masters(dispatcher, client, job_id)
        assert len(killed) > JOB_MASTERS_IN_A_ROW
        with pytest.raises(
            JobFailed, match=r"\(pid \d+\) ended with exit code -9 \(killed by SIGKILL\)"
        ) as caught:
            client.wait(job_id)
        assert any(f"(pid {pid}) ended" in str(caught.value) for pid in killed)
        assert "serving" in str(caught.value), "the end of its log"


def test_a_killed_dispatcher_adopts_its_jobs_when_it_is_back(dispatcher: Dispatcher) -> None:
    [master] = job_masters(dispatcher)
    with dispatcher.client() as client:
        job_id = client.submit(a_job())
        until_running(client, job_id)
        logs = client.logs(job_id, follow=True)
        next(line for line in logs if "job starts" in line.text)
        dispatcher.process.send_signal(signal.SIGKILL)
        dispatcher.process.wait(PATIENCE_S)
        dispatcher.start()
        dispatcher.client().close()  # until it answers: streams do not wait as long for that
        assert until_running(client, job_id).vertices, "the watch continues"
        assert master.is_running()
        client.cancel(job_id)
        assert list(client.watch_job(job_id))[-1].status is JobStatus.CANCELED
        psutil.wait_procs([master], PATIENCE_S)
        assert not master.is_running()
        told = list(logs)
        assert any("the Dispatcher was away" in line.text for line in told if line.is_notice)


def test_a_job_master_that_died_with_its_dispatcher_is_not_waited_for(
    dispatcher: Dispatcher,
) -> None:
    """No task was deployed, so its job starts again."""
    [master] = job_masters(dispatcher)
    with dispatcher.client() as client:
        job_id = client.submit(a_job())
        until_running(client, job_id)
        dispatcher.process.kill()
        master.kill()
        dispatcher.process.wait(PATIENCE_S)
        dispatcher.start()
        dispatcher.client().close()
        dispatcher.wait_for_log("a JobMaster has ended")
        until_running(client, job_id)
        assert master not in job_masters(dispatcher)
        client.cancel(job_id)
        assert list(client.watch_job(job_id))[-1].status is JobStatus.CANCELED


@pytest.fixture
def failpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "failpoints"
    folder.mkdir()
    monkeypatch.setenv(FOLDER, str(folder))
    return folder


def test_a_submission_whose_answer_is_lost_runs_once(
    failpoints: Path, dispatcher: Dispatcher, tmp_path: Path
) -> None:
    file = tmp_path / "helper.py"
    file.write_text("ONE = 1")
    with dispatcher.client() as client, ThreadPoolExecutor(1) as thread:
        (failpoints / Failpoint.SUBMITTED.value).touch()
        submitted = thread.submit(client.submit, a_job(), [UserFile(path=file, kind=BlobKind.FILE)])
        assert dispatcher.process.wait(PATIENCE_S) == -signal.SIGKILL
        dispatcher.start()
        job_id = submitted.result(PATIENCE_S)
        assert [job.job_id for job in client.list_jobs()] == [job_id]
        until_running(client, job_id)
        with pytest.raises(SubmissionRejected, match="was submitted with a different program"):
            client.submit(replace(a_job(), name="another"))
        client.cancel(job_id)
        assert list(client.watch_job(job_id))[-1].status is JobStatus.CANCELED
        assert [job.job_id for job in client.list_jobs()] == [job_id]


@pytest.mark.parametrize("dispatcher", [("jobstore.max-capacity=1",)], indirect=True)
def test_of_a_job_that_is_no_longer_kept_its_end_is_known(dispatcher: Dispatcher) -> None:
    graph, later = a_job(), replace(a_job(), job_id=JobId("1" * 32))
    with dispatcher.client() as client:
        for one in (graph, later):
            client.submit(one)
            client.cancel(one.job_id)
            assert list(client.watch_job(one.job_id))[-1].status is JobStatus.CANCELED
        assert [known.job_id for known in client.list_jobs()] == [later.job_id], (
            "only the last one is kept"
        )
        assert client.submit(graph) == graph.job_id, "it does not run again"
        with pytest.raises(JobCanceled, match=graph.job_id):
            client.wait(graph.job_id)
        client.cancel(graph.job_id)
        with pytest.raises(
            JobNotFound,
            match=rf"rows of job {graph.job_id} are gone: .* last 1 jobs \(jobstore.max-capacity\)",
        ):
            list(client.fetch_results(graph.job_id, operator_id("a")))


def test_a_removed_job_is_gone_with_its_log_when_it_has_ended(dispatcher: Dispatcher) -> None:
    def command(*arguments: str) -> Result:
        address = f"127.0.0.1:{dispatcher.port}"
        return CliRunner().invoke(main, [*arguments, "-m", address])

    def log_of(job_id: str) -> Path:
        folder = dispatcher.directory / "logs"
        (log,) = (path for path in folder.iterdir() if job_id in path.read_text())
        return log

    with dispatcher.client() as client:
        removed, kept = (replace(a_job(), job_id=JobId(digit * 32)) for digit in "12")
        for graph in (removed, kept):
            client.submit(graph)
            until_running(client, graph.job_id)
        refused = command("remove", removed.job_id)
        assert refused.exit_code == 1
        assert f"cancel it first (`firesteel cancel {removed.job_id}`)" in refused.output
        for graph in (removed, kept):
            client.cancel(graph.job_id)
            assert list(client.watch_job(graph.job_id))[-1].status is JobStatus.CANCELED
        log_of_removed, log_of_kept = (log_of(graph.job_id) for graph in (removed, kept))
        dispatcher.wait_for_log("a JobMaster process has ended")
        assert command("remove", removed.job_id[:3]).output == f"Removed job {removed.job_id}.\n"
        eventually(lambda: not log_of_removed.exists(), "the log is deleted")
        assert log_of_kept.exists()
        assert [job.job_id for job in client.list_jobs()] == [kept.job_id]
        shown = command("logs", kept.job_id)
        assert shown.exit_code == 0
        assert "jobmaster[" in shown.output
        gone = command("logs", removed.job_id)
        assert gone.exit_code == 1
        assert "are gone: it was removed" in gone.output
