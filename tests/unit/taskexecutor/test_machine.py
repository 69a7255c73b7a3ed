"""A TaskExecutor measures its machine and its slots."""

from __future__ import annotations

import os
from pathlib import Path

from firesteel.common.metrics import Sample
from firesteel.common.rpc.convert import MACHINE_USAGE
from taskexecutor.executor_process import Measured
from taskexecutor.machine import machine_usage, slot_usage
from taskexecutor.memory import TreeMemory, slot_memory, tree_memory


def test_the_parts_of_a_slot_and_its_machine_survive_the_wire(tmp_path: Path) -> None:
    tree = TreeMemory(python=100, jvm=300, shared=20, files=7, threads=9, cpu_s=1.0)
    heap = [
        Sample(f"flink_taskmanager_Status_JVM_Memory_Heap_{name}", {}, value)
        for name, value in (("Used", 50.0), ("Committed", 64.0), ("Max", 512.0))
    ]
    managed = "flink_taskmanager_Status_Flink_Memory_Managed_"
    heap += [Sample(f"{managed}Used", {}, 12.0), Sample(f"{managed}Total", {}, 128.0)]
    memory = slot_memory(limit=1_000, resident=tree, reported=heap)
    busy = slot_usage(0, "e", "a job", memory, Measured(tree, 0.0, 1.5))
    assert (busy.total_bytes, busy.jvm_other_bytes, busy.python_bytes) == (420, 236, 100)
    assert (busy.threads, busy.cpu_load) == (9, 1.5)
    assert (busy.managed_used_bytes, busy.managed_total_bytes) == (12, 128)
    starting = slot_usage(1, "f", None, slot_memory(limit=5, resident=None, reported=()), None)
    assert (starting.total_bytes, starting.cpu_load, starting.job_id) == (None, None, None)
    folders = [tmp_path, tmp_path, tmp_path / "missing"]
    usage = machine_usage("t", folders, [busy, starting], 700)
    assert usage.memory_used_bytes <= usage.memory_total_bytes
    (disk,) = usage.disks
    assert (disk.path, disk.free_bytes <= disk.total_bytes) == (str(tmp_path), True)
    received = MACHINE_USAGE.decode(MACHINE_USAGE.encode(usage))
    assert received.slots == (busy, starting)
    assert received.memory_peak_bytes == 700


def test_trees_have_threads_and_cpu_time() -> None:
    own = tree_memory([os.getpid()])[os.getpid()]
    assert own.threads >= 1
    assert own.cpu_s > 0
