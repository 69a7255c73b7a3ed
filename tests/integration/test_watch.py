"""The servers that tests start end with the process that has started them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.waiting import PATIENCE_S

POSTGRES = """
from tests.postgres import Postgres
server = Postgres()
folder, pids = server._folder, [(server._folder / "postmaster.pid").read_text().splitlines()[0]]
"""
ZOOKEEPER = """
from tests.zookeeper import ZooKeeper
server = ZooKeeper()
server.crash(0)
server.pause(1)
server.start(0)
folder, pids = server._temporary, [process.pid for process in server.processes]
"""
KILLED = """
import os, signal
print(folder, server._watch.process.pid, *pids, flush=True)
os.kill(os.getpid(), signal.SIGTERM)
signal.pause()
"""


@pytest.mark.long  # conftest.py finds what servers of tests leave behind
@pytest.mark.parametrize("started", [ZOOKEEPER, POSTGRES], ids=["zookeeper", "postgres"])
def test_the_servers_of_a_test_run_that_is_killed_end(started: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", started + KILLED],
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == -signal.SIGTERM
    folder, *pids = ended.stdout.split()
    for pid in map(int, pids):
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(PATIENCE_S)
    assert not Path(folder).exists()
