"""Shows a running job on standard error: a live table on a terminal, otherwise a line per change.

Standard output is reserved for the output of the program and its jobs.
"""

from __future__ import annotations

import contextlib
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rich.console import Console, Group
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.segment import Segment, Segments
from rich.text import Text

from firesteel.client import render
from firesteel.client.job_details import JobDetails, Vertex
from firesteel.client.job_output import write_to_stdout
from firesteel.common import units
from firesteel.common.states import ExecutionState
from firesteel.common.task_metrics import TaskMetrics
from firesteel.errors import ErrorInfo

SHOWN_ID = 8  # characters of a job's id, which the verbs also accept
PACE_WINDOW_S = 3.0  # rates are averages over this time
COUNTS_EVERY_S = 10.0  # plain display: interval of record counts while nothing else changes


QUIET_S = 10.0  # plain display of `python job.py`: a shorter job shows nothing
PROGRAM_COUNTS_EVERY_S = 60.0


def run_display(where: Callable[[], str]) -> LiveDisplay | PlainDisplay:
    """Returns the display for `firesteel run`. `where` returns the address of the cluster."""
    console = render.console(stderr=True)
    return LiveDisplay(console, where) if console.is_terminal else PlainDisplay(where)


def program_display(where: Callable[[], str]) -> LiveDisplay | PlainDisplay:
    """Returns the display for `python job.py`, notebooks and the REPL."""
    console = render.console(stderr=True)
    if console.is_terminal:
        return LiveDisplay(console, where)
    return PlainDisplay(where, quiet_s=QUIET_S, counts_every_s=PROGRAM_COUNTS_EVERY_S)


def _hint(where: Callable[[], str], job_id: str) -> str:
    job = f"-m {where()} {job_id[:SHOWN_ID]}"
    return f"Details: firesteel show {job}; logs: firesteel logs {job}"


class Paces:
    """Computes the rates of a job's vertices from its successive details."""

    def __init__(self) -> None:
        self._history: deque[tuple[float, dict[str, TaskMetrics]]] = deque()

    def update(self, details: JobDetails, now_s: float) -> dict[str, render.Pace]:
        metrics = {vertex.vertex_id: vertex.metrics for vertex in details.vertices}
        if details.status.globally_terminal:
            return {
                vertex.vertex_id: _pace(TaskMetrics(), vertex.metrics, _ran_s(vertex, details))
                for vertex in details.vertices
            }
        while len(self._history) > 1 and now_s - self._history[1][0] >= PACE_WINDOW_S:
            self._history.popleft()
        self._history.append((now_s, metrics))
        then_s, then = self._history[0]
        if now_s - then_s < 0.2:  # too short for a rate
            return {}
        return {
            key: _pace(then.get(key, TaskMetrics()), value, now_s - then_s)
            for key, value in metrics.items()
        }


def _ran_s(vertex: Vertex, details: JobDetails) -> float:
    """Returns the time from the vertex's first running task to the end of the job."""
    began = [
        ms
        for s in vertex.subtasks
        if s.current and (ms := s.current.entered_ms.get(ExecutionState.RUNNING))
    ]
    return (details.end_ms - min(began)) / 1000 if began and details.end_ms else 0.0


def _pace(then: TaskMetrics, now: TaskMetrics, elapsed_s: float) -> render.Pace:
    def moved(name: str) -> float:
        # A new attempt counts from zero.
        return max(0.0, float(getattr(now, name) - getattr(then, name)))

    whole_ms = moved("busy_ms") + moved("idle_ms") + moved("back_pressured_ms")
    return render.Pace(
        records_in_per_s=moved("records_in") / elapsed_s if elapsed_s > 0 else 0.0,
        records_out_per_s=moved("records_out") / elapsed_s if elapsed_s > 0 else 0.0,
        busy=moved("busy_ms") / whole_ms if whole_ms else 0.0,
        idle=moved("idle_ms") / whole_ms if whole_ms else 0.0,
        back_pressured=moved("back_pressured_ms") / whole_ms if whole_ms else 0.0,
    )


class Failures:
    """Selects the failures of a restarting job that have not been shown yet."""

    def __init__(self) -> None:
        self._latest_ms = 0
        self._shown: set[str] = set()

    def update(self, details: JobDetails) -> list[str]:
        """Returns the new failures as text, oldest first. Only the first of several equal failures
        has its traceback. The failure that ends the job is not among them: the program raises it.
        """
        if details.status.globally_terminal:
            return []
        new = [
            error
            for error in reversed(details.exceptions)
            if error.timestamp_ms > self._latest_ms and not error.consequence
        ]
        if new:
            self._latest_ms = max(error.timestamp_ms for error in new)
        return [self._text(error) for error in new]

    def _text(self, error: ErrorInfo) -> str:
        where = f"{error.task_name} failed" if error.task_name else "the job failed"
        if error.shown in self._shown:
            return f"{where} again: {error.summary}"
        self._shown.add(error.shown)
        return f"{where}: {error.summary}" + (
            f"\n{error.user_traceback.rstrip()}" if error.user_traceback else ""
        )


class LiveDisplay:
    """A table at the end of the terminal; the jobs' output scrolls above it."""

    def __init__(self, console: Console, where: Callable[[], str]) -> None:
        self._console = console
        self._where = where
        self._paces = Paces()
        self._failures = Failures()
        self._live: Live | None = None
        self._terminal: list[Any] | None = None  # its settings before
        self._changing = threading.RLock()  # other threads call `write`
        self.interrupted = False

    def begin(self) -> None:
        self.end()
        self._paces = Paces()
        self._failures = Failures()
        self.interrupted = False
        with self._changing:
            # Text that is not written to the terminal does not disturb the table.
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=False,
                redirect_stdout=_is_terminal(sys.stdout),
            )
            self._terminal = _without_echoed_controls()
            self._live.start()

    def update(self, details: JobDetails) -> None:
        with self._changing:
            if self._live is not None:
                for failure in self._failures.update(details):
                    self._console.print(Text(failure, style="red"), soft_wrap=True)
                paces = self._paces.update(details, time.monotonic())
                shown = render.progress(details, paces, cancelling=self.interrupted)
                if not details.status.globally_terminal:
                    hint = Text(_hint(self._where, details.job_id), style="dim", overflow="fold")
                    shown = Group(shown, hint)
                self._live.update(shown, refresh=True)
        if details.status.globally_terminal:
            self.end()

    def cancelling(self, job_id: str) -> None:
        self.interrupted = True

    def write(self, text: str) -> None:
        with self._changing:
            if self._live is not None and isinstance(sys.stdout, FileProxy):
                self._console.print(Segments([Segment(text)]), soft_wrap=True, end="")
                return
        write_to_stdout(text)

    def end(self) -> None:
        with self._changing:
            if self._live is not None:
                self._live.stop()
                self._live = None
                if self._terminal is not None:
                    with contextlib.suppress(termios.error, ValueError):  # the terminal has gone
                        termios.tcsetattr(sys.stdin, termios.TCSANOW, self._terminal)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # missing or closed
        return False


def _without_echoed_controls() -> list[Any] | None:
    """Keeps the terminal from writing ^C into the table. Returns its earlier settings."""
    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, OSError, ValueError):  # not a terminal
        return None
    quiet = list(before)
    quiet[3] &= ~termios.ECHOCTL
    termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
    return before


class PlainDisplay:
    """Prints a line per change."""

    def __init__(
        self,
        where: Callable[[], str],
        *,
        quiet_s: float = 0.0,
        counts_every_s: float = COUNTS_EVERY_S,
    ) -> None:
        """Shows nothing about a job for `quiet_s`."""
        self.interrupted = False
        self._where = where
        self._quiet_s = quiet_s
        self._counts_every_s = counts_every_s
        self.begin()

    def begin(self) -> None:
        self.interrupted = False
        self._shown: dict[str, str] = {}
        self._paces = Paces()
        self._failures = Failures()
        now = time.monotonic()
        self._quiet_until = now + self._quiet_s
        self._counts_at = now + max(self._counts_every_s, self._quiet_s)

    def update(self, details: JobDetails) -> None:
        status = f"job {details.status.name}"
        paces = self._paces.update(details, time.monotonic())
        if time.monotonic() < self._quiet_until:
            return
        if self._quiet_s and details.status.globally_terminal and not self._shown:
            return
        if "hint" not in self._shown and not details.status.globally_terminal:
            self._shown["hint"] = ""
            self._print(_hint(self._where, details.job_id))
        for failure in self._failures.update(details):
            self._print(failure)
        if details.waiting_for:
            # Without the duration, which changes constantly.
            self._line(
                "waiting",
                details.waiting_for.split(" (")[0],
                f"{status}, waiting for {details.waiting_for}",
            )
        else:
            self._line("job", status, status)
        for vertex in details.vertices:
            states = render.states_text(vertex.states)
            if states:
                self._line(
                    vertex.vertex_id, states, f"{vertex.name}: {states}{_counts(vertex, paces)}"
                )
        if time.monotonic() >= self._counts_at and not details.status.globally_terminal:
            self._counts_at = time.monotonic() + self._counts_every_s
            if details.waiting_for:
                self._print(f"{status}, waiting for {details.waiting_for}")
            for vertex in details.vertices:
                if counts := _counts(vertex, paces):
                    self._print(f"{vertex.name}:{counts}")

    def _line(self, key: str, news: str, line: str) -> None:
        if self._shown.get(key) != news:
            self._shown[key] = news
            self._print(line)

    def _print(self, line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr)

    def cancelling(self, job_id: str) -> None:
        self.interrupted = True
        print(
            f"Cancelling job {job_id}; press Ctrl-C again to leave without waiting.",
            file=sys.stderr,
        )

    def write(self, text: str) -> None:
        write_to_stdout(text)

    def end(self) -> None:
        pass


def _counts(vertex: Vertex, paces: Mapping[str, render.Pace]) -> str:
    metrics, pace = vertex.metrics, paces.get(vertex.vertex_id, render.Pace())
    counted = (
        (metrics.records_in, "in", pace.records_in_per_s),
        (metrics.records_out, "out", pace.records_out_per_s),
    )
    counts = [
        f"{n:,} records {word}" + (f" at {units.rate(per_s)}" if per_s else "")
        for n, word, per_s in counted
        if n
    ]
    counts += [text] if counts and (text := render.mostly(pace)) else []
    return f" ({', '.join(counts)})" if counts else ""
