"""The gRPC service by which a process describes itself and serves its log files."""

from __future__ import annotations

import asyncio
import platform
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import psutil

from firesteel._proto import process_info_pb2 as pb
from firesteel._proto import process_info_pb2_grpc
from firesteel.common.config import Configuration
from firesteel.common.config.redaction import redacted
from firesteel.common.metrics import Registry
from firesteel.common.output import OUTPUT_PREFIX, TASK_PREFIX
from firesteel.common.process.log_files import old
from firesteel.common.rpc.status import Reason, abort

CHUNK_BYTES = 2**18

_STATUS = re.compile(r"flink_(?:jobmanager|taskmanager)_(Status_.*)")
# Slots also report these collectors under G1's names, for dashboards of Prometheus.
_REAL_COLLECTORS = tuple(f"Status.JVM.GarbageCollector.{n}." for n in ("Copy", "PS_Scavenge"))
_COLLECTOR_ALIASES = "Status.JVM.GarbageCollector.G1_"
_COLLECTOR = re.compile(r"(Status\.JVM\.GarbageCollector)\.(.+)\.(Count|Time)")
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class ProcessInfo:
    """Describes this process. `logs` returns the log files that it serves, its own first, and
    `allocated_slots` the slots of a TaskExecutor.
    """

    def __init__(
        self,
        conf: Configuration,
        registry: Registry,
        logs: Callable[[], Iterable[Path]],
        *,
        allocated_slots: Callable[[], Sequence[pb.AllocatedSlot]] = tuple,
    ) -> None:
        self._conf = conf
        self._registry = registry
        self._logs = logs
        self._allocated_slots = allocated_slots

    async def describe(self) -> pb.ProcessDescription:
        return await asyncio.to_thread(self._describe, self._allocated_slots())

    def _describe(self, allocated_slots: Sequence[pb.AllocatedSlot]) -> pb.ProcessDescription:
        memory = psutil.virtual_memory()
        return pb.ProcessDescription(
            configuration=redacted(self._conf.to_dict()),
            python_version=platform.python_version(),
            architecture=platform.machine(),
            arguments=psutil.Process().cmdline(),
            module_path=sys.path,
            metrics=status_metrics(self._registry),
            cpu_cores=psutil.cpu_count() or 1,
            memory_bytes=memory.total,
            memory_free_bytes=memory.available,
            log_files=[_log_file(path) for path in self._files()],
            allocated_slots=allocated_slots,
        )

    def _files(self) -> list[Path]:
        files = (file for path in self._logs() for file in (path, old(path)))
        return [file for file in files if file.is_file()]

    async def read_log_file(
        self, request: pb.ReadLogFileRequest, context: _Context
    ) -> AsyncIterator[pb.LogFileChunk]:
        """Yields the file's bytes. The name is looked up in the listing, not joined to a path."""
        listing = {path.name: path for path in await asyncio.to_thread(self._files)}
        path = listing.get(request.name)
        if path is None:
            await abort(
                context,
                Reason.LOG_FILE_NOT_FOUND,
                f"there is no log file {request.name[:80]!r}",
            )
        chunks = _printed(path) if request.output else _bytes(path)
        while data := await asyncio.to_thread(next, chunks, b""):
            yield pb.LogFileChunk(data=data)


class ProcessInfoServicer(process_info_pb2_grpc.ProcessInfoServicer):
    def __init__(self, info: ProcessInfo) -> None:
        self._info = info

    async def DescribeProcess(
        self, request: pb.DescribeProcessRequest, context: _Context
    ) -> pb.ProcessDescription:
        return await self._info.describe()

    async def ReadLogFile(
        self, request: pb.ReadLogFileRequest, context: _Context
    ) -> AsyncIterator[pb.LogFileChunk]:
        async for chunk in self._info.read_log_file(request, context):
            yield chunk


def add_to_server(server: grpc.aio.Server, info: ProcessInfo) -> None:
    servicer = ProcessInfoServicer(info)
    process_info_pb2_grpc.add_ProcessInfoServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]


def status_metrics(registry: Registry) -> dict[str, float]:
    """Returns the metrics of the process by Flink's names in REST, `Status.JVM.CPU.Load`.

    Those of a TaskExecutor are the sums over the JVMs of its slots, where slots report them.
    """
    own: dict[str, float] = {}
    of_slots: dict[str, float] = {}
    for family in registry.collect():
        if (match := _STATUS.fullmatch(family.name)) is None:
            continue
        name = match[1].replace("_", ".")
        if collector := _COLLECTOR.fullmatch(name):
            name = f"{collector[1]}.{collector[2].replace('.', '_')}.{collector[3]}"
        for sample in family.samples:
            sums = of_slots if "slot" in sample.labels else own
            sums[name] = sums.get(name, 0.0) + sample.value
    metrics = own | of_slots
    if any(name.startswith(_REAL_COLLECTORS) for name in metrics):
        return {name: v for name, v in metrics.items() if not name.startswith(_COLLECTOR_ALIASES)}
    return metrics


def _log_file(path: Path) -> pb.LogFile:
    found = path.stat()
    return pb.LogFile(
        name=path.name, size_bytes=found.st_size, modified_ms=found.st_mtime_ns // 10**6
    )


def _bytes(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while data := file.read(CHUNK_BYTES):
            yield data


def _printed(path: Path) -> Iterator[bytes]:
    """Yields the lines that jobs have printed, many at a time."""
    printed = bytearray()
    with open(path, "rb") as file:
        for line in file:
            if match := TASK_PREFIX.match(line):
                printed += line[match.end() :]
            elif line.startswith(OUTPUT_PREFIX):
                printed += line[len(OUTPUT_PREFIX) :]
            if len(printed) >= CHUNK_BYTES:
                yield bytes(printed)
                printed.clear()
    if printed:
        yield bytes(printed)
