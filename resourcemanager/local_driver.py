"""Starts workers as processes on this machine: `python -m taskexecutor`, each with a folder and a
log.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from firesteel.common.config import options
from firesteel.common.ids import Epoch
from firesteel.common.logs import get_logger
from firesteel.common.process import StartFailed, exit_reason, module_command
from firesteel.common.process.log_files import old, prune, slot_logs
from firesteel.common.service.platform import SYSTEM, Platform, Process
from resourcemanager.core.events import (
    WorkerEvent,
    WorkerExited,
    WorkerId,
    WorkerStarted,
    WorkerStartFailed,
)
from resourcemanager.driver import WorkerLogs

log = get_logger(__name__)

# Shorter than the SlotManager's, so that the reason includes the process's log.
READY_TIMEOUT_S = 110.0
STOP_GRACE_S = 5.0
_BEGINNING_BYTES = 65_536
_TASK_EXECUTOR_ID = re.compile(rb" task_executor_id=([0-9a-f]{32})")


class Signalled(Protocol):
    """A process that can be signalled, such as psutil's."""

    def send_signal(self, sig: int, /) -> None: ...


class LocalDriver:
    reason_patience_s = 0.0  # the end of a child is known immediately

    def __init__(
        self,
        *,
        directory: Path,
        arguments: Sequence[str],
        command: Sequence[str] = (),
        logs_kept: int = options.LOG_MAX.default,
        platform: Platform = SYSTEM,
        find_workers: Callable[[Path], dict[WorkerId, Signalled]] | None = None,
    ) -> None:
        """`arguments` configure every worker (`-D key=value` ...); `command` replaces
        `python -m taskexecutor`; `logs_kept` limits the logs of ended workers; `find_workers` finds
        the live workers of a directory, including those of an earlier ResourceManager.
        """
        self._find_workers = find_workers or _workers_in
        self._platform = platform
        self._directory = directory
        self._arguments = tuple(arguments)
        self._logs_kept = logs_kept
        self._command = tuple(command or module_command("taskexecutor"))
        self._tasks: dict[WorkerId, asyncio.Task[None]] = {}
        self._released: dict[WorkerId, asyncio.Event] = {}
        self._previous: dict[WorkerId, Signalled] = {}  # of an earlier ResourceManager
        self._logged_ids: dict[WorkerId, str] = {}  # the ids of TaskExecutors, read from their logs
        self._address = ""
        self._post: Callable[[WorkerEvent], None] = lambda event: None

    def start(
        self, resource_manager_address: str, post: Callable[[WorkerEvent], None], epoch: Epoch
    ) -> Sequence[WorkerId]:
        self._address, self._post = resource_manager_address, post
        self._previous = self._find_workers(self._directory)
        return tuple(self._previous)

    def request_worker(self, worker_id: WorkerId) -> None:
        self._released[worker_id] = asyncio.Event()
        task = asyncio.create_task(self._run(worker_id), name=f"worker {worker_id}")
        self._tasks[worker_id] = task
        task.add_done_callback(lambda _: self._forget(worker_id))

    def release_worker(self, worker_id: WorkerId, cause: str, *, failed: bool = False) -> None:
        if worker_id in self._released:
            log.info("stopping TaskExecutor process", worker_id=worker_id, cause=cause)
            self._released[worker_id].set()
        elif (previous := self._previous.pop(worker_id, None)) is not None:
            log.info("stopping TaskExecutor process", worker_id=worker_id, cause=cause)
            _signal(previous, signal.SIGTERM)
            asyncio.get_running_loop().call_later(STOP_GRACE_S, _signal, previous, signal.SIGKILL)

    async def stop(self, *, end_workers: bool = True) -> None:
        if not end_workers:
            return
        self._post = lambda event: None
        for released in self._released.values():
            released.set()
        for previous in self._previous.values():
            _signal(previous, signal.SIGTERM)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def logs(self) -> Sequence[WorkerLogs]:
        found = []
        for log_path in (self._directory / "logs").glob("taskexecutor-*.log"):
            worker_id = WorkerId(log_path.stem.removeprefix("taskexecutor-"))
            found.append(
                WorkerLogs(
                    worker_id=worker_id,
                    task_executor_id=self._task_executor_id(worker_id, log_path),
                    paths=(log_path, *slot_logs(self._directory / worker_id)),
                )
            )
        return found

    def gauges(self) -> Mapping[str, float]:
        return {}

    def _task_executor_id(self, worker_id: WorkerId, log_path: Path) -> str:
        """Returns the id that the worker's log states near its start, or an empty string."""
        if worker_id not in self._logged_ids:
            for path in (old(log_path), log_path):
                with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                    if match := _TASK_EXECUTOR_ID.search(file.read(_BEGINNING_BYTES)):
                        self._logged_ids[worker_id] = match[1].decode()
                        break
        return self._logged_ids.get(worker_id, "")

    async def _run(self, worker_id: WorkerId) -> None:
        """Runs one worker from its start to its end."""
        released = asyncio.create_task(self._released[worker_id].wait())
        starting = asyncio.create_task(self._spawn(worker_id))
        try:
            await asyncio.wait((starting, released), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():  # released while it starts: cancelling `spawn` kills it
                starting.cancel()
                await asyncio.wait((starting,))
                self._post(
                    WorkerStartFailed(worker_id=worker_id, cause="it was released while it started")
                )
                return
            try:
                child = starting.result()
            except (StartFailed, OSError) as error:
                log.warning(
                    "TaskExecutor process did not start", worker_id=worker_id, cause=str(error)
                )
                self._post(WorkerStartFailed(worker_id=worker_id, cause=str(error)))
                return
            self._post(WorkerStarted(worker_id=worker_id))
            cause = f"its process ended with {exit_reason(await self._watch(child, released))}"
            log.info(
                "TaskExecutor process has ended", worker_id=worker_id, pid=child.pid, cause=cause
            )
            self._post(WorkerExited(worker_id=worker_id, cause=cause))
            await asyncio.to_thread(self._remove_files_of_dead, worker_id)
        finally:
            released.cancel()

    async def _spawn(self, worker_id: WorkerId) -> Process:
        directory, logs = self._directory / worker_id, self._directory / "logs"
        directory.mkdir(parents=True, exist_ok=True)
        logs.mkdir(parents=True, exist_ok=True)
        return await self._platform.processes.spawn(
            [
                *self._command,
                *(("--resource-manager", self._address) if self._address else ()),
                "--worker-id",
                worker_id,
                "--dir",
                str(directory),
                *self._arguments,
            ],
            log_path=logs / f"taskexecutor-{worker_id}.log",
            lifeline="inherit",  # it ends with the cluster, not with this ResourceManager
            ready_timeout_s=READY_TIMEOUT_S,
        )

    async def _watch(self, child: Process, released: asyncio.Task[bool]) -> int:
        """Waits for the process's end, stops the process once it is released; returns the exit
        code.
        """
        exited = asyncio.create_task(child.wait())
        await asyncio.wait((exited, released), return_when=asyncio.FIRST_COMPLETED)
        if not exited.done():
            await child.stop(STOP_GRACE_S)
        return await exited

    def _remove_files_of_dead(self, worker_id: WorkerId) -> None:
        """Removes this worker's files except logs, and all files of the oldest ended workers."""
        folder = self._directory / worker_id
        with contextlib.suppress(FileNotFoundError):
            for path in folder.iterdir():
                if path.name != "log":
                    shutil.rmtree(path, ignore_errors=True)
        for log_path in prune(self._directory / "logs", "taskexecutor-*.log", self._logs_kept):
            ended = log_path.stem.removeprefix("taskexecutor-")
            shutil.rmtree(self._directory / ended, ignore_errors=True)

    def _forget(self, worker_id: WorkerId) -> None:
        self._tasks.pop(worker_id, None)
        self._released.pop(worker_id, None)


def _workers_in(directory: Path) -> dict[WorkerId, Signalled]:
    """Returns the live workers with folders in `directory`, including those of other parents."""
    found: dict[WorkerId, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            options = process.cmdline()
            given = dict(itertools.pairwise(options))
            worker_id = WorkerId(given.get("--worker-id", ""))
            if not worker_id or given.get("--dir") != str(directory / worker_id):
                continue
            other = found.get(worker_id)
            # A child has its parent's command line until it calls exec.
            if other is None or process.create_time() < other.create_time():
                found[worker_id] = process
    return dict(found)


def _signal(process: Signalled, number: int) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)  # psutil checks that the pid was not reused
