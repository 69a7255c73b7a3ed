"""One engine in processes of its own, measured from outside: the time and the CPU time of its timed
run.

`measure` starts a supervisor (this module as a program), which starts the engine, reads what it
says and ends all that is left of it: when it has ended, when its time is over, or when whoever
measures is gone. The supervisor is the subreaper of the engine's processes: those whose parents
have ended become its children, so none is lost. It waits for none of them before the measurement is
over; so the CPU time of each, living or not, is in /proc: its own, or that of the parent which
waited for it.
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
SAID_LINES = 40  # that are kept of what an engine says
PROTOCOL = re.compile(r"begin$|end \d+$")
_LOOKS = 10  # at a tree of processes that changes meanwhile
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    rows: int
    seconds: float
    cpu_s: float | None  # of all its processes; None if it cannot be known
    load: float  # of the machine before it: above 1 or so, others were at work

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    @property
    def rows_per_cpu_s(self) -> float | None:
        return self.rows / self.cpu_s if self.cpu_s else None


class EngineFailed(Exception):
    """An engine was not measured. `said`: the last lines that it wrote."""

    def __init__(self, reason: str, said: str = "") -> None:
        super().__init__(reason)
        self.said = said


def measure(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
) -> Measured:
    """Runs it; it prints `begin` and `end ROWS` (see `work`). Raises EngineFailed."""
    command = [sys.executable, "-m", "benchmarks.peers.measure", str(timeout_s), *argv]
    # In a session of its own, a Ctrl-C does not reach the supervisor; the end of its standard input
    # does, as anything else would that ends this process.
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
    if "reason" in fields:
        raise EngineFailed(fields["reason"], fields["said"])
    return Measured(**fields)


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
        self._said: deque[str] = deque(maxlen=SAID_LINES)
        self._unfinished = b""
        self._began: tuple[float, float | None] | None = None  # by the clock and of CPU
        self._measured: Measured | None = None

    def run(self) -> Measured:
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        os.set_blocking(output, False)
        ended = os.pidfd_open(self._process.pid)  # its output may be held open by others
        with selectors.DefaultSelector() as selector:
            for file in (output, ended, sys.stdin.fileno()):
                selector.register(file, selectors.EVENT_READ)
            while (left_s := self._deadline - time.monotonic()) > 0:
                ready = {key.fd for key, _ in selector.select(left_s)}
                if output in ready and not self._read(output):
                    selector.unregister(output)
                if ended in ready:
                    self._read(output)
                    return self._result()
                if sys.stdin.fileno() in ready:
                    raise self._failed("whoever measured it has ended")
        if self._measured is not None:
            return self._measured
        raise self._failed(f"it did not end within {self._timeout_s:g} s")

    def _read(self, output: int) -> bool:
        """All that has been written by now; False at its end."""
        while True:
            try:
                data = os.read(output, 65_536)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._unfinished = (self._unfinished + data).split(b"\n")
            for line in lines:
                self._hear(line.decode(errors="replace"))

    def _hear(self, line: str) -> None:
        self._said.append(line)
        if line == "begin":
            self._began = time.monotonic(), cpu_s()
        elif PROTOCOL.match(line) and self._began is not None:
            now, used_s = time.monotonic(), cpu_s()
            began, used_before_s = self._began
            spent_s = (
                used_s - used_before_s if used_s is not None and used_before_s is not None else -1.0
            )
            self._measured = Measured(
                rows=int(line.split()[1]),
                seconds=now - began,
                cpu_s=spent_s if spent_s >= 0 else None,
                load=self._load,
            )
            self._deadline = min(self._deadline, now + GRACE_S)

    def _result(self) -> Measured:
        code = self._process.wait()
        if self._measured is None:
            raise self._failed(
                f"it was ended by {signal.Signals(-code).name}"
                if code < 0
                else f"it ended with code {code}"
            )
        if self._measured.rows == 0:
            raise self._failed("it took in no rows")
        return self._measured

    def _failed(self, how: str) -> EngineFailed:
        """With the last line that says something: all but a Java error's stack trace."""
        said = [*self._said, self._unfinished.decode(errors="replace")]
        telling = [
            line
            for line in said
            if line.strip() and not line[0].isspace() and not PROTOCOL.match(line)
        ]
        return EngineFailed(f"{how}: {telling[-1]}" if telling else how, "\n".join(said).strip())


def cpu_s() -> float | None:
    """Of all that this process has ever started, none of which it has waited for. None if that
    changed all the time.
    """
    for _ in range(_LOOKS):
        before = psutil.Process().children(recursive=True)
        try:
            times = [process.cpu_times() for process in before]
        except psutil.NoSuchProcess:
            continue
        # If they are the same ones still, none has been waited for between the looks at its own
        # time and at its parent's.
        if set(psutil.Process().children(recursive=True)) == set(before):
            return sum(t.user + t.system + t.children_user + t.children_system for t in times)
    return None


def end_all() -> None:
    """Kills and waits for all that this process has started, orphans included."""
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
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # where it is ignored, the times of processes that have ended are lost
    try:
        answer = asdict(_Supervisor(sys.argv[2:], float(sys.argv[1])).run())
    except OSError as error:
        answer = {"reason": f"it did not start: {error}", "said": ""}
    except EngineFailed as error:
        answer = {"reason": str(error), "said": error.said}
    finally:
        end_all()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
