"""Real processes whose log cannot be written: they lose lines, and nothing else."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from firesteel.common import output
from firesteel.common.output import Output

SERVICE = """
import asyncio, logging, sys, traceback, warnings
import click
from firesteel.common import logs
from firesteel.common.service.host import ServiceProcess, service_main

log = logs.get_logger(__name__)

@service_main("talker")
@click.option("--done", required=True)
async def main(process: ServiceProcess, done: str) -> None:
    '''Talks.'''
    class Unshowable:
        def __str__(self): raise ValueError("no text")
    for _ in range(3):
        log.info("a line", value=Unshowable())
        print("from the user's code", flush=True)
        print("no good: \\udc80", file=sys.stderr)
        logging.getLogger("library").warning("another")
        warnings.warn("careful")
        try:
            raise ValueError("boom")
        except ValueError:
            log.exception("failed")
            traceback.print_exc()
    sys.stdout.flush()
    with open(done, "w") as file:
        file.write("done")

main()
"""
PRINTING = """
import pyarrow as pa
from firesteel.common.output import tolerate_failures, write_results
tolerate_failures()
print("a line that may be lost")
write_results("a row\\n")
"""

MARKED = """
import sys, types
from firesteel.common import logs, output
now = 0.0
output.time = types.SimpleNamespace(monotonic=lambda: now)
logs.configure("slot-0")
log = logs.get_logger()
logs.bind_process(job_id="a" * 32)
output.tolerate_failures()
output.mark_output(lambda: logs.line(logs.OUTPUT_FOLLOWS))
print("one")
print("two")
now += 1.1
log.info("a line")
print("three")
now += 1.1
print("timestamp=what a user prints")
print("four", end="")
sys.stdout.flush()
now += 1.1
print(" and more")
"""


@pytest.fixture
def full() -> Iterator[io.FileIO]:
    with open("/dev/full", "wb", buffering=0) as file:
        yield file


@pytest.fixture
def nobody_reads() -> Iterator[int]:
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


@pytest.mark.parametrize("broken", ["full", "nobody_reads"])
def test_a_process_that_cannot_log_does_its_work(
    broken: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    log = request.getfixturevalue(broken)
    code = subprocess.call(
        [sys.executable, "-c", SERVICE, "--done", str(tmp_path / "done")], stdout=log, stderr=log
    )
    assert code == 0
    assert (tmp_path / "done").read_text() == "done"


def test_a_process_logs_all_of_it_where_it_can(tmp_path: Path) -> None:
    with open(tmp_path / "log", "ab") as log:
        command = [sys.executable, "-c", SERVICE, "--done", str(tmp_path / "done")]
        assert subprocess.call(command, stdout=log, stderr=log) == 0
    text = (tmp_path / "log").read_text()
    assert text.count("from the user's code\n") == 3
    assert text.count('event="a line"') == 3
    assert text.count("no good: \\udc80\n") == 3
    assert "lines are missing" not in text


def test_results_that_cannot_be_printed_are_an_error(full: io.FileIO, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PRINTING], stdout=full, stderr=subprocess.PIPE, text=True
    )
    assert ended.returncode != 0
    assert "No space left on device: '/dev/full'" in ended.stderr


def test_the_log_says_how_many_lines_are_missing(full: io.FileIO, tmp_path: Path) -> None:
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    disk = os.dup(log)
    output = Output(log)
    output.write(b"one\n")
    os.dup2(full.fileno(), log)
    assert output.write(b"two\n") == 4
    assert output.write(b"three\nfour\n") == 11
    os.dup2(disk, log)
    output.write(b"five\n")
    output.write(b"six\n")
    one, missing, *rest = (tmp_path / "log").read_text().splitlines()
    assert one == "one"
    assert missing.endswith('lines=3 reason="No space left on device"')
    assert rest == ["five", "six"]
    output.close()
    os.close(log)
    os.close(disk)


def test_printed_text_follows_a_line_with_the_time_at_most_once_a_second() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MARKED],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
        text=True,
    )
    shown = [
        re.sub(r"timestamp=\d\S+ level=info process=slot-0\[\d+\] ", "", line)
        for line in done.stdout.splitlines()
    ]
    mark = f'event="output follows" job_id={"a" * 32}'
    assert shown == [
        mark,
        "stdout: one",
        "stdout: two",
        f'event="a line" job_id={"a" * 32}',
        "stdout: three",
        mark,
        "stdout: timestamp=what a user prints",
        "stdout: four and more",
    ]


PIECES = """
import sys, threading
from firesteel.common import output
output.print_to(1)
turn = threading.Barrier(2, timeout=60)
def one():
    sys.stdout.write("a "); turn.wait(); turn.wait(); print("line"); sys.stdout.write("an end")
    sys.stdout.flush()
def other():
    turn.wait(); print("another\\nand a second"); turn.wait()
threads = [threading.Thread(target=target) for target in (one, other)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_threads_do_not_print_into_each_others_lines() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PIECES], stdout=subprocess.PIPE, check=True, text=True
    )
    assert done.stdout == ("stdout: another\nstdout: and a second\nstdout: a line\nstdout: an end")


OF_TASKS = """
import sys, threading
from firesteel.common import logs, output
output.print_to(1)
turn = threading.Barrier(3, timeout=60)
def task(subtask):
    with logs.task_context(
        job_id="j", vertex='a "b"', subtask=subtask, parallelism=2, attempt=0
    ):
        turn.wait()
        for number in range(200):
            print(f"one {number}\\ntwo", end="\\n")
        output.write_results("a row\\n")
def single():
    with logs.task_context(job_id="j", vertex="c", subtask=0, parallelism=1, attempt=0):
        turn.wait()
        print("alone")
    print("no task's")
threads = [threading.Thread(target=task, args=(n,)) for n in (0, 1)]
threads.append(threading.Thread(target=single))
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_lines_that_a_task_prints_name_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OF_TASKS], stdout=subprocess.PIPE, check=True, text=True
    )
    lines = done.stdout.splitlines()
    expected = ["stdout vertex=c subtask=0: alone", "stdout: no task's"]
    for subtask in (0, 1):
        task = f'stdout vertex="a \\"b\\"" subtask={subtask}: '
        for number in range(200):
            expected += [f"{task}{subtask + 1}> one {number}", f"{task}{subtask + 1}> two"]
        expected.append(f"{task}a row")
    assert sorted(lines) == sorted(expected)
    assert all(output.TASK_PREFIX.match(line.encode()) for line in lines if "no task" not in line)
