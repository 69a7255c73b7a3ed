"""The PostgreSQL server of tests ends with the process that has started it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import psutil

PATIENCE_S = 60.0
_STARTED = """
import os, signal
from tests.postgres import Postgres

server = Postgres()
pid, *_ = (server._folder / "postmaster.pid").read_text().splitlines()
print(server._folder, pid, server._watch.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_server_of_a_test_run_that_is_killed_ends() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _STARTED],
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    folder, *pids = ended.stdout.split()
    for pid in map(int, pids):
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(PATIENCE_S)
    assert not Path(folder).exists()
