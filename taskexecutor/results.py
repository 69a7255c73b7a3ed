"""Files of BLOCKING results on this machine: takes them over from the producing processes, serves
and deletes them.

The files are in the TaskExecutor's working directory, or in shared memory up to a size limit. Both
folders are temporary (firesteel.common.process.temporary): if the TaskExecutor is killed, the next
one on the machine removes them.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from firesteel.common.ids import JobId
from firesteel.common.job_graph import ResultPartitionId, StoredPartition
from firesteel.common.logs import get_logger
from firesteel.common.process import temporary

log = get_logger(__name__)


class ResultServer(Protocol):
    """The part of `taskexecutor.result_server` in use here. A protocol, because that module imports
    Arrow.
    """

    address: str

    def serve(self, job_id: JobId, partition: ResultPartitionId, path: Path) -> None: ...

    def refuse(self, job_id: JobId, partition: ResultPartitionId, reason: str) -> None: ...

    def forget_job(self, job_id: JobId) -> None: ...

    def stop(self) -> None: ...


class Results:
    def __init__(
        self, directory: Path, *, memory_bytes: int, start_server: Callable[[str], ResultServer]
    ) -> None:
        """`start_server` starts the server on a host and returns it; this may take a while."""
        self.address = ""  # set once the server runs
        self.memory: Path | None = None  # folders of processes and of jobs
        self._disk = directory / "results"
        self._memory_bytes = memory_bytes
        self._in_memory_bytes = 0
        self._start_server = start_server
        self._server: ResultServer | None = None
        self._files: dict[JobId, dict[ResultPartitionId, tuple[Path, int]]] = {}

    def prepare(self) -> None:
        shutil.rmtree(self._disk, ignore_errors=True)  # left by a previous TaskExecutor
        if self._memory_bytes and temporary.SHARED_MEMORY.is_dir():
            self.memory = temporary.make("results", temporary.SHARED_MEMORY)

    async def serve(self, host: str) -> None:
        self._server = await asyncio.to_thread(self._start_server, host)
        self.address = self._server.address

    async def stop(self) -> None:
        if self._server is not None:
            await asyncio.to_thread(self._server.stop)
        if self.memory is not None:
            temporary.remove(self.memory)
        shutil.rmtree(self._disk, ignore_errors=True)

    def take_over(self, job_id: JobId, partitions: Sequence[StoredPartition]) -> None:
        """Serves the partitions. Consumers of a partition that cannot be taken over fail, and the
        JobMaster reproduces it.
        """
        assert self._server is not None
        for partition in partitions:
            try:
                path = self._moved(job_id, partition)
            except OSError as error:
                reason = f"its file {partition.path} could not be taken over: {error}"
                log.warning("lost a result", partition=str(partition.id), job_id=job_id, why=reason)
                self._server.refuse(job_id, partition.id, reason)
            else:
                self._files.setdefault(job_id, {})[partition.id] = path, partition.size_bytes
                self._server.serve(job_id, partition.id, path)

    def delete(self, job_id: JobId, partitions: Sequence[ResultPartitionId]) -> None:
        assert self._server is not None
        files = self._files.get(job_id, {})
        for partition in partitions:
            self._server.refuse(job_id, partition, "it was released by its job")
            if (file := files.pop(partition, None)) is not None:
                self._deleted(*file)

    def delete_job(self, job_id: JobId) -> None:
        assert self._server is not None
        self.delete(job_id, list(self._files.get(job_id, ())))
        self._files.pop(job_id, None)
        self._server.forget_job(job_id)
        for folder in (self._disk, self.memory):
            if folder is not None:
                shutil.rmtree(folder / job_id, ignore_errors=True)

    def _moved(self, job_id: JobId, partition: StoredPartition) -> Path:
        """Moves the partition's file and returns its new path. Moves it from memory to disk if the
        memory limit is exceeded.
        """
        written = Path(partition.path)
        folder = self._disk
        in_memory = self.memory is not None and written.is_relative_to(self.memory)
        if in_memory and self._in_memory_bytes + partition.size_bytes <= self._memory_bytes:
            assert self.memory is not None
            folder = self.memory
            self._in_memory_bytes += partition.size_bytes
        (folder / job_id).mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(written, folder / job_id / written.name))

    def _deleted(self, path: Path, size_bytes: int) -> None:
        path.unlink(missing_ok=True)
        if self.memory is not None and path.is_relative_to(self.memory):
            self._in_memory_bytes -= size_bytes
