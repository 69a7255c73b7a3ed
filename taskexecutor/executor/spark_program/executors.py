"""An executor's task: a worker of Spark Standalone, which starts the executor."""

from __future__ import annotations

import contextvars
import subprocess
import threading
from pathlib import Path
from typing import Any

from firesteel.common.logs import get_logger
from firesteel.common.operator_messages import (
    Resend,
    SparkMaster,
    SparkMasterAwaited,
    SparkProgramEnded,
)
from firesteel.common.process import exit_reason, temporary
from firesteel.errors import FiresteelError
from firesteel.operator import SourceOperator
from taskexecutor.executor.columnar.jvm.engine import engine_of
from taskexecutor.executor.spark_program import standalone
from taskexecutor.executor.spark_program.output import ExecutorOutput
from taskexecutor.executor.spark_program.processes import end_trees
from taskexecutor.executor.spark_program.slot import SparkSlot, slot_of

log = get_logger(__name__)

_OUTPUT_INTERVAL_S = 0.5


class SparkExecutor(SourceOperator):
    """Runs a worker for the current master, until the program has ended."""

    reports_idle = False
    poll_interval_s = _OUTPUT_INTERVAL_S  # for the output, which the worker writes to files

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._slot: SparkSlot
        self._master = SparkMaster(url="")
        self._worker: subprocess.Popen[bytes] | None = None
        self._output: ExecutorOutput | None = None
        self._workers = 0
        self._ended = False

    def open(self) -> None:
        self._slot = slot_of(engine_of(self.context.spark))
        self._folder = temporary.make("spark-executor", self._slot.scratch)
        self.context.send_to_coordinator(SparkMasterAwaited())

    def handle_coordinator_event(self, event: Any) -> None:
        match event:
            case SparkMaster():
                if event != self._master:
                    self._master = event
                    self._end_worker()
                    if event.url:
                        self._start_worker(event)
            case SparkProgramEnded():
                self._ended = True
            case Resend():
                self.context.send_to_coordinator(SparkMasterAwaited())

    def _start_worker(self, master: SparkMaster) -> None:
        assert self._folder is not None
        self._workers += 1
        folder, slot = self._folder / str(self._workers), self._slot
        folder.mkdir()
        configuration, work = folder / "worker", folder / "work"
        standalone.write_configuration(configuration, standalone.settings_of_worker(master.secret))
        command = standalone.worker_command(
            slot.archived,
            configuration,
            host=slot.host,
            share=slot.share,
            folder=work,
            master=master.url,
        )
        log.info("the worker starts", master=master.url)
        self._worker = worker = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,
            cwd=folder,
            env=slot.environment(configuration, folder),
        )
        self._output = ExecutorOutput(work)
        context = contextvars.copy_context()
        threading.Thread(
            target=lambda: context.run(self._await_end, worker), name="worker-end", daemon=True
        ).start()

    def _await_end(self, worker: subprocess.Popen[bytes]) -> None:
        worker.wait()
        self.context.request_mail(lambda: None)

    def poll(self, max_wait_s: float) -> bool:
        self.waiting = True
        if self._output is not None:
            self._output.copy()
        if self._ended:
            self._end_worker()
            return False
        worker = self._worker
        if worker is not None and worker.poll() is not None:
            raise FiresteelError(
                f"the worker of the executor has ended: {exit_reason(worker.returncode)};"
                " see the slot's log for the cause"
            )
        return True

    def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            end_trees([worker])
        output, self._output = self._output, None
        if output is not None:
            output.copy()

    def close(self) -> None:
        self._end_worker()
        if self._folder is not None:
            temporary.remove(self._folder)
