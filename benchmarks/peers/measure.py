"""Measures the wall-clock and CPU time of an engine's timed runs, in separate processes.

`measure` (one run) and `measure_each` (several, by name) start a supervisor (this module as a
program), which starts the engine, reads its output and kills what is left of it: when it has ended,
when its time is over, or when the measuring process has ended. The supervisor is the subreaper of
the engine's processes: those whose parents have ended become its children, so none is lost. It
waits for none of them before the measurement is over; so the CPU time of each, alive or not, is in
/proc: its own, or in that of the parent that waited for it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900.0
GRACE_S = 30.0  # from the end of the timed run to that of its processes
OUTPUT_LINES = 40  # number of kept lines of an engine's output
PROTOCOL = re.compile(r"begin( \S+)?$|end \d+$|failed \S+ ")
_CHUNK_BYTES = 65_536
_ATTEMPTS = 10  # to read a changing process tree
_CHUNKS = 16  # chunks to read at a time: a mebibyte, the maximum size of a pipe
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    rows: int
    seconds: float
    cpu_s: float | None  # of all its processes; None if unknown
    load: float  # of the machine before the run; above about 1, other programs were running

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    @property
    def rows_per_cpu_s(self) -> float | None:
        return self.rows / self.cpu_s if self.cpu_s else None


class EngineFailed(Exception):
    """An engine was not measured. `output` holds its last lines."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.output = output


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The timed runs of one command."""

    measured: Mapping[str, Measured]  # by name
    failed: Mapping[str, str]  # by name: the reason
    reason: str = ""  # why there are no others
    output: str = ""  # the command's last lines

    def of(self, name: str) -> Measured | EngineFailed:
        if name in self.measured:
            return self.measured[name]
        return EngineFailed(self.failed.get(name) or self.reason or "it was not run", self.output)


def measure(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
) -> Measured:
    """Runs a command that prints `begin` and `end ROWS` (see `work`). Raises EngineFailed."""
    result = measure_each(argv, environ, timeout_s).of("")
    if isinstance(result, EngineFailed):
        raise result
    return result


def measure_each(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
) -> Runs:
    """Runs a command that prints `begin NAME` and `end ROWS` for each run, or `failed NAME REASON`.
    The timeout applies to each run, and to the time before it.
    """
    command = [sys.executable, "-m", "benchmarks.peers.measure", str(timeout_s), *argv]
    # In a separate session, the supervisor gets no Ctrl-C; it ends when its standard input does,
    # which is when this process ends.
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as supervisor:
        assert supervisor.stdin is not None and supervisor.stdout is not None
        try:
            answer = supervisor.stdout.read()
        finally:
            supervisor.stdin.close()
            supervisor.wait()
    if supervisor.returncode != 0:
        raise EngineFailed(f"its supervisor ended with code {supervisor.returncode}", answer)
    fields = json.loads(answer)
    measured = {name: Measured(**run) for name, run in fields.pop("measured").items()}
    return Runs(measured=measured, **fields)


class _Supervisor:
    def __init__(self, argv: Sequence[str], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._load = os.getloadavg()[0]
        self._deadline = time.monotonic() + timeout_s
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._lines: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._unfinished = b""
        self._began: tuple[float, float | None] | None = None  # wall clock and CPU
        self._name = ""
        self._measured: dict[str, Measured] = {}
        self._failures: dict[str, str] = {}

    def run(self) -> Runs:
        """Runs until the command has ended or its time is over."""
        try:
            reason = self._wait()
        except EngineFailed as failed:
            reason = str(failed)
        return Runs(
            measured=self._measured,
            failed=self._failures,
            reason=reason,
            output="\n".join(self._all_lines()).strip(),
        )

    def _wait(self) -> str:
        """Returns why there are no more runs; empty on success."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        os.set_blocking(output, False)
        ended = os.pidfd_open(self._process.pid)  # its children may keep its output open
        with selectors.DefaultSelector() as selector:
            for file in (output, ended, sys.stdin.fileno()):
                selector.register(file, selectors.EVENT_READ)
            while (left_s := self._deadline - time.monotonic()) > 0:
                ready = {key.fd for key, _ in selector.select(left_s)}
                if output in ready and not self._read(output):
                    selector.unregister(output)
                if ended in ready:
                    self._read(output)
                    return self._how_it_ended()
                if sys.stdin.fileno() in ready:
                    raise self._failed("the process that measured it has ended")
        if "" in self._measured:
            return ""
        raise self._failed(f"it did not end within {self._timeout_s:g} s")

    def _read(self, output: int) -> bool:
        """Reads what has been written so far, but no more than a pipe holds: one that writes
        faster than it is read also has a deadline. Returns False at the end.
        """
        for _ in range(_CHUNKS):
            try:
                data = os.read(output, _CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._unfinished = (self._unfinished + data).split(b"\n")
            for line in lines:
                self._handle(line.decode(errors="replace"))
        return True

    def _handle(self, line: str) -> None:
        self._lines.append(line)
        if line.startswith("failed ") and PROTOCOL.match(line):
            _, name, reason = line.split(" ", 2)
            self._failures[name] = reason
        elif line.startswith("begin") and PROTOCOL.match(line):
            self._name = line.removeprefix("begin").strip()
            self._deadline = time.monotonic() + self._timeout_s
            self._began = time.monotonic(), cpu_s()
        elif PROTOCOL.match(line) and self._began is not None:
            now, used_s = time.monotonic(), cpu_s()
            began, used_before_s = self._began
            spent_s = (
                used_s - used_before_s if used_s is not None and used_before_s is not None else -1.0
            )
            if rows := int(line.split()[1]):
                self._measured[self._name] = Measured(
                    rows=rows,
                    seconds=now - began,
                    cpu_s=spent_s if spent_s >= 0 else None,
                    load=self._load,
                )
            else:
                self._failures[self._name] = "it read no rows"
            self._load = os.getloadavg()[0]
            self._deadline = now + (self._timeout_s if self._name else GRACE_S)

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        if code != 0 or not (self._measured or self._failures):
            raise self._failed(
                f"it was ended by {signal.Signals(-code).name}"
                if code < 0
                else f"it ended with code {code}"
            )
        return ""

    def _all_lines(self) -> list[str]:
        return [*self._lines, self._unfinished.decode(errors="replace")]

    def _failed(self, how: str) -> EngineFailed:
        """Quotes the last line that is not indented, unlike the frames of a Java stack trace."""
        lines = self._all_lines()
        messages = [
            line
            for line in lines
            if line.strip() and not line[0].isspace() and not PROTOCOL.match(line)
        ]
        return EngineFailed(f"{how}: {messages[-1]}" if messages else how, "\n".join(lines).strip())


def cpu_s() -> float | None:
    """Returns the CPU time of all processes that this one has started, none of which it has waited
    for.

    Returns None if the processes changed at every attempt.
    """
    for _ in range(_ATTEMPTS):
        before = psutil.Process().children(recursive=True)
        try:
            times = [process.cpu_times() for process in before]
        except psutil.NoSuchProcess:
            continue
        # If they are still the same, none was waited for between reading its time and its parent's.
        if set(psutil.Process().children(recursive=True)) == set(before):
            return sum(t.user + t.system + t.children_user + t.children_system for t in times)
    return None


def end_all() -> None:
    """Kills and waits for all processes that this one has started, including orphans."""
    while True:
        for process in psutil.Process().children(recursive=True):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # If it were ignored, the times of ended processes would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        runs = _Supervisor(sys.argv[2:], float(sys.argv[1])).run()
    except OSError as error:
        runs = Runs(measured={}, failed={}, reason=f"it did not start: {error}")
    finally:
        end_all()
    print(json.dumps(asdict(runs)))


if __name__ == "__main__":
    main()
