"""Readings of slot processes: their memory, exit codes and logs."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from firesteel.common.config import Configuration, options
from firesteel.common.ids import ExecutorId
from firesteel.common.metrics import Sample
from firesteel.common.process import StartFailed
from firesteel.common.service.platform import SYSTEM
from firesteel.common.units import MIB
from taskexecutor.core import commands, events
from taskexecutor.core.process_shape import Environment, ProcessShape
from taskexecutor.executor_process import ExecutorProcesses, _Running, exit_text, start_failure
from taskexecutor.memory import TreeMemory, slot_memory, tree_memory


def test_resident_memory_of_a_tree() -> None:
    used = tree_memory([os.getpid(), 2**30])
    assert list(used) == [os.getpid()]
    assert used[os.getpid()].total >= used[os.getpid()].python > 10 * MIB


_SHARES = """
import mmap, os, sys
shared = mmap.mmap(-1, 64 * 2**20)  # as the memory that Python and its JVM have in common
shared.write(b"x" * len(shared))
child = os.fork()
if not child:
    sum(shared[::4096])  # all of it is resident here, too
    print("resident", flush=True)
sys.stdin.read()
if child:
    os.wait()
"""


def test_memory_that_processes_share_counts_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SHARES], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"resident\n"
        used = tree_memory([parent.pid])[parent.pid]
    assert used.shared >= 64 * MIB
    assert used.total < 2 * 64 * MIB


_MAPS = """
import mmap, sys, tempfile
with tempfile.TemporaryFile(dir=sys.argv[1]) as file:
    file.truncate(64 * 2**20)
    mapped = mmap.mmap(file.fileno(), 64 * 2**20)
mapped.write(b"x" * len(mapped))
sum(mapped[::4096])
print("resident", flush=True)
sys.stdin.read()
"""


def test_pages_of_files_do_not_count(tmp_path: Path) -> None:
    """They are written back when memory is needed."""
    if shutil.disk_usage(tmp_path) == shutil.disk_usage("/dev/shm"):
        pytest.skip("temporary files are in memory")
    with subprocess.Popen(
        [sys.executable, "-c", _MAPS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"resident\n"
        used = tree_memory([process.pid])[process.pid]
    assert 0 < used.total < 64 * MIB < used.files


def test_the_memory_of_a_slot_combines_its_processes_with_the_reports_of_its_jvm() -> None:
    tree = TreeMemory(python=100, jvm=300, shared=20, files=7)
    heap = [
        Sample(f"flink_taskmanager_Status_JVM_Memory_Heap_{name}", {}, value)
        for name, value in (("Used", 50.0), ("Committed", 64.0), ("Max", 512.0))
    ]
    memory = slot_memory(limit=1_000, resident=tree, reported=heap)
    assert (memory.jvm_heap_used, memory.jvm_heap_committed, memory.jvm_heap_max) == (50, 64, 512)
    assert memory.jvm_non_heap_used is None
    assert {s.name.rpartition("_")[2]: s.value for s in memory.samples({})} == {
        "Limit": 1_000,
        "Total": 420,
        "JVM": 300,
        "Python": 100,
        "Shared": 20,
    }
    starting = slot_memory(limit=1_000, resident=None, reported=())
    assert [s.value for s in starting.samples({})] == [1_000]


def test_exit_codes_are_described_in_words() -> None:
    assert exit_text(-9) == "exit code -9 (killed by SIGKILL)"
    assert exit_text(3) == "exit code 3"
    assert exit_text(71) == "its Spark JVM has ended"


def test_why_a_process_could_not_start_is_in_the_first_line(tmp_path: Path) -> None:
    error = StartFailed("python -m x ended with code 3 before it was ready", reason="exit code 3")
    log_path = tmp_path / "slot-0.log"
    assert start_failure(error, log_path) == "exit code 3"
    log_path.write_text("importing\nModuleNotFoundError: No module named 'pyspark'\n")
    lines = start_failure(error, log_path).splitlines()
    assert lines[0] == "exit code 3: ModuleNotFoundError: No module named 'pyspark'"
    assert lines[1:3] == [f"the end of {log_path}:", "  importing"]


_START = commands.StartProcess(
    executor_id=ExecutorId("e"),
    slot_index=0,
    shape=ProcessShape(heap_bytes=512 * MIB, cores=1, environment=Environment()),
)


def _processes(
    directory: Path,
    posted: asyncio.Queue[events.Event],
    measure: Callable[[Sequence[int]], dict[int, TreeMemory]] = tree_memory,
) -> ExecutorProcesses:
    processes = ExecutorProcesses(
        Configuration({options.MEMORY_WATCH_INTERVAL.key: "10 ms"}),
        directory=directory,
        host="127.0.0.1",
        task_executor_id="te",
        post=posted.put_nowait,
        platform=SYSTEM,
        measure=measure,
    )
    processes.start(link_address="unix:none")
    return processes


async def test_the_highest_memory_of_all_processes_is_kept(tmp_path: Path) -> None:
    posted: asyncio.Queue[events.Event] = asyncio.Queue()
    totals = iter([300, 500, 400])

    def measure(pids: Sequence[int]) -> dict[int, TreeMemory]:
        tree = TreeMemory(next(totals, 400), jvm=0, shared=0, files=0, threads=1, cpu_s=0.0)
        return dict.fromkeys(pids, tree)

    processes = _processes(tmp_path, posted, measure)
    before = processes.memory_peak_bytes
    sleeping = await asyncio.create_subprocess_exec("sleep", "1000")
    ended = asyncio.create_task(sleeping.wait())
    child: Any = sleeping  # has a pid and can be killed, as the process of a slot
    processes._running[_START.executor_id] = _Running(ended, 0, child)  # type: ignore[arg-type]
    used: list[int] = []
    async with asyncio.timeout(60):
        while len(used) < 3:
            event = await posted.get()
            assert isinstance(event, events.MemorySampled)
            used.append(event.used_bytes)
    peak = processes.memory_peak_bytes
    await processes.stop()
    assert (before, used, peak) == (None, [300, 500, 400], 500)


async def test_a_process_whose_folder_cannot_be_made_is_reported_dead(tmp_path: Path) -> None:
    posted: asyncio.Queue[events.Event] = asyncio.Queue()
    processes = _processes(tmp_path, posted)
    (tmp_path / "tmp").rmdir()
    (tmp_path / "tmp").touch()
    processes.run(_START)
    died = await asyncio.wait_for(posted.get(), 60)
    await processes.stop()
    assert isinstance(died, events.ProcessDied)
    assert "Not a directory" in died.cause


async def test_the_end_of_a_process_that_is_killed_as_it_is_started_is_noticed(
    tmp_path: Path,
) -> None:
    posted: asyncio.Queue[events.Event] = asyncio.Queue()
    processes = _processes(tmp_path, posted)
    processes.run(_START)
    processes.kill(_START.executor_id, "its slot needs another size")
    assert isinstance(await asyncio.wait_for(posted.get(), 60), events.ProcessDied)
    await processes.stop()
