"""Logs of real processes stay short, and few."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from firesteel.common.process import spawn
from firesteel.common.process.log_files import IN_USE_S, prune
from tests.waiting import PATIENCE_S

MAX_BYTES = 20_000
# The child of this process writes, as the JVM of a slot does, to the same file all the time.
SERVICE = """
import asyncio, subprocess
from firesteel.common import logs
from firesteel.common.service.host import ServiceProcess, service_main

log = logs.get_logger(__name__)

@service_main("talker")
async def main(process: ServiceProcess) -> None:
    '''Talks.'''
    process.announce_ready()
    subprocess.Popen(["sh", "-c", "while :; do echo from a child; sleep 0.01; done"])
    number = 0
    while True:
        number += 1
        log.info("a line", number=number)
        await asyncio.sleep(0.001)

main()
"""


async def test_a_log_that_grew_long_starts_over_for_all_who_write_to_it(tmp_path: Path) -> None:
    log_path, old = tmp_path / "talker.log", tmp_path / "talker.log.1"
    child = await spawn(
        [sys.executable, "-c", SERVICE, "-D", f"env.log.max-size={MAX_BYTES}"], log_path=log_path
    )
    try:
        first = None
        async with asyncio.timeout(PATIENCE_S):
            while first is None or old.read_text() == first:  # until it has been replaced once
                await asyncio.sleep(0.05)
                if first is None and old.exists() and old.stat().st_size:
                    first = old.read_text()
            while "from a child" not in log_path.read_text():
                await asyncio.sleep(0.05)
    finally:
        child.kill()
        await child.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["talker.log", "talker.log.1"]
    assert old.stat().st_size > MAX_BYTES
    numbers = [
        int(line.rpartition("number=")[2])
        for line in (old.read_text() + log_path.read_text()).splitlines()
        if "number=" in line
    ]
    assert numbers == list(range(numbers[0], numbers[-1] + 1)), "none of its lines is lost"


def test_the_newest_logs_are_kept_and_all_that_are_in_use(tmp_path: Path) -> None:
    now_s = time.time()
    for number in range(6):
        path = tmp_path / f"jobmaster-1-{number}.log"
        path.write_text("x")
        ended_s = now_s - IN_USE_S - 100 + number
        os.utime(path, (ended_s, ended_s))
    (tmp_path / "jobmaster-1-0.log.1").write_text("x")
    (tmp_path / "dispatcher.log").write_text("x")
    os.utime(tmp_path / "jobmaster-1-1.log")  # its process lives
    dropped = prune(tmp_path, "jobmaster-*.log", 2)
    assert sorted(path.name for path in dropped) == [
        f"jobmaster-1-{number}.log" for number in (0, 2, 3, 4)
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dispatcher.log",
        "jobmaster-1-1.log",
        "jobmaster-1-5.log",
    ]
    assert prune(tmp_path, "jobmaster-*.log", 0) == [tmp_path / "jobmaster-1-5.log"]
