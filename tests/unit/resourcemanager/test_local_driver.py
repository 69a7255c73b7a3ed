"""TaskExecutors as processes of this machine, with a stub for the TaskExecutor."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from firesteel.common.ids import Epoch
from resourcemanager.core.events import (
    WorkerEvent,
    WorkerExited,
    WorkerId,
    WorkerStarted,
    WorkerStartFailed,
)
from resourcemanager.local_driver import LocalDriver
from tests.waiting import PATIENCE_S

STUB = (
    "import time; from firesteel.common.process import *;"
    " watch_lifeline(); announce_ready(); time.sleep(600)"
)
# As while it starts a slot's process: until a child executes its own program, it looks like its
# parent.
FORKING_STUB = (
    "import os, time; from firesteel.common.process import *;"
    " watch_lifeline(); os.fork() and announce_ready(); time.sleep(600)"
)


class Heard:
    def __init__(self) -> None:
        self._events: asyncio.Queue[WorkerEvent] = asyncio.Queue()
        self.post = self._events.put_nowait

    async def next(self) -> WorkerEvent:
        return await asyncio.wait_for(self._events.get(), PATIENCE_S)


def driver(directory: Path, code: str = STUB, logs_kept: int = 10) -> LocalDriver:
    return LocalDriver(
        directory=directory,
        arguments=[],
        command=[sys.executable, "-c", code],
        logs_kept=logs_kept,
    )


async def test_a_worker_from_its_start_to_its_release(tmp_path: Path) -> None:
    workers, heard = driver(tmp_path), Heard()
    assert workers.start("rm:1", heard.post, Epoch(1)) == ()
    one = WorkerId("worker-1")
    workers.request_worker(one)
    assert await heard.next() == WorkerStarted(worker_id=one)
    workers.release_worker(one, "idle")
    assert await heard.next() == WorkerExited(
        worker_id=one, cause="its process ended with exit code -15 (killed by SIGTERM)"
    )
    await workers.stop()


async def test_a_worker_that_does_not_start_reports_the_reason(tmp_path: Path) -> None:
    workers, heard = driver(tmp_path, "raise SystemExit('no Java')"), Heard()
    workers.start("rm:1", heard.post, Epoch(1))
    workers.request_worker(WorkerId("worker-1"))
    failed = await heard.next()
    assert isinstance(failed, WorkerStartFailed)
    assert "no Java" in failed.cause
    await workers.stop()


@pytest.mark.parametrize("how", ["release", "stop"])
async def test_workers_of_an_earlier_resource_manager_are_found_and_can_be_ended(
    tmp_path: Path, how: str
) -> None:
    earlier, heard = driver(tmp_path / "here", FORKING_STUB), Heard()
    earlier.start("rm:1", heard.post, Epoch(1))
    one = WorkerId("worker-1")
    earlier.request_worker(one)
    await heard.next()
    assert driver(tmp_path / "elsewhere").start("rm:1", heard.post, Epoch(1)) == ()
    later = driver(tmp_path / "here")
    assert later.start("rm:1", lambda event: None, Epoch(2)) == (one,)
    if how == "release":
        later.release_worker(one, "it did not register in time")
    await later.stop()
    assert isinstance(await heard.next(), WorkerExited)
    await earlier.stop()


async def test_of_ended_workers_a_few_leave_their_logs_and_nothing_else(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for number, name in enumerate(("worker-1", "worker-2")):
        (tmp_path / name / "log").mkdir(parents=True)
        log_path = logs / f"taskexecutor-{name}.log"
        log_path.write_text("ended long ago")
        os.utime(log_path, (number, number))
    (tmp_path / "worker-3" / "log").mkdir(parents=True)
    (tmp_path / "worker-3" / "jobs").mkdir()
    workers, heard = driver(tmp_path, logs_kept=2), Heard()
    workers.start("rm:1", heard.post, Epoch(1))
    workers.request_worker(WorkerId("worker-3"))
    await heard.next()
    workers.release_worker(WorkerId("worker-3"), "idle")
    await heard.next()
    await workers.stop()
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == [
        "logs",
        "logs/taskexecutor-worker-2.log",
        "logs/taskexecutor-worker-3.log",
        "worker-2",
        "worker-2/log",
        "worker-3",
        "worker-3/log",
    ]


def test_the_logs_of_workers_with_the_ids_of_their_task_executors(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    ready = f"timestamp=2026-11-22T02:00:00Z event=ready task_executor_id={'1' * 32}\n"
    (logs / "taskexecutor-one.log").write_text("begins\n" + ready)
    (logs / "taskexecutor-two.log").write_text("begins\n")
    (tmp_path / "one" / "log").mkdir(parents=True)
    (tmp_path / "one" / "log" / "slot-0.log").touch()
    (tmp_path / "one" / "log" / "slot-0.log.1").touch()
    found = {worker.worker_id: worker for worker in driver(tmp_path).logs()}
    assert {name: worker.task_executor_id for name, worker in found.items()} == {
        "one": "1" * 32,
        "two": "",
    }
    assert found[WorkerId("one")].paths == (
        logs / "taskexecutor-one.log",
        tmp_path / "one" / "log" / "slot-0.log",
    )
