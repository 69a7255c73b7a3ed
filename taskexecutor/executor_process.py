"""The slots' processes: starts PySpark executors, reports their end, measures their memory and
kills them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from firesteel.common.config import SECRETS, Configuration, options
from firesteel.common.ids import ExecutorId
from firesteel.common.installation import SAFE_PATH, import_path
from firesteel.common.logs import get_logger
from firesteel.common.process import (
    WITHOUT_FORK_HANDLERS,
    StartFailed,
    exit_reason,
    log_tail,
    temporary,
)
from firesteel.common.process.log_files import slot_log
from firesteel.common.service.platform import Platform, Process
from taskexecutor.core import commands, events
from taskexecutor.executor import (
    ABANDONED_THREAD_EXIT_CODE,
    CONFIG_VARIABLE,
    JVM_LOST_EXIT_CODE,
    LINK_LOST_EXIT_CODE,
)
from taskexecutor.memory import TreeMemory, tree_memory

log = get_logger(__name__)

READY_TIMEOUT_S = 180.0

_EXIT_CODES = {
    JVM_LOST_EXIT_CODE: "its Spark JVM has ended",
    ABANDONED_THREAD_EXIT_CODE: "a thread of its job did not end",
    LINK_LOST_EXIT_CODE: "its link to the TaskExecutor broke; the slot's log has the cause",
    0: "exit code 0, which Firesteel does not use: the job's code may have called os._exit",
}


class Measured(NamedTuple):
    memory: TreeMemory
    at_s: float
    cpu_load: float | None  # cores in use since the measurement before


@dataclass(slots=True)
class _Running:
    task: asyncio.Task[None]
    slot_index: int
    child: Process | None = None
    measured: Measured | None = None

    def end(self) -> None:
        if self.child is None:
            self.task.cancel()  # `spawn` then kills the process it has started
        else:
            self.child.kill()


class ExecutorProcesses:
    """All processes of one TaskExecutor. Posts ProcessDied and MemorySampled; ProcessReady arrives
    over the link.
    """

    def __init__(
        self,
        conf: Configuration,
        *,
        directory: Path,
        host: str,
        task_executor_id: str,
        post: Callable[[events.Event], None],
        platform: Platform,
        measure: Callable[[Sequence[int]], dict[int, TreeMemory]] = tree_memory,
    ) -> None:
        self._conf = conf
        self._directory = directory
        self._host = host
        self._task_executor_id = task_executor_id
        self._link_address = ""
        self._results_memory: Path | None = None
        self._post = post
        self._platform = platform
        self._measure = measure
        self._running: dict[ExecutorId, _Running] = {}
        self._watching: asyncio.Task[None] | None = None
        self.memory_peak_bytes: int | None = None  # of all processes together

    def start(self, *, link_address: str, results_memory: Path | None = None) -> None:
        """Removes the files that a previous TaskExecutor left in the folder, and starts to sample
        the memory of the processes. In `results_memory`, each process gets a folder for small
        results.
        """
        self._link_address = link_address
        self._results_memory = results_memory
        shutil.rmtree(self._directory / "tmp", ignore_errors=True)
        for folder in ("log", "tmp"):
            (self._directory / folder).mkdir(parents=True, exist_ok=True)
        _remove_files_of_dead()
        interval_s = self._conf.get(options.MEMORY_WATCH_INTERVAL)
        if interval_s > 0:
            self._watching = asyncio.create_task(
                self._watch_memory(interval_s), name="memory-watch"
            )

    def knows(self, executor_id: ExecutorId) -> bool:
        return executor_id in self._running

    def measured(self, executor_id: ExecutorId) -> Measured | None:
        """Returns what a process used when it was last measured. May be called from any thread."""
        running = self._running.get(executor_id)
        return None if running is None else running.measured

    def run(self, command: commands.StartProcess) -> None:
        task = asyncio.create_task(self._live(command), name=f"executor {command.executor_id}")
        self._running[command.executor_id] = _Running(task, command.slot_index)

    def kill(self, executor_id: ExecutorId, reason: str) -> None:
        running = self._running.get(executor_id)
        if running is None:
            return
        log.info(
            "killing a slot's process",
            slot=running.slot_index,
            executor_id=executor_id,
            reason=reason.splitlines()[0],
        )
        # A process requested in this iteration of the event loop has not started yet; cancelling it
        # now would hide its end.
        asyncio.get_running_loop().call_soon(running.end)

    async def stop(self) -> None:
        """Kills every process and returns when all have ended."""
        if self._watching is not None:
            self._watching.cancel()
        tasks = [running.task for running in self._running.values()]
        for executor_id in list(self._running):
            self.kill(executor_id, "the TaskExecutor ends")
        if tasks:
            await asyncio.wait(tasks, timeout=10)

    async def _live(self, command: commands.StartProcess) -> None:
        """Runs a process from its start to its end."""
        log_path = slot_log(self._directory, command.slot_index)
        temp_dir = self._directory / "tmp" / command.executor_id
        cause = "it was stopped while it started"
        try:
            temp_dir.mkdir(parents=True, exist_ok=True)
            child = await self._platform.processes.spawn(
                self._argv(command),
                log_path=log_path,
                env=self._env(command, temp_dir),
                lifeline="own",
                ready_timeout_s=READY_TIMEOUT_S,
            )
            self._running[command.executor_id].child = child
            cause = exit_text(await child.wait())
        except StartFailed as error:
            cause = start_failure(error, log_path)
        except OSError as error:
            cause = str(error)
        except asyncio.CancelledError:
            pass
        finally:
            del self._running[command.executor_id]
            log.info(
                "a slot's process has ended",
                slot=command.slot_index,
                executor_id=command.executor_id,
                cause=cause.splitlines()[0],
            )
            self._post(events.ProcessDied(executor_id=command.executor_id, cause=cause))
            await asyncio.to_thread(
                _remove_files_of_dead, temp_dir, self._memory_of(command.executor_id)
            )

    def _memory_of(self, executor_id: ExecutorId) -> Path | None:
        return None if self._results_memory is None else self._results_memory / executor_id

    def _argv(self, command: commands.StartProcess) -> list[str]:
        shape = command.shape
        folder = self._memory_of(command.executor_id)
        python = (
            shape.environment.python or self._conf.get(options.PYTHON_EXECUTABLE) or sys.executable
        )
        return [
            python,
            "-P",  # modules in the current directory must not shadow Firesteel's
            "-m", "taskexecutor.executor",
            "--link", self._link_address,
            "--executor-id", command.executor_id,
            "--task-executor-id", self._task_executor_id,
            "--slot", str(command.slot_index),
            "--heap", str(shape.heap_bytes),
            "--cores", str(shape.cores),
            "--host", self._host,
            *(["--results-memory", str(folder)] if folder is not None else []),
        ]  # fmt: skip

    def _env(self, command: commands.StartProcess, temp_dir: Path) -> dict[str, str]:
        conf = self._conf.with_overrides(dict(command.shape.environment.spark))
        security = self._platform.security
        return {
            **WITHOUT_FORK_HANDLERS,  # for user functions
            # Processes that user functions start import modules as usual.
            **{n: value for n, value in os.environ.items() if n not in (SECRETS, SAFE_PATH)},
            "PYTHONPATH": import_path(os.environ.get("PYTHONPATH")),
            "TMPDIR": str(temp_dir),  # removed when the process has ended, for whatever reason
            CONFIG_VARIABLE: json.dumps(conf.for_jobs()),
            **(security.slot_credentials(command.executor_id).to_environment() if security else {}),
        }

    async def _watch_memory(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            pids = {
                running.child.pid: executor_id
                for executor_id, running in self._running.items()
                if running.child
            }
            if not pids:
                continue
            try:
                used = await asyncio.to_thread(self._measure, list(pids))
            except Exception:
                log.exception("cannot measure memory")
                continue
            total = sum(memory.total for memory in used.values())
            self.memory_peak_bytes = max(self.memory_peak_bytes or 0, total)
            for pid, memory in used.items():
                executor_id = pids[pid]
                if (running := self._running.get(executor_id)) is not None:
                    last, now_s = running.measured, self._platform.clock.monotonic()
                    running.measured = Measured(memory, now_s, _cpu_load(last, memory, now_s))
                self._post(events.MemorySampled(executor_id=executor_id, used_bytes=memory.total))


def _cpu_load(last: Measured | None, memory: TreeMemory, now_s: float) -> float | None:
    """A process of the tree that has ended since takes its CPU time along."""
    if last is None or now_s <= last.at_s:
        return None
    return max(0.0, memory.cpu_s - last.memory.cpu_s) / (now_s - last.at_s)


def _remove_files_of_dead(*folders_of_process: Path | None) -> None:
    """Removes a process's folders, and the files that dead processes left in shared memory and
    temporary directories.
    """
    for of_process in folders_of_process:
        if of_process is not None:
            shutil.rmtree(of_process, ignore_errors=True)
    for folder in (temporary.SHARED_MEMORY, None):
        for removed in temporary.sweep(folder):
            log.info("removed a dead process's files", folder=str(removed))


def exit_text(code: int) -> str:
    return _EXIT_CODES.get(code) or exit_reason(code)


def start_failure(error: StartFailed, log_path: Path) -> str:
    """Returns why a process could not start: its last log line, then the end of its log."""
    tail = log_tail(log_path)
    if not tail:
        return error.reason
    return f"{error.reason}: {tail.splitlines()[-1].strip()}\nthe end of {log_path}:\n{tail}"
