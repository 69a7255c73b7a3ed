"""The driver's task: the program, and the master of its cluster."""

from __future__ import annotations

import contextvars
import functools
import json
import os
import secrets
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import psutil

from firesteel.common.error_report import DescribedElsewhere
from firesteel.common.logs import get_logger
from firesteel.common.operator_messages import Resend, SparkMasterStarted
from firesteel.common.process import exit_reason, module_command, temporary
from firesteel.errors import ErrorInfo, FiresteelError
from firesteel.operator import SourceOperator
from firesteel.operators.spark_program import SparkDriverSpec
from taskexecutor.executor.columnar.jvm.engine import engine_of
from taskexecutor.executor.spark_program import standalone
from taskexecutor.executor.spark_program.processes import end_trees, free_port, listens
from taskexecutor.executor.spark_program.program import (
    ERROR,
    REQUEST_VARIABLE,
    UI_ADDRESS,
    ProgramRequest,
)
from taskexecutor.executor.spark_program.slot import SparkSlot, slot_of

log = get_logger(__name__)

_MODULE = "taskexecutor.executor.spark_program.program"
_LISTENING_INTERVAL_S = 0.05
_OUTPUT_END_S = 5.0
_ATTEMPTS = 3  # another process may take the master's port before it does


class SparkDriver(SourceOperator):
    """Runs while the program does. It fails with the program's error."""

    reports_idle = False

    def __init__(self, spec: SparkDriverSpec) -> None:
        self._spec = spec
        self._folder: Path | None = None
        self._slot: SparkSlot
        self._secret = ""
        self._port = 0
        self._master: subprocess.Popen[bytes] | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self._ready: IO[str] | None = None
        self._serves = False
        self._attempts = 0
        self._ui_address = ""
        self._error: ErrorInfo | None = None
        self._readers: list[threading.Thread] = []

    def open(self) -> None:
        self._slot = slot_of(engine_of(self.context.spark))
        self._folder = temporary.make("spark-driver", self._slot.scratch)
        self._start()

    def _start(self) -> None:
        """Starts the master and, beside it, the program: both take seconds."""
        folder, slot = self._folder, self._slot
        assert folder is not None
        self._attempts += 1
        folder = folder / str(self._attempts)
        folder.mkdir()
        self._secret = secrets.token_urlsafe(32)
        self._port = free_port(slot.host)
        configuration = folder / "master"
        standalone.write_configuration(configuration, standalone.settings_of_master(self._secret))
        self._master = subprocess.Popen(
            standalone.master_command(
                slot.archived, configuration, host=slot.host, port=self._port
            ),
            stdin=subprocess.DEVNULL,
            stdout=2,
            cwd=folder,
            env=slot.environment(configuration, folder),
        )
        self._start_program(folder)
        self.waiting, self.poll_interval_s = True, _LISTENING_INTERVAL_S

    def _start_program(self, folder: Path) -> None:
        spec, slot = self._spec, self._slot
        configuration, source = folder / "driver", folder / "program.py"
        settings = standalone.settings_of_driver(
            spec.settings, slot.share, master=self._url, secret=self._secret, host=slot.host
        )
        standalone.write_configuration(configuration, settings)
        source.write_bytes(spec.source)
        ready_read, ready_write = os.pipe()
        report_read, report_write = os.pipe()
        request = ProgramRequest(
            file=spec.file,
            source=str(source),
            arguments=spec.arguments,
            cores=slot.share.cores,
            memory_mib=slot.share.memory_mib,
            ready_fd=ready_read,
            report_fd=report_write,
            user_code_roots=(str(Path(spec.file).parent), *slot.python_paths),
        )
        environment = slot.environment(configuration, folder)
        environment |= {REQUEST_VARIABLE: request.text(), "PYTHONUNBUFFERED": "1"}
        self._ready = os.fdopen(ready_write, "w")
        try:
            self._program = subprocess.Popen(
                module_command(_MODULE),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                cwd=spec.folder if os.path.isdir(spec.folder) else folder,
                env=environment,
                pass_fds=(ready_read, report_write),
            )
        finally:
            os.close(ready_read)
            os.close(report_write)
        assert self._program.stdout is not None
        reports = os.fdopen(report_read, encoding="utf-8")
        output = self._program.stdout
        self._readers = [
            self._reader(lambda: _print_lines(output), "program-output"),
            self._reader(lambda: self._read_reports(reports), "program-reports"),
        ]
        self._watch(self._program)

    @property
    def _url(self) -> str:
        return f"spark://{self._slot.host}:{self._port}"

    def _reader(self, read: Callable[[], None], name: str) -> threading.Thread:
        """Reads in a thread that logs and prints as the task's own thread does."""
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: context.run(read), name=name, daemon=True)
        thread.start()
        return thread

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Wakes the task when the process ends."""

        def wait() -> None:
            process.wait()
            self.context.request_mail(lambda: None)

        self._reader(wait, "program-end")

    def _read_reports(self, reports: IO[str]) -> None:
        with reports:
            for line in reports:
                report: dict[str, Any] = json.loads(line)
                if ERROR in report:
                    self._error = ErrorInfo(**report[ERROR] | {"final": True})
                else:
                    show = functools.partial(self._show_ui, str(report[UI_ADDRESS]))
                    self.context.request_mail(show)

    def _show_ui(self, address: str) -> None:
        self._ui_address = address
        if self._serves:
            self._report_master()

    def _report_master(self) -> None:
        self.context.send_to_coordinator(
            SparkMasterStarted(url=self._url, secret=self._secret, ui_address=self._ui_address)
        )

    def handle_coordinator_event(self, event: Any) -> None:
        if isinstance(event, Resend) and self._serves:
            self._report_master()

    def poll(self, max_wait_s: float) -> bool:
        program, master = self._program, self._master
        assert program is not None
        assert master is not None
        self.waiting = True
        if program.poll() is not None:
            self._end_processes()
            self._check_end(program.returncode)
            return False
        if master.poll() is not None:
            self._master_ended(master.returncode)
        elif not self._serves:
            self._await_master(master)
        return True

    def _await_master(self, master: subprocess.Popen[bytes]) -> None:
        try:
            self._serves = listens(master.pid, self._port)
        except psutil.NoSuchProcess:
            return  # the next poll finds its exit code
        if self._serves:
            self.poll_interval_s = None  # from now on, mails announce every change
            self._watch(master)
            self._report_master()
            assert self._ready is not None
            with self._ready as ready:
                ready.write(f"{self._url}\n")

    def _master_ended(self, code: int) -> None:
        self._end_processes()
        if self._serves or self._attempts == _ATTEMPTS:
            raise FiresteelError(
                f"the master of the program's cluster has ended: {exit_reason(code)};"
                " see the slot's log for the cause"
            )
        log.warning("the master of the program's cluster did not start", code=code)
        self._start()

    def _check_end(self, code: int) -> None:
        name = Path(self._spec.file).name
        if code == 0:
            return
        if self._error is not None:
            raise DescribedElsewhere(self._error)
        if code < 0:  # another attempt may succeed
            raise FiresteelError(f"the process of {name} has ended: {exit_reason(code)}")
        text = f"{name} ended with exit code {code}; its own messages are in the slot's log"
        raise DescribedElsewhere(ErrorInfo(summary=text, final=True, exit_code=code))

    def _end_processes(self) -> None:
        started = [process for process in (self._program, self._master) if process is not None]
        end_trees(started)
        if self._ready is not None:
            self._ready.close()
        for reader in self._readers:  # no process has the other end of their pipes
            reader.join(_OUTPUT_END_S)
        if self._program is not None and self._program.stdout is not None:
            self._program.stdout.close()
        self._readers = []

    def close(self) -> None:
        self._end_processes()
        if self._folder is not None:
            temporary.remove(self._folder)


def _print_lines(output: IO[bytes]) -> None:
    for line in output:
        print(line.decode(errors="backslashreplace"), end="", flush=True)
