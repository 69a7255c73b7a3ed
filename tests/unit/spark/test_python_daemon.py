"""Workers of Spark's Python daemon neither leak nor wait between tasks."""

from __future__ import annotations

import gc
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from taskexecutor.executor import LOG_VARIABLE
from taskexecutor.executor.columnar.jvm import python_daemon
from taskexecutor.executor.columnar.jvm.python_daemon import GarbageCollector, worker


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_worker_keeps_no_more_files_open_with_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "slot.log"
    log.touch()
    monkeypatch.setenv(LOG_VARIABLE, str(log))
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(python_daemon, "_worker", lambda *_: print("a row") or 0)
    python_daemon._print_to_log.cache_clear()
    with socket.socket() as sock:
        assert worker(sock, True) == 0
        before = descriptors()
        for _ in range(5):
            worker(sock, True)
        assert descriptors() == before
    assert log.read_text().count("a row") == 6
    os.close(sys.stdout.output.fileno())  # type: ignore[attr-defined]
    python_daemon._print_to_log.cache_clear()


class Node:
    """With `other`, in a cycle."""

    alive = 0

    def __init__(self) -> None:
        self.other: Any = None
        Node.alive += 1

    def __del__(self) -> None:
        Node.alive -= 1


def cycle() -> Node:
    first, second = Node(), Node()
    first.other, second.other = second, first
    return first


def test_the_garbage_of_a_task_is_collected_and_of_earlier_ones_later(
    request: pytest.FixtureRequest,
) -> None:
    request.addfinalizer(gc.unfreeze)
    collector = GarbageCollector()
    collector.collect()
    cycle()
    collector.collect()
    assert Node.alive == 0
    kept = cycle()
    collector.collect()
    assert Node.alive == 2
    del kept  # it has been frozen
    for _ in range(python_daemon._WHOLE_EVERY):
        collector.collect()
    assert Node.alive == 0
