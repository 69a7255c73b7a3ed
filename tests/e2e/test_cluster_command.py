"""`firesteel cluster start | status | stop`, and how a program runs without a cluster."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import ROOT, WARM_S, command, firesteel, in_this_process, logs_below
from tests.waiting import PATIENCE_S, eventually

LONGEST_S = 4 * PATIENCE_S


def processes_of(directory: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter() if str(directory) in command(p)]


@contextlib.contextmanager
def started(command_line: list[str], **how: Any) -> Iterator[subprocess.Popen[str]]:
    """A program whose output is read; ended, and with it its cluster, if the test fails or the
    program takes too long.
    """
    # Tests that run in the background are started with SIGINT ignored, as their children would be.
    # No preexec_fn: a child that forks with gRPC's handlers may abort before it executes anything.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command_line,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
        **how,
    )
    signal.signal(signal.SIGINT, before)
    end = threading.Timer(LONGEST_S, process.kill)  # then the test reads its end
    end.start()
    with process as run:
        try:
            yield run
        finally:
            end.cancel()
            run.kill()


def line(run: subprocess.Popen[str]) -> str:
    """Returns the run's next line, or the rest of the output if that starts a traceback."""
    assert run.stdout is not None
    read = run.stdout.readline()
    return read + run.stdout.read() if read.startswith("Traceback") else read


def family_of(pid: int) -> list[psutil.Process]:
    """The processes of its embedded cluster, once they are there."""
    family: list[psutil.Process] = []

    def complete() -> bool:
        family[:] = psutil.Process(pid).children(recursive=True)
        return len(family) >= 5

    eventually(complete, "the embedded cluster's processes")
    return family


def test_a_cluster_is_started_once_used_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRESTEEL_DIR", str(tmp_path))
    start = ("cluster", "start", "--dir", str(tmp_path), "--task-executors", "1", "--slots", "1")
    port = ("-D", "jobmanager.rpc.port=0", "-D", "metrics.reporter.prom.port=0")
    started = firesteel(*start, *port)
    assert started.returncode == 0, started.stdout + started.stderr
    try:
        again = firesteel(*start, *port)
        assert again.returncode == 1
        assert str(tmp_path) in again.stderr
        assert re.search(r"pid \d+|process \d+", again.stderr)

        status = firesteel("cluster", "status", "--dir", str(tmp_path))
        assert status.returncode == 0
        assert re.search(r"^dispatcher +127\.0\.0\.1:\d+ +\d+", status.stdout, re.MULTILINE)
        address = re.search(r"127\.0\.0\.1:\d+|localhost:\d+", status.stdout)
        assert address, status.stdout
        job = tmp_path / "job.py"
        job.write_text(
            "from firesteel import Environment\n"
            "env = Environment()\n"
            "env.from_sequence(0, 9).print('n=')\n"
            "env.execute('nine')\n"
        )
        done = firesteel("run", str(job))
        assert done.returncode == 0, done.stdout + done.stderr
        assert (
            f"Jobs of job.py run on the cluster at {address[0]} (running in {tmp_path})"
            in done.stderr
        )
        assert "nine (FINISHED)" in firesteel("list", "-a").stdout
        assert re.search(r"Job has been submitted with JobID [0-9a-f]{32}", done.stdout)
        assert any("n=" in log for log in logs_below(tmp_path)), "printed rows are in a slot's log"
    finally:
        stopped = firesteel("cluster", "stop", "--dir", str(tmp_path))
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert processes_of(tmp_path) == []
    gone = firesteel("cluster", "status", "--dir", str(tmp_path))
    assert gone.returncode == 1
    assert "Traceback" not in gone.stderr


def test_several_masters_are_elected_without_an_ensemble_of_the_users(tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path))
    keys = ("-D", "jobmanager.rpc.port=0", "-D", "metrics.reporter.prom.port=0")
    start = ("cluster", "start", *where, *keys, "--no-wait", "--task-executors", "0")
    refused = firesteel(*start, "--masters", "2", "-D", "high-availability.type=none")
    assert refused.returncode == 1
    assert "2 masters need leader election" in refused.stderr

    begun = firesteel(*start, "--masters", "2")
    assert begun.returncode == 0, begun.stdout + begun.stderr
    try:
        at = re.search(r"firesteel list -z (\S+)", begun.stdout)
        assert at is not None, begun.stdout
        status = firesteel("cluster", "status", *where).stdout
        assert "three servers that this cluster has started" in status
        assert len(re.findall(r"ResourceManager .* (?:leads|standby)", status)) == 2
        assert len(re.findall(r"Dispatcher .* standby", status)) == 1
        leader = re.search(r"Dispatcher +(\S+) +(\d+) +leads +1 ", status)
        assert leader is not None, status
        os.kill(int(leader[2]), signal.SIGTERM)

        def another_leads() -> bool:
            return re.search(r"Dispatcher +\S+ +\d+ +leads +2 ", status_now()) is not None

        def status_now() -> str:
            return firesteel("cluster", "status", *where).stdout

        eventually(another_leads, "another Dispatcher leads")
        assert firesteel("list", "-z", at[1]).returncode == 0
    finally:
        stopped = firesteel("cluster", "stop", *where)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert processes_of(tmp_path) == []


def test_an_interrupted_start_leaves_nothing_or_says_what(tmp_path: Path) -> None:
    command_line = [sys.executable, "-m", "firesteel", "cluster", "start", "--dir", str(tmp_path)]
    command_line += ["--task-executors", "1", "--slots", "1"]
    command_line += ["-D", "jobmanager.rpc.port=0", "-D", "metrics.reporter.prom.port=0"]

    with started(command_line, cwd=ROOT) as start:
        eventually(lambda: psutil.Process(start.pid).children(), "it starts the supervisor")
        os.killpg(start.pid, signal.SIGINT)
        rest, _ = start.communicate(timeout=PATIENCE_S)
        assert (start.returncode, rest) == (130, "Interrupted: no cluster was started.\n")
    eventually(lambda: not processes_of(tmp_path), "its processes end")

    with started(command_line, cwd=ROOT) as start:
        assert line(start).startswith("Cluster started: Dispatcher at ")
        try:
            os.killpg(start.pid, signal.SIGINT)
            rest, _ = start.communicate(timeout=PATIENCE_S)
            assert start.returncode == 130, rest
            stop = f"`firesteel cluster stop --dir {tmp_path}` stops it.\n"
            assert re.fullmatch(
                r"(?:Dashboard: \S+\n)?Interrupted: the cluster at \S+ keeps running, and .*"
                + stop,
                rest,
            )
        finally:
            assert firesteel("cluster", "stop", "--dir", str(tmp_path)).returncode == 0
    eventually(lambda: not processes_of(tmp_path), "its processes end")


@pytest.fixture
def small_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs start clusters with fewer slots."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("taskmanager.numberOfTaskSlots: 1\n")
    monkeypatch.setenv("FIRESTEEL_CONF_DIR", str(tmp_path / "conf"))


@pytest.mark.usefixtures("small_clusters")
def test_ctrl_c_of_a_program_cancels_its_job_and_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import signal, threading, time\n"
        "from firesteel import Environment\n"
        "from firesteel.connectors import SequenceSource\n"
        "def say_when_ctrl_c_cancels():\n"
        "    while signal.getsignal(signal.SIGINT) is signal.default_int_handler:\n"
        "        time.sleep(0.01)\n"
        "    print('waiting', flush=True)\n"
        "env = Environment()\n"
        "env.from_source(SequenceSource(0, rate_per_s=100)).print()\n"
        "job = env.execute_async('endless')\n"
        "print(job.status().name, flush=True)\n"
        "try:\n"
        "    job.result(timeout_s=0.0)\n"
        "except TimeoutError as error:\n"
        "    print(error, flush=True)\n"
        "threading.Thread(target=say_when_ctrl_c_cancels).start()\n"
        "try:\n"
        "    job.result()\n"
        "finally:\n"
        "    print(job.status().name, flush=True)\n"
    )
    with started([sys.executable, "job.py"], cwd=tmp_path) as run:
        assert line(run).strip() in ("INITIALIZING", "CREATED", "RUNNING")
        assert line(run).endswith(" has not ended yet; it keeps running\n")
        assert line(run) == "waiting\n"
        family = family_of(run.pid)
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        rest, _ = run.communicate(timeout=PATIENCE_S)
        rest = re.sub(r"^\{'value': \d+\}\n", "", rest, flags=re.MULTILINE)
        cancelled = r"Cancelling job [0-9a-f]{32}; .*\nCancelled job [0-9a-f]{32}\.\nCANCELED\n"
        assert re.fullmatch(cancelled, rest), rest
        assert run.returncode == 130
        _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
        assert alive == []


@pytest.mark.usefixtures("small_clusters")
def test_a_program_that_does_not_wait_learns_what_becomes_of_its_job(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "from firesteel import Environment\n"
        "from firesteel.connectors import SequenceSource\n"
        "env = Environment()\n"
        "env.from_source(SequenceSource(0, rate_per_s=100)).print()\n"
        "env.execute_async('endless')\n"
    )
    with started([sys.executable, "job.py"], cwd=tmp_path) as run:
        output, _ = run.communicate(timeout=PATIENCE_S)
    assert re.fullmatch(
        r"job [0-9a-f]{32} was [A-Z]+ when the program ended, and ended .*\n", output
    )
    assert run.returncode == 0


def test_ctrl_c_cancels_the_job_and_leaves_nothing_behind(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        "from firesteel import Environment\n"
        "env = Environment()\n"
        "numbers = env.from_sequence(0, 10**15)\n"
        "numbers.map_in_arrow(lambda bs: (b.slice(0, 1) for b in bs)).print()\n"
        "try:\n"
        "    env.execute('endless')\n"
        "except Exception as error:\n"
        "    print('the program continues:', error)\n"
    )
    command_line = [sys.executable, "-m", "firesteel", "run", "-t", "local"]
    command_line += ["--task-executors", "1", "--slots", "1", str(job)]
    of_another_cluster = {**os.environ, "FIRESTEEL_TOKEN": "of another cluster"}
    with started(command_line, cwd=ROOT, env=of_another_cluster) as run:
        output = ""
        while not ("1 RUNNING" in output and "{'value': " in output):  # its state and its rows
            output += (read := line(run))
            assert read, f"it has ended, with code {run.wait()}: {output}"
        family = family_of(run.pid)
        run.send_signal(signal.SIGINT)
        rest, _ = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 130, rest
        assert "CANCELED" in rest
        assert re.search(r"^Cancelled job [0-9a-f]{32}\.$", rest, re.MULTILINE)
        assert "the program continues" not in rest
        _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
        assert alive == []


def test_a_killed_embedded_run_leaves_nothing_and_a_failed_one_its_logs(
    tmp_path: Path,
) -> None:
    job, failing = tmp_path / "job.py", tmp_path / "failing.py"
    job.write_text("import time, firesteel\nfiresteel.Environment()\ntime.sleep(100)\n")
    failing.write_text(
        "from firesteel import Environment\n"
        "def fail(batches):\n    raise ValueError('as requested')\n"
        "env = Environment()\n"
        "env.from_sequence(0, 9).map_in_arrow(fail).print()\n"
        "env.execute('failing')\n"
    )
    with tempfile.TemporaryDirectory(prefix="fs-") as temporary:  # short: a socket's path is
        command_line = [
            sys.executable,
            "-m",
            "firesteel",
            "run",
            "-t",
            "local",
            "--task-executors",
            "1",
            "--slots",
            "1",
        ]
        environment = {**os.environ, "TMPDIR": temporary}
        with started([*command_line, str(job)], cwd=ROOT, env=environment) as run:
            family = family_of(run.pid)
        _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
        assert alive == []
        abandoned = set(Path(temporary).glob("firesteel-*"))
        assert abandoned

        failed = subprocess.run(
            [*command_line, str(failing)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=WARM_S,
            check=False,
        )
        assert failed.returncode == 1
        assert failed.stderr.index("failing.py") < failed.stderr.index("Error: job ")
        found = re.search(
            rf"logs of this run are kept in ({temporary}/firesteel-\S+)", failed.stderr
        )
        assert found is not None, failed.stderr
        kept = Path(found[1])
        assert set(Path(temporary).glob("firesteel-*")) == {kept}
        names = {path.name for path in kept.rglob("*") if path.is_file()}
        assert {"dispatcher.log", "slot-0.log"} <= names
        assert all(name.endswith(".log") or name == "kept" for name in names)


def test_info_shows_the_plan_without_running_anything(tmp_path: Path) -> None:
    completed = firesteel(
        "info",
        "examples/daily_delays.py",
        "--data",
        str(tmp_path / "flights"),
        "--output",
        str(tmp_path / "out"),
    )
    assert completed.returncode == 0, completed.stderr
    assert "Source: flights" in completed.stdout
    assert "HASH" in completed.stdout or "hash" in completed.stdout
    assert "Spark" in completed.stdout
    assert not (tmp_path / "out").exists()


def test_help_teaches() -> None:
    for arguments, words in (
        ((), "run"),
        (("run",), "--py-files"),
        (("cluster", "start"), "--task-executors"),
    ):
        completed = in_this_process(*arguments, "--help")
        assert completed.returncode == 0
        assert words in completed.stdout
