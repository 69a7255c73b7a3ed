"""Ends real processes and their children."""

from __future__ import annotations

import socket
import subprocess
import sys

import psutil

from taskexecutor.executor.spark_program.processes import end_trees, free_port, listens
from tests.waiting import eventually

PARENT = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(600)\n"
)


def test_descendants_end_with_their_process() -> None:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    end_trees([process, ended])
    process.stdout.close()
    assert process.returncode == -9
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


def test_a_port_is_listened_on_by_its_own_process() -> None:
    port = free_port("127.0.0.1")
    pid = psutil.Process().pid
    assert not listens(pid, port)
    with socket.create_server(("127.0.0.1", port)):
        eventually(lambda: listens(pid, port), "it listens")
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert not listens(process.pid, port), "another process does not"
        process.communicate()
