"""A running job: a live table on a terminal, elsewhere a line at every change."""

from __future__ import annotations

import sys
import termios
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

import click
from rich.console import Console
from rich.live import Live

from firesteel.client import render
from firesteel.client.job_details import JobDetails, TaskMetrics, Vertex
from firesteel.common import units
from firesteel.common.states import ExecutionState

PACE_WINDOW_S = 3.0  # rates are over this time
COUNTS_EVERY_S = 10.0  # plain: interval of record counts while nothing else changes


class Display(Protocol):
    interrupted: bool  # Ctrl-C was pressed

    def begin(self) -> None:
        """A job was submitted."""

    def update(self, details: JobDetails) -> None: ...

    def cancelling(self, job_id: str) -> None: ...

    def __enter__(self) -> Any: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def progress_display() -> Display:
    console = render.console()
    return LiveDisplay(console) if console.is_terminal else PlainDisplay()


class Paces:
    """The rates of a job's vertices, from its successive details."""

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
    """From its first running task to the end of the job."""
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


class LiveDisplay:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._paces = Paces()
        self._live: Live | None = None
        self._terminal: list[Any] | None = None  # its settings before
        self.interrupted = False

    def begin(self) -> None:
        self._end()
        self._paces = Paces()
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._terminal = _without_echoed_controls()
        self._live.start()

    def update(self, details: JobDetails) -> None:
        if self._live is not None:
            paces = self._paces.update(details, time.monotonic())
            self._live.update(
                render.progress(details, paces, cancelling=self.interrupted), refresh=True
            )
        if details.status.globally_terminal:
            self._end()

    def cancelling(self, job_id: str) -> None:
        self.interrupted = True

    def _end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            if self._terminal is not None:
                termios.tcsetattr(sys.stdin, termios.TCSANOW, self._terminal)

    def __enter__(self) -> LiveDisplay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()


def _without_echoed_controls() -> list[Any] | None:
    """Keeps the terminal from writing ^C into the table. Returns its settings before."""
    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, OSError, ValueError):  # no terminal there
        return None
    quiet = list(before)
    quiet[3] &= ~termios.ECHOCTL
    termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
    return before


class PlainDisplay:
    def __init__(self) -> None:
        self.interrupted = False
        self._paces = Paces()
        self._shown: dict[str, str] = {}
        self._counts_at = 0.0

    def begin(self) -> None:
        self._shown.clear()
        self._paces = Paces()
        self._counts_at = time.monotonic() + COUNTS_EVERY_S

    def update(self, details: JobDetails) -> None:
        status = f"job {details.status.name}"
        paces = self._paces.update(details, time.monotonic())
        if details.waiting_for:
            # Without the duration, which always changes.
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
            self._counts_at = time.monotonic() + COUNTS_EVERY_S
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
        click.echo(f"{time.strftime('%H:%M:%S')} {line}")

    def cancelling(self, job_id: str) -> None:
        self.interrupted = True
        click.echo(
            f"Cancelling job {job_id}; press Ctrl-C again to leave without waiting.", err=True
        )

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
