"""The Status and System metrics of a Python process, its machine and its disks, under Flink's names
where Flink has them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from firesteel.common.metrics import Registry, Sample


def add_process_metrics(registry: Registry, *, scope: str, labels: Mapping[str, str]) -> None:
    """Adds the metrics of this process and its machine; resident memory replaces a JVM's heap.

    `scope` is "jobmanager" (Dispatcher, ResourceManager, JobMaster) or "taskmanager".
    """
    process, machine = psutil.Process(), _Machine()
    registry.add_source(lambda: _process_samples(process, f"flink_{scope}_Status_JVM_", labels))
    registry.add_source(lambda: machine.samples(f"flink_{scope}_System_", labels))


def add_disk_metrics(
    registry: Registry, directories: Iterable[Path], *, scope: str, labels: Mapping[str, str]
) -> None:
    """Adds the space on the disks of these directories."""
    directories = list(dict.fromkeys(directories))
    registry.add_source(lambda: _disk_samples(directories, f"flink_{scope}_Status_Disk_", labels))


def _process_samples(
    process: psutil.Process, prefix: str, labels: Mapping[str, str]
) -> list[Sample]:
    with process.oneshot():
        memory = process.memory_info()
        threads = process.num_threads()
        # As in Java: the share of all cores, 0 to 1, since the last call.
        load = process.cpu_percent(None) / 100.0 / (psutil.cpu_count() or 1)
    return [
        Sample(f"{prefix}CPU_Load", labels, load),
        Sample(f"{prefix}Memory_Heap_Used", labels, float(memory.rss)),
        Sample(f"{prefix}Memory_Heap_Committed", labels, float(memory.rss)),
        Sample(f"{prefix}Memory_Heap_Max", labels, float(psutil.virtual_memory().total)),
        *(Sample(f"{prefix}Memory_NonHeap_{n}", labels, 0.0) for n in ("Used", "Committed")),
        Sample(f"{prefix}Memory_NonHeap_Max", labels, -1.0),
        Sample(f"{prefix}Threads_Count", labels, float(threads)),
    ]


def _disk_samples(
    directories: Iterable[Path], prefix: str, labels: Mapping[str, str]
) -> Iterator[Sample]:
    for directory in directories:
        try:
            usage = shutil.disk_usage(directory)
        except OSError:  # it does not exist yet
            continue
        of_directory = {**labels, "directory": str(directory)}
        yield Sample(f"{prefix}Free", of_directory, usage.free)
        yield Sample(f"{prefix}Total", of_directory, usage.total)


class _Traffic(NamedTuple):
    at_s: float
    by_interface: Mapping[str, tuple[int, int]]  # bytes received and sent


class _Machine:
    """Rates are those since the last scrape."""

    def __init__(self) -> None:
        self._traffic = self._read()

    def samples(self, prefix: str, labels: Mapping[str, str]) -> Iterator[Sample]:
        memory = psutil.virtual_memory()
        yield Sample(f"{prefix}CPU_Usage", labels, psutil.cpu_percent(None))
        yield Sample(f"{prefix}Memory_Available", labels, memory.available)
        yield Sample(f"{prefix}Memory_Total", labels, memory.total)
        before, self._traffic = self._traffic, self._read()
        elapsed_s = max(1e-3, self._traffic.at_s - before.at_s)
        for interface, (received, sent) in self._traffic.by_interface.items():
            received_before, sent_before = before.by_interface.get(interface, (received, sent))
            name = f"{prefix}Network_{interface}_"
            yield Sample(f"{name}ReceiveRate", labels, (received - received_before) / elapsed_s)
            yield Sample(f"{name}SendRate", labels, (sent - sent_before) / elapsed_s)

    @staticmethod
    def _read() -> _Traffic:
        counters = psutil.net_io_counters(pernic=True)
        # Each container adds a veth interface to its machine.
        interfaces = {n: c for n, c in counters.items() if not n.startswith("veth")}
        return _Traffic(
            time.monotonic(), {n: (c.bytes_recv, c.bytes_sent) for n, c in interfaces.items()}
        )
