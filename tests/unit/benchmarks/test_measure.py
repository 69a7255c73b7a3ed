"""Measures small real programs from outside, some of which start processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.peers.measure import (
    OUTPUT_LINES,
    ROOT,
    EngineFailed,
    Measured,
    measure,
    measure_each,
)

LIMIT_S = 60.0
BURN = """
import os, time

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def start(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return pid

def say(line):
    print(line, flush=True)
"""


def shell(script: str, timeout_s: float = LIMIT_S) -> EngineFailed:
    with pytest.raises(EngineFailed) as failed:
        measure(["sh", "-c", script], timeout_s=timeout_s)
    return failed.value


def cpu_of(script: str) -> float:
    cpu_s = measure([sys.executable, "-c", BURN + script], timeout_s=LIMIT_S).cpu_s
    assert cpu_s is not None
    return cpu_s


def test_rows_and_time_are_those_between_begin_and_end() -> None:
    measured = measure(
        ["sh", "-c", "sleep 0.3; echo begin; echo working; sleep 1; echo end 500; sleep 0.3"],
        timeout_s=LIMIT_S,
    )
    assert measured.rows == 500
    assert measured.seconds > 0.25  # a busy machine may read "begin" late
    assert measured.rows_per_s == 500 / measured.seconds


def test_a_program_may_have_several_runs_some_of_which_fail() -> None:
    script = "echo begin a; sleep 0.1; echo end 5; echo failed b: wrong; echo failed b no rows;"
    script += "echo begin c; echo end 0; echo begin d; echo end 7; echo begin e; echo gone; exit 3"
    runs = measure_each(["sh", "-c", script], timeout_s=LIMIT_S)
    assert {name: run.rows for name, run in runs.measured.items()} == {"a": 5, "d": 7}
    assert runs.measured["a"].seconds > 0
    for name, reason in (
        ("b", "no rows"),
        ("c", "it read no rows"),
        ("e", "it ended with code 3: gone"),
        ("f", "it ended with code 3: gone"),
    ):
        found = runs.of(name)
        assert not isinstance(found, Measured)
        assert str(found) == reason


def test_a_silent_program_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    failed = shell(f"sleep 600 & echo $$ $! > {pids}; echo begin; wait", timeout_s=1.0)
    assert str(failed) == "it did not end within 1 s"
    assert failed.output == "begin"
    assert not any(psutil.pid_exists(int(pid)) for pid in pids.read_text().split())


def test_a_program_that_never_stops_talking_is_ended() -> None:
    failed = shell("yes more output", timeout_s=0.5)
    assert str(failed) == "it did not end within 0.5 s: more output"
    assert len(failed.output.splitlines()) <= OUTPUT_LINES + 1


def test_what_a_failing_program_said_is_kept() -> None:
    failed = shell(
        "echo begin; echo no such column: speed >&2; printf ' at Source.java:17'; exit 3"
    )
    assert str(failed) == "it ended with code 3: no such column: speed"
    assert failed.output == "begin\nno such column: speed\n at Source.java:17"


def test_a_killed_program_failed() -> None:
    assert str(shell("echo begin; kill -9 $$")) == "it was ended by SIGKILL"


def test_a_program_that_cannot_be_started_failed() -> None:
    with pytest.raises(EngineFailed, match="did not start: .*no-such-program"):
        measure(["/no-such-program"])


def test_a_program_that_took_in_no_rows_failed() -> None:
    assert str(shell("echo begin; echo end 0")) == "it read no rows"


def test_an_orphan_that_holds_the_output_open_is_not_waited_for(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    measured = measure(["sh", "-c", f"echo begin; echo end 1; sleep 600 & echo $! > {pid}"])
    assert measured.rows == 1
    assert not psutil.pid_exists(int(pid.read_text()))


def test_cpu_time_before_the_beginning_does_not_count() -> None:
    used_s = cpu_of("""
child = start(lambda: burn(1.0))
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, but is there still
burn(0.5)
say("begin")
os.waitpid(child, 0)  # its time becomes its parent's
say("end 1")
""")
    assert 0 <= used_s < 0.5


def test_cpu_time_of_ended_children_counts() -> None:
    used_s = cpu_of("""
say("begin")
os.waitpid(start(lambda: burn(0.4)), 0)
os.waitid(os.P_PID, start(lambda: burn(0.4)), os.WEXITED | os.WNOWAIT)
say("end 1")
""")
    assert used_s >= 0.5, 'of 0.8 s; a busy machine may read "begin" late'


def test_cpu_time_of_orphans_counts() -> None:
    used_s = cpu_of("""
read, write = os.pipe()
def orphan():
    burn(0.2)
    os.read(read, 1)  # until its parent has begun
    burn(0.4)
    os.write(done[1], b"x")
done = os.pipe()
def parent():
    start(orphan)
    burn(0.2)
say("begin")
os.waitpid(start(parent), 0)
os.write(write, b"x")
os.read(done[0], 1)
say("end 1")
""")
    assert used_s >= 0.5, 'of 0.8 s; a busy machine may read "begin" late'


def test_nothing_is_left_when_whoever_measures_is_killed(tmp_path: Path) -> None:
    fifo, pid = tmp_path / "fifo", tmp_path / "pid"
    os.mkfifo(fifo)
    script = f"echo $$ > {pid}; echo up > {fifo}; sleep 600"
    code = f"from benchmarks.peers.measure import measure; measure(['sh', '-c', {script!r}])"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as measuring:
        fifo.read_text()  # the engine runs
        engine = psutil.Process(int(pid.read_text()))
        supervisor = engine.parent()
        assert supervisor is not None
        measuring.send_signal(signal.SIGKILL)
    psutil.wait_procs([engine, supervisor], timeout=LIMIT_S)
    assert not engine.is_running() and not supervisor.is_running()
